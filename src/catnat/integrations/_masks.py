"""Masks as other libraries write them. Not an adapter, but what those of PyTorch share."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from catnat.torch.distributions import known_true


def boolean(mask: Any, name: str, device: torch.device) -> Bool[Tensor, "..."]:
    """A mask of True and False, or of 1 and 0 in any dtype, as booleans.

    Environments write int8 (PettingZoo), and rollout buffers keep float32. Other numbers are a mistake, which
    ``bool()`` would hide: indices of actions, or what is added to logits.
    """
    given = torch.as_tensor(mask, device=device)
    if given.dtype == torch.bool:
        return given
    valid = given == 1
    wrong = ~(valid | (given == 0))
    if not torch.compiler.is_compiling() and known_true(wrong.any()):
        raise ValueError(
            f"`{name}` holds {given[wrong][0].item()}, but every action needs True or 1 if it is valid and False or 0 "
            f"if not. What is added to logits, 0 and -inf, becomes a mask by {name} == 0; indices of the valid actions "
            f"by one_hot({name}, number of actions).any(-2)."
        )
    return valid
