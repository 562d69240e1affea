"""The geometry of the scores: reach probabilities, saturated nodes, and the diagonal of the Fisher matrix."""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from torch import Tensor

from catnat.activations import Activation
from catnat.torch import _dense, _inputs, _masks
from catnat.torch._nodes import Nodes, prepare
from catnat.torch._pruning import pruned
from catnat.trees.tree import Tree


def reach(
    scores: Float[Tensor, "*batch nodes"],
    tree: Tree | None = None,
    activation: Activation | str = "natural",
    *,
    num_classes: int | None = None,
) -> Float[Tensor, "*batch nodes"]:
    r"""The probability :math:`P(i)` of reaching each node: the sum of the probabilities of the leaves below it.

    Args:
        scores: One score per inner node on the last axis.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        num_classes: The number of classes K, to be checked against the scores and the tree.

    Example:
        >>> import torch
        >>> from catnat.torch.geometry import reach
        >>> reach(torch.zeros(3))
        tensor([1.0000, 0.5000, 0.5000])
    """
    nodes = prepare(scores, tree, activation, num_classes)
    branches = nodes.all().branch_log_probs(floored=False)
    return _dense.path_sums(*branches, nodes.tree, to="nodes").exp().to(_inputs.returned_dtype(scores))


def saturated(
    scores: Float[Tensor, "*batch nodes"],
    tree: Tree | None = None,
    activation: Activation | str = "natural",
    *,
    num_classes: int | None = None,
) -> Bool[Tensor, "*batch nodes"]:
    """Which nodes are saturated: one branch has probability 0, and the score gets no gradient.

    Args:
        scores: One score per inner node on the last axis.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        num_classes: The number of classes K, to be checked against the scores and the tree.

    Example:
        >>> import torch
        >>> from catnat.torch.geometry import saturated
        >>> saturated(torch.tensor([0.0, 4.0, -3.0]))
        tensor([False,  True, False])
    """
    node_scores = prepare(scores, tree, activation, num_classes).detach().all()
    return node_scores.kernel.saturated(node_scores.scores, node_scores.constants)


def fisher_diagonal(
    scores: Float[Tensor, "*batch nodes"],
    tree: Tree | None = None,
    activation: Activation | str = "natural",
    *,
    num_classes: int | None = None,
    mask: Bool[Tensor, "*batch classes"] | None = None,
    valid_classes: Int[Tensor, "*batch some"] | None = None,
) -> Float[Tensor, "*batch nodes"]:
    r"""The diagonal of the Fisher information matrix of the scores; every other entry is zero.

    .. math:: G_{ii} = P(i)\,\frac{a'(s_i)^2}{a(s_i)(1 - a(s_i))}

    For the sigmoid that is :math:`P(i)\, a_i (1 - a_i)`, for the natural activation :math:`P(i)\, (\pi / A)^2` inside
    the band and 0 outside. This is the metric of the *scores*, not of the weights of a network behind them.

    Args:
        scores: One score per inner node on the last axis.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        num_classes: The number of classes K, to be checked against the scores and the tree.
        mask: The valid classes, if not all are, of the tree to be pruned; see :class:`catnat.torch.Catnat`. A score of
            an inactive node has the entry 0.
        valid_classes: The mask as indices; see :class:`catnat.torch.Catnat`.

    Example:
        >>> import torch
        >>> from catnat.torch.geometry import fisher_diagonal
        >>> fisher_diagonal(torch.tensor([1.0, 0.0, 0.0]))
        tensor([0.2500, 0.0651, 0.1849])
    """
    nodes = prepare_masked(scores, tree, activation, num_classes, mask, valid_classes)
    return _inputs.saturate(information(nodes), _inputs.returned_dtype(scores))


def prepare_masked(
    scores: Tensor,
    tree: Tree | None,
    activation: Activation | str,
    num_classes: int | None,
    mask: Tensor | None,
    valid_classes: Tensor | None,
) -> Nodes:
    """Checked nodes, pruned if there is a mask."""
    nodes = prepare(scores, tree, activation, num_classes)
    mask = _masks.given(mask, valid_classes, nodes.tree.num_classes)
    if mask is None:
        return nodes
    return pruned(nodes, _masks.valid_classes(mask, nodes.tree, check=True), None)


def information(nodes: Nodes) -> Tensor:
    """:func:`fisher_diagonal` of prepared nodes, in the dtype they compute in."""
    node_scores = nodes.all()
    reached = _dense.path_sums(*node_scores.branch_log_probs(floored=False), nodes.tree, to="nodes").exp()
    return reached * node_scores.information()
