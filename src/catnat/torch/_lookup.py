"""The look-up of plans: one per call, by the arguments of the user."""

from __future__ import annotations

import operator
from typing import cast

import torch
from torch import Tensor
from torch.nn import Parameter

from catnat import _checks
from catnat.activations import Activation, resolve
from catnat.torch import _fused, _inputs
from catnat.torch._constants import constant, constant_of_data
from catnat.torch._plan import Plan
from catnat.trees.builders import as_tree
from catnat.trees.tree import Tree


def plan_for(scores: Tensor, tree: Tree | int | None, activation: Activation | str, width: int | None = None) -> Plan:
    """Return the plan for these arguments, which are checked at the first call with them.

    With a ``width``, ``scores`` may also be the input from which a head computes scores.
    """
    # Users may pass arguments of any type.
    if not isinstance(scores, Tensor) or not scores.is_floating_point() or scores.ndim == 0:
        _inputs.check_scores(scores)
    # `operator.index` makes the width a constant for the compiler.
    width = operator.index(scores.shape[-1]) if width is None else width
    given = tree, activation, width, scores.device, scores.dtype
    if type(scores) in _DATA or torch.compiler.is_compiling() or type(torch.empty(0)) is Tensor:
        return _checked_plan(*given)
    return cast(Plan, _checked_plan.__wrapped__(*given))  # type: ignore[attr-defined]  # fake tensors


_DATA = (Tensor, Parameter)


@constant_of_data
def _checked_plan(
    tree: Tree | int | None, activation: Activation | str, width: int, device: torch.device, dtype: torch.dtype
) -> Plan:
    topology = as_tree(tree, width + 1)
    _checks.width_of_scores(width, topology.num_classes)
    return plan_of(topology, resolve(activation), device, _inputs.computing_dtype(dtype))


@constant
def plan_of(tree: Tree, activation: Activation, device: torch.device, dtype: torch.dtype) -> Plan:
    """Return the plan of a tree and an activation, in a computing dtype."""
    return _fused.with_method(Plan(tree, activation, device, dtype))
