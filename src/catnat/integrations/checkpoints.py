"""Checkpoints of softmax models: their last linear layer as a CatnatLinear, fitted to that layer's inputs.

It needs only PyTorch. It has no counterpart for JAX, because it converts a ``torch.nn.Linear`` with torch's optimizer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

import catnat.torch as ct
from catnat import Tree
from catnat.torch.geometry import reach
from catnat.trees.builders import as_tree

__all__ = ["Converted", "from_softmax"]

# The fractions of a fit that are tried, from all of it to none (a node's best constant).
_FRACTIONS = torch.linspace(1, 0, 21, dtype=torch.float64)

# A function from scores to each node's term of the mean divergence from softmax.
_Costs = Callable[[Tensor], Tensor]


class Converted(NamedTuple):
    """A converted layer, and the cost of the conversion; see :func:`from_softmax`."""

    layer: ct.CatnatLinear
    """The layer that replaces the linear one."""
    kl: float
    """The mean of KL(softmax || catnat) over the held-out rows, in nats: an estimate for other data."""
    kl_in_sample: float
    """The same over the rows that the layer was fitted to, usually lower."""
    loss_change: float | None
    """The increase of the labels' cross-entropy over softmax's, on the held-out rows; None without labels."""


def from_softmax(
    linear: nn.Linear,
    inputs: Float[Tensor, "*batch features"],
    tree: Tree | int | None = None,
    activation: ct.Activation | str = "sigmoid",
    *,
    labels: Int[Tensor, "*batch"] | None = None,
    steps: int = 100,
) -> Converted:
    r"""Fit a :class:`catnat.torch.CatnatLinear` to the distribution of a trained softmax layer.

    For each row, :func:`catnat.torch.scores_from_logits` gives scores of the same distribution, but they are not linear
    in the features. So the layer is fitted to features of the model. The fit starts from least squares on those scores,
    and continues with descent (L-BFGS) on the mean divergence

    .. math:: \mathrm{KL}(p \,\|\, q) = \sum_i P(i)\, \mathrm{KL}\bigl(p_i \,\|\, a(s_i)\bigr),

    where :math:`p_i` is softmax's probability of yes at node i and :math:`P(i)` its probability of reaching the node.
    So each node is fitted mainly to rows that reach it. With the sigmoid this is convex. The fit is exact if the scores
    are linear in the features: with the sigmoid for two classes, and for logits that are equal within each subtree.

    Args:
        linear: The last layer of the model, with K outputs.
        inputs: Inputs of ``linear``, from data like those that the model will receive. A fifth of the rows, chosen at
            random with a fixed seed, is held out to measure the fit. The other rows must outnumber the features.
        tree: The tree; ``balanced(K)`` if not given. A tree that groups similar classes costs less.
        activation: "sigmoid", "natural", or an activation object.
        labels: The classes of the rows, to measure the change of the loss.
        steps: The maximum number of steps of descent. With 0 the layer is the least squares fit, with each node moved
            toward a constant score if that lowers the divergence.

    Returns:
        The layer, on the device and with the dtype of ``linear``, and its cost.

    Example:
        >>> import torch
        >>> from catnat.integrations.checkpoints import from_softmax
        >>> generator = torch.Generator().manual_seed(0)
        >>> linear, features = torch.nn.Linear(8, 2), torch.randn(100, 8, generator=generator)
        >>> found = from_softmax(linear, features)
        >>> found.kl < 1e-9  # exact for two classes
        True
    """
    _check(linear, inputs, labels, steps)
    with torch.inference_mode(False):  # features often come from inference mode, which allows no fit
        return _fitted(linear, inputs, as_tree(tree, linear.out_features), activation, labels, steps)


def _fitted(
    linear: nn.Linear,
    inputs: Tensor,
    tree: Tree,
    activation: ct.Activation | str,
    labels: Tensor | None,
    steps: int,
) -> Converted:
    bias: Tensor | None = linear.bias
    layer = ct.CatnatLinear(
        linear.in_features, tree, activation, bias is not None, linear.weight.device, linear.weight.dtype
    )
    with torch.no_grad():
        every = inputs.detach().reshape(-1, linear.in_features).to(torch.float64, copy=True)
        order = torch.randperm(len(every), generator=torch.Generator().manual_seed(0)).to(every.device)
        aside, used = order.tensor_split([_held_out(len(every))])
        logits = F.linear(every, linear.weight.double(), None if bias is None else bias.double())
        columns, back = _coordinates(every[used], bias is not None)
        costs = _costs(logits[used], tree, activation)
        fit = _held_back(costs, columns, ct.scores_from_logits(logits[used], tree, activation))
    if steps:
        fit = _descended(costs, columns, fit, steps)
    with torch.no_grad():
        weights = (back.T @ fit).T
        layer.weight.copy_(weights[:, : linear.in_features])
        if layer.bias is not None:
            layer.bias.copy_(weights[:, -1])
        before, after = logits.log_softmax(-1), layer.log_probs(every.to(layer.weight.dtype)).double()
        kl, in_sample = (
            F.kl_div(after[rows], before[rows], reduction="batchmean", log_target=True) for rows in (aside, used)
        )
        change = None
        if labels is not None:
            classes = labels.reshape(-1)[aside]
            change = (F.nll_loss(after[aside], classes) - F.nll_loss(before[aside], classes)).item()
    return Converted(layer, kl.item(), in_sample.item(), change)


def _held_out(rows: int) -> int:
    return max(1, round(rows / 5))


def _coordinates(rows: Tensor, bias: bool) -> tuple[Tensor, Tensor]:
    """Return the features in coordinates with orthonormal columns, and the matrix from coordinates to weights.

    In these coordinates least squares is a product, and descent is well conditioned.
    """
    if bias:
        rows = F.pad(rows, (0, 1), value=1.0)
    columns, sizes, back = torch.linalg.svd(rows, full_matrices=False)
    known = sizes > sizes.max() * 1e-10
    return columns[:, known], back[known] / sizes[known, None]


def _costs(logits: Tensor, tree: Tree, activation: ct.Activation | str) -> _Costs:
    """Return the mean divergence from the softmax of ``logits`` as a function of scores, with one term per node."""
    wanted = ct.scores_from_logits(logits, tree)
    p = ct.Catnat(wanted, tree).plan.branches.log_probs(wanted, floored=False)
    weights = [reach(wanted, tree) * branch.exp() for branch in p]
    branches = ct.Catnat(wanted, tree, activation).plan.branches

    def costs(scores: Tensor) -> Tensor:
        q = branches.log_probs(scores, floored=True)
        no, yes = (w * (mine - theirs) for w, mine, theirs in zip(weights, p, q, strict=True))
        return (no + yes).mean(0)

    return costs


def _held_back(costs: _Costs, columns: Tensor, wanted: Tensor) -> Tensor:
    """Return the least squares fit, with each node moved toward a constant score as far as lowers its cost most.

    Outside the natural activation's band a branch is certain. If it is the wrong one, descent has no gradient to
    correct it.
    """
    fit, constant = columns.T @ wanted, columns.T @ wanted.mean(0).expand(len(columns), -1)
    candidates = [constant + fraction * (fit - constant) for fraction in _FRACTIONS.tolist()]
    best = torch.stack([costs(columns @ candidate) for candidate in candidates]).argmin(0)
    return torch.stack(candidates).gather(0, best.expand(1, len(fit), -1)).squeeze(0)


def _descended(costs: _Costs, columns: Tensor, fit: Tensor, steps: int) -> Tensor:
    scale = len(columns) ** 0.5  # gives coordinates the size of scores
    place = (fit / scale).requires_grad_()
    optimizer = torch.optim.LBFGS(
        [place], max_iter=steps, tolerance_grad=1e-9, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def cost() -> Tensor:
        optimizer.zero_grad()
        found = costs(columns @ (place * scale)).sum()
        found.backward()
        return found

    with torch.enable_grad():
        before = optimizer.step(cost)
        after = cost()
    return fit if after > before else place.detach() * scale


def _check(linear: Any, inputs: Any, labels: Any, steps: Any) -> None:
    if not isinstance(linear, nn.Linear):
        raise TypeError(
            f"`linear` is a {type(linear).__name__}, but the softmax model's last torch.nn.Linear is needed, the layer "
            "that computes the logits. A layer on a tree has nothing to convert."
        )
    if linear.out_features < 2:
        raise ValueError(
            f"`linear` has {linear.out_features} outputs, but one for each of two or more classes is needed."
        )
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        raise TypeError(
            "`inputs` must be a floating-point tensor of the features that `linear` receives, (..., "
            f"{linear.in_features}). Scores are not linear in logits, so a layer cannot be converted from its weights "
            "alone: run the model on some data, and keep the layer's inputs."
        )
    if inputs.shape[-1:] != (linear.in_features,):
        raise ValueError(
            f"`inputs` has shape {tuple(inputs.shape)}, but `linear` takes {linear.in_features} features: "
            f"(..., {linear.in_features}) is needed. Pass what goes into this layer, not into the model."
        )
    rows = inputs.shape[:-1].numel()
    if rows - _held_out(rows) <= linear.in_features:
        raise ValueError(
            f"`inputs` has {rows} rows, of which {_held_out(rows)} are held out, but the others must outnumber the "
            f"{linear.in_features} features, or the fit would not hold for other inputs: pass more rows."
        )
    integers = isinstance(labels, Tensor) and not labels.is_floating_point()
    if labels is not None and not (integers and labels.shape == inputs.shape[:-1]):
        raise ValueError(
            f"`labels` must be an integer tensor with the class of every row of `inputs`, {tuple(inputs.shape[:-1])}."
        )
    if not inputs.isfinite().all():
        raise ValueError("`inputs` holds NaN or infinite numbers, but finite features are needed.")
    if (inputs.flatten(0, -2) == inputs.flatten(0, -2)[0]).all():
        raise ValueError(
            f"All {rows} rows of `inputs` are the same, so the fit would not hold for other inputs: pass the features "
            "of different data."
        )
    if not isinstance(steps, int) or steps < 0:
        raise ValueError(f"`steps` is {steps!r}, but an integer is needed, 0 or more.")
