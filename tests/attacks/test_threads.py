"""Threads that share and make trees, switching as often as can be; and calls in forked processes."""

from __future__ import annotations

import collections
import sys
import textwrap
import threading
import time

import copies
import numpy as np
import pytest
import torch

import catnat
import catnat.torch as ct


def use(tree: catnat.Tree) -> None:
    """Every kind of call on a tree agrees with the others."""
    scores, classes = torch.full((2, tree.num_nodes), 0.3, requires_grad=True), torch.tensor([1, 2])
    logs = ct.log_catnat(scores, tree)
    logs.sum().backward()
    wanted = logs.gather(-1, classes.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(logs.exp().sum(-1), torch.ones(2))
    torch.testing.assert_close(ct.log_prob(scores, classes, tree), wanted)
    dist = ct.Catnat(scores, tree, "natural")
    torch.testing.assert_close(
        dist.log_prob(classes), ct.log_catnat(scores, tree, "natural").gather(-1, classes[:, None])[:, 0]
    )
    head = ct.CatnatHead(1, tree)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.constant_(head.bias, 0.3)
    loss = head.loss(torch.ones(2, 1), classes)
    loss.backward()
    torch.testing.assert_close(-loss, wanted.mean())
    for drawn in (ct.sample(scores, tree), dist.sample(), head.sample(torch.ones(2, 1))):
        assert ((drawn >= 0) & (drawn < tree.num_classes)).all()


def use_in_threads(seconds: float) -> int:
    """Four threads meet the same new trees at once, and make some of their own; how many there were."""
    faults, counted, stop = [], collections.Counter[int](), time.monotonic() + seconds
    barrier, lock, shared = threading.Barrier(4), threading.Lock(), {}

    def random_trees(seed: int) -> list[catnat.Tree]:
        weights = np.random.default_rng(seed).random(40 + seed % 60)
        return [catnat.huffman(weights), catnat.balanced(len(weights)).with_prior(weights)]

    def work(number: int) -> None:
        barrier.wait()
        turn = 0
        while time.monotonic() < stop and not faults:
            with lock:
                trees = shared.setdefault(turn, random_trees(turn))
            for tree in (*trees, *random_trees(1_000_000 * (number + 1) + turn)):
                use(tree)
                counted[number] += 1
            turn += 1

    def guarded(number: int) -> None:
        try:
            work(number)
        except Exception as fault:  # a thread's exception would be lost
            faults.append(repr(fault))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=guarded, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not faults, faults[:3]
    return sum(counted.values())


@pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")
def test_threads():
    assert use_in_threads(3.0) > 4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")
def test_threads_for_a_minute(monkeypatch):
    """With few plans kept, so that threads also forget those of others."""
    from catnat.torch import _constants

    monkeypatch.setattr(_constants, "_MOST_KEPT", 8)
    assert use_in_threads(60.0) > 100


FORK = """
    import multiprocessing, os, threading
    import torch, catnat, catnat.torch as ct
    from catnat.torch import _constants

    torch.set_num_threads(1)

    def call(classes):
        scores = torch.zeros(2, classes - 1, requires_grad=True)
        ct.cross_entropy(scores, torch.tensor([0, 1]), catnat.huffman(range(1, classes + 1))).backward()
        assert ct.Catnat(scores, classes).sample().max() < classes
        assert scores.grad.isfinite().all()

    call(30)
    held, done = threading.Event(), threading.Event()

    def hold():  # what a thread may do at the moment of the fork
        with _constants._lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    children = [multiprocessing.get_context("fork").Process(target=call, args=(classes,)) for classes in (30, 70)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
        child.kill()
    done.set()
    thread.join()
    call(70)
    print([child.exitcode for child in children])
"""


def test_a_forked_process_calls_what_its_parent_called_and_more(tmp_path):
    """Also where another thread of the parent was making a plan."""
    script = tmp_path / "fork.py"
    script.write_text(textwrap.dedent(FORK), encoding="utf-8")
    assert copies.run(script) == "[0, 0]\n"
