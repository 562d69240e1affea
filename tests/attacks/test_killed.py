"""A process that is killed while it saves leaves a whole file: the old one or the new one."""

import textwrap

import copies
import pytest

KILLED = """
    import os, pathlib, random, signal, sys, time
    import torch, catnat, catnat.torch as ct

    folder, random = pathlib.Path("{folder}"), random.Random(0)
    torch.set_num_threads(1)

    def head(value, tree):
        made = ct.CatnatHead(16, tree)
        torch.nn.init.constant_(made.weight, value)
        torch.nn.init.constant_(made.bias, value)
        return made

    trees = [catnat.huffman(range(1, 50_001)), catnat.huffman(range(50_000, 0, -1))]
    heads = [head(1.0, trees[0]), head(2.0, trees[0])]
    others = [head(1.0, trees[0]), head(2.0, catnat.balanced(40_000))]

    def load_tree():
        assert catnat.Tree.load(folder / "tree") in trees

    def load_head(name):
        found = ct.CatnatHead.load(folder / name)
        assert found.weight.unique().numel() == 1 and (found.bias == found.weight[0, 0]).all()
        return found

    def load_other():
        try:
            found = load_head("others")
        except ValueError as error:
            assert "describes" in str(error)  # the weights of one head beside the settings of the other
            return
        assert found.tree == others[int(found.bias[0]) - 1].tree

    CASES = {{
        "tree": (lambda: [tree.save(folder / "tree") for tree in trees], load_tree),
        "heads": (lambda: [one.save(folder / "heads") for one in heads], lambda: load_head("heads")),
        "others": (lambda: [one.save(folder / "others") for one in others], load_other),
    }}
    unfinished = 0
    for save, load in CASES.values():
        save()
        for _ in range({kills}):
            child = os.fork()
            if child == 0:
                while True:
                    save()
            end = time.monotonic() + 5
            while not any(folder.rglob("*.part")) and time.monotonic() < end:
                pass  # not before it writes
            time.sleep(random.uniform(0, 0.002))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            unfinished += any(folder.rglob("*.part"))
            load()
    print(unfinished)
"""


def kill(tmp_path, kills):
    script = tmp_path / "killed.py"
    script.write_text(textwrap.dedent(KILLED.format(folder=tmp_path, kills=kills)), encoding="utf-8")
    unfinished = int(copies.run(script))
    assert unfinished > kills, f"of {3 * kills} processes hardly any was killed in the middle"


def test_killed_processes(tmp_path):
    kill(tmp_path, 4)


@pytest.mark.slow
def test_many_killed_processes(tmp_path):
    kill(tmp_path, 100)
