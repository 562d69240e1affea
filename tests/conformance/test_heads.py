"""CatnatHead: what it says of paths is what the dense functions say of all classes."""

from __future__ import annotations

import functools
from typing import Any

import cases
import numpy as np
import pytest
from conformance import checks
from conformance.backend import built

import catnat

pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")

FEATURES = 6
TREES = {
    name: cases.tree_case(name).tree
    for name in (
        *("balanced-1", "balanced-2", "balanced-18", "balanced-100", "chain-7"),
        *("chain-75", "huffman-zipf-50", "balanced-5-uneven"),
    )
}
SEARCHED = {
    **{f"balanced-{k}": catnat.balanced(k) for k in (1, 2, 5, 64, 1000, 4096)},
    "huffman-3000": catnat.huffman(cases.zipf(3000)),
    "chain-40": catnat.chain(40),
}


def names_of(trees: dict[str, catnat.Tree]) -> list[Any]:
    """For `parametrize`: where only some rows run, none of a tree that is too small to tell much."""
    rare = pytest.mark.expensive_compile
    return [pytest.param(name, marks=[rare] if tree.num_classes < 20 else []) for name, tree in trees.items()]


def rows_of(tree: catnat.Tree, spread: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Weights and biases whose scores spread over the bands, some beyond them."""
    rng = np.random.default_rng(0)
    weight = spread * rng.normal(size=(tree.num_nodes, FEATURES)) * 2 / FEATURES**0.5
    return weight, spread * rng.normal(size=tree.num_nodes)


def make(framework: Any, tree: catnat.Tree, activation: Any = "natural", spread: float = 1.0, **options: Any) -> Any:
    weight, bias = map(framework.array, rows_of(tree, spread))
    return framework.head(tree, activation, weight, bias, **options)


def features(*batch: int) -> np.ndarray:
    return np.random.default_rng(3).normal(size=(*batch, FEATURES))


def targets(tree: catnat.Tree, *batch: int) -> np.ndarray:
    return np.random.default_rng(4).integers(tree.num_classes, size=batch)


# ---- paths against all classes ----


@pytest.mark.parametrize("activation", cases.ACTIVATIONS)
@pytest.mark.parametrize("name", names_of(TREES))
def test_loss_and_gradients_are_those_of_the_dense_loss(framework, name, activation):
    """With class weights and an ignored row: values, and gradients in rows, biases and inputs."""
    tree, kind = TREES[name], built(cases.ACTIVATIONS[activation])
    factors, target = np.linspace(0.5, 2, tree.num_classes), targets(tree, 7)
    counted = np.arange(7) != 2
    options = {"class_weights": framework.array(factors), "ignore_index": -1}
    weights = framework.array(factors[target] * counted / (factors[target] * counted).sum())
    every = {
        **dict(zip(("weight", "bias"), rows_of(tree), strict=True)),
        "input": features(7),
    }

    def by_paths(given):
        head = framework.head(tree, kind, given["weight"], given["bias"], **options)
        return head(given["input"], framework.array(np.where(counted, target, -1))).loss

    def by_classes(given):
        head = framework.head(tree, kind, given["weight"], given["bias"])
        return -(head.log_prob(given["input"])[np.arange(7), target] * weights).sum()

    for name in every:
        found, wanted = (
            framework.value_and_gradient(functools.partial(with_one, framework, loss, every, name), every[name])
            for loss in (by_paths, by_classes)
        )
        checks.close(found[0], wanted[0], rtol=1e-9, atol=1e-11)
        checks.close(found[1], wanted[1], rtol=1e-6, atol=1e-9)
    output = make(framework, tree, kind, **options)(
        framework.array(features(7)), framework.array(np.where(counted, target, -1))
    ).output
    dense = framework.numpy(framework.detached(make(framework, tree, kind).log_prob(framework.array(features(7)))))
    found = framework.numpy(framework.detached(output))
    checks.close(found, dense[np.arange(7), target] * counted, rtol=1e-9, atol=1e-11)


def with_one(framework: Any, loss: Any, every: dict[str, np.ndarray], name: str, value: Any) -> Any:
    """The loss as a function of one of its arguments."""
    return loss({**{other: framework.array(given) for other, given in every.items()}, name: value})


@pytest.mark.expensive_compile
@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (0,)], ids=str)
def test_any_batch_shape(framework, batch):
    tree = TREES["huffman-zipf-50"]
    head, input = make(framework, tree), framework.array(features(*batch))
    output, loss = head(input, framework.array(targets(tree, *batch)))
    assert (tuple(output.shape), tuple(loss.shape)) == (batch, ())
    assert np.isfinite(framework.numpy(framework.detached(loss)))
    classes = targets(tree, *batch, 4, 5)
    every = framework.numpy(framework.detached(head.log_prob(input)))[..., None, None, :]
    wanted = np.take_along_axis(np.broadcast_to(every, (*classes.shape, tree.num_classes)), classes[..., None], -1)
    found = framework.numpy(framework.detached(head.log_prob_of(input, framework.array(classes))))
    checks.close(found, wanted[..., 0], rtol=1e-9, atol=1e-11)
    assert tuple(head.predict(input).shape) == batch
    assert tuple(head.sample(input, (2, 1), **framework.randomness(0)).shape) == (2, 1, *batch)
    assert tuple(head.distribution(input).batch_shape) == batch


# ---- the most probable classes ----


def search(framework: Any, head: Any, input: np.ndarray, k: int, **options: Any) -> tuple[Any, np.ndarray]:
    """What is found, checked against what the head says of all classes; and the best of those."""
    native = framework.array(input)
    every = framework.numpy(framework.detached(head.log_prob(native)))
    found = head.topk(native, k, **options)
    found = type(found)(*(framework.numpy(framework.detached(part)) for part in found))
    checks.close(found.values, np.take_along_axis(every, found.indices, -1), rtol=1e-9, atol=1e-11)
    assert all(len(set(row)) == k for row in found.indices.tolist())
    assert (found.visited <= head.tree.num_nodes).all()
    best = -np.sort(-every, -1)[..., :k]
    return found, best


@pytest.mark.expensive_compile
@pytest.mark.parametrize("activation", ["sigmoid", "natural"])
@pytest.mark.parametrize("spread", [0.1, 4.0], ids=["near-prior", "certain"])
@pytest.mark.parametrize("name", names_of(SEARCHED))
def test_topk_is_that_of_all_classes(framework, name, spread, activation):
    tree = SEARCHED[name]
    head = make(framework, tree, activation, spread)
    for k in sorted({1, min(5, tree.num_classes), min(40, tree.num_classes)}):
        found, best = search(framework, head, features(6), k)
        checks.close(found.values, best, rtol=1e-9, atol=1e-11)
        assert found.proven.all()


@pytest.mark.expensive_compile
def test_a_certain_head_is_searched_by_few_nodes(framework):
    head = make(framework, catnat.balanced(4096), "sigmoid", 8.0)
    found, _ = search(framework, head, features(200), 3)
    assert found.visited.mean() < 200  # of 4095


@pytest.mark.expensive_compile
def test_a_limited_search_says_what_it_has_not_proven(framework):
    head = make(framework, catnat.balanced(4096), "sigmoid")
    found, best = search(framework, head, features(200), 3, max_nodes=80)
    right = np.isclose(found.values, best).all(-1)
    assert right[found.proven].all()
    assert 0 < found.proven.sum() < 200
    assert not right.all()
    assert (found.visited <= 80 + 32).all()  # a step more


# ---- draws ----


@pytest.mark.parametrize("name", ["balanced-18", "huffman-zipf-50"])
def test_draws_have_the_heads_probabilities(framework, name):
    tree = TREES[name]
    head, input = make(framework, tree, "sigmoid", 0.3), framework.array(features(2))
    drawn = framework.numpy(head.sample(input, (20_000,), **framework.randomness(5)))
    probs = framework.numpy(framework.detached(head.distribution(input).probs))
    for row in range(2):
        checks.chi_square(np.bincount(drawn[:, row], minlength=tree.num_classes), probs[row] / probs[row].sum())


@pytest.mark.parametrize("name", names_of(TREES))
def test_draws_among_valid_classes(framework, name):
    """Of the distribution under a mask: rows with padding, a class that is given twice, and some of probability 0."""
    tree, rng = TREES[name], np.random.default_rng(7)
    head, input = make(framework, tree), framework.array(features(2))
    probs = framework.numpy(framework.detached(head.distribution(input).probs))
    few = min(tree.num_classes, 6)
    valid = np.stack([rng.permutation(tree.num_classes)[:few] for _ in range(2)])
    valid[:, 0] = probs.argmax(-1)  # something that is possible
    valid = np.concatenate([valid, valid[:, -1:], np.full((2, 2), -1)], -1)
    mask = np.zeros((2, tree.num_classes), bool)
    for row in range(2):
        mask[row, valid[row][valid[row] >= 0]] = True
    drawn = head.sample(input, (20_000,), valid_classes=framework.array(valid), **framework.randomness(5))
    assert tuple(drawn.shape) == (20_000, 2)
    for row in range(2):
        wanted = np.where(mask[row], probs[row], 0)
        found = np.bincount(framework.numpy(drawn)[:, row], minlength=tree.num_classes)
        assert (found[wanted == 0] == 0).all()
        checks.chi_square(found, wanted / wanted.sum())


def test_an_impossible_class_is_not_drawn_beside_one_of_tiny_probability(framework):
    """Below the floor both would have the same logarithm, or the impossible class the higher one."""
    almost = np.pi - 4e-10  # yes, but for 1e-20
    weight, bias = np.zeros((3, FEATURES)), np.array([almost, 0.0, 9.0])  # class 2 is impossible
    head = framework.head(catnat.balanced(4), "natural", *map(framework.array, (weight, bias)))
    valid = framework.array(np.array([0, 2]))
    drawn = head.sample(framework.array(features(1)), (50,), valid_classes=valid, **framework.randomness(0))
    assert (framework.numpy(drawn) == 0).all()


def test_one_list_of_valid_classes_serves_all_rows(framework):
    head, valid = make(framework, TREES["balanced-100"]), framework.array(np.array([3, 70, 99]))
    drawn = head.sample(framework.array(features(4, 5)), (50,), valid_classes=valid, **framework.randomness(0))
    assert tuple(drawn.shape) == (50, 4, 5)
    assert set(framework.numpy(drawn).flatten().tolist()) <= {3, 70, 99}


def test_valid_classes_that_are_none_are_refused(framework):
    head, input = make(framework, TREES["balanced-18"]), framework.array(features(2))
    for wrong, error, text in (
        ([18], ValueError, "`valid_classes` holds 18, but the classes are 0 .. 17"),
        ([-2], ValueError, "`valid_classes` holds -2"),
        ([[1], [-1]], ValueError, "leaves no valid class in 1 rows"),
        ([[1], [1], [1]], ValueError, "a list for all rows"),
        ([0.5], TypeError, "integer indices"),
    ):
        with pytest.raises(error, match=text):
            head.sample(input, valid_classes=framework.array(np.array(wrong)), **framework.randomness(0))


# ---- hostile inputs, errors ----


@pytest.mark.expensive_compile
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("activation", ["sigmoid", "natural"])
def test_hostile_inputs_give_finite_losses_and_gradients(framework, activation, dtype):
    """And half precision gives what single precision says of the same numbers: it computes in that."""
    tree, limits = TREES["balanced-100"], framework.numpy_like.finfo(getattr(framework.numpy_like, dtype))
    given = {
        **dict(zip(("weight", "bias"), rows_of(tree), strict=True)),
        "input": np.abs(features(6)).clip(0.1) * (float(limits.max) / 100),
    }
    # Rounded once, so that every dtype sees the same numbers.
    rounded = {
        name: framework.numpy(framework.cast(framework.cast(framework.array(value), dtype), "float32"))
        for name, value in given.items()
    }

    def loss(every, computed):
        narrow = {name: framework.cast(value, computed) for name, value in every.items()}
        head = framework.head(tree, activation, narrow["weight"], narrow["bias"])
        found = head(narrow["input"], framework.array(targets(tree, 6))).loss
        assert found.dtype == narrow["weight"].dtype
        return framework.cast(found, "float32")

    for name in rounded:
        half, single = (
            framework.value_and_gradient(
                functools.partial(with_one, framework, functools.partial(loss, computed=computed), rounded, name),
                rounded[name],
            )
            for computed in (dtype, "float32")
        )
        checks.close(half[0], single[0], rtol=0.03)
        assert np.isfinite(half[0])
        assert np.isfinite(half[1]).all(), name


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "int32"])
def test_classes_of_any_integer_dtype(framework, dtype):
    """In uint8 the usual `ignore_index`, -100, is the class 156, and the number of classes is 0."""
    lib, tree, every = framework.lib, catnat.balanced(256), np.arange(256)
    head, input, classes = make(framework, tree), framework.array(features(256)), framework.array(every.astype(dtype))
    scores = head.scores(input)
    wanted = framework.numpy(lib.log_catnat(scores, None, "natural"))[every, every]
    for found in (
        head(input, classes).output,
        head.log_prob_of(input, classes),
        lib.log_prob(scores, classes, 256, "natural"),
        -lib.cross_entropy(scores, classes, 256, "natural", reduction="none"),
        lib.Catnat(scores, 256, "natural").log_prob(classes),
    ):
        checks.close(framework.numpy(found), wanted, rtol=1e-5)


def test_no_small_integer_is_ignored_by_mistake(framework):
    scores, minus_one = framework.array(np.zeros((1, 299))), framework.array(np.array([-1], np.int8))
    with pytest.raises(ValueError, match="holds -1"):
        framework.lib.cross_entropy(scores, minus_one, 300, ignore_index=255)


def test_an_ignored_row_may_hold_anything(framework):
    input = features(3)
    input[0] = np.nan
    output, loss = make(framework, TREES["balanced-18"])(
        framework.array(input), framework.array(np.array([-100, 3, 1]))
    )
    assert framework.numpy(framework.detached(output))[0] == 0
    assert np.isfinite(framework.numpy(framework.detached(loss)))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_is_its_definition(framework, smoothing, reduction):
    """Of classes, one of them ignored, and of probabilities; with a weight for every class."""
    rng, lib = np.random.default_rng(0), framework.lib
    scores, weight, target, probs = rng.normal(size=(6, 9)), rng.random(10), np.arange(6), rng.dirichlet(np.ones(10), 6)
    target[1] = -100
    counted, logs = target >= 0, framework.numpy(lib.log_catnat(framework.array(scores)))
    hot = np.eye(10)[target.clip(min=0)] * counted[:, None]
    for given, of_classes, divisor in ((target, hot, (weight * hot).sum()), (probs, probs, 6)):
        soft = (1 - smoothing) * of_classes + smoothing / 10 * of_classes.sum(-1, keepdims=True)
        losses = -(weight * soft * logs).sum(-1)
        wanted = {"none": losses, "mean": losses.sum() / divisor, "sum": losses.sum()}[reduction]
        how = {"reduction": reduction, "label_smoothing": smoothing, "weight": framework.array(weight)}
        found = lib.cross_entropy(framework.array(scores), framework.array(given), **how)
        checks.close(framework.numpy(found), wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_an_ignored_row_of_scores_may_hold_anything(framework, smoothing):
    scores = np.zeros((3, 9))
    scores[1] = np.nan
    options = {"label_smoothing": smoothing}
    found = framework.lib.cross_entropy(framework.array(scores), framework.array(np.array([2, -100, 7])), 10, **options)
    checks.close(framework.numpy(found), np.log(10), rtol=1e-12)


def test_all_targets_ignored_cost_nothing(framework):
    tree = TREES["balanced-18"]
    weight, bias = rows_of(tree)

    def found(rows):
        head = framework.head(tree, "natural", rows, framework.array(bias))
        return head(framework.array(features(3)), framework.array(np.full(3, -100)))

    output, _ = found(framework.array(weight))
    assert (framework.numpy(framework.detached(output)) == 0).all()
    value, gradient = framework.value_and_gradient(lambda rows: found(rows)[1], weight)
    assert value == 0
    assert (gradient == 0).all()
