"""The options of distributions, mask, temperature and unimix, as one function of leaf log-probabilities."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn import functional as F

from catnat import _checks
from catnat.torch import _dense, _inputs
from catnat.trees.forest import Forest
from catnat.trees.tree import Tree

# Logarithms over the temperature are clamped to this far below the largest: probability 0 in every dtype.
_FAR_BELOW = 1e9


class Options(NamedTuple):
    """The options of a distribution over classes."""

    valid: Tensor | None
    """The valid classes, boolean, batch + (K,); None if all are valid."""
    temperature: float | Tensor
    """A number, or a tensor of the batch shape."""
    unimix: float
    """The weight of the uniform distribution over the valid classes."""

    def expand(self, batch: torch.Size) -> Options:
        """Return the options with the batch shape expanded."""
        valid = None if self.valid is None else self.valid.expand(*batch, -1)
        tau = self.temperature
        return Options(valid, tau.expand(batch) if isinstance(tau, Tensor) else tau, self.unimix)


def apply_options(logs: Tensor, options: Options, log_of_zero: float) -> Tensor:
    """Return the logarithm of p^(1/T) / Z over the valid classes, mixed with the uniform distribution over them.

    Args:
        logs: Log-probabilities of all classes. Masked classes get the smallest finite number.
        options: The mask, temperature and unimix.
        log_of_zero: Logarithms up to this stand for probability 0, which stays 0 at every temperature.
    """
    valid, tau, unimix = options
    lowest = torch.finfo(logs.dtype).min
    if valid is not None:
        invalid = ~valid
        logs = logs.masked_fill(invalid, lowest)
    has_temperature = isinstance(tau, Tensor) or tau != 1
    if has_temperature:
        logs = _with_temperature(logs, tau.unsqueeze(-1) if isinstance(tau, Tensor) else tau, log_of_zero)
    if has_temperature or valid is not None:
        logs = F.log_softmax(logs, -1)
    if unimix:
        count = logs.new_full((), logs.shape[-1]) if valid is None else valid.sum(-1, keepdim=True).to(logs.dtype)
        logs = _dense.log_add(logs + math.log1p(-unimix), math.log(unimix) - count.log())
    return logs if valid is None else logs.masked_fill(invalid, lowest)


def apply_temperature(logs: Tensor, temperature: float | Tensor) -> Tensor:
    """Return ``logs / temperature`` relative to the largest entry; its softmax is p^(1/T) / Z.

    Neither the forward nor the backward pass overflows, for any temperature.
    """
    tau = torch.as_tensor(temperature, dtype=logs.dtype, device=logs.device)
    tau = tau.clamp(min=torch.finfo(logs.dtype).tiny ** 0.5)  # so that 1 / tau is finite
    below = logs - logs.amax(-1, keepdim=True).detach()
    return torch.maximum(below, -_FAR_BELOW * tau.detach()) / tau


def _with_temperature(logs: Tensor, temperature: float | Tensor, log_of_zero: float) -> Tensor:
    tempered, lowest = apply_temperature(logs, temperature), torch.finfo(logs.dtype).min
    if log_of_zero > lowest:
        impossible = logs <= log_of_zero
        possible = impossible.all(-1, keepdim=True).logical_not()  # else valid classes would lose their order
        tempered = tempered.masked_fill(impossible & possible, log_of_zero)
    return tempered.masked_fill(logs <= lowest, lowest)


# ---- from user arguments ----


def options_from(
    scores: Tensor,
    num_classes: int,
    mask: Tensor | None,
    valid_classes: Tensor | None,
    temperature: float | Tensor,
    unimix: float,
    *,
    check: bool,
) -> Options | None:
    """Return checked options, or None if all have default values; ``check`` also checks the entries of tensors."""
    _checks.unimix(unimix)
    if valid_classes is not None:
        if mask is not None:
            _checks.mask_or_indices()
        mask = _mask_from_indices(valid_classes, num_classes, check=check)
    valid, batch = None, scores.shape[:-1]
    if mask is not None:
        valid = _valid_of(_as_boolean(mask, num_classes), check=check)
        _checks.mask_beside_scores(valid.shape[:-1], batch)
        batch = torch.broadcast_shapes(valid.shape[:-1], batch)
        valid = valid.expand(*batch, -1)
    if isinstance(temperature, Tensor):
        temperature = checked_temperatures(temperature, batch, scores.dtype, check=check)
    elif temperature != 1:
        temperature = _checked_temperature(temperature, scores.dtype)
    elif valid is None and not unimix:
        return None
    return Options(valid, temperature, float(unimix))


def validate_mask(mask: Bool[Tensor, "*batch classes"], classes: int | Tree | Forest) -> Bool[Tensor, "*batch"]:
    """Return which rows of a mask have at least one valid class for every variable.

    A distribution that validates its arguments raises for a row without a valid class. Without validation, under
    ``torch.compile`` and under ``vmap`` it treats such a row as unmasked; use this function to find these rows.

    Args:
        mask: Boolean, True for valid classes.
        classes: The number of classes, the tree, or the forest.

    Example:
        >>> import torch
        >>> from catnat.torch import validate_mask
        >>> validate_mask(torch.tensor([[True, False, True], [False, False, False]]), 3)
        tensor([ True, False])
    """
    forest = classes if isinstance(classes, Forest) else Forest([classes])
    parts = _as_boolean(mask, forest.num_classes).split(forest.sizes, -1)
    return torch.stack([part.any(-1) for part in parts]).all(0)


def _valid_of(mask: Tensor, *, check: bool) -> Tensor:
    """Return the mask with every class of an all-masked row made valid, or raise for such a row if ``check``."""
    left = mask.sum(-1, keepdim=True, dtype=torch.int32) > 0  # many times faster than `any` on a CPU
    if check and not torch.compiler.is_compiling():
        if _inputs.known_true(left.all()):
            return mask
        if _inputs.known_true(left.all().logical_not()):
            raise ValueError(
                f"`mask` leaves no valid class in {int(left.logical_not().sum())} of {left.numel()} rows, but a "
                "distribution needs at least one: validate_mask(mask, classes) tells which rows. (Is True the *valid* "
                "class?)"
            )
    return mask | left.logical_not()


def _as_boolean(mask: Tensor, num_classes: int) -> Tensor:
    """Return ``mask`` if it is boolean of shape (..., K), else raise."""
    _inputs.check_tensor(mask, "mask")
    if mask.dtype != torch.bool or mask.ndim == 0:
        _checks.not_a_mask(mask.dtype, mask.shape, num_classes, "mask.bool()")
    _checks.width_of_mask(mask.shape[-1], num_classes)
    return mask


def checked_indices(indices: Tensor, num_classes: int, *, check: bool) -> Tensor:
    """Return indices (..., m) of valid classes, padded with -1, as int64; raise for other values only if ``check``."""
    _inputs.check_tensor(indices, "valid_classes")
    if indices.is_floating_point() or indices.is_complex() or indices.dtype == torch.bool or indices.ndim == 0:
        _checks.not_indices(indices.dtype, indices.shape)
    indices = indices.long()  # a small dtype may not hold the number of classes
    outside = (indices < -1) | (indices >= num_classes)
    if check and not torch.compiler.is_compiling() and _inputs.known_true(outside.any()):
        raise ValueError(
            f"`valid_classes` holds {int(indices[outside][0])}, but the classes are 0 .. {num_classes - 1}; -1 "
            "fills up rows with fewer valid classes."
        )
    return indices.masked_fill(outside, -1)


def _mask_from_indices(indices: Tensor, num_classes: int, *, check: bool) -> Tensor:
    indices = checked_indices(indices, num_classes, check=check)
    places = torch.where(indices < 0, num_classes, indices)  # an extra class, which is then removed
    valid = torch.zeros(*indices.shape[:-1], num_classes + 1, dtype=torch.bool, device=indices.device)
    return valid.scatter(-1, places, True).narrow(-1, 0, num_classes)


def _checked_temperature(temperature: float, dtype: torch.dtype) -> float:
    _checks.number(temperature, "temperature")
    limits = torch.finfo(dtype)
    if not limits.tiny <= temperature <= limits.max:
        raise ValueError(
            f"`temperature` is {temperature}, but a positive, finite number is needed, at least {limits.tiny:.2g}."
        )
    return float(temperature)


def checked_temperatures(temperature: Tensor, batch: torch.Size, dtype: torch.dtype, *, check: bool) -> Tensor:
    """Return checked temperatures in ``dtype``; they must broadcast to the batch shape ``batch``."""
    limits = torch.finfo(dtype)
    if not _checks.broadcasts(temperature.shape, batch):
        raise ValueError(
            f"`temperature` has shape {tuple(temperature.shape)}, but a number, or one per row in the batch shape "
            f"{tuple(batch)} is needed."
        )
    if check and not torch.compiler.is_compiling():
        outside = (temperature >= limits.tiny).logical_and(temperature <= limits.max).logical_not()
        if _inputs.known_true(outside.any()):
            raise ValueError(
                f"`temperature` holds {float(temperature[outside][0])}, but positive, finite numbers are needed."
            )
    return temperature.to(dtype)
