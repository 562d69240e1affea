"""Masks of invalid classes: from what users pass to a boolean tensor, and which rows of it can be used."""

from __future__ import annotations

import torch
from jaxtyping import Bool
from torch import Tensor

from catnat import _checks
from catnat.torch import _inputs
from catnat.torch._variables import variables_of
from catnat.trees.builders import balanced
from catnat.trees.forest import Forest
from catnat.trees.tree import Tree


def validate_mask(mask: Bool[Tensor, "*batch classes"], classes: int | Tree | Forest) -> Bool[Tensor, "*batch"]:
    """Which rows of a mask can be used: those that leave at least one class of every variable.

    Outside the compiler a distribution raises for a row that leaves none. Under ``torch.compile`` and ``vmap`` it
    cannot, and treats the row as unmasked: this function tells which rows those are.

    Args:
        mask: Boolean, True for valid classes.
        classes: The number of classes, the tree, or the forest.

    Example:
        >>> import torch
        >>> from catnat.torch import validate_mask
        >>> validate_mask(torch.tensor([[True, False, True], [False, False, False]]), 3)
        tensor([ True, False])
    """
    tree = classes if isinstance(classes, (Tree, Forest)) else balanced(classes)
    return _left(_as_boolean(mask, tree.num_classes), tree).all(-1)


def given(mask: Tensor | None, valid_classes: Tensor | None, num_classes: int) -> Tensor | None:
    """The mask that a user gives, as it is or as indices of the valid classes."""
    if valid_classes is None:
        return mask
    if mask is not None:
        _checks.mask_or_indices()
    return _from_indices(valid_classes, num_classes)


def valid_classes(mask: Tensor, classes: Tree | Forest, *, check: bool) -> Tensor:
    """The valid classes (..., K) of a mask as users give it, with every class of an all-masked variable made valid.

    Where ``check`` is possible, rows with such a variable raise.
    """
    valid = _as_boolean(mask, classes.num_classes)
    left = _left(valid, classes)
    if check and not torch.compiler.is_compiling():
        if _inputs.is_true(left.all()):
            return valid
        if _inputs.is_true(left.all().logical_not()):
            raise ValueError(
                f"`mask` leaves no valid class in {int(left.logical_not().sum())} of {left.numel()} rows, but a "
                "distribution needs at least one: validate_mask(mask, classes) tells which rows. (Is True the *valid* "
                "class?)"
            )
    return valid | variables_of(classes).per_class(left).logical_not()


def _left(valid: Tensor, classes: Tree | Forest) -> Tensor:
    """Whether a row has a valid class left, (..., 1), or each of its variables in a forest, (..., N)."""
    return variables_of(classes).count(valid) > 0


def _as_boolean(mask: Tensor, num_classes: int) -> Tensor:
    """A checked mask (..., K), True for valid classes."""
    _inputs.check_tensor(mask, "mask")
    if mask.dtype != torch.bool or mask.ndim == 0:
        _checks.not_a_mask(mask.dtype, mask.shape, num_classes, "mask.bool()")
    _checks.width_of_mask(mask.shape[-1], num_classes)
    return mask


def _from_indices(indices: Tensor, num_classes: int) -> Tensor:
    _inputs.check_tensor(indices, "valid_classes")
    if indices.is_floating_point() or indices.is_complex() or indices.dtype == torch.bool or indices.ndim == 0:
        _checks.not_indices(indices.dtype, indices.shape)
    indices = indices.long()  # a small dtype could not hold what it is compared with
    if not torch.compiler.is_compiling():
        outside = (indices < -1) | (indices >= num_classes)
        if _inputs.is_true(outside.any()):
            raise ValueError(
                f"`valid_classes` holds {int(indices[outside][0])}, but the classes are 0 .. {num_classes - 1}; -1 "
                "fills up rows with fewer valid classes."
            )
    padding = torch.where(indices < 0, num_classes, indices)  # one more class, which is then cut off
    valid = torch.zeros(*indices.shape[:-1], num_classes + 1, dtype=torch.bool, device=indices.device)
    return valid.scatter(-1, padding, True).narrow(-1, 0, num_classes)
