"""The colours of the columns of a table."""

from __future__ import annotations

import matplotlib as mpl
from matplotlib.colors import to_hex


def colour(place: int, count: int) -> str:
    """Of a column: matplotlib's usual ten, and twenty where there are more columns."""
    return f"C{place}" if count <= 10 else to_hex(mpl.colormaps["tab20"](place % 20))
