"""The functions: what softmax, log_softmax and cross_entropy are for logits, on a tree of yes/no decisions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from catnat import _checks
from catnat.activations import Activation
from catnat.torch import _constants, _dense, _fused, _inputs, _paths
from catnat.torch._kernels import FEW
from catnat.torch._nodes import Nodes, prepare
from catnat.trees.forest import Forest
from catnat.trees.tree import Tree

# Up to here all classes are computed even where only some are needed: a few large operations beat many small ones.
MOST_DENSE_CLASSES = _dense.MOST_MATMUL_CLASSES
# Up to this many branches, one is drawn at every node of a forest before it is walked.
_BRANCHES_AT_ONCE = 1 << 18
# A dense draw on a deep tree goes through this many branches at a time.
_BRANCHES_AT_A_TIME = 1 << 24


@_checks.explains(axis="It is called `dim`.")
def catnat(
    scores: Float[Tensor, "*batch nodes"],
    tree: Tree | None = None,
    activation: Activation | str = "natural",
    *,
    num_classes: int | None = None,
    dim: int = -1,
) -> Float[Tensor, "*batch classes"]:
    r"""The probability of every class, the counterpart of ``torch.softmax``.

    .. math:: p_k = \prod_{i \in \mathrm{path}(k)} a(s_i)^{b_i} (1 - a(s_i))^{1 - b_i}

    Probabilities are exactly 0 where a clamped natural activation is certain.

    Args:
        scores: One score per inner node of the tree (K-1, not K) along ``dim``.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        num_classes: The number of classes K, to be checked against the scores and the tree.
        dim: The axis of the nodes, which becomes the axis of the classes.

    Example:
        >>> import torch
        >>> from catnat.torch import catnat
        >>> catnat(torch.zeros(2))
        tensor([0.3333, 0.3333, 0.3333])
    """
    if dim != -1:
        _inputs.check_tensor(scores, "scores")
        return catnat(scores.movedim(dim, -1), tree, activation, num_classes=num_classes).movedim(-1, dim)
    return (
        log_probs(prepare(scores, tree, activation, num_classes), floored=False)
        .exp()
        .to(_inputs.returned_dtype(scores))
    )


@_checks.explains(axis="It is called `dim`.")
def log_catnat(
    scores: Float[Tensor, "*batch nodes"],
    tree: Tree | None = None,
    activation: Activation | str = "natural",
    *,
    num_classes: int | None = None,
    dim: int = -1,
) -> Float[Tensor, "*batch classes"]:
    r"""The log-probability of every class, the counterpart of ``torch.log_softmax``; always finite.

    .. math:: \log p_k = \sum_{i \in \mathrm{path}(k)} b_i \log a(s_i) + (1 - b_i) \log (1 - a(s_i))

    A node of the natural activation counts at least the machine epsilon of the computing dtype, so that a class of
    probability 0 keeps a finite log-probability; the sigmoid has no floor.

    Args:
        scores: One score per inner node of the tree (K-1, not K) along ``dim``.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        num_classes: The number of classes K, to be checked against the scores and the tree.
        dim: The axis of the nodes, which becomes the axis of the classes.

    Example:
        >>> import torch
        >>> from catnat.torch import log_catnat
        >>> log_catnat(torch.zeros(3))
        tensor([-1.3863, -1.3863, -1.3863, -1.3863])
    """
    if dim != -1:
        _inputs.check_tensor(scores, "scores")
        return log_catnat(scores.movedim(dim, -1), tree, activation, num_classes=num_classes).movedim(-1, dim)
    return _inputs.saturate(log_probs(prepare(scores, tree, activation, num_classes)), _inputs.returned_dtype(scores))


def log_probs(nodes: Nodes, *, floored: bool = True) -> Tensor:
    """The log-probability of every class; not floored, its exponential is exactly 0 where the probability is."""
    found = _fused.log_probs(nodes, floored=floored)
    return _fused.plain_log_probs(nodes, floored=floored) if found is None else found


def log_prob(
    scores: Float[Tensor, "*batch nodes"],
    classes: Int[Tensor, "*samples_and_batch"],
    tree: Tree | None = None,
    activation: Activation | str = "natural",
    *,
    num_classes: int | None = None,
) -> Float[Tensor, "*samples_and_batch"]:
    r"""The log-probability of given classes, reading only the nodes on their paths.

    .. math:: \log p_k = \sum_{i \in \mathrm{path}(k)} b_i \log a(s_i) + (1 - b_i) \log (1 - a(s_i))

    The forward cost grows with the depth of the tree, not with K (a tree deeper than 64 levels is summed densely).

    Args:
        scores: One score per inner node on the last axis.
        classes: Class indices, broadcast against the batch shape of ``scores``; further axes may stand before it.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        num_classes: The number of classes K, to be checked against the scores and the tree.

    Example:
        >>> import torch
        >>> from catnat.torch import log_prob
        >>> log_prob(torch.zeros(5, 3), torch.tensor([0, 1, 2, 3, 0])).exp()
        tensor([0.2500, 0.2500, 0.2500, 0.2500, 0.2500])
    """
    nodes = prepare(scores, tree, activation, num_classes)
    classes = check_classes(classes, nodes.tree.num_classes)
    return _inputs.saturate(log_prob_unchecked(nodes, classes), _inputs.returned_dtype(scores))


def log_prob_unchecked(nodes: Nodes, classes: Tensor) -> Tensor:
    """:func:`log_prob` of prepared arguments."""
    event = classes.shape[-1:] if isinstance(nodes.tree, Forest) else ()
    queries, back = _inputs.behind_batch(classes, nodes.scores.shape[:-1], event)
    batch = queries.shape[: queries.ndim - 1 - len(event)]
    return back(_log_prob_of_queries(nodes, batch, queries))


def _log_prob_of_queries(nodes: Nodes, batch: Sequence[int], queries: Tensor) -> Tensor:
    """By path or from all classes, whichever is less to compute."""
    walked = walks(nodes.tree)
    if walked or math.prod(queries.shape[len(batch) :]) * nodes.tree.depth <= nodes.tree.num_classes:
        fused = _fused.path_log_probs(nodes, queries)
        if fused is not None:
            return fused
    if walked:
        return _paths.path_log_prob(nodes.expand(batch), queries)
    return log_probs(nodes).expand(*batch, -1).gather(-1, queries)


def sample(
    scores: Float[Tensor, "*batch nodes"],
    tree: Tree | None = None,
    activation: Activation | str = "natural",
    *,
    num_classes: int | None = None,
    sample_shape: Sequence[int] = (),
    generator: torch.Generator | None = None,
) -> Int[Tensor, "*samples_and_batch"]:
    """Draw classes by walking down from the root, one uniform number a level.

    The cost grows with the depth of the tree, not with K; there is no limit on the number of classes. A class of
    probability 0 is never drawn. Scores are not checked: one that is NaN takes the branch no. (:class:`Catnat` raises.)

    Args:
        scores: One score per inner node on the last axis.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        num_classes: The number of classes K, to be checked against the scores and the tree.
        sample_shape: The shape of independent draws, which stands before the batch shape in the result.
        generator: The random generator; torch's default one if not given.

    Example:
        >>> import torch
        >>> from catnat.torch import sample
        >>> sample(
        ...     torch.zeros(2, 9), sample_shape=(3,), generator=torch.Generator().manual_seed(0)
        ... ).shape
        torch.Size([3, 2])
    """
    return draw(prepare(scores, tree, activation, num_classes), _checks.shape_of_samples(sample_shape), generator)


def draw(nodes: Nodes, sample_shape: Sequence[int], generator: torch.Generator | None) -> Tensor:
    """:func:`sample` of prepared arguments."""
    nodes, tree, batch, count = nodes.detach(), nodes.tree, nodes.scores.shape[:-1], math.prod(sample_shape)
    fused = _fused.draw(nodes, count, generator)
    if fused is not None:
        return fused.view((*sample_shape, *batch))
    branches = batch.numel() * count * tree.num_nodes
    if isinstance(tree, Forest) or walks(tree) or (tree.depth <= _paths.MOST_WALKED_LEVELS and branches > FEW):
        at_once = isinstance(tree, Forest) and branches <= _BRANCHES_AT_ONCE
        descend = _paths.draw_all_and_descend if at_once else _paths.descend
        drawn = descend(nodes, count, generator).movedim(len(batch), 0)
        return drawn.reshape((*sample_shape, *drawn.shape[1:]))
    yes = nodes.all().yes()
    if branches <= _BRANCHES_AT_A_TIME:
        return _branch_at_every_node(yes, sample_shape, tree, generator)
    at_a_time = max(1, _BRANCHES_AT_A_TIME // yes.numel())
    chunks = [min(at_a_time, count - start) for start in range(0, count, at_a_time)]
    return torch.cat([_branch_at_every_node(yes, (chunk,), tree, generator) for chunk in chunks]).reshape(
        (*sample_shape, *batch)
    )


def _branch_at_every_node(
    yes: Tensor, sample_shape: Sequence[int], tree: Tree, generator: torch.Generator | None
) -> Tensor:
    """Draw a branch at every node of the tree, and find the one leaf that all branches on its path lead to."""
    uniforms = _paths.rand((*sample_shape, *yes.shape), yes, generator)
    return _dense.chosen_leaf((uniforms < yes).to(yes.dtype), tree)


def sample_without_replacement(
    scores: Float[Tensor, "*batch nodes"],
    k: int,
    tree: Tree | None = None,
    activation: Activation | str = "natural",
    *,
    num_classes: int | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "*batch k"]:
    r"""Draw ``k`` distinct classes, in the order of drawing one after the other without putting any back.

    The order has the Plackett-Luce distribution, :math:`\prod_j p_{c_j} / (1 - p_{c_1} - \dots - p_{c_{j-1}})`. Gumbel
    maxima are split from the root down, so the cost is O(k depth). Classes of probability 0 come last.

    Args:
        scores: One score per inner node on the last axis.
        k: How many classes, at most K.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        num_classes: The number of classes K, to be checked against the scores and the tree.
        generator: The random generator; torch's default one if not given.

    Example:
        >>> import torch
        >>> from catnat.torch import sample_without_replacement
        >>> sample_without_replacement(torch.zeros(4, 99), 10).shape
        torch.Size([4, 10])
    """
    nodes = prepare(scores, tree, activation, num_classes).detach()
    _checks.how_many(k, nodes.tree.num_classes, least=0)
    if walks(nodes.tree):
        return _paths.descend_without_replacement(nodes, k, generator)
    exact = log_probs(nodes, floored=False)
    return (exact - _paths.log_exponential(exact, generator)).topk(k).indices


def mode(
    scores: Float[Tensor, "*batch nodes"],
    tree: Tree | None = None,
    activation: Activation | str = "natural",
    *,
    num_classes: int | None = None,
) -> Int[Tensor, "*batch"]:
    """The most probable class: the true argmax over all K, not the greedy walk, which can end elsewhere.

    Args:
        scores: One score per inner node on the last axis.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        num_classes: The number of classes K, to be checked against the scores and the tree.

    Example:
        >>> import torch
        >>> from catnat.torch import mode
        >>> # most go right at the root, and split evenly there
        >>> mode(torch.tensor([0.2, 1.0, 0.0]))
        tensor(1)
    """
    return log_probs(prepare(scores, tree, activation, num_classes).detach(), floored=False).argmax(-1)


def entropy(
    scores: Float[Tensor, "*batch nodes"],
    tree: Tree | None = None,
    activation: Activation | str = "natural",
    *,
    num_classes: int | None = None,
) -> Float[Tensor, "*batch"]:
    r"""The entropy in nats, by the chain rule over the tree.

    .. math:: H(p) = \sum_i P(i)\, h(a_i), \qquad h(a) = -a \log a - (1 - a) \log(1 - a)

    Args:
        scores: One score per inner node on the last axis.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        num_classes: The number of classes K, to be checked against the scores and the tree.

    Example:
        >>> import torch
        >>> from catnat.torch import entropy
        >>> entropy(torch.zeros(3))
        tensor(1.3863)
    """
    return _inputs.saturate(
        node_entropies(prepare(scores, tree, activation, num_classes)).sum(-1), _inputs.returned_dtype(scores)
    )


def node_entropies(nodes: Nodes) -> Tensor:
    """What every node adds to the entropy: that of its branch, times the probability of reaching it."""
    no, yes = nodes.all().branch_log_probs(floored=False)
    branches = -(yes.exp() * yes + no.exp() * no)
    return _dense.path_sums(no, yes, nodes.tree, to="nodes").exp() * branches


def kl_divergence(
    p_scores: Float[Tensor, "*batch nodes"],
    q_scores: Float[Tensor, "*batch nodes"],
    tree: Tree | None = None,
    activation: Activation | str = "natural",
    *,
    num_classes: int | None = None,
) -> Float[Tensor, "*batch"]:
    r"""The Kullback-Leibler divergence between two score vectors on one tree, by the chain rule.

    .. math:: KL(p \| q) = \sum_i P_p(i)\, kl(a_i \| b_i)

    Finite: where q gives a class probability 0, its floored log-probability counts.

    Args:
        p_scores: Scores of the distribution the expectation is under.
        q_scores: Scores of the other distribution, broadcast against ``p_scores``.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        num_classes: The number of classes K, to be checked against the scores and the tree.

    Example:
        >>> import torch
        >>> from catnat.torch import kl_divergence
        >>> kl_divergence(torch.ones(3), torch.ones(3))
        tensor(0.)
    """
    p = prepare(p_scores, tree, activation, num_classes)
    divergence = node_divergences(p, prepare(q_scores, p.tree, activation)).sum(-1)
    dtype = torch.promote_types(_inputs.returned_dtype(p_scores), _inputs.returned_dtype(q_scores))
    return _inputs.saturate(divergence, dtype)


def node_divergences(p: Nodes, q: Nodes) -> Tensor:
    """What every node adds to KL(p || q): that of its branch, times the probability of reaching it under p."""
    p_no, p_yes = p.all().branch_log_probs(floored=False)
    q_no, q_yes = q.all().branch_log_probs(floored=True)
    branches = p_yes.exp() * (p_yes - q_yes) + p_no.exp() * (p_no - q_no)
    return _dense.path_sums(p_no, p_yes, p.tree, to="nodes").exp() * branches


def cross_entropy(
    scores: Float[Tensor, "..."],
    target: Tensor,
    tree: Tree | None = None,
    activation: Activation | str = "natural",
    *,
    num_classes: int | None = None,
    weight: Float[Tensor, "classes"] | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Float[Tensor, "..."]:
    """The counterpart of ``torch.nn.functional.cross_entropy``, with K-1 scores where that has K logits.

    With class indices and no label smoothing only the targets' paths are read. The mean over nothing (every target
    ignored) is 0, where torch returns NaN. Called with neither ``tree`` nor ``num_classes``, it warns once if the last
    class is not among very many targets: then one score per class was passed, not one per node.

    Args:
        scores: Shape (K-1,), (N, K-1) or (N, K-1, d1, d2, ...).
        target: Class indices, (), (N,) or (N, d1, ...), or class probabilities, in the shape of ``scores`` with K for
            K-1.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        num_classes: The number of classes K, to be checked against the scores and the tree.
        weight: A factor per class.
        ignore_index: A class index whose targets are ignored.
        reduction: "none", "mean" (weighted as torch does) or "sum".
        label_smoothing: The fraction of the target spread evenly over all classes.

    Example:
        >>> import torch
        >>> from catnat.torch import cross_entropy
        >>> cross_entropy(torch.zeros(8, 9), torch.arange(8))  # log 10
        tensor(2.3026)
    """
    _checks.one_of(reduction, "reduction", ("none", "mean", "sum"))
    _checks.label_smoothing(label_smoothing)
    _inputs.check_tensor(scores, "scores")
    _inputs.check_tensor(target, "target")
    class_dim = 1 if scores.ndim > 1 else 0
    moved = scores.movedim(class_dim, -1) if scores.ndim > 2 else scores
    nodes = prepare(moved, tree, activation, num_classes)
    if weight is not None:
        _inputs.check_tensor(weight, "weight")
        _checks.class_weights(weight.shape, "weight", nodes.tree.num_classes)
    if target.is_floating_point() and target.ndim < moved.ndim:
        raise TypeError(
            f"`target` has dtype {target.dtype} and shape {tuple(target.shape)}: class indices must be integers, "
            f"target.long(); class probabilities need an axis of {nodes.tree.num_classes} classes."
        )
    if not target.is_floating_point():
        target = _inputs.class_indices(target, "target")
    if tree is None and num_classes is None:
        _watch_last_class(target, nodes.tree.num_classes, ignore_index)
    if target.is_floating_point():
        losses, total = _losses_of_probs(nodes, target.movedim(class_dim, -1), weight, label_smoothing)
    else:
        losses, total = _losses_of_classes(nodes, target, weight, label_smoothing, ignore_index)
    if reduction != "none":
        losses = losses.sum()
    if reduction == "mean":
        losses = losses / torch.where(total == 0, torch.ones_like(total), total)
    return _inputs.saturate(losses, _inputs.returned_dtype(scores))


def _losses_of_probs(nodes: Nodes, target: Tensor, weight: Tensor | None, smoothing: float) -> tuple[Tensor, Tensor]:
    """The loss of every element, and what the mean divides by: their number."""
    scores, num_classes = nodes.scores, nodes.tree.num_classes
    needed = (*scores.shape[:-1], num_classes)
    if target.shape != needed:
        raise ValueError(
            f"`target` holds probabilities and has {tuple(target.shape)} entries with classes last, but {needed} are "
            "needed: the shape of `scores` with K in place of K-1. (Class indices must be integers.)"
        )
    target = target.to(scores.dtype)
    if smoothing:
        target = target * (1 - smoothing) + smoothing / num_classes
    if weight is not None:
        target = target * weight.to(scores.dtype)
    losses = -(log_probs(nodes) * target).sum(-1)
    return losses, losses.new_tensor(losses.numel())


def _losses_of_classes(
    nodes: Nodes, target: Tensor, weight: Tensor | None, smoothing: float, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """The loss of every element, and what the mean divides by: the weight of the targets that count."""
    scores, num_classes = nodes.scores, nodes.tree.num_classes
    if target.shape != scores.shape[:-1]:
        raise ValueError(
            f"`target` has shape {tuple(target.shape)}, but class indices of shape {tuple(scores.shape[:-1])} are "
            "needed: that of `scores` without its class axis (the second, or the only one)."
        )
    counts = target != ignore_index
    classes = check_classes(torch.where(counts, target, torch.zeros_like(target)), num_classes)
    weights = counts.to(scores.dtype) * (1 if weight is None else _constants.look_up(weight.to(scores.dtype), classes))
    if smoothing == 0:
        found = log_prob_unchecked(nodes, classes) * weights
    else:
        every = log_probs(nodes)
        picked = every.gather(-1, classes.unsqueeze(-1)).squeeze(-1)
        spread = (every if weight is None else every * weight.to(scores.dtype)).sum(-1) / num_classes
        found = (1 - smoothing) * picked * weights + smoothing * spread
    # A choice, not a product with 0, which NaN scores of an ignored row would survive.
    return -torch.where(counts, found, torch.zeros_like(found)), weights.sum()


def _watch_last_class(target: Tensor, num_classes: int, ignore_index: int) -> None:
    """Watch the targets where they can be read: not in compiled code, under vmap, or without data."""
    if torch.compiler.is_compiling() or target.is_floating_point() or _checks.is_last_class_known(num_classes):
        return
    if type(target) is Tensor and not target.is_meta and not is_functorch_wrapped_tensor(target):
        used = target != ignore_index
        _checks.watch_last_class(num_classes, int(used.sum()), bool((target == num_classes - 1).any()))


def walks(tree: Tree | Forest) -> bool:
    """Whether to walk paths, rather than compute all classes: not where K is small or the tree deep."""
    return tree.num_classes > MOST_DENSE_CLASSES and tree.depth <= _paths.MOST_WALKED_LEVELS


def check_classes(classes: Tensor, num_classes: int) -> Tensor:
    """Class indices that exist, in the dtype of indices."""
    classes = _inputs.class_indices(classes, "classes")
    if torch.compiler.is_compiling():
        return classes
    outside = (classes < 0) | (classes >= num_classes)
    if _inputs.is_true(outside.any()):
        raise ValueError(
            f"`classes` holds {int(classes[outside][0])}, but this tree has the classes 0 .. {num_classes - 1}. "
            "If it marks targets to skip, pass it as `ignore_index` to cross_entropy or to the head."
        )
    return classes
