"""Last layers, which know their tree: in both frameworks they say what the functions say with that tree."""

from __future__ import annotations

import copy
import io
import json

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import catnat
import catnat.jax as cj
import catnat.torch as ct
from catnat.trees import saving

TREE = catnat.huffman(cases.zipf(6))
FEATURES = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
TARGET = np.random.default_rng(1).integers(6, size=(2, 5))
PROBS = np.random.default_rng(2).dirichlet(np.ones(6), size=(2, 5)).astype(np.float32)
VALID = np.array([True, False, True, True, False, True])

every_activation = pytest.mark.parametrize("activation", ["sigmoid", "natural"])
every_kind = pytest.mark.parametrize("kind", ["CatnatLinear", "CatnatHead"])


def make(lib, kind, activation="sigmoid", classes=TREE):
    torch.manual_seed(0)
    return getattr(lib, kind)(3, classes, activation, **({"key": jax.random.key(0)} if lib is cj else {}))


def arrays(lib, *values):
    return [(torch.as_tensor if lib is ct else jnp.asarray)(value) for value in values]


def numpy(value):
    return np.asarray(value.detach() if isinstance(value, torch.Tensor) else value)


def states(layer):
    """Its state as NumPy arrays."""
    return {name: numpy(value) for name, value in layer.state_dict().items()}


@every_activation
@every_kind
@pytest.mark.parametrize("lib", [ct, cj], ids=["torch", "jax"])
def test_a_layer_speaks_for_its_tree(lib, kind, activation):
    layer, (x, target, valid) = make(lib, kind, activation), arrays(lib, FEATURES, TARGET, VALID)
    scores = x @ layer.weight.T + layer.bias
    wanted = numpy(lib.log_catnat(scores, TREE, activation))
    masked = lib.Catnat(scores, TREE, activation, mask=valid).probs
    for found in (layer.log_probs(x), layer.distribution(x).logits, *([layer(x)] if kind == "CatnatLinear" else [])):
        np.testing.assert_allclose(numpy(found), wanted, rtol=1e-5)
    np.testing.assert_allclose(numpy(layer.scores(x)), numpy(scores), rtol=1e-5)
    np.testing.assert_allclose(numpy(layer.distribution(x, mask=valid).probs), numpy(masked), rtol=1e-5)
    picked = np.take_along_axis(wanted, TARGET[..., None], -1)
    np.testing.assert_allclose(numpy(layer.loss(x, target)), -picked.mean(), rtol=1e-5)


@pytest.mark.parametrize("lib", [ct, cj], ids=["torch", "jax"])
def test_losses_of_probabilities_and_their_options(lib):
    """Classes are on the last axis of a layer's loss, however many axes the features have."""
    layer, (x, probs) = make(lib, "CatnatLinear"), arrays(lib, FEATURES, PROBS)
    logs = numpy(layer(x))
    soft = -(logs * PROBS).sum(-1)
    for reduction, wanted in (("none", soft), ("mean", soft.mean()), ("sum", soft.sum())):
        np.testing.assert_allclose(numpy(layer.loss(x, probs, reduction=reduction)), wanted, rtol=1e-5)
    ignored = TARGET.copy()
    ignored[0] = -100
    left = -np.take_along_axis(logs, TARGET[..., None], -1)[1].mean()
    np.testing.assert_allclose(numpy(layer.loss(x, *arrays(lib, ignored))), left, rtol=1e-5)


@every_kind
def test_weights_go_from_one_framework_to_the_other(kind):
    one, other, back = make(ct, kind, "natural"), make(cj, kind, "natural"), make(ct, kind, "natural")
    there = other.load_state_dict(states(one))
    np.testing.assert_allclose(
        there.log_probs(jnp.asarray(FEATURES)), numpy(one.log_probs(torch.tensor(FEATURES))), rtol=1e-4
    )
    nn.init.zeros_(back.weight)
    assert not any(back.load_state_dict({name: torch.tensor(value) for name, value in states(there).items()}))
    torch.testing.assert_close(back.weight, one.weight)


def test_class_weights_are_in_the_state_of_a_head():
    """Of both frameworks, which build the head again from each other's state."""
    weights = np.linspace(0.5, 2, 6, dtype=np.float32)
    one = ct.CatnatHead(3, TREE, "natural", bias=False, class_weights=torch.tensor(weights))
    there = cj.CatnatHead.from_state_dict({f"head.{name}": value for name, value in states(one).items()}, "head.")
    back = ct.CatnatHead.from_state_dict({name: torch.tensor(value) for name, value in states(there).items()})
    heads = (ct, one), (cj, there), (ct, back)
    losses = [numpy(head.loss(*arrays(lib, FEATURES, TARGET))) for lib, head in heads]
    np.testing.assert_allclose(losses, losses[0], rtol=1e-5)
    for other in (cj.CatnatHead.from_state_dict(there.state_dict()), there.load_state_dict(there.state_dict())):
        assert jax.tree.structure(other) == jax.tree.structure(there)
    other = there.load_state_dict({**there.state_dict(), "class_weights": 2 * weights})
    np.testing.assert_array_equal(other.class_weights, 2 * weights)
    np.testing.assert_array_equal(there.class_weights, weights)
    assert cj.CatnatHead.from_state_dict(there.state_dict(), ignore_index=3).ignore_index == 3
    with pytest.raises(ValueError, match="class_weights"):
        make(cj, "CatnatHead", "natural").load_state_dict(there.state_dict())


@pytest.mark.parametrize("lib", [ct, cj], ids=["torch", "jax"])
@every_kind
def test_it_starts_near_the_prior(lib, kind):
    """For inputs of unit variance scores have standard deviation 0.5: well inside the natural activation's band."""
    torch.manual_seed(0)
    tree, more = catnat.huffman(cases.zipf(100)), {"key": jax.random.key(0)} if lib is cj else {}
    layer = getattr(lib, kind)(256, tree, **more)
    (x,) = arrays(lib, np.random.default_rng(0).normal(size=(4000, 256)).astype(np.float32))
    scores, probs = numpy(layer.scores(x)), np.exp(numpy(layer.log_probs(x)))
    assert 0.49 < (scores.std(0) ** 2).mean() ** 0.5 < 0.51
    assert scores.std(0).max() < 0.65
    np.testing.assert_allclose(probs.mean(0), tree.prior, atol=0.03)
    assert not numpy(layer.bias).any()


@every_kind
def test_a_torch_layer_is_a_module_like_any_other(kind):
    layer = make(ct, kind)
    assert list(layer.state_dict()) == ["weight", "bias", "_extra_state"]
    before = layer.weight.detach().clone()
    nn.init.ones_(layer.bias)
    layer.reset_parameters()
    assert not torch.equal(layer.weight, before)
    assert not layer.bias.any()
    assert all(part in repr(layer) for part in (kind, "3", repr(TREE), "sigmoid"))
    for dtype in (torch.float64, torch.bfloat16):
        assert layer.to(dtype).log_probs(torch.ones(2, 3, dtype=dtype)).dtype == dtype
    one = make(ct, kind, classes=1)
    assert one.weight.shape == (0, 3)
    torch.testing.assert_close(one.log_probs(torch.zeros(2, 3)), torch.zeros(2, 1))


# ---- checkpoints ----

TREES = {
    "balanced": catnat.balanced(6),
    "chain": catnat.chain(6),
    "huffman": TREE,
    "clusters": catnat.from_clusters([[0, 3], [1, [2, 4]], 5]),
    "children": catnat.from_children([(0, 1), (2, 6), (7, 3), (4, 8), (9, 5)]),
    "embeddings": catnat.from_embeddings(np.random.default_rng(0).normal(size=(6, 2))),
    "prior": catnat.balanced(6).with_prior([1, 2, 3, 4, 5, 6]),
    "one-class": catnat.balanced(1),
}


@every_activation
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
@pytest.mark.parametrize("prefix", ["", "model.head."])
def test_a_layer_is_rebuilt_from_its_state(tree, activation, bias, prefix):
    """Of any tree, wherever it stands in a model's state, which went through a file of tensors alone."""
    layer, file = ct.CatnatLinear(3, tree, activation, bias, dtype=torch.float64), io.BytesIO()
    others = {"model.body.weight": torch.ones(2)} if prefix else {}
    torch.save(others | {prefix + name: value for name, value in layer.state_dict().items()}, file)
    file.seek(0)
    again = ct.CatnatLinear.from_state_dict(torch.load(file, weights_only=True), prefix)
    assert (again.tree, again.activation) == (tree, layer.activation)
    x = torch.tensor(FEATURES).double()
    torch.testing.assert_close(again(x), layer(x), rtol=0, atol=0)


def test_what_cannot_be_rebuilt_says_why():
    with pytest.raises(KeyError, match=r"no layer of this kind at the prefix 'head\.'"):
        ct.CatnatLinear.from_state_dict(make(ct, "CatnatLinear").state_dict(), "head.")
    own = ct.CatnatLinear(3, TREE, cases.Cauchit())
    with pytest.raises(ValueError, match="Build the layer"):  # a state cannot hold the code of an activation
        ct.CatnatLinear.from_state_dict(own.state_dict())
    assert not any(ct.CatnatLinear(3, TREE, cases.Cauchit()).load_state_dict(own.state_dict()))


def as_in_version_0_2(layer):
    """The state that a layer of the same tree had before fingerprints held the tree itself."""
    mine = saving.names(layer.tree, layer.activation)
    facts = {"names": mine, "tree": repr(layer.tree), "activation": repr(layer.activation)}
    mark = torch.from_numpy(np.frombuffer(json.dumps(facts).encode(), np.uint8).copy())
    return {**layer.state_dict(), "_extra_state": mark}


@every_kind
@every_activation
def test_checkpoints_of_version_0_2_load(kind, activation):
    layer, again = make(ct, kind, activation), make(ct, kind, activation)
    nn.init.ones_(layer.weight)
    assert not any(again.load_state_dict(as_in_version_0_2(layer)))
    torch.testing.assert_close(again.weight, layer.weight)
    with pytest.raises(RuntimeError, match=r"another|balanced"):
        make(ct, kind, activation, 6).load_state_dict(as_in_version_0_2(layer))
    if kind == "CatnatLinear":
        with pytest.raises(ValueError, match="does not hold them"):
            ct.CatnatLinear.from_state_dict(as_in_version_0_2(layer))


DAMAGED = {
    "empty": b"",
    "no JSON": b"\xff\x00garbage",
    "a list": b"[1, 2]",
    "no names": b"{}",
    "names of another type": b'{"names": 3, "tree": "", "activation": ""}',
    "too few names": b'{"names": ["tree_balanced_6"], "tree": "", "activation": ""}',
    "nested too deep": b"[" * 100_000,
}


@every_kind
@pytest.mark.parametrize("mark", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_fingerprint_is_reported_as_torch_reports_keys(kind, mark):
    """Collected with what else is wrong, in one RuntimeError."""
    model = nn.Sequential(nn.Linear(3, 3), make(ct, kind))
    state = model.state_dict()
    state["1._extra_state"] = torch.from_numpy(np.frombuffer(mark, np.uint8).copy())
    del state["0.bias"]
    with pytest.raises(RuntimeError, match=r"(?s)(0\.bias.*1: .*_extra_state|1: .*_extra_state.*0\.bias)"):
        model.load_state_dict(state)


@every_kind
def test_a_refused_checkpoint_changes_nothing(kind):
    layer, other = make(ct, kind), make(ct, kind, "natural")
    nn.init.ones_(other.weight)
    before = layer.weight.detach().clone()
    for strict in (True, False):
        with pytest.raises(RuntimeError, match=r"activation natural.*sigmoid"):
            layer.load_state_dict(other.state_dict(), strict=strict)
    with pytest.raises(RuntimeError, match=r"1: The checkpoint.*the tree balanced\(6\)"):  # which layer of a model
        nn.Sequential(nn.ReLU(), layer).load_state_dict(
            nn.Sequential(nn.ReLU(), make(ct, kind, classes=6)).state_dict()
        )
    torch.testing.assert_close(layer.weight.detach(), before, rtol=0, atol=0)


def test_trees_that_print_alike_are_told_apart():
    one, other = (catnat.huffman(cases.zipf(6)), catnat.huffman(cases.zipf(6)[::-1]))
    assert repr(one) == repr(other)
    with pytest.raises(RuntimeError, match=r"tree_table_6_\w+\), where this one has .*tree_table_6_"):
        ct.CatnatLinear(3, one).load_state_dict(ct.CatnatLinear(3, other).state_dict())


def test_a_fingerprint_goes_where_weights_go():
    """Copies, averages, and layers on another device or in another dtype."""
    layer = make(ct, "CatnatLinear")
    assert all(isinstance(value, torch.Tensor) for value in layer.state_dict().values())
    averaged = torch.optim.swa_utils.AveragedModel(layer)
    averaged.update_parameters(layer)
    assert not any(averaged.load_state_dict(averaged.state_dict()))
    assert not any(copy.deepcopy(layer).half().load_state_dict(layer.half().state_dict()))


def test_strict_false_takes_weights_that_nobody_knows_the_tree_of():
    layer, plain = make(ct, "CatnatLinear"), nn.Linear(3, 5)
    assert layer.load_state_dict(plain.state_dict(), strict=False).missing_keys == ["_extra_state"]
    torch.testing.assert_close(layer.weight, plain.weight)
    # And the other way round: a plain layer knows nothing of trees.
    assert plain.load_state_dict(layer.state_dict(), strict=False).unexpected_keys == ["_extra_state"]


@pytest.mark.parametrize("kind", ["CatnatLinear", "CatnatHead"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_states_can_be_averaged(kind, dtype):
    """As for target networks and model soups: every entry times a number, also the fingerprint."""
    one, other = (getattr(ct, kind)(3, catnat.huffman([5, 3, 1, 1])) for _ in range(2))
    theirs = other.state_dict()
    mean = {name: 0.005 * value.to(dtype) + 0.995 * theirs[name].to(dtype) for name, value in one.state_dict().items()}
    assert mean["_extra_state"].is_floating_point()
    other.load_state_dict(mean)
    with pytest.raises(RuntimeError, match="layer with"):
        getattr(ct, kind)(3, 4).load_state_dict(mean)


def test_gradients_of_bins_at_an_edge_are_those_of_torch():
    """There the density is the same on both sides, so the derivative is no special case."""
    edges = np.linspace(-2, 2, 5)
    x = torch.zeros((), requires_grad=True)
    (wanted,) = torch.autograd.grad(ct.BinnedCatnat(torch.zeros(3), edges).cdf(x), x)
    got = jax.grad(lambda x: cj.BinnedCatnat(jnp.zeros(3), edges).cdf(x))(jnp.asarray(0.0))
    assert float(got) == float(wanted) == 0.25


def test_a_head_of_jax_adds_gradients_of_a_batch_in_single_precision():
    """In bfloat16 a sum stops growing after 256 equal terms, and every row of a batch adds to the root."""
    head, x = cj.CatnatHead(8, 64, key=jax.random.key(0)), jax.random.normal(jax.random.key(1), (4096, 8))
    target = jnp.minimum(jnp.arange(4096) % 64, 31)  # most of the mass on one side of the root
    roots = []
    for dtype in (jnp.float32, jnp.bfloat16):
        cast = jax.tree.map(lambda array, dtype=dtype: array.astype(dtype), head)
        roots.append(jax.grad(lambda h, dtype=dtype: h.loss(x.astype(dtype), target))(cast).bias[0].astype(float))
    np.testing.assert_allclose(roots[1], roots[0], rtol=0.02)


@pytest.mark.parametrize("tree", [64, catnat.huffman(np.arange(1, 65))], ids=["balanced", "huffman"])
def test_a_head_of_torch_adds_gradients_of_a_batch_in_single_precision(tree):
    x, target = torch.randn(4096, 8, generator=torch.Generator().manual_seed(0)) + 1, torch.arange(4096) % 32
    head, roots = ct.CatnatHead(8, tree, dtype=torch.bfloat16), []
    for dtype in (torch.bfloat16, torch.float32):
        head.to(dtype).zero_grad()
        head.loss(x.to(dtype), target).backward()
        roots.append(torch.cat([head.weight.grad[0], head.bias.grad[:1]]).double())
    torch.testing.assert_close(roots[0], roots[1], rtol=0.02, atol=0)
