"""The trees, activations and scores that the tests of this folder share."""

from __future__ import annotations

import math
from typing import Any

import cases
import numpy as np
import torch

import catnat
import catnat.torch as ct

torch.set_num_threads(1)

TREES = {
    **{f"balanced-{k}": catnat.balanced(k) for k in (1, 2, 3, 8, 18, 100)},
    "chain-7": catnat.chain(7),
    "chain-100": catnat.chain(100),  # deeper than any walk
    "huffman-20": catnat.huffman(cases.zipf(20)),
    "huffman-100": catnat.huffman(cases.zipf(100)),  # a table, and large enough to be walked
    "uneven-8": catnat.balanced(8).with_prior([1e3, 1.0, 1e-3, 30.0, 1e-6, 1.0, 1e3, 1e6]),
}
# One of every way a tree is computed: matrix product, levels, pointer jumping, a walk.
FEW_TREES = {name: TREES[name] for name in ("balanced-8", "balanced-18", "balanced-100", "chain-7", "huffman-20")}

ACTIVATIONS = {
    "sigmoid": ct.sigmoid(),
    "natural": ct.natural(),
    "natural-narrow": ct.natural(width=0.7),
    "natural-wide": ct.natural(width=50.0),
}
FEW_ACTIVATIONS = ("sigmoid", "natural")
OWN = cases.Cauchit()

# What is done to a distribution beside its mask, as a distribution takes it.
OPTIONS: dict[str, dict[str, Any]] = {name: options.arguments for name, options in cases.OPTIONS.items()}


def bounds(tree: catnat.Tree, activation: ct.Activation) -> tuple[np.ndarray, np.ndarray]:
    """The scores at which every node's band ends; for the other activations, where the yes-odds are e^-5 and e^5."""
    offset = np.broadcast_to(activation.offset(tree), tree.num_nodes)
    half = activation.width / 2 if isinstance(activation, ct.natural) else 5.0
    return -half - offset, half - offset


def inside(
    tree: catnat.Tree,
    activation: ct.Activation | str = "natural",
    *batch: int,
    margin: float = 0.1,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> torch.Tensor:
    """Random scores well inside every node's band."""
    kind = ACTIVATIONS[activation] if isinstance(activation, str) else activation
    lower, upper = (torch.as_tensor(edge) for edge in bounds(tree, kind))
    fraction = torch.rand(*batch, tree.num_nodes, dtype=torch.float64, generator=seeded(seed))
    return (lower + (margin + (1 - 2 * margin) * fraction) * (upper - lower)).to(dtype)


def around(tree: catnat.Tree, *batch: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    """Random scores of every size: for the natural activation, many lie outside the band."""
    return 3 * torch.randn(*batch, tree.num_nodes, dtype=torch.float64, generator=seeded(seed)).to(dtype)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def assert_equal(got: torch.Tensor, wanted: torch.Tensor) -> None:
    """Same values, shape, dtype and device."""
    torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)


def assert_close(got: torch.Tensor, wanted: torch.Tensor, rtol: float = 1e-10, atol: float = 1e-12) -> None:
    torch.testing.assert_close(got, wanted, rtol=rtol, atol=atol)


def chi_square(classes: torch.Tensor, probs: torch.Tensor, false_alarm: float = 1e-6) -> None:
    """Pearson's test of drawn classes; a correct sampler fails it with probability ``false_alarm``."""
    from conformance import checks

    assert math.isclose(checks.FALSE_ALARM, false_alarm)
    counts = torch.bincount(classes.flatten(), minlength=len(probs))
    checks.chi_square(counts.numpy(), probs.double().numpy() / float(probs.double().sum()))
