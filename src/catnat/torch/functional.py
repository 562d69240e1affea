"""Functions of scores on a tree, the counterparts of softmax, log_softmax and cross_entropy for logits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from catnat import _checks
from catnat.activations import Activation
from catnat.torch import _dense, _fused, _inputs, _walk
from catnat.torch._branches import FEW
from catnat.torch._lookup import plan_for
from catnat.torch._plan import Plan, look_up
from catnat.trees.tree import Tree


def catnat(
    scores: Float[Tensor, "*batch nodes"],
    tree: Tree | int | None = None,
    activation: Activation | str = "sigmoid",
    *,
    dim: int = -1,
) -> Float[Tensor, "*batch classes"]:
    r"""Return the probability of every class, the counterpart of ``torch.softmax``.

    .. math:: p_k = \prod_{i \in \mathrm{path}(k)} a(s_i)^{b_i} (1 - a(s_i))^{1 - b_i}

    With the natural activation, a class is exactly 0 if its path takes a branch of probability 0.

    Args:
        scores: One score per inner node of the tree (K-1, not K) along ``dim``.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural" (the paper's), or an activation object.
        dim: The axis of the nodes, which is that of the classes in the result.

    Example:
        >>> import torch
        >>> from catnat.torch import catnat
        >>> catnat(torch.zeros(2))
        tensor([0.3333, 0.3333, 0.3333])
    """
    if dim != -1:
        _inputs.check_tensor(scores, "scores")
        return catnat(scores.movedim(dim, -1), tree, activation).movedim(-1, dim)
    plan = plan_for(scores, tree, activation)
    probs = _fused.log_probs(plan, _inputs.widen(scores), floored=False).exp()
    return _inputs.as_returned(probs, scores)


def log_catnat(
    scores: Float[Tensor, "*batch nodes"],
    tree: Tree | int | None = None,
    activation: Activation | str = "sigmoid",
    *,
    dim: int = -1,
) -> Float[Tensor, "*batch classes"]:
    r"""Return the log-probability of every class, the counterpart of ``torch.log_softmax``; always finite.

    .. math:: \log p_k = \sum_{i \in \mathrm{path}(k)} b_i \log a(s_i) + (1 - b_i) \log (1 - a(s_i))

    Branch probabilities of the natural activation are floored at the machine epsilon of the computing dtype, so a class
    of probability 0 has a finite log-probability. The sigmoid has no floor.

    Args:
        scores: One score per inner node of the tree (K-1, not K) along ``dim``.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural" (the paper's), or an activation object.
        dim: The axis of the nodes, which is that of the classes in the result.

    Example:
        >>> import torch
        >>> from catnat.torch import log_catnat
        >>> log_catnat(torch.zeros(3))
        tensor([-1.3863, -1.3863, -1.3863, -1.3863])
    """
    if dim != -1:
        _inputs.check_tensor(scores, "scores")
        return log_catnat(scores.movedim(dim, -1), tree, activation).movedim(-1, dim)
    plan = plan_for(scores, tree, activation)
    return _inputs.as_returned(_fused.log_probs(plan, _inputs.widen(scores)), scores)


def log_prob(
    scores: Float[Tensor, "*batch nodes"],
    classes: Int[Tensor, "*samples_and_batch"],
    tree: Tree | int | None = None,
    activation: Activation | str = "sigmoid",
) -> Float[Tensor, "*samples_and_batch"]:
    r"""Return the log-probability of given classes.

    .. math:: \log p_k = \sum_{i \in \mathrm{path}(k)} b_i \log a(s_i) + (1 - b_i) \log (1 - a(s_i))

    Above 64 classes only the nodes on their paths are read, and the cost grows with the depth of the tree, not with K.
    On trees deeper than 64 levels all classes are computed.

    Args:
        scores: One score per inner node on the last axis.
        classes: Class indices, broadcast against the batch shape of ``scores``, with optional leading sample axes.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural" (the paper's), or an activation object.

    Example:
        >>> import torch
        >>> from catnat.torch import log_prob
        >>> log_prob(torch.zeros(5, 3), torch.tensor([0, 1, 2, 3, 0])).exp()
        tensor([0.2500, 0.2500, 0.2500, 0.2500, 0.2500])
    """
    plan = plan_for(scores, tree, activation)
    found = log_prob_of(plan, _inputs.widen(scores), _inputs.class_indices(classes, "classes"))
    return _inputs.as_returned(found, scores)


def log_prob_of(plan: Plan, scores: Tensor, classes: Tensor) -> Tensor:
    """Compute :func:`log_prob` for a plan, along paths or from all classes."""
    if not plan.walks:
        return pick(_fused.log_probs(plan, scores), classes)
    queries, back = _inputs.behind_batch(classes, scores.shape[:-1])
    try:
        found = _fused.path_log_probs(plan, scores, queries)
        if found is None:
            scores = scores.expand(*queries.shape[:-1], -1)
            found = _walk.path_log_prob(plan, _walk.ScoreReader(scores), queries)
    except (IndexError, RuntimeError) as error:
        _inputs.explain_classes(error, classes, plan.tree.num_classes)
        raise
    return back(found)


def pick(values: Tensor, classes: Tensor) -> Tensor:
    """Return ``values`` at the indices ``classes`` of the last axis; the other axes are broadcast."""
    index = classes.unsqueeze(-1)
    if values.shape[:-1] != classes.shape:
        batch = torch.broadcast_shapes(values.shape[:-1], classes.shape)
        values, index = values.expand(*batch, -1), index.expand(*batch, 1)
    try:
        return values.gather(-1, index).squeeze(-1)
    except (IndexError, RuntimeError) as error:
        _inputs.explain_classes(error, classes, values.shape[-1])
        raise


def sample(
    scores: Float[Tensor, "*batch nodes"],
    tree: Tree | int | None = None,
    activation: Activation | str = "sigmoid",
    *,
    sample_shape: Sequence[int] = (),
    generator: torch.Generator | None = None,
) -> Int[Tensor, "*samples_and_batch"]:
    """Draw classes by walking down from the root, with one uniform number per level.

    The cost grows with the depth of the tree, not with K, and K is not limited. A class of probability 0 is never
    drawn. Scores are not checked: a NaN score takes the branch no, whereas :class:`Catnat` raises.

    Args:
        scores: One score per inner node on the last axis.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural" (the paper's), or an activation object.
        sample_shape: The shape of independent draws, which precedes the batch shape in the result.
        generator: The random generator; torch's default one if not given.

    Example:
        >>> import torch
        >>> from catnat.torch import sample
        >>> sample(
        ...     torch.zeros(2, 9), sample_shape=(3,), generator=torch.Generator().manual_seed(0)
        ... ).shape
        torch.Size([3, 2])
    """
    plan = plan_for(scores, tree, activation)
    return draw(plan, _inputs.widen(scores.detach()), _checks.shape_of_samples(sample_shape), generator)


def draw(plan: Plan, scores: Tensor, sample_shape: Sequence[int], generator: torch.Generator | None) -> Tensor:
    """Compute :func:`sample` for a plan, from detached scores."""
    batch, count = scores.shape[:-1], math.prod(sample_shape)
    drawn = _fused.draw(plan, scores, count, generator)
    if drawn is not None:
        return drawn.view((*sample_shape, *batch))
    if plan.tree.num_classes <= 2 or (plan.small and scores.numel() * count <= FEW):
        # Draw a branch at every node, and return the leaf to which these branches lead.
        yes = plan.branches.yes_probs(scores)
        branches = _walk.draw_yes((*sample_shape, *yes.shape), yes, generator)
        return _dense.chosen_leaf(plan, branches.to(yes.dtype))
    if plan.small or plan.walks:
        drawn = _walk.descend(plan, _walk.ScoreReader(scores), count, generator)
    else:  # a deep tree
        drawn = _walk.draw_by_weight(_fused.log_probs(plan, scores, floored=False).exp(), count, generator)
    return _inputs.samples_first(drawn, sample_shape)


def sample_without_replacement(
    scores: Float[Tensor, "*batch nodes"],
    k: int,
    tree: Tree | int | None = None,
    activation: Activation | str = "sigmoid",
    *,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "*batch k"]:
    r"""Draw ``k`` distinct classes without replacement, in the order in which they are drawn.

    The order has the Plackett-Luce distribution, :math:`\prod_j p_{c_j} / (1 - p_{c_1} - \dots - p_{c_{j-1}})`. Gumbel
    maxima are split from the root down, so the cost is O(k depth). Classes of probability 0 come last.

    Args:
        scores: One score per inner node on the last axis.
        k: The number of classes to draw, at most K.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural" (the paper's), or an activation object.
        generator: The random generator; torch's default one if not given.

    Example:
        >>> import torch
        >>> from catnat.torch import sample_without_replacement
        >>> sample_without_replacement(torch.zeros(4, 99), 10).shape
        torch.Size([4, 10])
    """
    plan = plan_for(scores, tree, activation)
    scores = _inputs.widen(scores.detach())
    _checks.how_many(k, plan.tree.num_classes, least=0)
    if plan.walks:
        return _walk.descend_without_replacement(plan, _walk.ScoreReader(scores), k, generator)
    exact = _fused.log_probs(plan, scores, floored=False)
    return (exact - _walk.log_exponential(exact, generator)).topk(k).indices


def mode(
    scores: Float[Tensor, "*batch nodes"],
    tree: Tree | int | None = None,
    activation: Activation | str = "sigmoid",
) -> Int[Tensor, "*batch"]:
    """Return the most probable class, the argmax over all K. A greedy walk down the tree can end at another class.

    Args:
        scores: One score per inner node on the last axis.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural" (the paper's), or an activation object.

    Example:
        >>> import torch
        >>> from catnat.torch import mode
        >>> # yes is more probable at the root, but it has two equal classes
        >>> mode(torch.tensor([0.2, 1.0, 0.0]))
        tensor(1)
    """
    plan = plan_for(scores, tree, activation)
    return _fused.log_probs(plan, _inputs.widen(scores.detach()), floored=False).argmax(-1)


def entropy(
    scores: Float[Tensor, "*batch nodes"],
    tree: Tree | int | None = None,
    activation: Activation | str = "sigmoid",
) -> Float[Tensor, "*batch"]:
    r"""Return the entropy in nats.

    .. math:: H(p) = -\sum_k p_k \log p_k = \sum_i P(i)\, h(a_i), \qquad h(a) = -a \log a - (1 - a) \log(1 - a)

    Args:
        scores: One score per inner node on the last axis.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural" (the paper's), or an activation object.

    Example:
        >>> import torch
        >>> from catnat.torch import entropy
        >>> entropy(torch.zeros(3))
        tensor(1.3863)
    """
    plan = plan_for(scores, tree, activation)
    exact = _fused.log_probs(plan, _inputs.widen(scores), floored=False)
    return _inputs.as_returned(entropy_of(exact), scores)


def entropy_of(exact: Tensor) -> Tensor:
    """Return the entropy of log-probabilities without a floor."""
    return -(exact.exp() * exact).sum(-1)


def kl_divergence(
    p_scores: Float[Tensor, "*batch nodes"],
    q_scores: Float[Tensor, "*batch nodes"],
    tree: Tree | int | None = None,
    activation: Activation | str = "sigmoid",
) -> Float[Tensor, "*batch"]:
    r"""Return the Kullback-Leibler divergence between two score vectors on one tree, in nats.

    .. math:: KL(p \| q) = \sum_k p_k \log \frac{p_k}{q_k} = \sum_i P_p(i)\, kl(a_i \| b_i)

    It is always finite: if q gives a class probability 0, its floored log-probability is used.

    Args:
        p_scores: Scores of the distribution p, under which the expectation is taken.
        q_scores: Scores of the distribution q, broadcast against ``p_scores``.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural" (the paper's), or an activation object.

    Example:
        >>> import torch
        >>> from catnat.torch import kl_divergence
        >>> kl_divergence(torch.ones(3), torch.ones(3))
        tensor(0.)
    """
    p = plan_for(p_scores, tree, activation)
    q = plan_for(q_scores, p.tree, activation)
    p_logs = _fused.log_probs(p, _inputs.widen(p_scores), floored=False)
    found = divergence_of(p_logs, _fused.log_probs(q, _inputs.widen(q_scores)))
    dtype = torch.promote_types(_inputs.returned_dtype(p_scores), _inputs.returned_dtype(q_scores))
    return _inputs.clamp_to_dtype(found, dtype)


def divergence_of(p_exact: Tensor, q_logs: Tensor) -> Tensor:
    """Return KL(p || q) from the log-probabilities of p without a floor and finite log-probabilities of q."""
    return (p_exact.exp() * (p_exact - q_logs)).sum(-1)


def cross_entropy(
    scores: Float[Tensor, "..."],
    target: Tensor,
    tree: Tree | int | None = None,
    activation: Activation | str = "sigmoid",
    *,
    weight: Float[Tensor, "classes"] | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Float[Tensor, "..."]:
    """Return the cross-entropy of K-1 scores, the counterpart of ``torch.nn.functional.cross_entropy`` for K logits.

    **With the natural activation the loss depends on the dtype.** Branch probabilities are floored at the machine
    epsilon. A target of probability exactly 0, whose true loss is infinite, costs 16 nats in float32 and 36 in float64.
    Report the fraction of such rows with the loss: ``(catnat(scores, tree, "natural").gather(-1, target[:, None]) ==
    0).mean(dtype=float)``. The sigmoid has no floor.

    Above 64 classes, with class indices and no label smoothing, only the paths of the targets are read. If every target
    is ignored the mean is 0, where torch returns NaN.

    Args:
        scores: Shape (K-1,), (N, K-1) or (N, K-1, d1, d2, ...).
        target: Class indices, (), (N,) or (N, d1, ...), or class probabilities, in the shape of ``scores`` with K in
            place of K-1.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural" (the paper's), or an activation object.
        weight: A factor per class.
        ignore_index: A class index whose targets are ignored.
        reduction: "none", "mean" (weighted as torch does) or "sum".
        label_smoothing: The fraction of the target that is spread evenly over all classes.

    Example:
        >>> import torch
        >>> from catnat.torch import cross_entropy
        >>> cross_entropy(torch.zeros(8, 9), torch.arange(8))  # log 10
        tensor(2.3026)
    """
    _checks.one_of(reduction, "reduction", ("none", "mean", "sum"))
    _checks.label_smoothing(label_smoothing)
    _inputs.check_tensor(target, "target")
    _inputs.check_tensor(scores, "scores")
    if scores.ndim > 2:
        scores = scores.movedim(1, -1)
        target = target.movedim(1, -1) if target.is_floating_point() and target.ndim == scores.ndim else target
    plan = plan_for(scores, tree, activation)
    if weight is not None:
        _inputs.check_tensor(weight, "weight")
        _checks.class_weights(weight.shape, "weight", plan.tree.num_classes)
        weight = weight.to(plan.dtype)
    if target.is_floating_point():
        losses, total = _losses_of_probs(plan, scores, target, weight, label_smoothing)
    else:
        classes = _inputs.class_indices(target, "target")
        _check_shape_of_classes(scores, classes)
        if weight is None and not label_smoothing and not plan.walks:
            return _inputs.as_returned(_nll_loss(plan, scores, classes, ignore_index, reduction), scores)
        losses, total = _losses_of_classes(plan, scores, classes, weight, label_smoothing, ignore_index)
    if reduction != "none":
        losses = losses.sum()
    if reduction == "mean":
        losses = losses / torch.where(total == 0, 1, total)
    return _inputs.as_returned(losses, scores)


def _losses_of_probs(
    plan: Plan, scores: Tensor, target: Tensor, weight: Tensor | None, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Return the loss of every element, and the divisor of the mean: the number of elements."""
    num_classes = plan.tree.num_classes
    needed = (*scores.shape[:-1], num_classes)
    if target.ndim < scores.ndim:
        raise TypeError(
            f"`target` has dtype {target.dtype} and shape {tuple(target.shape)}: class indices must be integers, "
            f"target.long(); class probabilities need an axis of {num_classes} classes."
        )
    if target.shape != needed:
        raise ValueError(
            f"`target` holds probabilities and has {tuple(target.shape)} entries with classes last, but {needed} are "
            "needed: the shape of `scores` with K in place of K-1. (Class indices must be integers.)"
        )
    target = target.to(plan.dtype)
    if smoothing:
        target = target * (1 - smoothing) + smoothing / num_classes
    if weight is not None:
        target = target * weight
    losses = -(_fused.log_probs(plan, _inputs.widen(scores)) * target).sum(-1)
    return losses, losses.new_full((), losses.numel())


def _check_shape_of_classes(scores: Tensor, classes: Tensor) -> None:
    """Raise unless there is one class for every row of scores."""
    if classes.shape != scores.shape[:-1]:
        raise ValueError(
            f"`target` has shape {tuple(classes.shape)}, but class indices of shape {tuple(scores.shape[:-1])} are "
            "needed: that of `scores` without its class axis (the second, or the only one)."
        )


def _nll_loss(plan: Plan, scores: Tensor, classes: Tensor, ignore_index: int, reduction: str) -> Tensor:
    """Apply torch's ``nll_loss``, with classes on the last axis; if all targets are ignored the mean is 0."""
    every = _fused.log_probs(plan, _inputs.widen(scores))
    rows = every if every.ndim <= 2 else every.reshape(-1, every.shape[-1])
    targets = classes if classes.ndim <= 1 else classes.reshape(-1)
    try:
        loss = F.nll_loss(rows, targets, ignore_index=ignore_index, reduction=reduction)
    except (IndexError, RuntimeError) as error:
        _inputs.explain_classes(error, classes, every.shape[-1], ignore_index)
        raise
    if reduction == "mean":
        with torch.no_grad():  # its gradient is already 0, and autograd records one step less
            loss.masked_fill_((targets == ignore_index).all(), 0)
    return loss.view(classes.shape) if reduction == "none" else loss


def _losses_of_classes(
    plan: Plan, scores: Tensor, classes: Tensor, weight: Tensor | None, smoothing: float, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """Return the loss of every element, and the divisor of the mean: the total weight of targets not ignored."""
    counts = classes != ignore_index
    targets = torch.where(counts, classes, 0)
    wide = _inputs.widen(scores)
    every = _fused.log_probs(plan, wide) if smoothing else None
    losses = -(log_prob_of(plan, wide, targets) if every is None else pick(every, targets))
    weights = torch.ones_like(losses) if weight is None else look_up(weight, targets)
    losses = losses * weights
    if every is not None:
        spread = (every if weight is None else every * weight).sum(-1) / plan.tree.num_classes
        losses = (1 - smoothing) * losses - smoothing * spread
    # `torch.where` and not a product with 0, because scores of an ignored row may be NaN.
    return torch.where(counts, losses, 0), torch.where(counts, weights, 0).sum()
