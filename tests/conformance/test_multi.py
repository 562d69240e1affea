"""MultiCatnat: several variables at once are what a loop over distributions is, one for each variable."""

from __future__ import annotations

import itertools
import math
from typing import Any

import cases
import numpy as np
import pytest
from conformance import checks
from conformance.backend import weights_like

import catnat

pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")

FORESTS = {
    "small": catnat.Forest([3, 2, catnat.chain(4), 8]),
    "single-classes": catnat.Forest([1, 3, 1, 1, 5, 1]),
    "only-single-classes": catnat.Forest([1, 1, 1]),
    "one-variable": catnat.Forest([6]),
    "priors": catnat.Forest([catnat.balanced(5).with_prior([1, 4, 0.5, 2, 1]), catnat.huffman(cases.zipf(20)), 7]),
    "equal-in-any-order": catnat.Forest([3, 32, 3, catnat.chain(5), 32, 3]),  # variables of one tree are one batch
    "large": catnat.Forest([catnat.huffman(cases.zipf(90)), 100, 1, 40, 100]),  # walked
    "deep": catnat.Forest([catnat.chain(75), 3, cases.tree_case("caterpillar-75").tree]),  # too deep to walk
}
# The batch shapes of scores and masks, None for no mask, and options.
OPTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...] | None, dict[str, Any]]] = {
    "plain": ((5,), None, {}),
    "no-batch": ((), None, {}),
    "masked": ((2, 3), (2, 3), {}),
    "one-mask": ((5,), (), {}),
    "one-row": ((), (5,), {}),
    "mixed": ((5,), None, {"temperature": 1.5, "unimix": 0.2}),
    "masked-mixed": ((5,), (5,), {"temperature": 0.4, "unimix": 0.05}),
    "temperatures": ((2, 3), (2, 3), {"temperature": np.geomspace(0.4, 9, 6).reshape(2, 3), "unimix": 0.05}),
}
# A third of all pairs: every forest with most options, because to compile them takes long.
PAIRS = [(f, o) for i, f in enumerate(FORESTS) for j, o in enumerate(OPTIONS) if (i + j) % 3 == 0]
all_forests = pytest.mark.parametrize("forest", FORESTS.values(), ids=FORESTS.keys())
some_pairs = pytest.mark.parametrize(
    ("forest", "options"), [(FORESTS[f], o) for f, o in PAIRS], ids=[f"{f}-{o}" for f, o in PAIRS]
)


def scores_of(forest: catnat.Forest, *batch: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(*batch, forest.num_nodes))


def given(framework: Any, forest: catnat.Forest, options: str, seed: int = 0) -> tuple[np.ndarray, dict[str, Any]]:
    """Scores, and what a distribution takes beside them: masks leave every variable a class, and are of all sizes."""
    batch, of_masks, rest = OPTIONS[options]
    how = {name: framework.native(value) for name, value in rest.items()}
    if of_masks is not None:
        rows = math.prod(of_masks)
        parts = [np.roll(cases.masks(size, rows + 3, seed + n), n, 0)[:rows] for n, size in enumerate(forest.sizes)]
        how["mask"] = framework.array(np.concatenate(parts, -1).reshape(*of_masks, -1))
    return scores_of(forest, *batch, seed=seed), how


def loop(framework: Any, scores: Any, forest: catnat.Forest, mask: Any = None, **rest: Any) -> Any:
    """A distribution for each variable."""
    found, node, first = [], 0, 0
    for tree in forest.trees:
        valid = None if mask is None else mask[..., first : first + tree.num_classes]
        part = scores[..., node : node + tree.num_nodes]
        found.append(framework.lib.Catnat(part, tree, "natural", mask=valid, **rest))
        node, first = node + tree.num_nodes, first + tree.num_classes
    return found


def joint(framework: Any, dists: Any, value: Any) -> list[Any]:
    """The loop's results put together; a masked class rules the whole value out."""
    xp = framework.numpy_like
    each = xp.stack([dist.log_prob(value[..., n]) for n, dist in enumerate(dists)], -1)
    lowest = np.finfo(np.float64).min
    return [
        xp.concatenate([dist.probs for dist in dists], -1),
        xp.concatenate([dist.logits for dist in dists], -1),
        xp.stack([dist.mode for dist in dists], -1),
        sum(dist.entropy() for dist in dists),
        xp.where((each == lowest).any(-1), lowest, each.sum(-1)),
    ]


def flat(framework: Any, facts: list[Any]) -> Any:
    """One array for all gradients, in which the smallest number, of what is impossible, is one that can be added."""
    xp, lowest = framework.numpy_like, np.finfo(np.float64).min
    every = xp.concatenate([framework.cast(fact, "float64").reshape(-1) for fact in facts])
    return xp.where(every == lowest, every - lowest - 1e6, every)


@pytest.mark.expensive_compile
@some_pairs
def test_equal_to_a_loop(framework, forest, options):
    """Values and gradients of all there is."""
    scores, how = given(framework, forest, options)
    batch = np.broadcast_shapes(scores.shape[:-1], how["mask"].shape[:-1] if "mask" in how else ())
    shape = (2, *batch, len(forest.sizes))
    value = framework.array(np.random.default_rng(0).integers(forest.sizes, size=shape))

    def together(leaf):
        dist = framework.lib.MultiCatnat(leaf, forest, "natural", **how)
        assert (tuple(dist.batch_shape), tuple(dist.event_shape)) == (batch, shape[-1:])
        facts = [dist.probs, dist.logits, dist.mode, dist.entropy(), dist.log_prob(value)]
        return flat(framework, facts + ([] if how else [dist.fisher_diagonal()]))

    def apart(leaf):
        dists = loop(framework, leaf, forest, **how)
        fisher = [] if how else [framework.numpy_like.concatenate([dist.fisher_diagonal() for dist in dists], -1)]
        return flat(framework, joint(framework, dists, value) + fisher)

    weights = weights_like(np.empty(framework.shape_of(lambda: apart(framework.array(scores)))))
    got, slope = framework.value_and_gradient(together, scores, weights)
    wanted, of_loop = framework.value_and_gradient(apart, scores, weights)
    checks.close(got, wanted, rtol=1e-12, atol=1e-12)
    checks.close(slope, of_loop, rtol=1e-9, atol=1e-9)


@some_pairs
def test_draws_have_the_probabilities_of_the_loop(framework, forest, options):
    """With and without a sample shape, which are drawn in different ways; and neighbours are independent."""
    scores, how = given(framework, forest, options)
    batch = np.broadcast_shapes(scores.shape[:-1], how["mask"].shape[:-1] if "mask" in how else ())
    row, dist = (0,) * len(batch), framework.lib.MultiCatnat(framework.array(scores), forest, "natural", **how)
    dists = loop(framework, framework.array(scores), forest, **how)
    probs = [np.broadcast_to(one.probs, (*batch, one.probs.shape[-1]))[row] for one in dists]
    many, copied = dist.sample((5000,), **framework.randomness(0)), dist.expand((3000, *batch))
    for drawn in (many, copied.sample(**framework.randomness(1))):
        assert tuple(drawn.shape[1:]) == (*batch, len(forest.trees))
        draws = framework.numpy(drawn)[(slice(None), *row)]
        for n, p in enumerate(probs):
            checks.chi_square(np.bincount(draws[:, n], minlength=len(p)), p)
        for n, (p, q) in enumerate(itertools.pairwise(probs)):
            pairs = draws[:, n] * len(q) + draws[:, n + 1]
            checks.chi_square(np.bincount(pairs, minlength=p.size * q.size), np.outer(p, q).ravel())


@pytest.mark.expensive_compile
@some_pairs
def test_one_hot_vectors(framework, forest, options):
    """Forward those of the draws with the same seed, backward the gradient of the probabilities."""
    scores, how = given(framework, forest, options)

    def made(leaf):
        return framework.lib.MultiCatnat(leaf, forest, "natural", **how)

    drawn = made(framework.array(scores)).sample((3,), **framework.randomness(0))
    classes = framework.numpy(drawn)
    wanted = np.concatenate([np.eye(size)[classes[..., n]] for n, size in enumerate(forest.sizes)], -1)
    hot = made(framework.array(scores)).one_hot(drawn)
    checks.close(hot, wanted)
    assert [part.shape[-1] for part in made(framework.array(scores)).split(hot)] == list(forest.sizes)
    weights, random = weights_like(wanted), framework.randomness
    value, slope = framework.value_and_gradient(
        lambda leaf: made(leaf).rsample_one_hot((3,), **random(0)), scores, weights
    )
    checks.close(value, wanted, atol=1e-15)
    _, of_probs = framework.value_and_gradient(lambda leaf: made(leaf).probs, scores, weights.sum(0))
    checks.close(slope, of_probs, rtol=1e-9, atol=1e-11)


@pytest.mark.expensive_compile
@some_pairs
def test_kl_is_the_sum_over_variables(framework, forest, options):
    """Infinite where one variable is forbidden what it can take, with a finite gradient."""
    scores, how = given(framework, forest, options)
    others, other_how = given(framework, forest, options, seed=50)
    for q_how in (other_how, how):

        def together(leaf, q_how=q_how):
            p, q = (
                framework.lib.MultiCatnat(s, forest, "natural", **more)
                for s, more in ((leaf, how), (framework.array(others), q_how))
            )
            return framework.kl(p, q)

        def apart(leaf, q_how=q_how):
            p, q = (loop(framework, s, forest, **more) for s, more in ((leaf, how), (framework.array(others), q_how)))
            return sum(framework.kl(*pair) for pair in zip(p, q, strict=True))

        (got, slope), (wanted, of_sum) = (framework.value_and_gradient(f, scores) for f in (together, apart))
        checks.close(got, wanted, rtol=1e-10, atol=1e-11)
        checks.close(slope, of_sum, rtol=1e-9, atol=1e-9)
        assert np.isfinite(slope).all()
    assert np.isfinite(got).all()  # one mask


@pytest.mark.expensive_compile
@all_forests
def test_shapes(framework, forest):
    count, random = len(forest.trees), framework.randomness(0)
    for batch in ((), (2, 3), (2, 0)):
        mask = np.ones((*batch, forest.num_classes), bool)
        for options in ({}, {"mask": framework.array(mask), "unimix": 0.1, "temperature": 2.0}):
            dist = framework.lib.MultiCatnat(framework.array(scores_of(forest, *batch)), forest, **options)
            wide = dist.expand((4, *batch))
            assert type(wide) is type(dist)
            assert tuple(wide.probs.shape) == (4, *dist.probs.shape)
            assert framework.shape_of(lambda d=dist: framework.kl(d, d)) == batch
            for shape in ((), (4, 1), (0,)):
                draws = dist.sample(shape, **random)
                assert tuple(draws.shape) == (*shape, *batch, count)
                assert framework.shape_of(lambda d=dist, x=draws: d.log_prob(x)) == (*shape, *batch)


def test_lists_and_forests_are_the_same(framework):
    scores, trees = framework.array(scores_of(FORESTS["small"], 2)), [3, 2, catnat.chain(4), 8]
    found, wanted = (framework.lib.MultiCatnat(scores, given) for given in (trees, catnat.Forest(trees)))
    assert found.forest == wanted.forest
    np.testing.assert_array_equal(found.probs, wanted.probs)
