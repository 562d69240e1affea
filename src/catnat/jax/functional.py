"""Functions of scores on a tree, the counterparts of softmax, log_softmax and cross-entropy for logits."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Int, PRNGKeyArray

from catnat import _checks
from catnat.activations import Activation
from catnat.jax import _dense, _plan, _walk
from catnat.jax._fused import log_probs
from catnat.jax._plan import Plan, clamp_to_dtype, existing_classes, prepare
from catnat.trees.tree import Tree

__all__ = [
    "catnat",
    "clamp_to_dtype",
    "cross_entropy",
    "entropy",
    "kl_divergence",
    "log_catnat",
    "log_prob",
    "mode",
    "sample",
    "sample_without_replacement",
]


@_checks.explains(dim="It is called `axis`.")
def catnat(
    scores: Float[Array, "*batch nodes"],
    tree: Tree | int | None = None,
    activation: Activation | str = "sigmoid",
    *,
    axis: int = -1,
) -> Float[Array, "*batch classes"]:
    r"""Return the probability of every class, the counterpart of ``jax.nn.softmax``.

    .. math:: p_k = \prod_{i \in \mathrm{path}(k)} a(s_i)^{b_i} (1 - a(s_i))^{1 - b_i}

    With the natural activation, classes on the impossible side of a saturated node have probability exactly 0.

    Args:
        scores: One score per inner node of the tree (K-1, not K) along ``axis``.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural", or an activation object.
        axis: The axis of the nodes, which becomes the axis of the classes.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.jax import catnat
        >>> print(catnat(jnp.zeros(2)).round(4))
        [0.3333 0.3333 0.3333]
    """
    scores, plan, dtype = prepare(jnp.moveaxis(_plan.check_scores(scores), axis, -1), tree, activation)
    return jnp.moveaxis(probs(scores, plan).astype(dtype), -1, axis)


@_checks.explains(dim="It is called `axis`.")
def log_catnat(
    scores: Float[Array, "*batch nodes"],
    tree: Tree | int | None = None,
    activation: Activation | str = "sigmoid",
    *,
    axis: int = -1,
) -> Float[Array, "*batch classes"]:
    r"""Return the log-probability of every class, the counterpart of ``jax.nn.log_softmax``; always finite.

    .. math:: \log p_k = \sum_{i \in \mathrm{path}(k)} b_i \log a(s_i) + (1 - b_i) \log (1 - a(s_i))

    With the natural activation, a branch counts at least the machine epsilon of the computing dtype, so that a class of
    probability 0 has a finite log-probability. The sigmoid has no floor.

    Args:
        scores: One score per inner node of the tree (K-1, not K) along ``axis``.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural", or an activation object.
        axis: The axis of the nodes, which becomes the axis of the classes.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.jax import log_catnat
        >>> print(log_catnat(jnp.zeros(3)).round(4))
        [-1.3863 -1.3863 -1.3863 -1.3863]
    """
    scores, plan, dtype = prepare(jnp.moveaxis(_plan.check_scores(scores), axis, -1), tree, activation)
    return jnp.moveaxis(clamp_to_dtype(log_probs(scores, plan), dtype), -1, axis)


@functools.partial(jax.jit, static_argnames="plan")
def probs(scores: Array, plan: Plan) -> Array:
    """Return :func:`catnat` of prepared arguments."""
    return jnp.exp(log_probs(scores, plan, floored=False))


def log_prob(
    scores: Float[Array, "*batch nodes"],
    classes: Int[Array, "*samples_and_batch"],
    tree: Tree | int | None = None,
    activation: Activation | str = "sigmoid",
) -> Float[Array, "*samples_and_batch"]:
    r"""Return the log-probability of given classes, reading only the nodes on their paths.

    .. math:: \log p_k = \sum_{i \in \mathrm{path}(k)} b_i \log a(s_i) + (1 - b_i) \log (1 - a(s_i))

    The forward cost grows with the depth of the tree, not with K (trees deeper than 64 levels compute all classes).
    Under ``jit`` a class that does not exist cannot raise; it is clamped to the nearest one.

    Args:
        scores: One score per inner node on the last axis.
        classes: Class indices, broadcast against the batch shape of ``scores``, with optional leading sample axes.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural", or an activation object.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.jax import log_prob
        >>> print(jnp.exp(log_prob(jnp.zeros((5, 3)), jnp.array([0, 1, 2, 3, 0]))).round(4))
        [0.25 0.25 0.25 0.25 0.25]
    """
    scores, plan, dtype = prepare(scores, tree, activation)
    classes = existing_classes(classes, plan.tree.num_classes)
    return clamp_to_dtype(log_prob_of(scores, plan, classes), dtype)


@functools.partial(jax.jit, static_argnames=("plan", "floored"))
def log_prob_of(scores: Array, plan: Plan, classes: Array, *, floored: bool = True) -> Array:
    """Return :func:`log_prob` of prepared arguments."""
    if not plan.walks:
        return _walk.pick_samples(log_probs(scores, plan, floored=floored), classes)
    classes, back = _plan.behind_batch(classes, scores.shape[:-1])
    return back(_walk.path_log_prob(scores, classes, plan, floored=floored))


@_plan.takes_key
def sample(
    scores: Float[Array, "*batch nodes"],
    tree: Tree | int | None = None,
    activation: Activation | str = "sigmoid",
    *,
    sample_shape: Sequence[int] = (),
    key: PRNGKeyArray,
) -> Int[Array, "*samples_and_batch"]:
    """Draw classes by walking down from the root, with one uniform number per level.

    The cost grows with the depth of the tree, not with K; the number of classes is not limited. A class of probability
    0 is never drawn. Scores are not checked: a node whose score is NaN takes the branch no.

    Args:
        scores: One score per inner node on the last axis.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural", or an activation object.
        sample_shape: The shape of independent draws, which precedes the batch shape in the result.
        key: The random key.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from catnat.jax import sample
        >>> sample(jnp.zeros((2, 9)), sample_shape=(3,), key=jax.random.key(0)).shape
        (3, 2)
    """
    scores, plan, _ = prepare(scores, tree, activation)
    return _walk.draw(scores, _checks.shape_of_samples(sample_shape), key, plan)


@_plan.takes_key
def sample_without_replacement(
    scores: Float[Array, "*batch nodes"],
    k: int,
    tree: Tree | int | None = None,
    activation: Activation | str = "sigmoid",
    *,
    key: PRNGKeyArray,
) -> Int[Array, "*batch k"]:
    r"""Draw ``k`` distinct classes without replacement, in the order in which they are drawn.

    The order has the Plackett-Luce distribution, :math:`\prod_j p_{c_j} / (1 - p_{c_1} - \dots - p_{c_{j-1}})`. Gumbel
    maxima are split from the root down, so the cost is O(k depth). Classes of probability 0 come last.

    Args:
        scores: One score per inner node on the last axis.
        k: The number of classes to draw, at most K.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural", or an activation object.
        key: The random key.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from catnat.jax import sample_without_replacement
        >>> sample_without_replacement(jnp.zeros((4, 99)), 10, key=jax.random.key(0)).shape
        (4, 10)
    """
    scores, plan, _ = prepare(scores, tree, activation)
    _checks.how_many(k, plan.tree.num_classes, least=0)
    return _draw_distinct(lax.stop_gradient(scores), k, key, plan)


@functools.partial(jax.jit, static_argnames=("k", "plan"))
def _draw_distinct(scores: Array, k: int, key: Array, plan: Plan) -> Array:
    if plan.walks:
        return _walk.descend_without_replacement(scores, k, key, plan)
    noisy = _walk.add_gumbel_noise(log_probs(scores, plan, floored=False), None, (), key)
    return lax.top_k(noisy, k)[1].astype(int)


def mode(
    scores: Float[Array, "*batch nodes"],
    tree: Tree | int | None = None,
    activation: Activation | str = "sigmoid",
) -> Int[Array, "*batch"]:
    """Return the most probable class, the argmax over all K. A greedy walk down the tree can end at another class.

    Args:
        scores: One score per inner node on the last axis.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural", or an activation object.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.jax import mode
        >>> # most go right at the root, and split evenly there
        >>> print(mode(jnp.array([0.2, 1.0, 0.0])))
        1
    """
    scores, plan, _ = prepare(scores, tree, activation)
    return log_probs(scores, plan, floored=False).argmax(-1)


def entropy(
    scores: Float[Array, "*batch nodes"],
    tree: Tree | int | None = None,
    activation: Activation | str = "sigmoid",
) -> Float[Array, "*batch"]:
    r"""Return the entropy in nats, by the chain rule over the tree.

    .. math:: H(p) = -\sum_k p_k \log p_k = \sum_i P(i)\, h(a_i), \qquad h(a) = -a \log a - (1 - a) \log(1 - a)

    Args:
        scores: One score per inner node on the last axis.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural", or an activation object.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.jax import entropy
        >>> print(entropy(jnp.zeros(3)).round(4))
        1.3863
    """
    scores, plan, dtype = prepare(scores, tree, activation)
    return clamp_to_dtype(_dense.entropy(scores, plan), dtype)


def kl_divergence(
    p_scores: Float[Array, "*batch nodes"],
    q_scores: Float[Array, "*batch nodes"],
    tree: Tree | int | None = None,
    activation: Activation | str = "sigmoid",
) -> Float[Array, "*batch"]:
    r"""Return the Kullback-Leibler divergence between two score vectors on one tree, by the chain rule.

    .. math:: KL(p \| q) = \sum_k p_k \log \frac{p_k}{q_k} = \sum_i P_p(i)\, kl(a_i \| b_i)

    The result is finite: if q gives a class probability 0, its floored log-probability is used.

    Args:
        p_scores: Scores of the distribution p, under which the expectation is taken.
        q_scores: Scores of the distribution q, broadcast against ``p_scores``.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural", or an activation object.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.jax import kl_divergence
        >>> print(kl_divergence(jnp.ones(3), jnp.ones(3)))
        0.0
    """
    p, q, plan, dtype = prepare_two(p_scores, q_scores, tree, activation)
    return clamp_to_dtype(_dense.kl_divergence(p, q, plan), dtype)


def prepare_two(
    p_scores: Array, q_scores: Array, tree: Tree | int | None, activation: Activation | str
) -> tuple[Array, Array, Plan, Any]:
    """Return two arrays of scores on one tree, their plan in the wider of the two dtypes, and the dtype of results."""
    p, plan, p_dtype = prepare(p_scores, tree, activation)
    q, other, q_dtype = prepare(q_scores, plan.tree, activation)
    dtype = jnp.promote_types(plan.dtype, other.dtype)
    plan = dataclasses.replace(plan, dtype=dtype)
    return p.astype(dtype), q.astype(dtype), plan, jnp.promote_types(p_dtype, q_dtype)


def cross_entropy(
    scores: Float[Array, "*batch nodes"],
    target: Array,
    tree: Tree | int | None = None,
    activation: Activation | str = "sigmoid",
    *,
    weight: Float[Array, "classes"] | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Float[Array, "..."]:
    r"""Return the cross-entropy loss :math:`-\log p_{target}`, from K-1 scores instead of the K logits of softmax.

    **With the natural activation the loss depends on the dtype.** A branch counts at least the machine epsilon, so a
    target of probability exactly 0, whose true loss is infinite, costs 16 nats in float32 and 36 in float64. Report the
    fraction of such rows with it: ``(jnp.take_along_axis(catnat(scores, tree, "natural"), target[:, None], -1) ==
    0).mean()``. The sigmoid has no floor.

    With class indices and no label smoothing only the targets' paths are read. The options are those of PyTorch, but
    nodes, and the classes of probability targets, are on the last axis, as everywhere in JAX. If every target is
    ignored, the mean is 0. Give the number of classes as ``tree=K``: it is checked against the scores.

    Args:
        scores: One score per inner node on the last axis.
        target: Class indices, in the shape of ``scores`` without its last axis; or class probabilities, in the shape of
            ``scores`` with K for K-1.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural", or an activation object.
        weight: A factor per class.
        ignore_index: A class index whose targets are ignored.
        reduction: "none", "mean" (of class indices: weighted by the weights of the targets) or "sum".
        label_smoothing: The fraction of the target that is spread evenly over all classes.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.jax import cross_entropy
        >>> print(cross_entropy(jnp.zeros((8, 9)), jnp.arange(8)).round(4))  # log 10
        2.3026
    """
    _checks.one_of(reduction, "reduction", ("none", "mean", "sum"))
    _checks.label_smoothing(label_smoothing)
    (scores, plan, dtype), target = prepare(scores, tree, activation), _plan.check_array(target, "target")
    num_classes, of_probs = plan.tree.num_classes, jnp.issubdtype(target.dtype, jnp.floating)
    if weight is not None:
        _checks.class_weights(weight.shape, "weight", num_classes)
        weight = weight.astype(plan.dtype)
    if of_probs and target.ndim < scores.ndim:
        raise TypeError(
            f"`target` has dtype {target.dtype} and shape {target.shape}: class indices must be integers, "
            f"target.astype(int); class probabilities need a last axis of {num_classes} classes."
        )
    if of_probs:
        losses, total = _losses_of_probs(scores, target, plan, weight, label_smoothing)
    else:
        target = _plan.class_indices(target, "target")
        losses, total = _losses_of_classes(scores, target, plan, weight, label_smoothing, ignore_index)
    if reduction != "none":
        losses = losses.sum()
    if reduction == "mean":
        losses = losses / jnp.where(total == 0, 1, total)
    return clamp_to_dtype(losses, dtype)


def _losses_of_probs(
    scores: Array, target: Array, plan: Plan, weight: Array | None, smoothing: float
) -> tuple[Array, Array]:
    """Return the loss of every element, and the divisor of the mean: the number of elements."""
    num_classes = plan.tree.num_classes
    needed = (*scores.shape[:-1], num_classes)
    if target.shape != needed:
        raise ValueError(
            f"`target` holds probabilities and has shape {target.shape}, but {needed} is needed: the shape of `scores` "
            "with K in place of K-1. (Class indices must be integers.)"
        )
    target = target.astype(plan.dtype) * (1 - smoothing) + smoothing / num_classes
    losses = -(log_probs(scores, plan) * target * (1 if weight is None else weight)).sum(-1)
    return losses, jnp.asarray(losses.size, plan.dtype)


def _losses_of_classes(
    scores: Array, target: Array, plan: Plan, weight: Array | None, smoothing: float, ignore_index: int
) -> tuple[Array, Array]:
    """Return the loss of every element, and the divisor of the mean: the total weight of targets not ignored."""
    if target.shape != scores.shape[:-1]:
        raise ValueError(
            f"`target` has shape {target.shape}, but class indices of shape {scores.shape[:-1]} are needed: the shape "
            "of `scores` without its last axis."
        )
    counts, num_classes = target != ignore_index, plan.tree.num_classes
    classes = existing_classes(jnp.where(counts, target, jnp.zeros_like(target)), num_classes)
    weights = counts.astype(plan.dtype) * (1 if weight is None else _plan.look_up(weight, classes))
    if smoothing == 0:
        found = log_prob_of(scores, plan, classes) * weights
    else:
        every = log_probs(scores, plan)
        spread = (every * (1 if weight is None else weight)).sum(-1) / num_classes
        found = (1 - smoothing) * _walk.pick(every, classes[..., None])[..., 0] * weights + smoothing * spread
    # `where`, because a product with 0 would keep the NaN scores of an ignored row.
    return -jnp.where(counts, found, 0), weights.sum()
