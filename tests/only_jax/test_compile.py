"""What compiled programs hold: of a balanced tree no table, however large it is; of other trees, tables of length K."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import catnat
from catnat.jax import log_catnat, log_prob, natural, sample, sigmoid

ACTIVATIONS = [sigmoid(), natural()]


def _program(tree, activation):
    """The text of one program that does it all: densely, forward and backward, along paths, and a draw."""

    def everything(scores, key):
        classes = sample(scores, tree, activation, key=key)
        loss = jax.value_and_grad(lambda s: log_catnat(s, tree, activation).mean())
        return loss(scores), log_prob(scores, classes, tree, activation)

    scores = jnp.zeros((2, tree.num_nodes), jnp.float32)
    return jax.jit(everything).lower(scores, jax.random.key(0)).as_text()


def _longest_constant(program):
    """The length of the longest constant in bytes: they are written in hexadecimal."""
    return max((len(digits) // 2 for digits in re.findall(r'dense<"0x([0-9A-F]*)"', program)), default=0)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=["sigmoid", "natural"])
@pytest.mark.parametrize("num_classes", [2**20, 2**20 - 3])
def test_large_balanced_tree_leaves_no_table_in_the_program(num_classes, activation):
    program = _program(catnat.balanced(num_classes), activation)
    assert len(program) < 200_000
    assert _longest_constant(program) < 4_000


@pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=["sigmoid", "natural"])
def test_tables_of_other_trees_are_as_long_as_the_tree(activation):
    """Nothing of the size K x depth is stored."""
    num_classes = 20_000
    program = _program(catnat.huffman(1 / np.arange(1, num_classes + 1)), activation)
    rows = 4 if isinstance(activation, natural) else 1
    # 4 bytes each: edges and children (2K each), and the activation's rows, a few times: forward, backward, on paths,
    # and beside a kernel once more for other devices, until XLA drops what this one does not need.
    assert _longest_constant(program) <= 4 * max(2, rows) * num_classes
    digits = sum(map(len, re.findall(r'dense<"0x([0-9A-F]*)"', program)))
    assert digits / 2 < 4 * (2 + 2 + 2 + 9 * rows) * num_classes


def test_a_row_shared_by_many_classes_is_not_copied():
    """Not in the backward pass either: an axis of size 1 is read as often as it is broadcast."""
    tree, classes = catnat.balanced(1000), jnp.arange(42).reshape(2, 3, 7)
    scores = jnp.asarray(np.random.default_rng(0).normal(size=(3, 1, tree.num_nodes)))

    def loss(scores):
        return (log_prob(scores, classes, tree) * classes).sum()

    both = jax.jit(jax.value_and_grad(loss))
    wanted = jax.value_and_grad(lambda s: loss(jnp.broadcast_to(s, (2, 3, 7, tree.num_nodes))))(scores)
    for found, one in zip(both(scores), wanted, strict=True):
        np.testing.assert_allclose(found, one, rtol=1e-9)
    sizes = re.findall(r"f64\[([\d,]*)\]", both.lower(scores).compile().as_text())
    assert max(np.prod(list(map(int, filter(None, size.split(","))))) for size in sizes) == scores.size


def test_program_for_many_classes_compiles():
    tree = catnat.balanced(2**16)
    loss = jax.value_and_grad(lambda s: log_catnat(s, tree).mean())
    value, gradient = jax.jit(loss)(jnp.zeros((1, tree.num_nodes), jnp.float32))
    np.testing.assert_allclose(value, -16 * np.log(2), rtol=1e-6)
    assert gradient.shape == (1, 2**16 - 1)
