"""PPO in one file: what the page shows of it is true, and both versions learn. TorchRL's benchmark keeps records."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import pathlib
import re
import statistics
import sys

import pytest

pytest.importorskip("gymnasium", minversion="1.1")

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "rl" / "cleanrl_ppo.py"
PAGE = ROOT / "docs" / "torchrl_policies.md"


def hunks():
    """(old text, new text) of every part of the diff on the page."""
    (block,) = re.findall(r"^```diff\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    for hunk in block.split("@@\n")[1:]:
        sides = {"-": [], "+": []}
        for line in hunk.splitlines():
            for side in "-+" if line[0] == " " else line[0]:
                sides[side].append(line[1:])
        yield tuple("\n".join(lines) + "\n" for lines in sides.values())


def softmax_version():
    text = SCRIPT.read_text(encoding="utf-8")
    for old, new in hunks():
        assert text.count(f"\n{new}") == 1, f"the page shows lines that are not in the example:\n{new}"
        text = text.replace(f"\n{new}", f"\n{old}")
    return text


def load(path):
    name = f"_loaded_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # where dataclasses look for their module
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_all_that_differs():
    """The import and one line: without them nothing of catnat is left but in the text at the top."""
    changed = [line for old, new in hunks() for line in set(new.splitlines()) - set(old.splitlines())]
    assert len(changed) == 2
    code = softmax_version().split('"""', 2)[2]
    assert not re.search("catnat|Catnat", code)


def test_the_example_is_short():
    assert len(SCRIPT.read_text(encoding="utf-8").splitlines()) < 200


@pytest.mark.one_row
@pytest.mark.parametrize("version", ["catnat", "softmax"])
def test_both_versions_learn(version, tmp_path):
    """4,000 steps, two seconds: episodes three times as long as at the start, where they last some 22 steps."""
    path = tmp_path / f"{version}.py"
    path.write_text(SCRIPT.read_text(encoding="utf-8") if version == "catnat" else softmax_version(), encoding="utf-8")
    example = load(path)
    config = example.Config(seed=1, total_steps=4096)
    agent, returns = example.train(config, report_every=4)
    assert len(agent.head.weight) == (1 if version == "catnat" else 2)
    assert 15 < statistics.mean(returns[:20]) < 35
    assert statistics.median(example.evaluate(agent, config, episodes=5)) > 66


def test_advantages_from_their_definition():
    """Sums of discounted errors up to the end of the episode, written out."""
    torch = pytest.importorskip("torch")
    example = load(SCRIPT)
    config = example.Config(gamma=0.9, gae_lambda=0.7)
    generator = torch.Generator().manual_seed(0)
    rewards, values = (torch.randn(6, 2, generator=generator) for _ in range(2))
    last, dones = torch.randn(2, generator=generator), torch.zeros(6, 2)
    dones[3, 0] = dones[5, 1] = 1
    found = example.advantages(rewards, values, dones, last, config)
    following = torch.cat([values[1:], last[None]])
    for env in range(2):
        for start in range(6):
            total, weight = 0.0, 1.0
            for t in range(start, 6):
                alive = 1 - dones[t, env]
                total += weight * (rewards[t, env] + 0.9 * alive * following[t, env] - values[t, env])
                weight *= 0.9 * 0.7
                if dones[t, env]:
                    break
            torch.testing.assert_close(found[start, env], total)


# ---- the benchmark ----


@pytest.mark.filterwarnings("ignore:Creating .*WeightUpdater:DeprecationWarning")  # TorchRL says it of itself
@pytest.mark.parametrize("policy", ["softmax", "natural"])
def test_a_record_is_made_once(policy, tmp_path, monkeypatch):
    pytest.importorskip("torchrl", minversion="0.14")
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    benchmark = load(ROOT / "benchmarks" / "torchrl_ppo.py")
    config = benchmark.Config(policy, 1, frames=512, num_envs=2, batch=128, epochs=2, episodes=2)
    record = benchmark.run(config, tmp_path)
    assert len(record["returns"]) == 2
    assert record["return"] == statistics.mean(record["returns"]) > 5
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text()) == record
    monkeypatch.setattr(benchmark, "train", lambda _: pytest.fail("trained again"))
    assert benchmark.run(config, tmp_path) == record
    with pytest.raises(pytest.fail.Exception, match="trained again"):  # another configuration is another run
        benchmark.run(dataclasses.replace(config, clip=0.1), tmp_path)
    assert f"| {policy} | {record['return']:.1f} |" in benchmark.table([record])
