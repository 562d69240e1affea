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


@pytest.mark.parametrize("activation", ["sigmoid", "natural"])
def test_the_documented_lines_move_rows_to_another_tree(activation):
    """Those of `catnat.matching_nodes`, for a tree with another prior and swapped sides."""
    old = catnat.huffman([5, 1, 1, 9, 2, 3])
    new = catnat.from_children(old.children[:, ::-1]).with_prior([1, 2, 3, 4, 5, 6])
    rng = np.random.default_rng(0)
    weight, bias, x = rng.normal(size=(5, 3)), 0.1 * rng.normal(size=5), 0.2 * rng.normal(size=(7, 3))
    nodes, swapped = catnat.matching_nodes(new, old)
    kind = catnat.natural() if activation == "natural" else catnat.sigmoid()
    sign = np.where(nodes < 0, 0.0, np.where(swapped, -1.0, 1.0))
    before, after = (np.broadcast_to(kind.offset(tree), tree.num_nodes) for tree in (old, new))
    moved = sign[:, None] * weight[nodes], sign * (bias + before)[nodes] - np.abs(sign) * after
    got = cj.catnat(jnp.asarray(x @ moved[0].T + moved[1]), new, kind)
    wanted = cj.catnat(jnp.asarray(x @ weight.T + bias), old, kind)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-7)
