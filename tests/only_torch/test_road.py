"""The road of a call: how many functions it enters, that it waits for no device."""

from __future__ import annotations

import contextlib
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from only_torch import rows
from only_torch.conftest import validating
from torch import Tensor
from torch import distributions as td
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributions import kl_divergence
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import catnat
import catnat.torch as ct
from catnat.torch import _constants, geometry, targets

pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")

OURS = str(pathlib.Path(catnat.__file__).parent)

# ---- functions entered ----


def entered(call: Callable[[], Any]) -> list[str]:
    """The functions of our own files that a warm call enters, in order."""
    for _ in range(3):
        call()
    found = []

    def watch(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            found.append(frame.f_code.co_qualname)

    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


SCORES, CLASSES = torch.randn(8, 17, generator=rows.seeded(0)), torch.arange(8)
HEAD, FEATURES = ct.CatnatHead(16, 1000), torch.randn(8, 16, generator=rows.seeded(1))
LAYER = ct.CatnatLinear(16, 18)
CALLS: dict[str, tuple[int, Callable[[], Any]]] = {
    "log_catnat": (15, lambda: ct.log_catnat(SCORES)),
    "log_catnat and its gradient": (25, lambda: gradient(ct.log_catnat)),
    "cross_entropy": (25, lambda: ct.cross_entropy(SCORES, CLASSES)),
    "Catnat.log_prob": (25, lambda: ct.Catnat(SCORES).log_prob(CLASSES)),
    "Catnat.sample": (25, lambda: ct.Catnat(SCORES).sample()),
    "Catnat.entropy": (25, lambda: ct.Catnat(SCORES).entropy()),
    "CatnatHead.loss": (25, lambda: HEAD.loss(FEATURES, CLASSES)),
    "CatnatLinear": (20, lambda: LAYER(FEATURES)),
    "CatnatLinear.loss": (30, lambda: LAYER.loss(FEATURES, CLASSES)),
}


def gradient(function: Callable[[Tensor], Tensor]) -> Tensor:
    leaf = SCORES.clone().requires_grad_()
    return torch.autograd.grad(function(leaf).sum(), leaf)[0]


@pytest.mark.parametrize("name", CALLS)
def test_a_warm_call_enters_few_functions_of_ours(name):
    most, call = CALLS[name]
    with validating(True):
        found = entered(call)
    assert 0 < len(found) <= most, f"{len(found)}, at most {most} are wanted: {found}"


# ---- nothing is read back ----


class ReadBackError(Exception):
    """No RuntimeError, which a check that cannot be made would take for an answer."""


class Operations(TorchDispatchMode):
    """Counts, or raises at, operations whose result the host must wait for."""

    waits = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "equal")

    def __init__(self, *, allowed: bool = False) -> None:
        super().__init__()
        self.allowed, self.count = allowed, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        by_mask = name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])
        if by_mask or any(part in name for part in self.waits):
            self.count += 1
            if not self.allowed:
                raise ReadBackError(name)
        return function(*args, **(kwargs or {}))


class Methods(TorchFunctionMode):
    """Raises at the methods that hand numbers to Python without an operation."""

    reads = frozenset(getattr(Tensor, name) for name in ("tolist", "numpy", "item", "__bool__", "__array__", "cpu"))

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in self.reads:
            raise ReadBackError(function.__name__)
        return function(*args, **(kwargs or {}))


TREES = {
    "balanced-18": catnat.balanced(18),
    "balanced-100": catnat.balanced(100),
    "huffman-100": rows.TREES["huffman-100"],
    "chain-100": catnat.chain(100),
}


def everything(tree: catnat.Tree, activation: str, device: str) -> dict[str, Callable[[], Any]]:
    """Every public call on tensors of a device; arguments are made before."""
    K, n = tree.num_classes, 4
    scores = torch.zeros(n, K - 1, device=device, requires_grad=True)
    other, classes = torch.ones(n, K - 1, device=device), torch.zeros(n, dtype=torch.int64, device=device)
    probs, mask = torch.full((n, K), 1 / K, device=device), torch.ones(n, K, dtype=torch.bool, device=device)
    indices, tau = torch.zeros(n, 3, dtype=torch.int64, device=device), torch.ones(n, device=device)
    x, numbers = torch.zeros(n, 6, device=device), torch.full((n,), 0.5, device=device)
    given = (tree, activation)
    linear, head = (kind(6, tree, activation, device=device) for kind in (ct.CatnatLinear, ct.CatnatHead))
    bins = catnat.Bins(np.arange(K + 1.0))
    unchecked = {"validate_args": False}
    options = [{}, {"mask": mask}, {"valid_classes": indices}, {"temperature": tau}, {"mask": mask, "unimix": 0.1}]
    flat = [ct.Catnat(scores, *given, **unchecked, **each) for each in options]
    hot = [ct.OneHotCatnatStraightThrough(scores, *given, **unchecked, **each) for each in options]
    relaxed = [ct.RelaxedOneHotCatnat(tau, scores, *given, **unchecked, mask=each) for each in (None, mask)]
    binned = ct.BinnedCatnat(scores, bins, *given, **unchecked)
    several = ct.MultiCatnat(
        torch.zeros(n, 2 * K - 2, device=device),
        [tree, tree],
        activation,
        mask=torch.cat([mask, mask], -1),
        **unchecked,
    )
    estimators = ct.estimators
    cost = torch.zeros(K, device=device)
    found: dict[str, Callable[[], Any]] = {
        "catnat": lambda: ct.catnat(scores, *given).sum().backward(),
        "log_catnat": lambda: ct.log_catnat(scores, *given).sum().backward(),
        "log_prob": lambda: ct.log_prob(scores, classes, *given).sum().backward(),
        "sample": lambda: ct.sample(scores, *given, sample_shape=(2,)),
        "sample_without_replacement": lambda: ct.sample_without_replacement(scores, 3, *given),
        "mode": lambda: ct.mode(scores, *given),
        "entropy": lambda: ct.entropy(scores, *given).sum().backward(),
        "kl_divergence": lambda: ct.kl_divergence(scores, other, *given).sum().backward(),
        "cross_entropy": lambda: ct.cross_entropy(scores, classes, *given).backward(),
        "cross_entropy, options": lambda: ct.cross_entropy(
            scores, classes, *given, weight=probs[0], label_smoothing=0.1, reduction="none"
        ),
        "cross_entropy, weights": lambda: ct.cross_entropy(scores, classes, *given, weight=probs[0]),
        "cross_entropy of probabilities": lambda: ct.cross_entropy(scores, probs, *given),
        "scores_from_probs": lambda: ct.scores_from_probs(probs, *given),
        "scores_from_logits": lambda: ct.scores_from_logits(probs, *given),
        "validate_mask": lambda: ct.validate_mask(mask, tree),
        "reach": lambda: geometry.reach(scores, *given),
        "saturated": lambda: geometry.saturated(scores, *given),
        "fisher_diagonal": lambda: geometry.fisher_diagonal(scores, *given),
        "natural_gradient": lambda: geometry.natural_gradient(scores, *given).sum().backward(),
        "softmax_natural_gradient": lambda: geometry.softmax_natural_gradient(probs),
        "kl_step": lambda: geometry.kl_step(scores, other, numbers, *given),
        "fisher_rao_distance": lambda: geometry.fisher_rao_distance(scores, other, *given),
        "CatnatLinear": lambda: (linear(x), linear.scores(x), linear.loss(x, classes).backward()),
        "CatnatLinear.distribution": lambda: linear.distribution(x, mask=mask, **unchecked).log_prob(classes),
        "CatnatHead": lambda: head(x, classes).loss.backward(),
        "CatnatHead's other methods": lambda: (
            *(head.log_prob_of(x, classes), head.sample(x, (2,)), head.scores(x), head.log_probs(x)),
            head.distribution(x, **unchecked).sample(),
        ),
        "BinnedCatnat": lambda: (
            *(binned.log_prob(numbers), binned.cdf(numbers), binned.icdf(numbers), binned.sample((2,))),
            *(binned.mean, binned.variance, binned.entropy(), binned.crps(numbers)),
        ),
        "targets": lambda: (
            targets.hard(numbers, bins),
            targets.two_hot(numbers, bins),
            targets.hl_gauss(numbers, bins, 0.5),
        ),
        "MultiCatnat": lambda: (
            *(several.log_prob(indices[:, :2]), several.entropy(), several.sample((2,)), several.mode),
            *(several.rsample_one_hot(), kl_divergence(several, several)),
        ),
        "gumbel_softmax": lambda: estimators.gumbel_softmax(flat[0], tau.unsqueeze(-1)),
        "straight_through": lambda: estimators.straight_through(flat[0]),
        "score_function": lambda: estimators.score_function(lambda k: cost[k], flat[0], num_samples=2),
        "unordered_set": lambda: estimators.unordered_set(lambda k: cost[k], flat[0], 2),
        "enumerate_exactly": lambda: estimators.enumerate_exactly(lambda k: cost[k], flat[0]),
        "MovingAverage": lambda: estimators.MovingAverage().to(device)(numbers),
    }
    for place, (dist, one_hot, each) in enumerate(zip(flat, hot, options, strict=True)):
        found |= {
            f"Catnat {place}": lambda dist=dist: (
                *(dist.log_prob(classes), dist.probs, dist.logits, dist.mode, dist.entropy(), dist.sample((2,))),
                kl_divergence(dist, flat[0]),
            ),
            f"OneHotCatnat {place}": lambda one_hot=one_hot: (
                *(one_hot.log_prob(probs), one_hot.rsample(), one_hot.mean, one_hot.variance, one_hot.mode),
            ),
            f"building a Catnat {place}": lambda each=each: ct.Catnat(scores, *given, **unchecked, **each),
        }
    for place, dist in enumerate(relaxed):
        found[f"RelaxedOneHotCatnat {place}"] = lambda dist=dist: (dist.rsample(), dist.log_prob(probs))
    return found


# Where a device may have to be waited for, by the nature of the thing.
EXEMPT = {
    # How wide the search is depends on what it has found: CatnatHead.topk and predict are not in the list either.
    # On a CPU, where there is nothing to wait for, a path's missing nodes are left out rather than multiplied by 0.
    "cpu": {"CatnatHead", "CatnatHead's other methods"},
    "meta": set(),
}
# On a CPU values are checked, at no cost but time; and torch's own `one_hot` checks what it is given there.
CHECKED_ON_A_CPU = {"scores_from_probs", "scores_from_logits", "kl_step", "gumbel_softmax", "targets"}
CHECKED_ON_A_CPU |= {"straight_through", *(f"OneHotCatnat {place}" for place in range(5))}


@pytest.mark.parametrize("activation", ["sigmoid", "natural"])
@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize("name", TREES)
def test_no_call_reads_a_value_back(name, device, activation):
    """On meta tensors, which have no values to read; and on a CPU but where values are checked there."""
    calls, faults = everything(TREES[name], activation, device), []
    exempt = set() if device == "meta" else EXEMPT["cpu"] | CHECKED_ON_A_CPU
    for label, call in calls.items():
        if label in exempt:
            continue
        call()  # tables are built once
        try:
            with Operations(), Methods():
                call()
        except ReadBackError as fault:  # all of them are wanted
            faults.append(f"{label}: {fault}")
    assert not faults, "\n".join(faults)


def shapes(found: Any) -> Any:
    """Shapes and dtypes of all tensors."""
    if isinstance(found, tuple | list):
        return [shapes(each) for each in found]
    return (found.shape, found.dtype) if isinstance(found, Tensor) else None


@pytest.mark.parametrize("mode", ["meta", "fake"])
@pytest.mark.parametrize("activation", ["sigmoid", "natural"])
@pytest.mark.parametrize("name", TREES)
def test_tensors_without_values_have_the_shapes_of_real_ones(name, activation, mode):
    tree = TREES[name]
    wanted = {label: shapes(call()) for label, call in everything(tree, activation, "cpu").items()}
    with FakeTensorMode() if mode == "fake" else contextlib.nullcontext():
        calls = everything(tree, activation, "cpu" if mode == "fake" else "meta")
        for label, call in calls.items():
            if not (mode == "fake" and label in EXEMPT["cpu"]):  # whose shapes depend on values, on a CPU
                assert shapes(call()) == wanted[label], label


def test_the_watch_sees_what_is_read():
    one = torch.ones(1)
    for read in (bool, float, Tensor.item, Tensor.tolist, lambda t: t.nonzero(), lambda t: t[t > 0], Tensor.numpy):
        with pytest.raises(ReadBackError), Operations(), Methods():
            read(one)


def test_a_default_distribution_reads_no_more_than_torchs_own():
    scores, logits, classes = torch.zeros(5, 17), torch.zeros(5, 18), torch.zeros(5, dtype=torch.int64)

    def reads(build: Callable[[], td.Distribution]) -> int:
        with Operations(allowed=True) as watch:
            dist = build()
            dist.log_prob(classes), dist.sample(), dist.entropy()
        return watch.count

    for on in (True, False):
        with validating(on):
            ours, theirs = (
                reads(build) for build in (lambda: ct.Catnat(scores), lambda: td.Categorical(logits=logits))
            )
            assert ours <= theirs
            assert on or ours == 0


# ---- how much is kept ----


def test_plans_are_bounded(monkeypatch):
    """A program that meets ever new trees keeps the last ones only; an old one is made again."""
    monkeypatch.setattr(_constants, "_MOST_KEPT", 8)
    made = []

    @_constants.constant
    def build(number: int) -> list[int]:
        made.append(number)
        return [number]

    first = build(0)
    assert build(0) is first
    for number in range(1, 20):
        assert build(number) == [number]
    assert made == list(range(20))
    assert build(19) is build(19)
    assert build(0) == [0]  # forgotten, and made again
    assert made[-1] == 0
