"""The last layer: a pytree whose leaves are weights, which starts near the prior and whose output is logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import catnat
import catnat.jax as cj

pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")

KEY = jax.random.key(0)
TREE = catnat.huffman([5, 3, 1, 1])
X, Y = jax.random.normal(jax.random.key(1), (50, 6)), jnp.arange(50) % 4


def test_it_starts_near_the_prior():
    layer = cj.CatnatLinear(256, TREE, key=KEY)
    scores = layer.scores(jax.random.normal(jax.random.key(1), (4000, 256)))
    assert scores.shape == (4000, 3)
    np.testing.assert_allclose(np.asarray(scores).std(0), np.full(3, 0.5), rtol=0.2)
    assert (layer.bias == 0).all()
    np.testing.assert_allclose(layer(jnp.zeros(256)), np.log(TREE.prior), rtol=1e-12)
    assert cj.CatnatLinear(5, 10, key=KEY).tree == catnat.balanced(10)
    assert cj.CatnatLinear(5, 10, bias=False, key=KEY).bias is None
    assert cj.CatnatLinear(5, 10, dtype=jnp.bfloat16, key=KEY).weight.dtype == jnp.bfloat16
    assert cj.CatnatLinear(5, 1, key=KEY)(jnp.zeros((2, 5))).shape == (2, 1)


@pytest.mark.one_row
@pytest.mark.parametrize("activation", ["sigmoid", "natural"])
def test_its_output_is_logits(activation):
    """Whatever takes logits says what the layer's own methods say."""
    layer = cj.CatnatLinear(6, TREE, activation, key=KEY)
    logits, distribution = layer(X), layer.distribution(X)
    assert logits.shape == (50, 4)
    close = {"rtol": 1e-6, "atol": 1e-6}
    np.testing.assert_allclose(logits, cj.log_catnat(layer.scores(X), TREE, activation), **close)
    np.testing.assert_allclose(jax.nn.softmax(logits), distribution.probs, **close)
    np.testing.assert_array_equal(logits.argmax(-1), distribution.mode)
    by_softmax = -jnp.take_along_axis(jax.nn.log_softmax(logits), Y[:, None], -1)[:, 0]
    np.testing.assert_allclose(by_softmax, -distribution.log_prob(Y), **close)
    np.testing.assert_allclose(by_softmax.mean(), layer.loss(X, Y), **close)
    weight, smoothing = jnp.array([1.0, 2.0, 0.5, 1.0]), 0.1
    wanted = cj.cross_entropy(layer.scores(X), Y, TREE, activation, weight=weight, label_smoothing=smoothing)
    np.testing.assert_allclose(layer.loss(X, Y, weight=weight, label_smoothing=smoothing), wanted, **close)
    mask = jnp.array([True, False, True, True])
    masked = jax.nn.softmax(jnp.where(mask, logits, -jnp.inf))
    np.testing.assert_allclose(layer.distribution(X, mask=mask).probs, masked, **close)


def test_it_is_a_pytree_that_trains():
    model = [cj.CatnatLinear(6, TREE, key=KEY)]
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(model)]
    assert paths == ["[0].weight", "[0].bias"]

    @jax.jit
    def step(model):
        def loss(model):
            return -jnp.take_along_axis(jax.nn.log_softmax(model[0](X)), Y[:, None], -1).mean()

        value, gradient = jax.value_and_grad(loss)(model)
        return value, jax.tree.map(lambda p, g: p - 0.5 * g, model, gradient)

    losses = []
    for _ in range(20):
        value, model = step(model)
        losses.append(float(value))
    assert losses[-1] < losses[0]
    assert isinstance(model[0], cj.CatnatLinear)
    assert model[0].tree == TREE
    assert "Tree" in repr(model[0])


def test_a_state_holds_the_tree_and_the_activation():
    layer = cj.CatnatLinear(6, TREE, cj.natural(width=4.0), key=KEY)
    for state, prefix in ((layer.state_dict(), ""), ({f"head.{k}": v for k, v in layer.state_dict().items()}, "head.")):
        again = cj.CatnatLinear.from_state_dict(state, prefix)
        assert jax.tree.structure(again) == jax.tree.structure(layer)
        np.testing.assert_array_equal(again(X), layer(X))
    with pytest.raises(KeyError, match=r"prefix 'body\.'"):
        cj.CatnatLinear.from_state_dict(layer.state_dict(), "body.")
    with pytest.raises(ValueError, match="activation"):
        cj.CatnatLinear(6, TREE, key=KEY).load_state_dict(layer.state_dict())
    with pytest.raises(ValueError, match="tree"):
        cj.CatnatLinear(6, 4, layer.activation, key=KEY).load_state_dict(layer.state_dict())
