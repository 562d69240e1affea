"""Changes of a layer's tree that keep the rows of matching nodes and their optimizer state, and fit the other rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.optim import Optimizer

from catnat import _checks
from catnat.activations import Activation
from catnat.torch import _dense, _inputs, functional
from catnat.torch._constants import forget
from catnat.torch._inverse import offset_of
from catnat.torch._lookup import plan_of
from catnat.trees.changes import matching_nodes
from catnat.trees.tree import Tree

# Optimizer state with the sign of gradients or weights, which is negated with a row. All other state is of magnitudes.
_SIGNED = ("exp_avg", "momentum_buffer", "grad_avg", "prev", "ax")
# State of Adafactor with one entry per feature, not per row.
_OF_COLUMNS = "col_var"
# The number of log-probabilities in a batch when new rows are fitted.
_AT_ONCE = 1 << 24
# Branch probabilities are clamped here before rows are fitted to them.
_LEAST = 1e-30
# The penalty of the ridge regression, equal to a tenth of an example with features of size one.
_RIDGE = 0.1


def change_tree(
    layer: Any,
    tree: Tree,
    weight: Tensor | None,
    bias: Tensor | None,
    optimizer: Optimizer | None,
    classes: ArrayLike | None = None,
) -> None:
    """Change the tree of ``layer``, and keep the rows of nodes that are in both trees.

    Args:
        layer: A layer with ``weight`` (K-1, d), one row per node, and ``bias`` (K-1,) or None.
        tree: The new tree.
        weight: Rows (K-1, d), of which those of nodes without a match are used; 0 if not given.
        bias: Bias entries (K-1,), used in the same way.
        optimizer: The optimizer of the parameters, whose state moves with the rows.
        classes: The old index of each new class; see :func:`catnat.matching_nodes`.
    """
    _check_changeable(layer, optimizer)
    nodes, swapped = matching_nodes(tree, layer.tree, classes)
    if not _is_odd(layer.activation):
        nodes = np.where(swapped, -1, nodes)
    move = _Move(nodes, np.where(swapped, -1.0, 1.0))
    shift = torch.as_tensor(_shift(move, tree, layer.tree, layer.activation)).to(layer.weight)
    if layer.bias is None and shift.numel() and float(shift.abs().max()) > 1e-6:
        raise ValueError(
            "The new tree has another prior, which only a bias can compensate, and this layer has no bias. Give the "
            "tree the prior of the old one, tree.with_prior(layer.tree.prior), or build the layer with bias=True."
        )
    _replace(layer.weight, move, 0.0, weight, optimizer)
    if layer.bias is not None:
        _replace(layer.bias, move, shift, bias, optimizer)
    forget(layer.tree)
    layer.tree = tree


def _check_changeable(layer: Any, optimizer: Optimizer | None) -> None:
    """Raise unless the rows are plain parameters, and the optimizer keeps a state for each of them."""
    parameters = dict(layer.named_parameters(recurse=False))
    if "weight" not in parameters or any(type(rows.data) is not Tensor for rows in parameters.values()):
        raise TypeError(
            f"The rows of this {type(layer).__name__} are not plain tensors: a parametrization such as weight_norm "
            "computes them, or they are sharded. Change the tree before, or remove the parametrization, change the "
            "tree, and register it again."
        )
    if optimizer is not None:
        held = {id(rows) for group in optimizer.param_groups for rows in group["params"]}
        if not held & {id(rows) for rows in parameters.values()}:
            raise ValueError(
                f"`optimizer` has none of the parameters of this {type(layer).__name__}: pass the one that trains it."
            )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError("LBFGS has one state for all parameters: change the tree without it, and make a new LBFGS.")


class _Move(NamedTuple):
    """The old node of each new node, -1 if there is none, and the sign of its row, -1 if sides are swapped."""

    nodes: NDArray[np.int64]
    sign: NDArray[np.float64]

    def __call__(self, values: Tensor, *, signed: bool) -> Tensor:
        """Move values from old nodes to new nodes. Nodes without a match get 0, or the mean of unsigned values."""
        moved = values.new_zeros(len(self.nodes), *values.shape[1:])
        if not signed and len(values):
            # After many steps of Adam, second moments of 0 would make the next steps three times too large.
            moved += values.mean(0)
        kept = np.flatnonzero(self.nodes >= 0)
        sign = torch.as_tensor(self.sign[kept] if signed else np.ones(len(kept))).to(values)
        found = values[torch.as_tensor(self.nodes[kept], device=values.device)]
        moved[torch.as_tensor(kept, device=values.device)] = found * sign.view(-1, *[1] * (values.ndim - 1))
        return moved


def _shift(move: _Move, new: Tree, old: Tree, activation: Activation) -> NDArray[np.float64]:
    """Return the change of the bias that keeps branch probabilities at kept nodes when the prior's offsets change."""
    if not old.num_nodes or not new.num_nodes:
        return np.zeros(new.num_nodes)
    before = np.broadcast_to(activation.offset(old), old.num_nodes)[np.maximum(move.nodes, 0)]
    after = np.broadcast_to(activation.offset(new), new.num_nodes)
    return np.where(move.nodes < 0, 0.0, move.sign * before - after)


@torch.no_grad()
def _replace(
    parameter: torch.nn.Parameter,
    move: _Move,
    shift: Tensor | float,
    new: Tensor | None,
    optimizer: Optimizer | None,
) -> None:
    rows, values = len(parameter), move(parameter.data, signed=True) + shift
    if new is not None:
        fresh = torch.as_tensor(move.nodes < 0, device=values.device)
        values[fresh] = new.to(values)[fresh]
    if values.shape != parameter.shape:
        # Another dtype in between makes autograd forget the old shape, which a loss of the last step still refers to.
        parameter.data = values.to(torch.float32 if values.dtype == torch.float64 else torch.float64)
    parameter.data, parameter.grad = values, None
    state = {} if optimizer is None else optimizer.state.get(parameter, {})
    for name, value in state.items():
        if isinstance(value, Tensor) and value.ndim and len(value) == rows and name != _OF_COLUMNS:
            state[name] = move(value, signed=name in _SIGNED)


def _is_odd(activation: Activation) -> bool:
    """Return whether negating a score swaps the probabilities of its branches: a(-x) = 1 - a(x)."""
    x = np.linspace(0, 8, 33)
    return bool(np.allclose(activation.probability(x) + activation.probability(-x), 1, atol=1e-12))


@torch.no_grad()
def fitted_rows(layer: Any, tree: Tree, features: Tensor) -> tuple[Tensor, Tensor | None]:
    """Fit rows (weight, bias) of a new tree to the layer's distribution on ``features``, by ridge regression."""
    _inputs.check_tensor(features, "features")
    _checks.width_of_features(features.shape, layer.in_features)
    if not torch.isfinite(features).all():
        raise ValueError("`features` holds NaN or infinity, but finite inputs of the layer are needed.")
    features = features.detach().to(layer.weight).reshape(-1, layer.in_features)
    scores_at_once = max(1, _AT_ONCE // max(1, tree.num_classes))
    inputs = features.double()
    if layer.bias is not None:
        inputs = torch.cat([inputs, torch.ones_like(inputs[:, :1])], -1)
    products = inputs.new_zeros(inputs.shape[1], tree.num_nodes)
    plan = plan_of(tree, layer.activation, features.device, torch.float64)
    offset = offset_of(tree, layer.activation, features.device, torch.float64)
    for rows, known in zip(features.split(scores_at_once), inputs.split(scores_at_once), strict=True):
        # In float64 sums of probabilities are accurate enough, and take a third of the time of log-sum-exp.
        probs = functional.log_catnat(layer.scores(rows), layer.tree, layer.activation).double().exp()
        no, yes = (side.clamp(min=_LEAST).log() for side in _dense.leaf_sums(plan, probs))
        products += known.T @ (plan.branches.inverse(yes - no) - offset)
    gram = inputs.T @ inputs
    gram.diagonal().add_(_RIDGE)
    found = torch.linalg.solve(gram, products).T.to(layer.weight.dtype)
    weight, bias = found.split([layer.in_features, len(gram) - layer.in_features], -1)
    return weight.contiguous(), None if layer.bias is None else bias.flatten()
