"""The experiments that come with this package, for those who have to choose one: none of them is imported here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class BuiltIn:
    """What is known of an experiment without importing it.

    Attributes:
        about: What it is, in one line.
        hours: Core-hours of each preset from nothing, about, on one core of a small machine.
    """

    about: str
    hours: Mapping[str, float]


BUILT_IN = {
    "gsl": BuiltIn(
        "graph structure learning, the paper's graphs",
        {"quick": 0.1, "paper": 3.3, "two-rates": 6},
    ),
    "vae": BuiltIn(
        "categorical VAE on MNIST, the paper's main autoencoder, with Adam and with SGD",
        {
            "quick": 0.1,
            "adam": 14,
            "adam-binary": 18,
            "one-cell": 3.2,
            "short": 4,
            "sgd": 2,
            "recipe": 0.7,
            "ablation": 2.5,
            "paper": 450,
        },
    ),
    "vae_reinforce": BuiltIn(
        "categorical VAE that learns by REINFORCE, the paper's second autoencoder",
        {"quick": 0.1, "one-cell": 9, "paper": 230},
    ),
    "world": BuiltIn(
        "world model in the style of DreamerV3 on a ball in a box, beyond the paper",
        {"quick": 0.04, "evidence": 0.7, "decay": 0.7},
    ),
    "atari": BuiltIn(
        "PPO on Atari's Breakout and Seaquest, the paper's games",
        {"quick": 0.03, "games": 9, "paper": 17_000},
    ),
    "minatar": BuiltIn(
        "PPO on MinAtar in JAX with many seeds, beyond the paper",
        {"quick": 0.03, "evidence": 2},
    ),
    "identifiers": BuiltIn(
        "next-token modelling of Python sources, heads for 100,000 classes, beyond the paper",
        {"quick": 0.05, "evidence": 3, "order": 4, "order-pass": 1, "purchases": 0.6},
    ),
    "classifiers": BuiltIn(
        "a tree of binary classifiers beside multiclass boosters, and two taxonomies, beyond the paper",
        {"quick": 0.02, "evidence": 0.7, "icd10-3": 0.6, "baskets": 0.1},
    ),
    "binned": BuiltIn(
        "distributional regression: bins by softmax and by a tree beside other predictions, beyond the paper",
        {"smoke": 0.01, "evidence": 0.3},
    ),
    "defaults": BuiltIn(
        "three small tasks that decide the library's defaults, beyond the paper",
        {"quick": 0.01, "evidence": 0.15, "order": 0.1, "many-actions": 1},
    ),
}
