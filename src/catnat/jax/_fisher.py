"""The geometry of the scores: reach probabilities, saturated nodes, and the diagonal of the Fisher matrix."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from catnat.activations import Activation
from catnat.jax import _dense, _inputs, _masks
from catnat.jax._nodes import Nodes, prepare
from catnat.jax._pruning import pruned
from catnat.trees.tree import Tree


def reach(
    scores: Float[Array, "*batch nodes"],
    tree: Tree | None = None,
    activation: Activation | str = "natural",
    *,
    num_classes: int | None = None,
) -> Float[Array, "*batch nodes"]:
    r"""The probability :math:`P(i)` of reaching each node: the sum of the probabilities of the leaves below it.

    Args:
        scores: One score per inner node on the last axis.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        num_classes: The number of classes K, to be checked against the scores and the tree.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.jax.geometry import reach
        >>> print(reach(jnp.zeros(3)).round(4))
        [1.  0.5 0.5]
    """
    return reached(prepare(scores, tree, activation, num_classes)).astype(_inputs.returned_dtype(scores))


def saturated(
    scores: Float[Array, "*batch nodes"],
    tree: Tree | None = None,
    activation: Activation | str = "natural",
    *,
    num_classes: int | None = None,
) -> Bool[Array, "*batch nodes"]:
    """Which nodes are saturated: one branch has probability 0, and the score gets no gradient.

    Args:
        scores: One score per inner node on the last axis.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        num_classes: The number of classes K, to be checked against the scores and the tree.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.jax.geometry import saturated
        >>> print(saturated(jnp.array([0.0, 4.0, -3.0])))
        [False  True False]
    """
    return _saturated(prepare(scores, tree, activation, num_classes))


@jax.jit
def _saturated(nodes: Nodes) -> Array:
    node_scores = nodes.all()
    return node_scores.kernel.saturated(node_scores.scores, node_scores.constants)


def fisher_diagonal(
    scores: Float[Array, "*batch nodes"],
    tree: Tree | None = None,
    activation: Activation | str = "natural",
    *,
    num_classes: int | None = None,
    mask: Bool[Array, "*batch classes"] | None = None,
    valid_classes: Int[Array, "*batch some"] | None = None,
) -> Float[Array, "*batch nodes"]:
    r"""The diagonal of the Fisher information matrix of the scores; every other entry is zero.

    .. math:: G_{ii} = P(i)\,\frac{a'(s_i)^2}{a(s_i)(1 - a(s_i))}

    For the sigmoid that is :math:`P(i)\, a_i (1 - a_i)`, for the natural activation :math:`P(i)\, (\pi / A)^2` inside
    the band and 0 outside. This is the metric of the *scores*, not of the weights of a network behind them.

    Args:
        scores: One score per inner node on the last axis.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        num_classes: The number of classes K, to be checked against the scores and the tree.
        mask: The valid classes, if not all are, of the tree to be pruned; see :class:`catnat.jax.Catnat`. A score that
            of an inactive node has the entry 0.
        valid_classes: The mask as indices; see :class:`catnat.jax.Catnat`.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.jax.geometry import fisher_diagonal
        >>> print(fisher_diagonal(jnp.array([1.0, 0.0, 0.0])).round(4))
        [0.25   0.0651 0.1849]
    """
    nodes = prepare_masked(scores, tree, activation, num_classes, mask, valid_classes)
    return _inputs.saturate(information(nodes), _inputs.returned_dtype(scores))


def prepare_masked(
    scores: Array,
    tree: Tree | None,
    activation: Activation | str,
    num_classes: int | None,
    mask: Array | None,
    valid_classes: Array | None,
) -> Nodes:
    """Checked nodes, pruned if there is a mask."""
    nodes = prepare(scores, tree, activation, num_classes)
    mask = _masks.given(mask, valid_classes, nodes.tree.num_classes)
    if mask is None:
        return nodes
    return pruned(nodes, _masks.valid_classes(mask, nodes.tree))


@jax.jit
def reached(nodes: Nodes) -> Array:
    """:func:`reach` of prepared nodes, in the dtype they compute in."""
    return jnp.exp(_dense.path_sums(*nodes.all().branch_log_probs(floored=False), nodes.tree, to="nodes"))


@jax.jit
def information(nodes: Nodes) -> Array:
    """:func:`fisher_diagonal` of prepared nodes, in the dtype they compute in."""
    return reached(nodes) * nodes.all().information()
