"""The options of a distribution (mask, temperature and unimix) as functions of log-probabilities.

All of them compute all classes, O(K). A distribution without options does not call them.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool

from catnat import _checks
from catnat.jax import _plan
from catnat.jax._dense import log_add
from catnat.trees.forest import Forest
from catnat.trees.tree import Tree

# Logarithms over the temperature are clamped to this far below the largest: probability 0 in every dtype.
_FAR_BELOW = 1e9


@functools.partial(jax.jit, static_argnames=("unimix", "zero"))
def apply(logs: Array, valid: Array | None, temperature: Array | None, unimix: float, zero: float) -> Array:
    """Return the log-probabilities with these options applied; the smallest finite number at masked classes.

    Args:
        logs: The log-probabilities without options, (..., K).
        valid: The valid classes, (..., K).
        temperature: The temperature T of the exponent 1/T, shape (...).
        unimix: The weight of the uniform distribution over the valid classes.
        zero: The largest log-probability of an impossible class, which stays impossible at any temperature.
    """
    if valid is not None or temperature is not None:
        logs = jax.nn.log_softmax(_tempered(fill(logs, valid), temperature, zero), -1)
    if unimix:
        logs = mix(logs, unimix, logs.shape[-1] if valid is None else valid.sum(-1, keepdims=True))
    return fill(logs, valid)


def fill(logs: Array, valid: Array | None) -> Array:
    """Replace ``logs`` at masked classes by the smallest finite number."""
    return logs if valid is None else jnp.where(valid, logs, _plan.lowest(logs))


def mix(logs: Array, unimix: float, count: Array | int) -> Array:
    """Return the logarithm of (1 - u) p + u / count, where u is ``unimix``."""
    uniform = math.log(unimix) - jnp.log(jnp.asarray(count, logs.dtype))
    return log_add(logs + math.log1p(-unimix), uniform)


def _tempered(logs: Array, temperature: Array | None, zero: float) -> Array:
    """Return relative logarithms of p^(1/T); impossible classes (at most ``zero``) and masked ones stay so."""
    if temperature is None:
        return logs
    tempered, lowest = apply_temperature(logs, temperature[..., None]), _plan.lowest(logs)
    if zero > lowest:
        impossible = logs <= zero
        possible = ~impossible.all(-1, keepdims=True)  # else the valid classes would lose their order
        tempered = jnp.where(impossible & possible, zero, tempered)
    return jnp.where(logs <= lowest, lowest, tempered)


def apply_temperature(logs: Array, temperature: float | Array) -> Array:
    """Return ``logs / temperature`` relative to the largest entry; its softmax is p^(1/T) / Z.

    Neither pass overflows, however small or large the temperature is.
    """
    # The inverse of tau must be finite.
    tau = jnp.maximum(jnp.asarray(temperature, logs.dtype), float(jnp.finfo(logs.dtype).tiny) ** 0.5)
    below = logs - lax.stop_gradient(logs.max(-1, keepdims=True))
    return jnp.maximum(below, -_FAR_BELOW * lax.stop_gradient(tau)) / tau


@jax.jit
def entropy(logs: Array, valid: Array | None) -> Array:
    """Return the entropy as a sum over classes, from log-probabilities that are not floored."""
    # At masked classes the smallest finite number is replaced: its product with a gradient would overflow.
    return (-jnp.exp(logs) * (logs if valid is None else jnp.where(valid, logs, 0))).sum(-1)


def divergence(probs: Array, p_logs: Array, q_logs: Array, q_valid: Array | None) -> Array:
    """Return KL(p || q) as a sum over the classes that p can take; infinite if q masks one of them."""
    if p_logs.shape[-1] != q_logs.shape[-1]:
        raise ValueError(
            f"The distributions have {p_logs.shape[-1]} and {q_logs.shape[-1]} classes: they must have the same ones."
        )
    terms = probs * jnp.where(probs == 0, 0, p_logs - q_logs)
    if q_valid is not None:
        terms = jnp.where((probs > 0) & ~q_valid, jnp.inf, terms)
    return terms.sum(-1)


# ---- masks ----


def validate_mask(mask: Bool[Array, "*batch classes"], classes: int | Tree | Forest) -> Bool[Array, "*batch"]:
    """Return which rows of a mask have at least one valid class for every variable.

    A distribution raises for the other rows if the mask's values are known. While a function is traced, by ``jit`` or
    ``vmap``, it cannot raise, and treats such a row as unmasked: this function finds these rows.

    Args:
        mask: Boolean, True for valid classes.
        classes: The number of classes, the tree, or the forest.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.jax import validate_mask
        >>> print(validate_mask(jnp.array([[True, False, True], [False, False, False]]), 3))
        [ True False]
    """
    forest = classes if isinstance(classes, Forest) else Forest([classes])
    mask = _as_boolean(mask, forest.num_classes)
    usable = [mask[..., group.classes].any(-1).all(-1) for group in forest.groups]
    return functools.reduce(jnp.logical_and, usable)


def given_mask(mask: Array | None, valid_classes: Array | None, num_classes: int) -> Array | None:
    """Return the checked mask (..., K), given as a mask or as indices of the valid classes; None if not given."""
    if valid_classes is None:
        return None if mask is None else _as_boolean(mask, num_classes)
    if mask is not None:
        _checks.mask_or_indices()
    return _from_indices(valid_classes, num_classes)


def usable_mask(mask: Array) -> Array:
    """Return a mask (..., K) with all classes valid in all-masked rows; raise for such rows if values are known."""
    left = mask.any(-1, keepdims=True)
    if _plan.is_true(~left.all()):
        raise ValueError(
            f"`mask` leaves no valid class in {int((~left).sum())} of {left.size} rows, but a distribution needs at "
            "least one: validate_mask(mask, classes) tells which rows. (Is True the *valid* class?)"
        )
    return mask | ~left


def _as_boolean(mask: Array, num_classes: int) -> Array:
    mask = _plan.check_array(mask, "mask")
    if mask.dtype != bool or mask.ndim == 0:
        _checks.not_a_mask(mask.dtype, mask.shape, num_classes, "mask.astype(bool)")
    _checks.width_of_mask(mask.shape[-1], num_classes)
    return mask


def checked_indices(indices: Array, num_classes: int) -> Array:
    """Return indices (..., m) of valid classes, padded with -1; their values are checked if known."""
    indices = _plan.check_array(indices, "valid_classes")
    if not jnp.issubdtype(indices.dtype, jnp.integer) or indices.ndim == 0:
        _checks.not_indices(indices.dtype, indices.shape)
    if not jnp.issubdtype(indices.dtype, jnp.signedinteger) or indices.dtype.itemsize < 4:
        indices = indices.astype(int)  # a smaller dtype may not hold the number of classes
    outside = (indices < -1) | (indices >= num_classes)
    if _plan.is_true(outside.any()):
        raise ValueError(
            f"`valid_classes` holds {int(indices[outside][0])}, but the classes are 0 .. {num_classes - 1}; -1 fills "
            "up rows with fewer valid classes."
        )
    return jnp.where(outside, -1, indices)


def _from_indices(indices: Array, num_classes: int) -> Array:
    indices = checked_indices(indices, num_classes)
    padding = jnp.where(indices < 0, num_classes, indices)  # out of bounds: dropped
    valid = jnp.zeros((*indices.shape[:-1], num_classes), bool)
    return jnp.put_along_axis(valid, padding, True, -1, inplace=False, mode="drop")


# ---- numbers ----


def checked_temperature(temperature: Any, scores: Array) -> Array:
    """Return temperatures in the batch shape and the computing dtype of ``scores``, checked if known."""
    batch, dtype = scores.shape[:-1], _plan.to_computing_dtype(scores).dtype
    limits, tau = jnp.finfo(dtype), jnp.asarray(temperature, dtype)
    if tau.shape != () and not _checks.broadcasts(tau.shape, batch):
        raise ValueError(
            f"`temperature` has shape {tau.shape}, but a number, or one per row in the batch shape {batch} is needed."
        )
    outside = ~((tau >= float(limits.tiny)) & (tau <= float(limits.max)))
    if _plan.is_true(outside.any()):
        given = temperature if tau.ndim == 0 else float(tau[outside][0])
        raise ValueError(
            f"`temperature` is {given}, but a positive, finite number is needed, at least {float(limits.tiny):.2g}."
        )
    return jnp.broadcast_to(tau, batch)
