"""Stable-Baselines3 writes a folder of logs for every model; it goes where pytest cleans up."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def logs_of_stable_baselines3(monkeypatch, tmp_path):
    monkeypatch.setenv("SB3_LOGDIR", str(tmp_path))
