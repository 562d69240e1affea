"""CatnatHead in JAX: small searches, transforms, devices, parameters of a pytree."""

from __future__ import annotations

import importlib
import pickle

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from only_jax.processes import python

import catnat
import catnat.jax as cj
from catnat.jax import _topk

pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")

FEATURES = 6
# Before 0.8 it stands in jax.experimental.
enable_x64 = (jax if hasattr(jax, "enable_x64") else importlib.import_module("jax.experimental")).enable_x64
TREES = {"balanced-18": catnat.balanced(18), "huffman-90": catnat.huffman(cases.zipf(90))}


def make(tree, activation="natural", dtype=jnp.float64, spread=1.0, **options):
    """A head whose scores spread over the bands, some beyond them."""
    rng = np.random.default_rng(0)
    head = cj.CatnatHead(FEATURES, tree, activation, dtype=dtype, key=jax.random.key(0), **options)
    head.weight = jnp.asarray(rng.normal(size=head.weight.shape) * spread * 2 / FEATURES**0.5, dtype)
    if head.bias is not None:
        head.bias = jnp.asarray(rng.normal(size=head.bias.shape) * spread, dtype)
    return head


def features(*batch, dtype=jnp.float64):
    return jnp.asarray(np.random.default_rng(3).normal(size=(*batch, FEATURES)), dtype)


def targets(tree, *batch):
    return jnp.asarray(np.random.default_rng(4).integers(tree.num_classes, size=batch))


def close(found, wanted, **tolerance):
    tolerance = {"rtol": 1e-9, "atol": 1e-11, **tolerance}

    def compare(one, other):
        assert (jnp.shape(one), jnp.asarray(one).dtype) == (jnp.shape(other), jnp.asarray(other).dtype)
        np.testing.assert_allclose(one, other, **tolerance)

    jax.tree.map(compare, found, wanted)


# ---- the most probable classes ----


@pytest.mark.expensive_compile
@pytest.mark.parametrize("tree", [catnat.balanced(500), catnat.chain(60)], ids=["balanced", "chain"])
def test_a_search_that_keeps_as_few_places_as_it_can_finds_the_same(tree, monkeypatch):
    monkeypatch.setattr(_topk, "_MOST_PLACES", 0)
    head, input = make(tree, spread=0.1), features(6)
    found = head.topk(input, 7)
    close(found.values, jax.lax.top_k(head.log_prob(input), 7)[0])
    assert found.proven.all()


@pytest.mark.parametrize("lost", ["all", "some"])
def test_a_search_among_nan_scores_gives_classes(lost):
    """Not the id of an inner node, where it ends before it finds a class."""
    tree = catnat.balanced(500)
    head = make(tree, "sigmoid")
    nodes = slice(None) if lost == "all" else np.array([1, 5, 17, 40, 41])
    head.weight = head.weight.at[nodes].set(jnp.nan)
    found = head.topk(features(6), 400)
    assert ((found.indices >= 0) & (found.indices < tree.num_classes)).all()
    assert jnp.isnan(found.values).any(-1).all()


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


# ---- devices ----


@pytest.mark.slow
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


def test_it_starts_as_a_linear_layer_does():
    tree, key = TREES["huffman-90"], jax.random.key(0)
    for bias in (False, True):
        head, layer = (kind(8, tree, "sigmoid", bias, key=key) for kind in (cj.CatnatHead, cj.CatnatLinear))
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


def test_a_padded_head_loads_its_own_state():
    """Also where the padding ends at one row a class, as many as a softmax layer has."""
    for classes, parts in ((256, 4), (258, 4)):
        head = cj.CatnatHead(4, classes, key=jax.random.key(0)).padded(parts)
        jax.tree.map(np.testing.assert_array_equal, head.load_state_dict(head.state_dict()), head)


def test_a_class_that_indices_cannot_hold_is_refused():
    for wide, too_large in ((True, 2**64 - 1), (False, 2**32 + 1), (False, 2**32 - 1)):
        with enable_x64(wide), pytest.raises(ValueError, match=f"`classes` holds {too_large}"):
            cj.log_prob(jnp.zeros(3), np.array(too_large, np.uint64))
    given = np.array([[2**32 + 1]])
    with enable_x64(False):
        scores = jnp.zeros((1, 3))
        for call in (
            lambda: cj.cross_entropy(scores, given[0]),
            lambda: cj.MultiCatnat(scores, [4]).log_prob(given),
            lambda: cj.Catnat(scores, valid_classes=given),
        ):
            with pytest.raises(ValueError, match=f"holds {2**32 + 1}, but integers are from -2147483648 to 2147483647"):
                call()
