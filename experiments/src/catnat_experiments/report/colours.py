"""One colour for each parameterization, in all plots.

The first three are from Okabe and Ito's palette, which colour-blind readers can distinguish. Scripts of the gallery are
downloaded without this package, so they repeat the colours that they need. A test of this package compares them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.colors import to_hex, to_rgb

PALETTE = {
    "softmax": "#D55E00",
    "sigmoid": "#CC79A7",
    "natural": "#0072B2",
    "sparsemax": "#999999",
    # variants with another update: darker than the parameterization that they change
    "softmax-damped-gradient": "#7A3600",
    "sigmoid-trust-region": "#A34D7C",
    "natural-damped-gradient": "#003A5C",
    # references
    "exact": "#000000",
    "optimal": "#000000",
    "untrained": "#666666",
}
"""The colours of parameterizations, by their names in configs and records."""


def colour(name: str, names: Sequence[str]) -> str:
    """Return the colour of one column among others.

    A parameterization has its own colour. Its variants, such as "natural+warm-up" and "natural, warm-up", have lighter
    shades of it, one each. Other columns get a colour by their place among the names.
    """
    base = _base(name)
    if base in PALETTE:
        variants = [other for other in names if _base(other) == base != other] or [name]
        return PALETTE[base] if name == base else _lighter(PALETTE[base], variants.index(name), len(variants))
    colours = "tab10" if len(names) <= 10 else "tab20"  # half of the second are shades of the other half
    return to_hex(mpl.colormaps[colours](list(names).index(name) % 20))


def _base(name: str) -> str:
    return re.split(r"\+|, ", name, maxsplit=1)[0]


def _lighter(shade: str, place: int, count: int) -> str:
    """Return one of ``count`` shades between a colour and white."""
    white = 0.8 * (place + 1) / (count + 1)  # below 0.8, so that every shade is visible on a white page
    red, green, blue = (white + (1 - white) * part for part in to_rgb(shade))
    return to_hex((red, green, blue))
