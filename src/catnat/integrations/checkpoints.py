"""Checkpoints of softmax models: their last linear layer as a layer of scores, fitted to the features it sees.

It needs PyTorch only. There is no counterpart for JAX: what is converted is a ``torch.nn.Linear``, by an optimizer of
torch's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

import catnat.torch as ct
from catnat import Tree, balanced
from catnat.torch import extend

__all__ = ["Converted", "score_layer_from_softmax"]

# How much of a fit to keep, between none (a node's best constant) and all of it.
_FRACTIONS = torch.linspace(1, 0, 21, dtype=torch.float64)


class Converted(NamedTuple):
    """A converted layer, and what the conversion cost."""

    layer: ct.ScoreLayer
    """Features to scores, in place of the linear layer."""
    kl: float
    """The mean of KL(softmax || catnat) over the inputs, in nats."""


def score_layer_from_softmax(
    linear: nn.Linear,
    inputs: Float[Tensor, "*batch features"],
    tree: Tree | None = None,
    activation: ct.Activation | str = "sigmoid",
    *,
    steps: int = 100,
) -> Converted:
    r"""The layer of scores whose distribution is nearest to that of a trained softmax layer.

    Row by row the scores of the same distribution are known, :func:`catnat.torch.scores_from_logits`, but they are not
    linear in the features. So the layer is fitted, on features as the model makes them. It starts from the least
    squares fit of those scores, and goes on by descent (L-BFGS) on the mean divergence

    .. math:: \mathrm{KL}(p \,\|\, q) = \sum_i P(i)\, \mathrm{KL}\bigl(p_i \,\|\, a(s_i)\bigr),

    where :math:`p_i` is softmax's probability of yes at node i and :math:`P(i)` its probability of coming there, so
    that every node is fitted where it matters. With the sigmoid this is convex. It is exact where the scores are linear
    in the features after all: with the sigmoid for two classes, and for logits that are equal within each subtree.

    Args:
        linear: The last layer of the model, with K outputs.
        inputs: Features that ``linear`` has as its input, from data like those that the model will see, more rows than
            there are features.
        tree: The tree; ``balanced(K)`` if not given. One that groups classes which go together costs less.
        activation: "sigmoid", "natural", or an activation object.
        steps: The most steps of descent. With 0 it is the least squares fit, held where it does no harm.

    Returns:
        The layer, on the device and with the dtype of ``linear``, and the mean divergence that is left.

    Example:
        >>> import torch
        >>> from catnat.integrations.checkpoints import score_layer_from_softmax
        >>> generator = torch.Generator().manual_seed(0)
        >>> linear, features = torch.nn.Linear(8, 2), torch.randn(100, 8, generator=generator)
        >>> # exact for two classes
        >>> layer, kl = score_layer_from_softmax(linear, features, activation="sigmoid")
        >>> layer.out_features, kl < 1e-9
        (1, True)
    """
    _check(linear, inputs, steps)
    with torch.inference_mode(False):  # features are often made in that mode, in which nothing can be fitted
        return _fitted(linear, inputs, tree, activation, steps)


def _fitted(
    linear: nn.Linear, inputs: Tensor, tree: Tree | None, activation: ct.Activation | str, steps: int
) -> Converted:
    tree = balanced(linear.out_features) if tree is None else tree
    activation = extend.resolve_activation(activation)
    rows = inputs.detach().reshape(-1, linear.in_features).to(torch.float64, copy=True)
    with torch.no_grad():
        logits = rows @ linear.weight.double().T
        if linear.bias is not None:
            logits = logits + linear.bias.double()
            rows = torch.cat([rows, torch.ones_like(rows).narrow(-1, 0, 1)], -1)
        wanted = extend.Nodes(ct.scores_from_logits(logits, tree, activation), tree, activation)
        # In coordinates with orthonormal columns least squares is a product, and descent is well conditioned.
        columns, sizes, back = torch.linalg.svd(rows, full_matrices=False)
        known = sizes > sizes.max() * 1e-10
        columns, back = columns[:, known], back[known] / sizes[known, None]
        fit = _held_back(wanted, columns, columns.T @ wanted.scores)
    if steps:
        fit = _descended(wanted, columns, fit, steps)
    layer = ct.ScoreLayer(
        linear.in_features, tree, activation, linear.bias is not None, linear.weight.device, linear.weight.dtype
    )
    with torch.no_grad():
        weights = (back.T @ fit).T
        layer.weight.copy_(weights[:, : linear.in_features])
        if layer.bias is not None:
            layer.bias.copy_(weights[:, -1])
        got = layer(inputs.detach().to(layer.weight.dtype)).reshape(-1, tree.num_nodes)
        return Converted(layer, _divergences(wanted, got.double()).sum().item())


def _divergences(wanted: extend.Nodes, scores: Tensor) -> Tensor:
    """What every node adds to the mean divergence."""
    return extend.node_divergences(wanted, wanted._replace(scores=scores)).mean(0)


def _held_back(wanted: extend.Nodes, columns: Tensor, fit: Tensor) -> Tensor:
    """The least squares fit, node by node so near to a constant score as costs the least.

    Beyond the edges of the natural activation's band a branch is certain. If it is the wrong one, it has no gradient
    by which descent could correct it.
    """
    constant = columns.T @ wanted.scores.mean(0).expand(len(columns), -1)
    candidates = [constant + fraction * (fit - constant) for fraction in _FRACTIONS.tolist()]
    costs = torch.stack([_divergences(wanted, columns @ candidate) for candidate in candidates])
    best = costs.argmin(0)
    return torch.stack(candidates).gather(0, best.expand(1, len(fit), -1)).squeeze(0)


def _descended(wanted: extend.Nodes, columns: Tensor, fit: Tensor, steps: int) -> Tensor:
    scale = len(columns) ** 0.5  # for coordinates of the size of scores
    place = (fit / scale).requires_grad_()
    optimizer = torch.optim.LBFGS(
        [place], max_iter=steps, tolerance_grad=1e-9, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def cost() -> Tensor:
        optimizer.zero_grad()
        found = _divergences(wanted, columns @ (place * scale)).sum()
        found.backward()
        return found

    with torch.enable_grad():
        before = optimizer.step(cost)
        after = cost()
    return fit if after > before else place.detach() * scale


def _check(linear: Any, inputs: Any, steps: Any) -> None:
    if isinstance(linear, ct.ScoreLayer):
        raise TypeError(
            "`linear` is a ScoreLayer, which makes scores already: there is nothing to convert. Pass the softmax "
            "model's last torch.nn.Linear."
        )
    if not isinstance(linear, nn.Linear):
        raise TypeError(
            f"`linear` is a {type(linear).__name__}, but the model's last torch.nn.Linear is needed, the layer that "
            "makes the logits."
        )
    if linear.out_features < 2:
        raise ValueError(
            f"`linear` has {linear.out_features} outputs, but one for each of two or more classes is needed."
        )
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        raise TypeError(
            "`inputs` must be a floating-point tensor of the features that `linear` sees, (..., "
            f"{linear.in_features}). Scores are not linear in logits, so a layer cannot be converted by its weights "
            "alone: run the model on some data, and keep what goes into the layer."
        )
    if inputs.shape[-1:] != (linear.in_features,):
        raise ValueError(
            f"`inputs` has shape {tuple(inputs.shape)}, but `linear` takes {linear.in_features} features: "
            f"(..., {linear.in_features}) is needed. Pass what goes into this layer, not into the model."
        )
    rows = inputs.shape[:-1].numel()
    if rows <= linear.in_features:
        raise ValueError(
            f"`inputs` has {rows} rows, but more than {linear.in_features} are needed, the number of features: the fit "
            "would say nothing about other inputs."
        )
    if not inputs.isfinite().all():
        raise ValueError("`inputs` holds NaN or infinite numbers, but finite features are needed.")
    if (inputs.flatten(0, -2) == inputs.flatten(0, -2)[0]).all():
        raise ValueError(
            f"All {rows} rows of `inputs` are the same, so that the fit would say nothing about other inputs: pass the "
            "features of different data."
        )
    if not isinstance(steps, int) or steps < 0:
        raise ValueError(f"`steps` is {steps!r}, but an integer is needed, 0 or more.")
