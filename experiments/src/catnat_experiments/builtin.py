"""The experiments that come with this package, for those who have to choose one: none of them is imported here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class BuiltIn:
    """What is known of an experiment without importing it.

    Attributes:
        about: What it is, in one line.
        hours: Core-hours of each preset from nothing, about, as ``plan`` gave them on one core of a small machine.
    """

    about: str
    hours: Mapping[str, float]


BUILT_IN = {
    "gsl": BuiltIn(
        "graph structure learning, Table 2 of the paper",
        {"quick": 0.1, "laptop": 1.6, "paper": 3.3, "beyond": 5, "shared": 1},
    ),
    "vae": BuiltIn(
        "categorical VAE on MNIST, Tables 3 and 4 of the paper",
        {
            "quick": 0.1,
            "laptop": 3,
            "evidence": 6,
            "sgd": 2,
            "start": 0.5,
            "start-fast": 0.5,
            "reproduce-short": 0.7,
            "reproduce": 0.7,
            "reproduce-constant": 3.2,
            "table-3": 14,
            "table-3-constant": 4,
            "table-3-short": 6,
            "table-3-seeds": 3,
            "quarter-rate": 0.2,
            "half-rate": 0.2,
            "double-rate": 0.2,
            "table-4": 9,
            "table-4-short": 2,
            "table-4-best": 3,
            "ablation": 3,
            "ablation-equal": 1,
            "paper": 450,
        },
    ),
    "vae_reinforce": BuiltIn(
        "categorical VAE that learns by REINFORCE, Table 5 of the paper",
        {"quick": 0.1, "collapse": 1, "table-5": 9, "paper": 230},
    ),
    "world": BuiltIn(
        "world model in the style of DreamerV3 on a ball in a box, beyond the paper",
        {"quick": 0.04, "evidence": 0.7, "decay": 0.7},
    ),
    "atari": BuiltIn(
        "PPO on Atari games, Table 6 of the paper",
        {"quick": 0.03, "evidence": 0.9, "table-6": 9, "paper": 17_000},
    ),
    "minatar": BuiltIn(
        "PPO on MinAtar in JAX with many seeds, beyond the paper",
        {"quick": 0.03, "evidence": 2.5, "full": 300},
    ),
    "identifiers": BuiltIn(
        "next-token modelling of Python sources, heads for 100,000 classes, beyond the paper",
        {"quick": 0.05, "evidence": 4, "full": 50},
    ),
    "classifiers": BuiltIn(
        "a tree of binary classifiers beside multiclass boosters, and a taxonomy of texts, beyond the paper",
        {"quick": 0.02, "evidence": 0.7, "digits": 0.05, "generated-120-10000": 0.3, "icd10-3": 0.2, "icd10-10": 3, "full": 60},
    ),
    "binned": BuiltIn(
        "distributional regression: bins by softmax and by a tree beside other predictions, beyond the paper",
        {"smoke": 0.01, "evidence": 0.3},
    ),
    "defaults": BuiltIn(
        "six small tasks that decide the library's defaults, beyond the paper",
        {
            "quick": 0.05,
            "evidence": 0.7,
            "classifier": 0.1,
            "bandit": 0.2,
            "vae": 0.2,
            "gsl": 0.1,
            "minatar": 0.1,
            "table": 0.05,
        },
    ),
}
