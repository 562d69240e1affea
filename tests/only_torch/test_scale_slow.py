"""Size: 2^25 classes, ten million draws, and a cost that grows with the depth of the tree and not with K."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from only_torch import rows
from scipy import stats
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import catnat
import catnat.torch as ct

FALSE_ALARM = 1e-6  # how often a correct sampler fails a whole test; seeds are fixed, so a pass stays a pass


def yes_at(scores: np.ndarray) -> np.ndarray:
    """The natural activation from its definition, for the paper's trees."""
    return (1 + np.sin(np.clip(scores, -math.pi, math.pi) / 2)) / 2


def bit_frequencies(scores: Tensor, depth: int) -> list[float]:
    """The probability of yes at each level, level by level in float64: the reach of a node times its a."""
    reach, found = np.ones(1), []
    for level in range(depth):
        yes = yes_at(scores[2**level - 1 : 2 ** (level + 1) - 1].double().numpy())
        found.append(float((reach * yes).sum()))
        if level < depth - 1:
            reach = np.stack([reach * (1 - yes), reach * yes], -1).ravel()
    return found


def check_bits(classes: Tensor, scores: Tensor, depth: int) -> None:
    """Each bit's count is binomial; 2 * depth tails share the false-alarm rate."""
    for level, p in enumerate(bit_frequencies(scores, depth)):
        count = int((classes >> (depth - 1 - level) & 1).sum())
        tail = min(stats.binom.cdf(count, len(classes), p), stats.binom.sf(count - 1, len(classes), p))
        assert tail > FALSE_ALARM / (2 * depth), (
            f"bit {level}: {count} of {len(classes)} draws, expected {p * len(classes):.0f}"
        )


def draw_in_chunks(scores: Tensor, count: int, chunk: int) -> Tensor:
    generator = rows.seeded(0)
    return torch.cat(
        [ct.sample(scores, None, "natural", sample_shape=(chunk,), generator=generator) for _ in range(count // chunk)]
    )


def random_row(depth: int) -> Tensor:
    return 4 * torch.rand(2**depth - 1, generator=rows.seeded(1)) - 2


def test_every_bit_of_a_leaf_has_its_frequency():
    scores = random_row(15)
    classes = draw_in_chunks(scores, 200_000, 50_000)
    check_bits(classes, scores, 15)


@pytest.mark.slow
def test_ten_million_draws_from_thirty_million_classes():
    """pytorch#2576, #43115: torch's multinomial stops at 2^24 classes and is inaccurate before."""
    depth, count = 25, 10_000_000
    scores = random_row(depth)
    start = time.perf_counter()
    classes = draw_in_chunks(scores, count, 500_000)
    elapsed = time.perf_counter() - start
    assert elapsed < 60, f"{elapsed:.0f} s"
    assert classes.shape == (count,)
    assert int(classes.min()) >= 0
    assert int(classes.max()) < 2**depth
    assert (classes >= 2**24).any()
    check_bits(classes, scores, depth)
    # Beyond single bits: the first ten nodes together have the distribution of their subtree.
    top = ct.catnat(scores[: 2**10 - 1], None, "natural")
    rows.chi_square(classes >> (depth - 10), top)


@pytest.mark.slow
def test_log_prob_of_thirty_million_classes():
    depth = 25
    tree = catnat.balanced(2**depth)
    scores = random_row(depth)
    classes = torch.tensor([0, 1, 2**24, 2**24 + 1, 2**25 - 1, 12_345_678])
    got = ct.log_prob(scores, classes, tree, "natural")
    for value, k in zip(got.tolist(), classes.tolist(), strict=True):
        nodes, bits = tree.path(k)
        yes = yes_at(scores[torch.as_tensor(nodes)].double().numpy())
        assert value == pytest.approx(np.log(np.where(bits == 1, yes, 1 - yes)).sum(), rel=1e-5)
    several = ct.sample_without_replacement(scores, 100, tree, generator=rows.seeded(0))
    assert len(several.unique()) == 100


# ---- cost ----


class Traffic(TorchDispatchMode):
    """Count the numbers that operations write: a cost that does not depend on the machine."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        given = {tensor.untyped_storage().data_ptr() for tensor in args if isinstance(tensor, Tensor)}
        for value in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(value, Tensor) and value.untyped_storage().data_ptr() not in given:  # not a view
                self.numbers += value.numel()
        return result


def written(call: Callable[[], Tensor]) -> int:
    call()  # caches
    with Traffic() as traffic:
        call()
    return traffic.numbers


@pytest.mark.parametrize("activation", ["natural", "sigmoid"])
def test_the_work_grows_with_the_depth_and_not_with_the_classes(activation):
    """Also without replacement, and for the distribution; chainer#1791, pytorch#634."""
    kind = rows.ACTIVATIONS[activation]
    for make in (catnat.balanced, lambda k: catnat.huffman(np.arange(1, k + 1))):
        work = {}
        for K in (2**10, 2**14):
            tree = make(K)
            scores = torch.zeros(8, K - 1)
            classes = torch.arange(8)
            dist = ct.Catnat(scores, tree, kind)
            work[K] = {
                "log_prob": written(lambda s=scores, c=classes, t=tree: ct.log_prob(s, c, t, kind)),
                "sample": written(lambda s=scores, t=tree: ct.sample(s, t, kind)),
                "without": written(lambda s=scores, t=tree: ct.sample_without_replacement(s, 5, t, kind)),
                "Catnat": written(lambda dist=dist, c=classes: dist.log_prob(c)),
                "Catnat.sample": written(lambda dist=dist: dist.sample()),
                "cross_entropy": written(lambda s=scores, c=classes, t=tree: ct.cross_entropy(s, c, t, kind)),
            }
        for name, small in work[2**10].items():
            assert work[2**14][name] < 2 * small, (
                f"{name}: {small} numbers for 2^10 classes, {work[2**14][name]} for 2^14"
            )
