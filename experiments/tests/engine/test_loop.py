"""The loop that the experiments train with, and what a checkpoint keeps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from memory import Memory, assert_goes_on

from catnat_experiments.engine.loop import OneRun, finished
from catnat_experiments.engine.types import Outcome


class Walk(OneRun):
    """Everything that a training may keep takes part in every step."""

    steps = 6
    changing = ("step", "layer", "optimizer", "generator", "stream", "place", "history")

    def __init__(self) -> None:
        self.step = 0
        self.generator = torch.Generator().manual_seed(0)
        self.stream = np.random.Generator(np.random.SFC64(0))
        self.layer = torch.nn.Linear(2, 1)
        torch.nn.init.ones_(self.layer.weight)
        torch.nn.init.zeros_(self.layer.bias)
        self.optimizer = torch.optim.Adam(self.layer.parameters())
        self.place = torch.zeros(2)
        self.view = self.place[:1]
        self.history: dict[str, list[float]] = {}

    def advance(self) -> None:
        self.place += torch.rand(2, generator=self.generator) + float(self.stream.random())
        self.optimizer.zero_grad()
        self.layer(self.place).sum().backward()
        self.optimizer.step()
        self.step += 1

    def log(self, since: int) -> list[dict[str, float]]:
        self.history.setdefault("loss", []).append(self.layer(self.place).item())
        return [{"loss": self.history["loss"][-1]}]

    def metrics(self) -> dict[str, float]:
        return {"place": float(self.view), "weight": self.layer.weight.sum().item()}


@pytest.mark.parametrize("step", [3, 6])  # 6 is the last: a run that is killed in its evaluation has all its steps
def test_a_run_broken_off_goes_on_to_the_same_bits(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(checkpointer: Memory) -> Outcome:
        return finished(Walk(), checkpointer)

    assert assert_goes_on(train, step, monkeypatch).metrics["place"] > 1


def test_a_checkpoint_does_not_change_when_training_goes_on_from_it() -> None:
    walk, again = Walk(), Walk()
    walk.advance()
    walk.log(0)
    kept = walk.state()
    again.restore(kept)
    for training in (walk, again):
        training.advance()
        training.log(1)
    assert (kept["step"], len(kept["history"]["loss"])) == (1, 1)
    assert walk.metrics() == again.metrics()
    assert not torch.equal(kept["place"], walk.place)
    assert not torch.equal(kept["layer"]["weight"], walk.layer.weight)
    assert kept["optimizer"]["state"][0]["step"] == 1


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this processor cannot")
def test_steps_are_spared_subnormal_numbers_and_nothing_else_is(monkeypatch: pytest.MonkeyPatch) -> None:
    walk, tiny = Walk(), torch.tensor(torch.finfo(torch.float32).tiny)
    halves: list[float] = []
    monkeypatch.setattr(walk, "advance", lambda: (halves.append(float(tiny / 2)), setattr(walk, "step", 6)))
    finished(walk, Memory())
    assert halves == [0.0]
    assert tiny / 2 > 0
