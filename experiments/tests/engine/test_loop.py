"""The loop that the experiments train with. What a checkpoint is worth is tested with the tasks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from memory import Memory

from catnat_experiments.engine.loop import resume_training


class Shrinking:
    """A number that one step makes subnormal."""

    steps, step = 1, 0

    def __init__(self) -> None:
        self.number = torch.tensor(torch.finfo(torch.float32).tiny)

    def advance(self) -> None:
        self.number = self.number / 2
        self.step += 1

    def log(self, since: int) -> list[dict[str, float]]:
        return []

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this processor cannot")
def test_steps_are_spared_subnormal_numbers_and_nothing_else_is() -> None:
    training = Shrinking()
    resume_training(training, Memory())
    assert training.number == 0
    assert torch.tensor(torch.finfo(torch.float32).tiny) / 2 > 0
