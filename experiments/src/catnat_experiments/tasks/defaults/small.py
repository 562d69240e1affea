"""The three small tasks of the panel, by name."""

from __future__ import annotations

import torch

from catnat_experiments.engine.loop import resume_training
from catnat_experiments.engine.types import Checkpointer, Config, Outcome
from catnat_experiments.tasks.defaults.bandit import Bandit
from catnat_experiments.tasks.defaults.classifier import Classifier
from catnat_experiments.tasks.defaults.table import Fit
from catnat_experiments.tasks.defaults.training import Training

TASKS: dict[str, type[Training]] = {"classifier": Classifier, "bandit": Bandit, "many actions": Bandit, "table": Fit}


def train(run: Config, checkpointer: Checkpointer) -> Outcome:
    """Train a run of one of the tasks, resuming from the last checkpoint if there is one, and evaluate it."""
    torch.set_num_threads(1)
    training = TASKS[str(run["task"])](run)
    resume_training(training, checkpointer)
    return Outcome(training.metrics(), training.history)
