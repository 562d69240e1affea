"""What is compared in graph structure learning, and the paper's numbers."""

from __future__ import annotations

THETAS = (0.1, 0.25, 0.5, 0.75, 0.9)
IN_THE_PAPER = ("sparsemax", "softmax", "sigmoid", "natural")
ALL = (*IN_THE_PAPER, "natural-reflect", "sigmoid-natural-gradient")
OPTIMAL = "optimal"
"""Stands for a parameterization in configs: the true theta and W, nothing learned."""

_COLUMNS = (*IN_THE_PAPER, OPTIMAL)
_TABLE_2: dict[str, dict[float, tuple[float, ...]]] = {
    "test_es_twice": {
        0.1: (7.467, 7.450, 7.459, 7.425, 7.416),
        0.25: (10.928, 10.882, 10.922, 10.859, 10.842),
        0.5: (15.030, 14.990, 15.020, 14.937, 14.926),
        0.75: (10.979, 10.713, 10.750, 10.674, 10.672),
        0.9: (7.592, 7.374, 7.398, 7.340, 7.342),
    },
    "pp_mae": {
        0.1: (0.3842, 0.3844, 0.3845, 0.3837, 0.3849),
        0.25: (0.8224, 0.8224, 0.8230, 0.8201, 0.8192),
        0.5: (1.2592, 1.2596, 1.2607, 1.2537, 1.2523),
        0.75: (0.8278, 0.8044, 0.8078, 0.7969, 0.7943),
        0.9: (0.4399, 0.4272, 0.4228, 0.3973, 0.3839),
    },
    "pp_mse": {
        0.1: (0.624, 0.622, 0.623, 0.617, 0.615),
        0.25: (1.321, 1.312, 1.319, 1.304, 1.300),
        0.5: (2.510, 2.485, 2.490, 2.466, 2.462),
        0.75: (1.343, 1.278, 1.280, 1.267, 1.267),
        0.9: (0.651, 0.614, 0.616, 0.607, 0.611),
    },
    "mae_theta": {
        0.1: (0.0083, 0.0077, 0.0090, 0.0052),
        0.25: (0.0123, 0.0083, 0.0086, 0.0051),
        0.5: (0.0126, 0.0132, 0.0101, 0.0061),
        0.75: (0.0137, 0.0146, 0.0119, 0.0043),
        0.9: (0.0102, 0.0108, 0.0085, 0.0023),
    },
}
PAPER: dict[str, dict[float, dict[str, float]]] = {
    metric: {theta: dict(zip(_COLUMNS, row, strict=False)) for theta, row in rows.items()}
    for metric, rows in _TABLE_2.items()
}
"""The paper's Table 2: metric -> theta* -> parameterization (or "optimal") -> value. Its ES is twice its formula's."""

METRICS = {
    "test_es": "energy score on the test set, by the paper's formula",
    "test_es_twice": "twice that: what the paper's table shows",
    "validation_es": "energy score on the validation set; rates are selected by it",
    "pp_mae": "mean absolute error of the median of 32 predictions",
    "pp_mse": "mean squared error of the mean of 32 predictions",
    "mae_theta": "mean |theta - theta*| over all 576 entries",
    "mae_theta_zero": "the same over the 474 entries that are never there",
    "mae_theta_edge": "the same over the 102 entries that can be there",
    "dead": "fraction of entries that are 0 or 1 for good: certain, and without a gradient",
    "dead_zero": "the same among the 474",
    "dead_edge": "the same among the 102",
}
