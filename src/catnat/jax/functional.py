"""The functions: what softmax, log_softmax and cross-entropy are for logits, on a tree of yes/no decisions."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Int, PRNGKeyArray

from catnat import _checks
from catnat.activations import Activation
from catnat.jax import _constants, _dense, _fused, _inputs, _paths
from catnat.jax._nodes import LazyNodes, Nodes, prepare
from catnat.trees.forest import Forest
from catnat.trees.tree import Tree

# Up to here all classes are computed even where only some are needed: a few large operations beat many small ones.
MOST_DENSE_CLASSES = _dense.MOST_MATMUL_CLASSES


@_checks.explains(dim="It is called `axis`.")
def catnat(
    scores: Float[Array, "*batch nodes"],
    tree: Tree | None = None,
    activation: Activation | str = "natural",
    *,
    num_classes: int | None = None,
    axis: int = -1,
) -> Float[Array, "*batch classes"]:
    r"""The probability of every class, the counterpart of ``jax.nn.softmax``.

    .. math:: p_k = \prod_{i \in \mathrm{path}(k)} a(s_i)^{b_i} (1 - a(s_i))^{1 - b_i}

    Probabilities are exactly 0 where a clamped natural activation is certain.

    Args:
        scores: One score per inner node of the tree (K-1, not K) along ``axis``.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        num_classes: The number of classes K, to be checked against the scores and the tree.
        axis: The axis of the nodes, which becomes the axis of the classes.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.jax import catnat
        >>> print(catnat(jnp.zeros(2)).round(4))
        [0.3333 0.3333 0.3333]
    """
    if axis != -1:
        return jnp.moveaxis(catnat(jnp.moveaxis(scores, axis, -1), tree, activation, num_classes=num_classes), -1, axis)
    return probs(prepare(scores, tree, activation, num_classes)).astype(_inputs.returned_dtype(scores))


@_checks.explains(dim="It is called `axis`.")
def log_catnat(
    scores: Float[Array, "*batch nodes"],
    tree: Tree | None = None,
    activation: Activation | str = "natural",
    *,
    num_classes: int | None = None,
    axis: int = -1,
) -> Float[Array, "*batch classes"]:
    r"""The log-probability of every class, the counterpart of ``jax.nn.log_softmax``; always finite.

    .. math:: \log p_k = \sum_{i \in \mathrm{path}(k)} b_i \log a(s_i) + (1 - b_i) \log (1 - a(s_i))

    A node of the natural activation counts at least the machine epsilon of the computing dtype, so that a class of
    probability 0 keeps a finite log-probability; the sigmoid has no floor.

    Args:
        scores: One score per inner node of the tree (K-1, not K) along ``axis``.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        num_classes: The number of classes K, to be checked against the scores and the tree.
        axis: The axis of the nodes, which becomes the axis of the classes.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.jax import log_catnat
        >>> print(log_catnat(jnp.zeros(3)).round(4))
        [-1.3863 -1.3863 -1.3863 -1.3863]
    """
    if axis != -1:
        return jnp.moveaxis(
            log_catnat(jnp.moveaxis(scores, axis, -1), tree, activation, num_classes=num_classes), -1, axis
        )
    return _inputs.saturate(log_probs(prepare(scores, tree, activation, num_classes)), _inputs.returned_dtype(scores))


@functools.partial(jax.jit, static_argnames="floored")
def log_probs(nodes: Nodes, *, floored: bool = True) -> Array:
    """The log-probability of every class; not floored, its exponential is exactly 0 where the probability is."""
    fused = _fused.log_probs(nodes, floored=floored)
    return _fused.plain_log_probs(nodes, floored=floored) if fused is None else fused


@jax.jit
def probs(nodes: Nodes) -> Array:
    """The probability of every class."""
    return jnp.exp(log_probs(nodes, floored=False))


def log_prob(
    scores: Float[Array, "*batch nodes"],
    classes: Int[Array, "*samples_and_batch"],
    tree: Tree | None = None,
    activation: Activation | str = "natural",
    *,
    num_classes: int | None = None,
) -> Float[Array, "*samples_and_batch"]:
    r"""The log-probability of given classes, reading only the nodes on their paths.

    .. math:: \log p_k = \sum_{i \in \mathrm{path}(k)} b_i \log a(s_i) + (1 - b_i) \log (1 - a(s_i))

    The forward cost grows with the depth of the tree, not with K (a tree deeper than 64 levels is summed densely).
    Under ``jit`` a class that does not exist cannot raise; it counts as the nearest one that does.

    Args:
        scores: One score per inner node on the last axis.
        classes: Class indices, broadcast against the batch shape of ``scores``; further axes may stand before it.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        num_classes: The number of classes K, to be checked against the scores and the tree.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.jax import log_prob
        >>> print(jnp.exp(log_prob(jnp.zeros((5, 3)), jnp.array([0, 1, 2, 3, 0]))).round(4))
        [0.25 0.25 0.25 0.25 0.25]
    """
    nodes = prepare(scores, tree, activation, num_classes)
    classes = check_classes(classes, nodes.tree.num_classes)
    return _inputs.saturate(log_prob_unchecked(nodes, classes), _inputs.returned_dtype(scores))


@jax.jit
def log_prob_unchecked(nodes: Nodes, classes: Array) -> Array:
    """:func:`log_prob` of prepared arguments."""
    event = classes.shape[-1:] if isinstance(nodes.tree, Forest) else ()
    queries, back = _inputs.behind_batch(classes, nodes.batch, event)
    batch = queries.shape[: queries.ndim - 1 - len(event)]
    if walks(nodes.tree):
        return back(_paths.path_log_prob(nodes.expand(batch), queries))
    every = log_probs(nodes)
    every = jnp.broadcast_to(every, (*batch, every.shape[-1]))
    return back(jnp.take_along_axis(every, queries, -1, mode="promise_in_bounds"))


@_inputs.takes_key
def sample(
    scores: Float[Array, "*batch nodes"],
    tree: Tree | None = None,
    activation: Activation | str = "natural",
    *,
    num_classes: int | None = None,
    sample_shape: Sequence[int] = (),
    key: PRNGKeyArray,
) -> Int[Array, "*samples_and_batch"]:
    """Draw classes by walking down from the root, one uniform number a level.

    The cost grows with the depth of the tree, not with K; there is no limit on the number of classes. A class of
    probability 0 is never drawn. Scores are not checked: one that is NaN takes the branch no.

    Args:
        scores: One score per inner node on the last axis.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        num_classes: The number of classes K, to be checked against the scores and the tree.
        sample_shape: The shape of independent draws, which stands before the batch shape in the result.
        key: The random key.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from catnat.jax import sample
        >>> sample(jnp.zeros((2, 9)), sample_shape=(3,), key=jax.random.key(0)).shape
        (3, 2)
    """
    return draw(prepare(scores, tree, activation, num_classes), _checks.shape_of_samples(sample_shape), key)


@functools.partial(jax.jit, static_argnames="sample_shape")
def draw(nodes: Nodes | LazyNodes, sample_shape: tuple[int, ...], key: Array) -> Array:
    """:func:`sample` of prepared arguments."""
    drawn = _paths.descend(lax.stop_gradient(nodes), math.prod(sample_shape), key)
    drawn = jnp.moveaxis(drawn, len(nodes.batch), 0)
    return drawn.reshape((*sample_shape, *drawn.shape[1:]))


@_inputs.takes_key
def sample_without_replacement(
    scores: Float[Array, "*batch nodes"],
    k: int,
    tree: Tree | None = None,
    activation: Activation | str = "natural",
    *,
    num_classes: int | None = None,
    key: PRNGKeyArray,
) -> Int[Array, "*batch k"]:
    r"""Draw ``k`` distinct classes, in the order of drawing one after the other without putting any back.

    The order has the Plackett-Luce distribution, :math:`\prod_j p_{c_j} / (1 - p_{c_1} - \dots - p_{c_{j-1}})`. Gumbel
    maxima are split from the root down, so the cost is O(k depth). Classes of probability 0 come last.

    Args:
        scores: One score per inner node on the last axis.
        k: How many classes, at most K.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        num_classes: The number of classes K, to be checked against the scores and the tree.
        key: The random key.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from catnat.jax import sample_without_replacement
        >>> sample_without_replacement(jnp.zeros((4, 99)), 10, key=jax.random.key(0)).shape
        (4, 10)
    """
    nodes = prepare(scores, tree, activation, num_classes)
    _checks.how_many(k, nodes.tree.num_classes, least=0)
    return draw_without_replacement(nodes, k, key)


@functools.partial(jax.jit, static_argnames="k")
def draw_without_replacement(nodes: Nodes, k: int, key: Array) -> Array:
    """:func:`sample_without_replacement` of prepared arguments."""
    nodes = nodes.detach()
    if walks(nodes.tree):
        return _paths.descend_without_replacement(nodes, k, key)
    exact = log_probs(nodes, floored=False)
    return lax.top_k(exact - _paths.log_exponential(key, exact.shape, exact.dtype), k)[1].astype(int)


def mode(
    scores: Float[Array, "*batch nodes"],
    tree: Tree | None = None,
    activation: Activation | str = "natural",
    *,
    num_classes: int | None = None,
) -> Int[Array, "*batch"]:
    """The most probable class: the true argmax over all K, not the greedy walk, which can end elsewhere.

    Args:
        scores: One score per inner node on the last axis.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        num_classes: The number of classes K, to be checked against the scores and the tree.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.jax import mode
        >>> # most go right at the root, and split evenly there
        >>> print(mode(jnp.array([0.2, 1.0, 0.0])))
        1
    """
    return log_probs(prepare(scores, tree, activation, num_classes), floored=False).argmax(-1)


def entropy(
    scores: Float[Array, "*batch nodes"],
    tree: Tree | None = None,
    activation: Activation | str = "natural",
    *,
    num_classes: int | None = None,
) -> Float[Array, "*batch"]:
    r"""The entropy in nats, by the chain rule over the tree.

    .. math:: H(p) = \sum_i P(i)\, h(a_i), \qquad h(a) = -a \log a - (1 - a) \log(1 - a)

    Args:
        scores: One score per inner node on the last axis.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        num_classes: The number of classes K, to be checked against the scores and the tree.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.jax import entropy
        >>> print(entropy(jnp.zeros(3)).round(4))
        1.3863
    """
    return _inputs.saturate(
        node_entropies(prepare(scores, tree, activation, num_classes)).sum(-1), _inputs.returned_dtype(scores)
    )


@jax.jit
def node_entropies(nodes: Nodes) -> Array:
    """What every node adds to the entropy: that of its branch, times the probability of reaching it."""
    no, yes = nodes.all().branch_log_probs(floored=False)
    branches = -(jnp.exp(yes) * yes + jnp.exp(no) * no)
    return jnp.exp(_dense.path_sums(no, yes, nodes.tree, to="nodes")) * branches


def kl_divergence(
    p_scores: Float[Array, "*batch nodes"],
    q_scores: Float[Array, "*batch nodes"],
    tree: Tree | None = None,
    activation: Activation | str = "natural",
    *,
    num_classes: int | None = None,
) -> Float[Array, "*batch"]:
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
        >>> import jax.numpy as jnp
        >>> from catnat.jax import kl_divergence
        >>> print(kl_divergence(jnp.ones(3), jnp.ones(3)))
        0.0
    """
    p = prepare(p_scores, tree, activation, num_classes)
    divergence = node_divergences(p, prepare(q_scores, p.tree, activation)).sum(-1)
    dtype = jnp.promote_types(_inputs.returned_dtype(p_scores), _inputs.returned_dtype(q_scores))
    return _inputs.saturate(divergence, dtype)


@jax.jit
def node_divergences(p: Nodes, q: Nodes) -> Array:
    """What every node adds to KL(p || q): that of its branch, times the probability of reaching it under p."""
    p_no, p_yes = p.all().branch_log_probs(floored=False)
    q_no, q_yes = q.all().branch_log_probs(floored=True)
    branches = jnp.exp(p_yes) * (p_yes - q_yes) + jnp.exp(p_no) * (p_no - q_no)
    return jnp.exp(_dense.path_sums(p_no, p_yes, p.tree, to="nodes")) * branches


def cross_entropy(
    scores: Float[Array, "*batch nodes"],
    target: Array,
    tree: Tree | None = None,
    activation: Activation | str = "natural",
    *,
    num_classes: int | None = None,
    weight: Float[Array, "classes"] | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Float[Array, "..."]:
    r"""The cross-entropy loss :math:`-\log p_{target}`, with K-1 scores where softmax has K logits.

    With class indices and no label smoothing only the targets' paths are read. The options are those of PyTorch, but
    the nodes, and the classes of a target of probabilities, are on the last axis, as everywhere in JAX. The mean over
    nothing (every target ignored) is 0. Called with neither ``tree`` nor ``num_classes``, and not traced, it warns once
    if the last class is not among very many targets: then one score per class was passed, not one per node.

    Args:
        scores: One score per inner node on the last axis.
        target: Class indices, in the shape of ``scores`` without its last axis; or class probabilities, in the shape of
            ``scores`` with K for K-1.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        num_classes: The number of classes K, to be checked against the scores and the tree.
        weight: A factor per class.
        ignore_index: A class index whose targets are ignored.
        reduction: "none", "mean" (of class indices: weighted by the weights of the targets) or "sum".
        label_smoothing: The fraction of the target spread evenly over all classes.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.jax import cross_entropy
        >>> print(cross_entropy(jnp.zeros((8, 9)), jnp.arange(8)).round(4))  # log 10
        2.3026
    """
    _checks.one_of(reduction, "reduction", ("none", "mean", "sum"))
    _checks.label_smoothing(label_smoothing)
    nodes, target = prepare(scores, tree, activation, num_classes), _inputs.check_array(target, "target")
    if weight is not None:
        _checks.class_weights(weight.shape, "weight", nodes.tree.num_classes)
    if jnp.issubdtype(target.dtype, jnp.floating) and target.ndim < nodes.scores.ndim:
        raise TypeError(
            f"`target` has dtype {target.dtype} and shape {target.shape}: class indices must be integers, "
            f"target.astype(int); class probabilities need a last axis of {nodes.tree.num_classes} classes."
        )
    if not jnp.issubdtype(target.dtype, jnp.floating):
        target = _inputs.class_indices(target, "target")
    if tree is None and num_classes is None:
        _watch_last_class(target, nodes.tree.num_classes, ignore_index)
    if jnp.issubdtype(target.dtype, jnp.floating):
        losses, total = _losses_of_probs(nodes, target, weight, label_smoothing)
    else:
        losses, total = _losses_of_classes(nodes, target, weight, label_smoothing, ignore_index)
    if reduction != "none":
        losses = losses.sum()
    if reduction == "mean":
        losses = losses / jnp.where(total == 0, 1, total)
    return _inputs.saturate(losses, _inputs.returned_dtype(scores))


def _losses_of_probs(nodes: Nodes, target: Array, weight: Array | None, smoothing: float) -> tuple[Array, Array]:
    """The loss of every element, and what the mean divides by: their number."""
    dtype, num_classes = nodes.scores.dtype, nodes.tree.num_classes
    needed = (*nodes.scores.shape[:-1], num_classes)
    if target.shape != needed:
        raise ValueError(
            f"`target` holds probabilities and has shape {target.shape}, but {needed} is needed: that of `scores` with "
            "K in place of K-1. (Class indices must be integers.)"
        )
    target = target.astype(dtype) * (1 - smoothing) + smoothing / num_classes
    losses = -(log_probs(nodes) * target * (1 if weight is None else weight.astype(dtype))).sum(-1)
    return losses, jnp.asarray(losses.size, dtype)


def _losses_of_classes(
    nodes: Nodes, target: Array, weight: Array | None, smoothing: float, ignore_index: int
) -> tuple[Array, Array]:
    """The loss of every element, and what the mean divides by: the weight of the targets that count."""
    dtype, num_classes = nodes.scores.dtype, nodes.tree.num_classes
    if target.shape != nodes.scores.shape[:-1]:
        raise ValueError(
            f"`target` has shape {target.shape}, but class indices of shape {nodes.scores.shape[:-1]} are needed: that "
            "of `scores` without its last axis."
        )
    counts = target != ignore_index
    classes = check_classes(jnp.where(counts, target, jnp.zeros_like(target)), num_classes)
    weights = counts.astype(dtype) * (1 if weight is None else _constants.look_up(weight.astype(dtype), classes))
    if smoothing == 0:
        found = log_prob_unchecked(nodes, classes) * weights
    else:
        every = log_probs(nodes)
        picked = jnp.take_along_axis(every, classes[..., None], -1, mode="promise_in_bounds")[..., 0]
        spread = (every * (1 if weight is None else weight.astype(dtype))).sum(-1) / num_classes
        found = (1 - smoothing) * picked * weights + smoothing * spread
    # A choice, not a product with 0, which NaN scores of an ignored row would survive.
    return -jnp.where(counts, found, 0), weights.sum()


def _watch_last_class(target: Array, num_classes: int, ignore_index: int) -> None:
    """Watch the targets where they can be read: not while a function is traced."""
    known = isinstance(target, jax.core.Tracer) or _checks.is_last_class_known(num_classes)
    if jnp.issubdtype(target.dtype, jnp.integer) and not known:
        used = target != ignore_index
        _checks.watch_last_class(num_classes, int(used.sum()), bool((target == num_classes - 1).any()))


def walks(tree: Tree | Forest) -> bool:
    """Whether to walk paths, rather than compute all classes: not where K is small or the tree deep."""
    return tree.num_classes > MOST_DENSE_CLASSES and tree.depth <= _paths.MOST_WALKED_LEVELS


def check_classes(classes: Array, num_classes: int) -> Array:
    """Class indices that exist, in the dtype of indices."""
    classes = _inputs.class_indices(classes, "classes")
    outside = (classes < 0) | (classes >= num_classes)
    if _inputs.is_true(outside.any()):
        raise ValueError(
            f"`classes` holds {int(classes[outside][0])}, but this tree has the classes 0 .. {num_classes - 1}. "
            "If it marks targets to skip, pass it as `ignore_index` to cross_entropy or to the head."
        )
    return jnp.clip(classes, 0, num_classes - 1)
