"""The variants of the main VAE, parameterizations with recipes of training, and the paper's numbers."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from catnat_experiments.common.parameterizations import Parameterization, parameterization
from catnat_experiments.report.targets import Target, read_targets

# ---- the paper's numbers ---------------------------------------------------------------------------------------------

IN_THE_PAPER = ("sparsemax", "softmax", "sigmoid", "natural")
FITTING = "+relaxed+constant-rate"
"""The recipe whose numbers are near the paper's: relaxed samples in the decoder, a constant learning rate."""
FITTED = tuple(name + FITTING for name in IN_THE_PAPER)
FACTORS = (
    "softmax",
    "natural",
    "softmax+relaxed",
    "natural+relaxed",
    "softmax+clip",
    "softmax+constant-rate",
    "softmax+half-kl",
    "softmax+cold",
)
"""The search for that recipe: the public code's, and one factor of it changed at a time."""
ABLATED = tuple(
    f"{kind}+constant-rate" for kind in ("softmax", "softmax-anchored", "softmax-haar", "sigmoid", "natural")
)
"""The variants of the ablation, with softmax of K - 1 scores without the tree. Samples are one-hot."""
ALL = tuple(dict.fromkeys((*IN_THE_PAPER, *FACTORS, *ABLATED, *FITTED)))
LATENTS, CLASSES = (10, 20, 30), (8, 16, 32)
OPTIMIZERS = {"adam": "Adam", "sgd": "SGD"}
"""The names of optimizers in tables and figures."""

_PAPERS = {  # N, parameterization, then grey MNIST with K = 8, 16, 32, then binary MNIST
    "adam": """
10 sparsemax  102.5±0.3  101.1±0.6  101.3±0.8   87.0±0.4   83.4±0.9   85.2±1.5
10 softmax    100.9±0.5  98.1±0.7*   98.6±0.7   84.9±0.8   81.0±1.2   79.9±0.5
10 sigmoid    99.5±0.2*  97.7±0.4*  96.6±0.2*  83.0±0.6*  78.8±0.6*  76.9±0.7*
10 natural    99.8±0.4*  97.6±0.2*  96.9±0.4*  83.2±0.5*  78.7±0.3*  77.3±0.4*
20 sparsemax  102.1±0.7  102.1±0.8  103.8±0.7   84.3±0.8   83.6±0.8   85.1±0.6
20 softmax    97.8±0.2*  97.5±0.5*   98.2±0.8   78.3±0.5   78.1±0.4   79.2±1.0
20 sigmoid    97.5±0.3*  96.9±0.4*  97.0±0.3*  77.5±1.1*  76.7±0.7*  76.2±0.5*
20 natural    97.7±0.2*  97.0±0.4*  96.9±0.4*  77.1±0.4*  76.6±0.3*  76.8±0.4*
30 sparsemax  105.3±0.5  103.9±0.5  104.9±0.8   86.9±0.6   87.2±1.0   88.7±1.3
30 softmax     98.8±0.7   98.8±0.9   99.3±0.7   79.0±0.5   79.2±0.9   80.6±0.6
30 sigmoid    98.1±0.4*  97.6±0.4*  97.9±0.5*  77.9±0.7*  77.8±0.6*  77.9±1.1*
30 natural    97.9±0.3*  97.6±0.3*  97.7±0.8*  77.9±0.6*  77.7±0.5*  78.0±0.7*
""",
    "sgd": """
10 sparsemax  102.9±0.7  102.8±0.4  107.4±1.4   87.5±0.4   86.3±1.1   90.1±1.3
10 softmax    102.3±0.4  101.5±0.8  102.4±0.5   86.7±0.7   83.4±0.3   84.9±2.7
10 sigmoid   100.6±0.3*  99.3±0.9* 100.1±1.1*  84.0±0.6*  80.1±0.2*  81.0±0.5*
10 natural   100.6±0.4*  99.6±0.6* 101.2±1.4*  83.8±0.2*   81.3±0.4  80.9±0.2*
20 sparsemax  103.5±1.6  112.9±2.2  118.0±2.7   85.3±1.6   97.2±1.9  107.7±3.2
20 softmax     99.3±0.3  100.5±1.1  106.1±0.8   79.6±0.5   80.7±0.1   86.6±2.9
20 sigmoid    98.6±0.3*  99.7±1.4*  99.9±0.5*  78.7±0.5*  79.2±0.7*  81.5±2.0*
20 natural    98.8±0.5*  98.8±0.4*  100.7±0.4  79.0±0.9*  79.2±0.8*  80.9±0.9*
30 sparsemax  105.7±1.0  115.1±2.0  123.7±5.0   89.4±0.6  101.7±0.2  112.1±2.0
30 softmax    99.7±0.4*  100.6±0.8  110.4±5.7  80.1±0.8*   81.3±0.5   85.1±1.6
30 sigmoid    99.8±1.3*  99.4±0.5* 104.8±2.7*  79.5±1.0*  79.3±0.6*  82.9±1.4*
30 natural    99.5±0.2* 100.2±0.9* 102.0±1.0*  79.7±1.2*  80.2±1.9*  83.5±3.0*
""",
}
PAPER: dict[tuple[str, str, int], dict[int, dict[str, Target]]] = {
    (optimizer, data, latents): {
        classes: {name: rows[str(latents), name][len(CLASSES) * half + place] for name in IN_THE_PAPER}
        for place, classes in enumerate(CLASSES)
    }
    for optimizer, rows in ((name, read_targets(text, names=2)) for name, text in _PAPERS.items())
    for half, data in enumerate(("grey", "binary"))
    for latents in LATENTS
}
"""The paper's test NLL (Table 3 with Adam, Table 5 with SGD): optimizer, data, N -> K -> parameterization."""

# ---- variants --------------------------------------------------------------------------------------------------------


class Recipe(NamedTuple):
    """A recipe of training for all parameterizations. The defaults are the public code's.

    Attributes:
        coolest: The lowest temperature of relaxed samples.
        relaxed: Whether the decoder is trained on relaxed samples, not on one-hot ones.
        clip: The largest norm of a gradient; larger ones are scaled down to it.
        rate_factor: The factor of the learning rate at every fiftieth of the steps.
        divergence: The weight of the KL divergence.
    """

    coolest: float = 0.5
    relaxed: bool = False
    clip: float = math.inf
    rate_factor: float = 0.9
    divergence: float = 1.0


PLAIN = Recipe()
RECIPES = {
    "cold": Recipe(coolest=0.1),
    "relaxed": Recipe(relaxed=True),
    "clip": Recipe(clip=1.0),
    "constant-rate": Recipe(rate_factor=1.0),
    "half-kl": Recipe(divergence=0.5),
}


class Variant(NamedTuple):
    """A parameterization and its recipe."""

    kind: Parameterization
    recipe: Recipe


def variant_of(name: str) -> Variant:
    """Return the variant of a name: a parameterization, and after a plus each the names of recipes.

    >>> variant_of("natural+relaxed+cold").recipe == Recipe(relaxed=True, coolest=0.1)
    True
    """
    kind, *recipes = name.split("+")
    changes: dict[str, Any] = {}
    for recipe in recipes:
        if recipe not in RECIPES:
            raise ValueError(f"The recipe in {name!r} is {recipe!r}, but one of these is needed: {', '.join(RECIPES)}.")
        fields = RECIPES[recipe]._asdict().items()
        changes |= {field: value for field, value in fields if value != getattr(PLAIN, field)}
    return Variant(parameterization(kind), PLAIN._replace(**changes))
