"""The layers for flax's NNX, against the real library: they train, they split, and a state knows its tree."""

from __future__ import annotations

import copy
import inspect
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import catnat
import catnat.jax as cj

pytest.importorskip("flax", minversion="0.12")
import optax
import orbax.checkpoint
from flax import nnx

from catnat.integrations.flax import CatnatHead, CatnatLinear, Fingerprint

FEATURES, K = 6, 10
TREE = catnat.huffman(np.arange(1, K + 1))
X = jnp.asarray(np.random.default_rng(0).normal(size=(40, FEATURES)), jnp.float32)
Y = jnp.asarray(np.random.default_rng(1).integers(K, size=40))


class Model(nnx.Module):
    """A hidden layer and a head, as users write them."""

    def __init__(self, classes, activation="natural", *, rngs):
        self.hidden = nnx.Linear(FEATURES, 8, rngs=rngs)
        self.head = CatnatLinear(8, classes, activation, rngs=rngs)

    def features(self, x):
        return nnx.relu(self.hidden(x))

    def __call__(self, x):
        return self.head(self.features(x))


def model_of(tree=TREE, activation="natural", seed=0):
    return Model(tree, activation, rngs=nnx.Rngs(seed))


def equal(found, wanted):
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


# ---- training ----


def loss_of(layer):
    return layer.loss(X, Y)


KINDS = pytest.mark.parametrize(("kind", "plain"), [(CatnatLinear, cj.CatnatLinear), (CatnatHead, cj.CatnatHead)])


def both(kind, plain, **options):
    """A layer, and that of catnat.jax with the same key."""
    layer = kind(FEATURES, TREE, "sigmoid", **options, rngs=nnx.Rngs(3))
    return layer, plain(FEATURES, TREE, "sigmoid", **options, dtype=jnp.float32, key=nnx.Rngs(3).params())


@pytest.mark.one_row
@KINDS
def test_an_nnx_optimizer_trains_it_as_optax_trains_the_plain_layer(kind, plain):
    adamw = optax.adamw(0.05, weight_decay=0.1)
    layer, theirs = both(kind, plain)
    optimizer, state, compiled = nnx.Optimizer(layer, adamw, wrt=nnx.Param), adamw.init(theirs), []

    @nnx.jit
    def step(layer, optimizer):
        compiled.append(1)
        loss, gradient = nnx.value_and_grad(loss_of)(layer)
        optimizer.update(layer, gradient)
        return loss

    losses = [step(layer, optimizer) for _ in range(5)]
    assert len(compiled) == 1
    for loss in losses:
        wanted, gradient = jax.value_and_grad(loss_of)(theirs)
        np.testing.assert_allclose(loss, wanted, rtol=1e-5)
        updates, state = adamw.update(gradient, state, theirs)
        theirs = optax.apply_updates(theirs, updates)
    np.testing.assert_allclose(layer.weight[...], theirs.weight, atol=1e-5)
    np.testing.assert_allclose(layer.bias[...], theirs.bias, atol=1e-5)
    assert losses[-1] < losses[0]
    assert not any(jax.tree.leaves(nnx.state(layer, Fingerprint)))  # neither trained nor decayed


def test_inside_a_model_every_parameter_gets_a_gradient():
    model = model_of()
    gradient = nnx.jit(nnx.grad(lambda model: model.head.loss(model.features(X), Y)))(model)
    sizes = {jax.tree_util.keystr(path): float(jnp.abs(g).max()) for path, g in jax.tree.leaves_with_path(gradient)}
    assert len(sizes) == 4
    assert min(sizes.values()) > 0


def test_many_models_side_by_side():
    models = nnx.vmap(lambda rngs: Model(TREE, rngs=rngs))(nnx.Rngs(0).split(3))
    assert models.head.weight.shape == (3, K - 1, 8)
    assert nnx.vmap(lambda model, x: model(x), in_axes=(0, None))(models, X).shape == (3, 40, K)


# ---- the methods are those of catnat.jax ----


KEY, MASK, CLASSES = jax.random.key(0), jnp.arange(K) != 2, jnp.stack([Y, Y[::-1]], -1)
CALLS = {
    "both": [
        lambda layer: layer.scores(X),
        lambda layer: layer.log_probs(X),
        lambda layer: layer.distribution(X, mask=MASK, unimix=0.1),
    ],
    "CatnatLinear": [lambda layer: layer(X), lambda layer: layer.loss(X, Y, label_smoothing=0.1)],
    "CatnatHead": [
        lambda head: head(X, Y),
        lambda head: head.loss(X, Y),
        lambda head: head.log_prob(X),
        lambda head: head.log_prob_of(X, CLASSES),
        lambda head: head.sample(X, (2,), key=KEY),
        lambda head: head.sample(X, valid_classes=jnp.array([0, 3]), key=KEY),
        lambda head: head.topk(X, 3),
        lambda head: head.predict(X),
    ],
}


@KINDS
def test_it_says_what_the_plain_layer_says(kind, plain):
    options = {"class_weights": jnp.linspace(0.5, 2, K), "ignore_index": 3} if kind is CatnatHead else {}
    layer, wanted = both(kind, plain, **options)
    equal(layer.as_pytree(), wanted)
    assert (layer.tree, layer.activation, layer.in_features) == (wanted.tree, wanted.activation, FEATURES)
    for call in CALLS["both"] + CALLS[kind.__name__]:
        equal(call(layer), call(wanted))


def test_no_method_of_the_plain_layers_is_missing():
    """All but what makes a pytree, files, which are flax's affair, and rows on many devices: see ``as_pytree``."""
    for kind, plain in ((CatnatLinear, cj.CatnatLinear), (CatnatHead, cj.CatnatHead)):
        public = {name for name in dir(plain) if not name.startswith("_") and callable(getattr(plain, name))}
        assert public - set(dir(kind)) <= {
            "tree_flatten_with_keys",
            "tree_unflatten",
            "checked",
            "padded",
            "state_dict",
            "load_state_dict",
            "from_state_dict",
        }


def test_methods_have_the_documented_arguments():
    for kind, plain in ((CatnatLinear, cj.CatnatLinear), (CatnatHead, cj.CatnatHead)):
        for name in {"__call__", "scores", "log_probs", "distribution", "loss", "sample", "topk"} & set(dir(plain)):
            method, wanted = getattr(kind, name), getattr(plain, name)
            assert inspect.signature(method) == inspect.signature(wanted)
            assert method.__doc__ == wanted.__doc__ is not None


def test_one_example_and_any_batch():
    layer = CatnatLinear(FEATURES, TREE, rngs=nnx.Rngs(0))
    np.testing.assert_allclose(layer(X[0]), layer(X)[0], rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(layer)(X), layer(X), rtol=1e-6)
    assert layer(X.reshape(4, 10, FEATURES)).shape == (4, 10, K)


def test_dtypes_have_flaxs_meaning():
    """``dtype`` is what is computed in and ``param_dtype`` that of the parameters, as in nnx.Linear."""
    for kind in (CatnatLinear, CatnatHead):
        layer = kind(FEATURES, TREE, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
        linear = nnx.Linear(FEATURES, K - 1, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
        assert layer.weight.dtype == linear.kernel.dtype == jnp.float32
        assert layer.scores(X).dtype == layer.log_probs(X).dtype == linear(X).dtype == jnp.bfloat16
        assert loss_of(layer).dtype == jnp.bfloat16
        assert kind(FEATURES, TREE, param_dtype=jnp.bfloat16, rngs=nnx.Rngs(0)).weight.dtype == jnp.bfloat16
        assert kind(FEATURES, TREE, use_bias=False, rngs=nnx.Rngs(0)).bias is None


# ---- states ----


def test_split_merge_clone_copy_and_pickle():
    model = model_of()
    wanted, (graphdef, params, rest) = model(X), nnx.split(model, nnx.Param, ...)
    assert set(params["head"]) == {"weight", "bias"}
    assert set(rest["head"]) == {"fingerprint"}
    for other in (
        nnx.merge(graphdef, params, rest),
        nnx.clone(model),
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
    ):
        assert other.head.tree == TREE
        equal(other(X), wanted)
    equal(jax.jit(lambda params: nnx.merge(graphdef, params, rest)(X))(params), wanted)


def test_equal_layers_are_compiled_once():
    """Trees and activations are compared by content: a model that was built again has the same program."""
    compiled = []

    @nnx.jit
    def scores(model):
        compiled.append(1)
        return model(X)

    for seed in range(3):
        scores(model_of(catnat.huffman(np.arange(1, K + 1)), cj.natural(), seed=seed))
    assert len(compiled) == 1


def by_update(model, other):
    nnx.update(model, nnx.state(other))
    return model


def by_pure_dict(model, other):
    nnx.update(model, nnx.to_pure_dict(nnx.state(other)))
    return model


def by_merge(model, other):
    return nnx.merge(nnx.graphdef(model), nnx.state(other))


LOADS = pytest.mark.parametrize("load", [by_update, by_pure_dict, by_merge], ids=lambda load: load.__name__)
OTHERS = pytest.mark.parametrize(
    ("tree", "activation", "kind", "says"),
    [
        (catnat.chain(K), "natural", "tree", "tree_table_10_.*but this layer has tree_chain_10, which is chain"),
        (TREE, "sigmoid", "activation", "activation_natural, .*this layer has activation_sigmoid"),
    ],
    ids=["tree", "activation"],
)


@LOADS
def test_a_state_fits_a_model_with_the_same_tree(load):
    other = model_of(seed=1)
    equal(load(model_of(catnat.huffman(np.arange(1, K + 1)), cj.natural()), other)(X), other(X))


@LOADS
@OTHERS
def test_a_state_of_another_tree_or_activation_raises(load, tree, activation, kind, says):
    model = load(model_of(tree, activation, seed=1), model_of())
    for call in (
        lambda: model(X),
        lambda: nnx.jit(lambda model: model.head.log_probs(model.features(X)))(model),
        lambda: nnx.grad(lambda model: model.head.loss(model.features(X), Y))(model),
    ):
        with pytest.raises(ValueError, match=f"another {kind}: {says}"):
            call()


@OTHERS
def test_so_does_a_checkpoint_of_orbax(tree, activation, kind, says, tmp_path):
    """Orbax compares the names itself, and says which it did not find."""
    with orbax.checkpoint.StandardCheckpointer() as checkpointer:
        model = model_of()
        checkpointer.save(tmp_path / "model", nnx.state(model))
        checkpointer.wait_until_finished()
        graphdef, like = nnx.split(nnx.eval_shape(lambda: model_of(seed=1)))
        equal(nnx.merge(graphdef, checkpointer.restore(tmp_path / "model", like))(X), model(X))
        wrong = nnx.state(nnx.eval_shape(lambda: model_of(tree, activation)))
        with pytest.raises(ValueError, match=f"'fingerprint', 'value', '{kind}_[^']*'\\) not found"):
            checkpointer.restore(tmp_path / "model", wrong)


def test_parameters_alone_are_taken_over_unchecked():
    """What the page says one can do on purpose."""
    model, other = model_of(catnat.chain(K)), model_of(seed=1)
    nnx.update(model, nnx.state(other, nnx.Param))
    scores, wanted = (each.head.scores(each.features(X)) for each in (model, other))
    equal(scores, wanted)
    assert not np.allclose(model(X), other(X))  # another tree: the same scores are another distribution


def test_flax_refuses_a_plain_layer():
    """It would not be trained: the page says so, and shows ``nnx.data``."""

    class Wrapped(nnx.Module):
        def __init__(self, rngs):
            self.head = cj.CatnatLinear(FEATURES, K, key=rngs.params())

    with pytest.raises(ValueError, match=r"Found data on value of type.*CatnatLinear"):
        Wrapped(nnx.Rngs(0))
