"""CatnatHead: what it says of paths is what the dense functions say of all classes."""

from __future__ import annotations

import pickle

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from only_jax.processes import python
from scipy import stats

import catnat
import catnat.jax as cj
from catnat.jax import _topk

pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")

FEATURES = 6
TREES = {
    **{f"balanced-{k}": catnat.balanced(k) for k in (1, 18, 100)},
    "chain-75": catnat.chain(75),
    "huffman-90": catnat.huffman(cases.zipf(90)),
}
ACTIVATIONS = {
    "sigmoid": cj.sigmoid(),
    "natural": cj.natural(),
    "reflect-isotropic": cj.natural(boundary="reflect", scaling="isotropic"),
}


def make(tree, activation="natural", dtype=jnp.float64, spread=1.0, **options):
    """A head whose scores spread over the bands, some beyond them."""
    rng = np.random.default_rng(0)
    head = cj.CatnatHead(FEATURES, tree, activation, dtype=dtype, key=jax.random.key(0), **options)
    deviation = spread / np.broadcast_to(head.activation.scale(tree), tree.num_nodes)
    head.weight = jnp.asarray(rng.normal(size=head.weight.shape) * deviation[:, None] * 2 / FEATURES**0.5, dtype)
    if head.bias is not None:
        head.bias = jnp.asarray(rng.normal(size=head.bias.shape) * deviation, dtype)
    return head


def features(*batch, dtype=jnp.float64):
    return jnp.asarray(np.random.default_rng(3).normal(size=(*batch, FEATURES)), dtype)


def targets(tree, *batch):
    return jnp.asarray(np.random.default_rng(4).integers(tree.num_classes, size=batch))


def picked(values, indices):
    return jnp.take_along_axis(values, indices, -1)


def close(found, wanted, **tolerance):
    tolerance = {"rtol": 1e-9, "atol": 1e-11, **tolerance}
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, strict=True, **tolerance), found, wanted)


# ---- paths against all classes ----


@pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=ACTIVATIONS)
@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_loss_and_gradients_are_those_of_the_dense_loss(tree, activation):
    factors = jnp.linspace(0.5, 2, tree.num_classes)
    head = make(tree, activation, class_weights=factors, ignore_index=-1)
    input, target = features(7), targets(tree, 7)
    counted = jnp.arange(7) != 2

    def by_paths(head, input):
        output, loss = head(input, jnp.where(counted, target, -1))
        return loss, output

    def by_classes(head, input):
        output = picked(head.log_prob(input), target[:, None])[:, 0] * counted
        weights = factors[target] * counted
        return -(output * weights).sum() / weights.sum(), output

    found, wanted = (
        jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(head, input) for loss in (by_paths, by_classes)
    )
    close(found, wanted)
    assert found[0][1][2] == 0


@pytest.mark.expensive_compile
@pytest.mark.parametrize("batch", [(), (2, 3), (0,)], ids=str)
def test_any_batch_shape(batch):
    head, input = make(TREES["huffman-90"]), features(*batch)
    output, loss = head(input, targets(head.tree, *batch))
    assert output.shape == batch
    assert loss.shape == ()
    assert jnp.isfinite(loss)
    classes = targets(head.tree, *batch, 4, 5)
    every = jnp.broadcast_to(head.log_prob(input)[..., None, None, :], (*classes.shape, head.tree.num_classes))
    close(head.log_prob_of(input, classes), picked(every, classes[..., None])[..., 0])
    assert head.predict(input).shape == batch
    assert head.sample(input, (2, 1), key=jax.random.key(0)).shape == (2, 1, *batch)
    assert head.distribution(input).batch_shape == batch


# ---- the most probable classes ----

SEARCHED = {
    **{f"balanced-{k}": catnat.balanced(k) for k in (1, 2, 5, 64, 1000, 4096)},
    "huffman-3000": catnat.huffman(cases.zipf(3000)),
    "chain-40": catnat.chain(40),
}


def search(head, input, k, **options):
    """What is found, checked against what the head says of all classes; and the best of those."""
    every, found = head.log_prob(input), head.topk(input, k, **options)
    close(found.values, picked(every, found.indices))  # they are what they say
    assert all(len(set(row)) == k for row in found.indices.tolist())
    assert (found.visited <= head.tree.num_nodes).all()
    return found, jax.lax.top_k(every, k)[0]


@pytest.mark.parametrize("k", [1, 5, 40])
@pytest.mark.parametrize("tree", SEARCHED.values(), ids=SEARCHED)
def test_topk_is_that_of_all_classes(tree, k):
    for spread in (0.1, 4.0):  # near the prior, and certain
        found, best = search(make(tree, "sigmoid", spread=spread), features(6), min(k, tree.num_classes))
        close(found.values, best)
        assert found.proven.all()


@pytest.mark.expensive_compile
@pytest.mark.parametrize("tree", [catnat.balanced(500), catnat.chain(60)], ids=["balanced", "chain"])
def test_a_search_that_keeps_as_few_places_as_it_can_finds_the_same(tree, monkeypatch):
    monkeypatch.setattr(_topk, "_MOST_PLACES", 0)
    found, best = search(make(tree, "natural", spread=0.1), features(6), 7)
    close(found.values, best)
    assert found.proven.all()


@pytest.mark.expensive_compile
def test_a_limited_search_says_what_it_has_not_proven():
    head, input = make(catnat.balanced(4096), "sigmoid"), features(200)
    found, best = search(head, input, 3, max_nodes=80)
    right = jnp.isclose(found.values, best).all(-1)
    assert right[found.proven].all()
    assert 0 < found.proven.sum() < 200
    assert not right.all()
    assert (found.visited <= 80 + 31).all()  # a step more


@pytest.mark.expensive_compile
def test_a_certain_head_is_searched_by_few_nodes():
    head = make(catnat.balanced(4096), "sigmoid", spread=8)
    assert head.topk(features(200), 3).visited.mean() < 90  # of 4095: 81, or 102 if a step scored all it could


@pytest.mark.expensive_compile
def test_transforms():
    """All in one program: compiled, row by row, and differentiated."""
    head, input, key = make(catnat.balanced(1000)), features(5), jax.random.key(0)

    @jax.jit
    def both(head, input):
        of_row = jax.vmap(lambda row: head.topk(row, 4))(input)
        return of_row, jax.grad(lambda x: head.topk(x, 4).values.sum())(input), head.sample(input, (3,), key=key)

    rows, gradient, drawn = both(head, input)
    close(rows, head.topk(input, 4))
    assert (gradient == 0).all()  # none goes through a search
    np.testing.assert_array_equal(drawn, head.sample(input, (3,), key=key))


# ---- draws ----


@pytest.mark.parametrize("name", ["balanced-18", "huffman-90"])
def test_draws_have_the_heads_probabilities(name):
    head, input = make(TREES[name], "sigmoid", spread=0.3), features(2)
    drawn = np.asarray(head.sample(input, (20_000,), key=jax.random.key(5)))
    for row, probs in enumerate(np.asarray(head.distribution(input).probs)):
        counts = np.bincount(drawn[:, row], minlength=head.tree.num_classes)
        assert stats.chisquare(counts, probs / probs.sum() * len(drawn)).pvalue > 1e-3


# ---- devices ----


def test_rows_split_over_devices():
    """Loss and gradients of four devices are those of one, by one sum of B numbers; of B x d in the backward pass."""
    code = """
import re, jax, jax.numpy as jnp, numpy as np, catnat, catnat.jax as cj
from jax.sharding import AxisType, PartitionSpec as P
jax.config.update("jax_enable_x64", True)
assert len(jax.devices()) == 4
mesh = jax.make_mesh((4,), ("rows",), axis_types=(AxisType.Auto,))

def sums(program):
    return sorted(re.findall(r"f64\\[([\\d,]*)\\]", " ".join(re.findall(r"= (.*) all-reduce\\(", program.as_text()))))

for tree in (catnat.balanced(100), catnat.huffman(1 / np.arange(1, 91))):
    head = cj.CatnatHead(6, tree, class_weights=np.linspace(1, 2, tree.num_classes), key=jax.random.key(0))
    input, target = jax.random.normal(jax.random.key(1), (8, 6)), jnp.arange(0, 80, 10).at[3].set(-100)

    def loss(head, input):
        return head(input, target, axis_name="rows").loss

    split = jax.shard_map(loss, mesh=mesh, in_specs=(P("rows"), P()), out_specs=P())
    wanted = jax.value_and_grad(lambda *args: args[0](args[1], target).loss, (0, 1))(head, input)
    forward = jax.jit(split).lower(head.padded(4), input).compile()
    assert sums(forward) == ["8"], sums(forward)
    both = jax.jit(jax.value_and_grad(split, (0, 1))).lower(head.padded(4), input).compile()
    assert sums(both) == ["8", "8,1,6"], sums(both)
    assert not re.search("all-gather|all-to-all|permute|scatter-reduce", both.as_text())
    value, (rows, inputs) = both(head.padded(4), input)
    assert len(rows.weight.sharding.device_set) == 4 and rows.weight.shape[0] % 4 == 0
    rows = jax.tree.map(lambda some: some[:tree.num_nodes], rows)
    for found in ((forward(head.padded(4), input), wanted[1]), (value, (rows, inputs))):
        jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12), found, wanted)

# The rows of the input split instead, and all of the head on every device.
search = lambda head, input, keys: (head.topk(input, 3), jax.vmap(lambda x, key: head.sample(x, key=key))(input, keys))
args = head, input, jax.random.split(jax.random.key(2), 8)
split = jax.shard_map(search, mesh=mesh, in_specs=(P(), P("rows"), P("rows")), out_specs=P("rows"))
jax.tree.map(np.testing.assert_allclose, jax.jit(split)(*args), jax.jit(search)(*args))
try:
    jax.shard_map(lambda head: head.topk(input, 3), mesh=mesh, in_specs=P("rows"), out_specs=P())(head.padded(4))
except ValueError as error:
    assert "23 rows here, but the tree has 89 nodes" in str(error), error
else:
    raise AssertionError
"""
    python(code, XLA_FLAGS="--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0")


# ---- parameters, dtypes, errors ----


def test_it_starts_as_a_score_layer_does():
    tree, key = TREES["huffman-90"], jax.random.key(0)
    for bias in (False, True):
        head, layer = (kind(8, tree, "sigmoid", bias, key=key) for kind in (cj.CatnatHead, cj.ScoreLayer))
        close(jax.tree.leaves(head), jax.tree.leaves(layer))
        close(head.log_prob(jnp.zeros(8)), jnp.log(tree.prior))
    assert cj.CatnatHead(8, 5, dtype=jnp.bfloat16, key=key).weight.dtype == jnp.bfloat16


def test_only_weight_and_bias_are_parameters():
    tree, weights = TREES["balanced-18"], jnp.arange(18.0)
    head = make(tree, class_weights=weights)
    assert [str(path) for ((path,), _) in jax.tree_util.tree_leaves_with_path(head)] == [".weight", ".bias"]
    for again in (jax.tree.map(jnp.copy, head), pickle.loads(pickle.dumps(head)), make(tree, class_weights=weights)):
        assert jax.tree.structure(again) == jax.tree.structure(head)
        np.testing.assert_array_equal(again.class_weights, weights)
    assert jax.tree.structure(make(tree, class_weights=weights + 1)) != jax.tree.structure(head)
    assert "balanced(18)" in repr(head)


@pytest.mark.expensive_compile
def test_padding_changes_nothing():
    head, input, target = make(TREES["balanced-18"]), features(4), targets(TREES["balanced-18"], 4)
    padded = head.padded(8)
    assert padded.weight.shape == (24, FEATURES)
    assert padded.bias.shape == (24,)
    close(padded(input, target), head(input, target))
    close(padded.log_prob(input), head.log_prob(input))
    assert (jax.grad(lambda head: head(input, target).loss)(padded).weight[17:] == 0).all()
    with pytest.raises(ValueError, match="`multiple` is 0"):
        head.padded(0)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_hostile_inputs_give_finite_losses_and_gradients(dtype):
    """And half precision gives what single precision says of the same numbers: it computes in that."""
    tree = TREES["balanced-100"]
    for activation in ("sigmoid", "natural"):
        head = make(tree, activation, dtype)
        input = features(6, dtype=dtype) * (jnp.finfo(dtype).max / 100)
        loss = jax.value_and_grad(lambda head, input: head(input, targets(tree, 6)).loss, (0, 1))
        found, single = loss(head, input), jax.tree.map(lambda values: values.astype(jnp.float32), (head, input))
        np.testing.assert_allclose(found[0].astype(jnp.float32), loss(*single)[0], rtol=0.03)
        for value in jax.tree.leaves(found):
            assert value.dtype == dtype
            assert jnp.isfinite(value).all()


def test_all_targets_ignored_cost_nothing():
    head, input = make(TREES["balanced-18"]), features(3)
    (loss, output), gradient = jax.value_and_grad(lambda head: head(input, jnp.full(3, -100))[::-1], has_aux=True)(head)
    assert loss == 0
    assert (output == 0).all()
    assert (gradient.weight == 0).all()


def test_errors_say_what_is_needed():
    head = make(TREES["balanced-18"])
    with pytest.raises(ValueError, match=r"`input` has shape \(3, 5\).* 6 floating-point features"):
        head(jnp.zeros((3, 5)), jnp.zeros(3, int))
    with pytest.raises(ValueError, match=r"`target` has shape \(4,\).*one class per row"):
        head(features(3), jnp.zeros(4, int))
    with pytest.raises(ValueError, match=r"holds 18, but this tree has the classes 0 \.\. 17"):
        head(features(1), jnp.array([18]))
    with pytest.raises(ValueError, match="`k` is 19"):
        head.topk(features(1), 19)
    with pytest.raises(ValueError, match="leading axes of the classes"):
        head.log_prob_of(features(3), jnp.zeros((2, 3), int))
    with pytest.raises(ValueError, match="`class_weights` has shape"):
        cj.CatnatHead(FEATURES, 4, class_weights=jnp.ones(3), key=jax.random.key(0))
