"""Fixtures that several files of this folder share."""

import contextlib

import pytest
import torch
from torch import distributions as td


@pytest.fixture
def fresh_compiler():
    """No recompilation passes unnoticed, and nothing compiled here outlives its test."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=True), validating(False):
        yield
    torch._dynamo.reset()


@pytest.fixture
def validation():
    """The test starts with torch's default, whatever ran before it in this process."""
    with validating(True):
        yield


@contextlib.contextmanager
def validating(on: bool):
    """Torch's argument checks, on or off. The first use of torch.compile turns them off, once, for the process."""
    before = td.Distribution._validate_args
    td.Distribution.set_default_validate_args(on)
    yield
    td.Distribution.set_default_validate_args(before)
