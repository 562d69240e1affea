"""The layers: pytrees whose leaves are weights, which start near the prior and do what the functions do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import catnat
import catnat.jax as cj

pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")

KEY = jax.random.key(0)


def test_score_layers_start_near_the_prior():
    tree = catnat.huffman([5, 3, 1, 1])
    for kind in ("natural", cj.natural(boundary="reflect", scaling="isotropic"), "sigmoid"):
        layer = cj.ScoreLayer(256, tree, kind, key=KEY)
        scores = layer(jax.random.normal(jax.random.key(1), (4000, 256)))
        assert scores.shape == (4000, 3)
        scaled = np.asarray(scores) * np.maximum(np.broadcast_to(layer.activation.scale(tree), 3), 1)
        np.testing.assert_allclose(scaled.std(0), np.full(3, 0.5), rtol=0.2)
        assert (layer.bias == 0).all()
    assert cj.ScoreLayer(5, 10, key=KEY).tree == catnat.balanced(10)
    assert cj.ScoreLayer(5, 10, bias=False, key=KEY).bias is None
    assert cj.ScoreLayer(5, 10, dtype=jnp.bfloat16, key=KEY).weight.dtype == jnp.bfloat16
    assert cj.ScoreLayer(5, 1, key=KEY)(jnp.zeros((2, 5))).shape == (2, 0)


def test_layers_are_pytrees():
    tree = catnat.huffman([5, 3, 1, 1])
    model = [cj.ScoreLayer(6, tree, key=KEY), cj.LogProbsLayer(tree)]
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(model)]
    assert paths == ["[0].weight", "[0].bias"]
    x, y = jax.random.normal(jax.random.key(1), (50, 6)), jnp.arange(50) % 4

    @jax.jit
    def step(model):
        def loss(model):
            logs = model[1](model[0](x))
            return -jnp.take_along_axis(logs, y[:, None], -1).mean()

        value, gradient = jax.value_and_grad(loss)(model)
        return value, jax.tree.map(lambda p, g: p - 0.5 * g, model, gradient)

    losses = []
    for _ in range(20):
        value, model = step(model)
        losses.append(float(value))
    assert losses[-1] < losses[0]
    assert isinstance(model[0], cj.ScoreLayer)
    assert model[0].tree == tree
    assert "huffman" in repr(model[0]) or "Tree" in repr(model[0])


def test_layers_are_the_functions():
    scores, tree = jnp.asarray(np.random.default_rng(0).normal(size=(2, 4, 3))), catnat.chain(5)
    for kind, function in ((cj.ProbsLayer, cj.catnat), (cj.LogProbsLayer, cj.log_catnat)):
        np.testing.assert_array_equal(kind(tree, "sigmoid", 1)(scores), function(scores, tree, "sigmoid", axis=1))
        np.testing.assert_array_equal(kind()(scores), function(scores))
        assert kind(tree) == kind(tree, "natural")
        assert not jax.tree.leaves(kind(tree))
    with pytest.raises(ValueError, match="activation"):
        cj.ProbsLayer(activation="softmax")
