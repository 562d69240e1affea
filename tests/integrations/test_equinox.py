"""The layers of catnat.jax in equinox, against the real library: as fields of modules, trained, filtered and saved."""

from __future__ import annotations

import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import catnat
import catnat.jax as cj

pytest.importorskip("equinox", minversion="0.13")
import equinox as eqx
import optax

from catnat.integrations.equinox import tree_deserialise_leaves, tree_serialise_leaves

FEATURES, K, KEY = 6, 10, jax.random.key(0)
TREE = catnat.huffman(np.arange(1, K + 1))
X = jnp.asarray(np.random.default_rng(0).normal(size=(40, FEATURES)), jnp.float32)
Y = jnp.asarray(np.random.default_rng(1).integers(K, size=40))


class Model(eqx.Module):
    """A hidden layer and a head for one example, as equinox's own layers are."""

    hidden: eqx.nn.Linear
    head: cj.CatnatLinear

    def __init__(self, classes=TREE, activation="natural", *, key=KEY):
        first, second = jax.random.split(key)
        self.hidden = eqx.nn.Linear(FEATURES, 8, key=first)
        self.head = cj.CatnatLinear(8, classes, activation, key=second)

    def __call__(self, x):
        return self.head(jax.nn.relu(self.hidden(x)))


class Classifier(eqx.Module):
    """A head for many classes, on features as they are."""

    head: cj.CatnatHead


def loss_of(model, x, y):
    """As for any classifier whose outputs are logits."""
    return optax.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(x), y).mean()


def equal(found, wanted):
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


def close(found, wanted):
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6), found, wanted)


def trained(model, loss, steps=30):
    """As equinox's pages train: the losses, and the model."""
    optimizer = optax.adam(0.05)
    state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit
    def step(model, state):
        value, gradient = eqx.filter_value_and_grad(loss)(model, X, Y)
        updates, state = optimizer.update(gradient, state, model)
        return value, eqx.apply_updates(model, updates), state

    losses = []
    for _ in range(steps):
        value, model, state = step(model, state)
        losses.append(float(value))
    return losses, model


# ---- a field of a module ----


def test_as_a_field_the_head_trains_as_it_does_alone():
    head = cj.CatnatHead(FEATURES, TREE, class_weights=jnp.linspace(0.5, 2, K), key=KEY)
    found, model = trained(Classifier(head), lambda model, x, y: model.head(x, y).loss)
    wanted, plain = trained(head, lambda head, x, y: head(x, y).loss)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    close(model.head, plain)
    assert found[-1] < found[0]


def test_one_example_or_a_batch():
    """Equinox's layers take one example, under vmap; ours take any batch, and so both."""
    model = Model()
    hidden = jax.nn.relu(jax.vmap(model.hidden)(X))
    close(jax.vmap(model)(X), model.head(hidden))
    assert model(X[0]).shape == (K,)
    head = cj.CatnatHead(FEATURES, TREE, key=KEY)
    close(jax.vmap(head)(X, Y).output, head(X, Y).output)
    close(jax.vmap(head.log_prob)(X), head.log_prob(X))
    assert jax.vmap(head.sample)(X, key=jax.random.split(KEY, 40)).shape == (40,)


def test_only_weight_and_bias_are_trained():
    for model in (Model(), Classifier(cj.CatnatHead(FEATURES, K, class_weights=jnp.ones(K), key=KEY))):
        params, static = eqx.partition(model, eqx.is_inexact_array)
        assert {str(path[-1]) for path, _ in jax.tree.leaves_with_path(params.head)} == {".weight", ".bias"}
        assert not jax.tree.leaves(static.head)
        equal(eqx.combine(params, static), model)
        assert eqx.tree_equal(eqx.combine(params, static), model)


def test_gradients_have_the_same_tree():
    gradient = eqx.filter_jit(eqx.filter_grad(loss_of))(Model(), X, Y)
    assert isinstance(gradient.head, cj.CatnatLinear)
    assert gradient.head.tree == TREE
    assert all(jnp.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradient))


def test_surgery():
    model = Model()
    zero = eqx.tree_at(lambda model: model.head.weight, model, jnp.zeros((K - 1, 8)))
    np.testing.assert_allclose(jnp.exp(zero(X[0])), TREE.prior, rtol=1e-5)  # zero scores mean the prior
    assert (model.head.weight != 0).all()
    assert eqx.tree_at(lambda model: model.head.bias, model, None).head.bias is None
    other = eqx.tree_at(lambda model: model.head, model, cj.CatnatLinear(8, catnat.chain(4), key=KEY))
    assert other(X[0]).shape == (4,)


def test_equal_means_equal_trees_too():
    assert eqx.tree_equal(Model(), Model(catnat.huffman(np.arange(1, K + 1)), cj.natural()))
    assert not eqx.tree_equal(Model(), Model(catnat.balanced(K)))
    assert not eqx.tree_equal(Model(), Model(TREE, "sigmoid"))


def test_many_models_side_by_side():
    models = eqx.filter_vmap(lambda key: Model(key=key))(jax.random.split(KEY, 3))
    scores = eqx.filter_vmap(lambda model, x: jax.vmap(model)(x), in_axes=(eqx.if_array(0), None))(models, X)
    assert scores.shape == (3, 40, K)


def test_in_a_sequential_it_is_a_lambda():
    """``eqx.nn.Sequential`` hands every layer a key; ``eqx.nn.Lambda`` drops it, and its weights are trained."""
    layer = cj.CatnatLinear(8, TREE, key=KEY)
    layers = [eqx.nn.Linear(FEATURES, 8, key=KEY), eqx.nn.Lambda(jax.nn.relu), eqx.nn.Lambda(layer)]
    model = eqx.nn.Sequential(layers)

    def loss(model):
        return optax.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(X), Y).mean()

    gradient = eqx.filter_grad(loss)(model)
    assert jnp.abs(gradient[2].fn.weight).max() > 0
    with pytest.raises(TypeError, match="'key'"):
        eqx.nn.Sequential([*layers[:2], layer])(X[0])


def test_beside_layers_with_state():
    model, state = eqx.nn.make_with_state(lambda: (eqx.nn.BatchNorm(FEATURES, "batch", mode="batch"), Model()))()

    def scores(x, state):
        x, state = model[0](x, state)
        return model[1](x), state

    assert jax.vmap(scores, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(X, state)[0].shape == (40, K)
    assert eqx.nn.inference_mode(model)[1].head.tree == TREE


# ---- files ----


def saved(model, save=tree_serialise_leaves, **options):
    file = io.BytesIO()
    save(file, model, **options)
    file.seek(0)
    return file


def test_a_file_is_read_into_the_same_model(tmp_path):
    model = Model()
    for path in (tmp_path / "model.eqx", str(tmp_path / "model")):
        tree_serialise_leaves(path, model)
        assert (tmp_path / "model.eqx").exists()
        for like in (Model(key=jax.random.key(1)), eqx.filter_eval_shape(Model)):
            assert eqx.tree_equal(tree_deserialise_leaves(path, like), model)
        (tmp_path / "model.eqx").unlink()


def test_equinoxs_options_go_through():
    """A specification of the leaves to write, as equinox takes it."""

    def nothing(file, leaf):
        return leaf

    model = Model()
    file = saved(model, filter_spec=lambda file, leaf: None)
    assert eqx.tree_equal(tree_deserialise_leaves(file, model, filter_spec=nothing), model)


@pytest.mark.parametrize(
    ("tree", "activation", "says"),
    [
        (catnat.chain(K), "natural", "another tree: tree_table_10_.* has tree_chain_10, which is chain"),
        (TREE, "sigmoid", "another activation: activation_natural, .* has activation_sigmoid"),
    ],
    ids=["tree", "activation"],
)
def test_another_tree_or_activation_raises(tree, activation, says):
    with pytest.raises(ValueError, match=says):
        tree_deserialise_leaves(saved(Model()), Model(tree, activation))
    # What equinox itself would not see.
    eqx.tree_deserialise_leaves(saved(Model(), eqx.tree_serialise_leaves), Model(tree, activation))


def test_every_layer_is_checked():
    def model(*trees):
        return [Classifier(cj.CatnatHead(FEATURES, trees[0], key=KEY)), Model(trees[1])]

    assert eqx.tree_equal(tree_deserialise_leaves(saved(model(TREE, TREE)), model(TREE, TREE)), model(TREE, TREE))
    for others in ((TREE, catnat.chain(K)), (catnat.chain(K), TREE)):
        with pytest.raises(ValueError, match="another tree"):
            tree_deserialise_leaves(saved(model(TREE, TREE)), model(*others))


def test_a_file_with_more_than_the_model_has_raises(tmp_path):
    path, like = tmp_path / "model.eqx", cj.CatnatLinear(FEATURES, TREE, bias=False, key=KEY)
    tree_serialise_leaves(path, cj.CatnatLinear(FEATURES, TREE, key=KEY))
    with pytest.raises(ValueError, match="more arrays than `like` has, such as the bias"):
        tree_deserialise_leaves(path, like)
    with open(path, "rb") as file:  # more may follow
        assert tree_deserialise_leaves(file, like).bias is None
        assert file.read(1)


def test_a_model_without_layers_of_catnat():
    model = eqx.nn.Linear(2, 3, key=KEY)
    assert eqx.tree_equal(tree_deserialise_leaves(saved(model), model), model)
