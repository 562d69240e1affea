"""Masks in the formats of other libraries. Not an adapter, but code that those of PyTorch libraries share."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from catnat.torch.distributions import known_true


def boolean(mask: Any, name: str, device: torch.device) -> Bool[Tensor, "..."]:
    """Return a mask of True and False, or of 1 and 0 in any dtype, as booleans.

    Environments give int8 (PettingZoo), and rollout buffers float32. Other numbers are mistakes that ``bool()`` would
    hide: indices of actions, or numbers to add to logits.
    """
    given = torch.as_tensor(mask, device=device)
    if given.dtype == torch.bool:
        return given
    valid = given == 1
    wrong = ~(valid | (given == 0))
    if not torch.compiler.is_compiling() and known_true(wrong.any()):
        raise ValueError(
            f"`{name}` holds {given[wrong][0].item()}, but every action needs True or 1 if it is valid and False or 0 "
            f"if not. Convert numbers to add to logits, 0 and -inf, with {name} == 0, and indices of valid actions "
            f"with one_hot({name}, number of actions).any(-2)."
        )
    return valid
