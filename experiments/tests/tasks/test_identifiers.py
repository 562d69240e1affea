"""Heads against definitions on a dozen classes, the sampled loss against the softmax, runs that resume and a budget."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from memory import Memory, assert_goes_on
from scipy import stats
from torch import Tensor
from torch.nn import functional as F

from catnat_experiments.engine import loop
from catnat_experiments.engine.types import Config, Outcome
from catnat_experiments.tasks.identifiers import heads, purchases
from catnat_experiments.tasks.identifiers import model as identifiers_model
from catnat_experiments.tasks.identifiers import task as identifiers
from catnat_experiments.tasks.identifiers import training as identifiers_training
from catnat_experiments.tasks.identifiers.corpus import Corpus
from catnat_experiments.tasks.identifiers.heads import HEADS, Head, Sampled, head_of, sampled_loss
from catnat_experiments.tasks.identifiers.model import Model, accuracies, windows
from catnat_experiments.tasks.identifiers.training import Training

CLASSES, SIZE = 12, 16
FALSE_ALARM = 1e-6
torch.set_num_threads(1)


def corpus_of(train: np.ndarray) -> Corpus:
    """Tokens 0, 1, 2 ... by frequency, the last quarter for validation."""
    train = train.astype(np.int32)
    counts = np.bincount(train, minlength=CLASSES)
    return Corpus(train, train[-len(train) // 4 :], counts, tuple(f"word{k}" for k in range(len(counts))), 7)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    """Zipf-like, and each token says much about the next."""
    stream = np.random.default_rng(0)
    tokens = np.minimum(stream.zipf(1.5, 4000) - 1, CLASSES - 1)
    tokens[1::2] = (tokens[::2] + 1) % CLASSES
    order = np.argsort(-np.bincount(tokens, minlength=CLASSES), kind="stable")
    return corpus_of(np.argsort(order)[tokens])


def small(head: str = "huffman sigmoid", **changes: str | int | float) -> Config:
    plan = identifiers.Preset((head,), CLASSES, seconds=10.0, seeds=1, equal_steps=16, validation_windows=4)
    return {**identifiers.config(head, 0.01, 1, plan), "size": SIZE, "streams": 4, "length": 8, **changes}


def head(name: str, corpus: Corpus, seed: int = 0) -> Head:
    """Not at its start: with random parameters."""
    torch.manual_seed(seed)
    found = head_of(name, SIZE, corpus, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape))
    return found


def all_log_probs(head: Head, features: Tensor) -> Tensor:
    """One class after the other, by the head's log_prob_of alone."""
    classes = [torch.full((len(features),), k) for k in range(CLASSES)]
    return torch.stack([head.log_prob_of(features, k) for k in classes], 1).detach()


# ---- heads ----


@pytest.mark.parametrize("name", HEADS)
def test_probabilities_sum_to_one_and_the_loss_is_theirs(name: str, corpus: Corpus) -> None:
    one, features = head(name, corpus), torch.randn(5, SIZE)
    log_probs = all_log_probs(one, features)
    assert torch.allclose(log_probs.exp().sum(1), torch.ones(5), atol=1e-5)
    assert (log_probs.std(0) > 0.01).all()  # the features matter
    if name != "sampled":
        target = torch.tensor([0, 3, CLASSES - 1, 1, 3])
        expected = -log_probs[torch.arange(5), target].mean()
        assert torch.allclose(one.loss(features, target).detach(), expected, atol=1e-5)


@pytest.mark.parametrize("name", HEADS)
def test_heads_start_at_the_frequencies(name: str, corpus: Corpus) -> None:
    found = all_log_probs(head_of(name, SIZE, corpus, torch.Generator()), torch.zeros(1, SIZE))[0].exp().double()
    frequencies = torch.from_numpy(corpus.counts / corpus.counts.sum())
    if name == "adaptive":  # classes of a tail start alike
        parts = [slice(0, 1), slice(1, 2), slice(2, CLASSES)]
        found, frequencies = (torch.stack([values[part].sum() for part in parts]) for values in (found, frequencies))
    assert torch.allclose(found, frequencies, atol=1e-5)


@pytest.mark.parametrize("name", ["softmax", "adaptive", "random sigmoid", "clustered sigmoid"])
def test_accuracies_are_those_of_all_classes_sorted(name: str, corpus: Corpus) -> None:
    model = Model(name, SIZE, corpus, torch.Generator())
    model.head = head(name, corpus)
    chosen = windows(corpus, 3)
    target = chosen[:, 1:].flatten()
    order = all_log_probs(model.head, model.features(chosen[:, :-1])[0].detach()).argsort(1, descending=True)
    place = (order == target.unsqueeze(1)).nonzero()[:, 1]
    found = accuracies(model, chosen)
    assert found["accuracy_1"] == pytest.approx(float((place == 0).double().mean()))
    assert found["accuracy_5"] == pytest.approx(float((place < 5).double().mean()))
    assert 0 < found["accuracy_1"] < found["accuracy_5"] < 1
    assert 0 < found["visited"] <= 1


def test_an_unknown_head_is_named(corpus: Corpus) -> None:
    with pytest.raises(ValueError, match=r"'hufman sigmoid'.*huffman sigmoid"):
        head_of("hufman sigmoid", SIZE, corpus, torch.Generator())


# ---- the sampled softmax ----


def test_the_sampled_loss_is_exact_with_all_classes() -> None:
    torch.manual_seed(0)
    scores, target = torch.randn(6, CLASSES, requires_grad=True), torch.randint(CLASSES, (6,))
    order = torch.randperm(CLASSES)
    of_target = scores.gather(1, target.unsqueeze(1)).squeeze(1)
    found = sampled_loss(scores[:, order], of_target, order == target.unsqueeze(1), torch.zeros(CLASSES))
    expected = F.cross_entropy(scores, target)
    assert torch.allclose(found, expected)
    gradients = [torch.autograd.grad(loss, scores, retain_graph=True)[0] for loss in (found, expected)]
    assert torch.allclose(*gradients, atol=1e-6)


def test_draws_have_the_frequencies_that_the_correction_takes(corpus: Corpus) -> None:
    one = head("sampled", corpus)
    assert isinstance(one, Sampled)
    one._samples = 50_000
    drawn, log_expected = one.draw()
    expected = torch.zeros(CLASSES).scatter_(0, drawn, log_expected.exp())
    assert float(expected.sum()) == pytest.approx(50_000, rel=1e-5)
    frequencies = expected.double() / expected.double().sum()
    assert stats.chisquare(torch.bincount(drawn, minlength=CLASSES), 50_000 * frequencies).pvalue > FALSE_ALARM


def test_the_sampled_normalizer_is_unbiased(corpus: Corpus) -> None:
    torch.manual_seed(1)
    one, features, target = head("sampled", corpus), torch.randn(1, SIZE), torch.tensor([2])
    assert isinstance(one, Sampled)
    one._samples = 3  # so few that the loss itself is far off
    scores = one.scores(features).detach()[0]
    with torch.no_grad():
        losses = torch.stack([one.loss(features, target) for _ in range(1500)]).double()
    found = (losses + scores[2]).exp()
    error = (found.mean() - scores.double().exp().sum()) / (found.std() / math.sqrt(len(found)))
    assert abs(float(error)) < 5
    assert float(found.std()) > 0.1


def test_with_many_samples_the_gradient_is_the_softmaxs(corpus: Corpus) -> None:
    torch.manual_seed(2)
    one, features, target = head("sampled", corpus), torch.randn(4, SIZE), torch.tensor([0, 5, 11, 5])
    assert isinstance(one, Sampled)
    one._samples = 200_000
    one.loss(features, target).backward()
    found = [part.grad.to_dense() for part in (one.weight, one.bias) if part.grad is not None]
    one.zero_grad()
    F.cross_entropy(one.scores(features), target).backward()
    for mine, part in zip(found, (one.weight, one.bias), strict=True):
        assert part.grad is not None
        assert torch.allclose(mine, part.grad, atol=0.005)
        assert float(part.grad.abs().max()) > 0.1


# ---- trees ----


def test_vectors_are_the_main_directions_of_the_neighbours(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "CONTEXTS", 8)
    monkeypatch.setattr(heads, "VECTOR", 4)
    table = np.zeros((CLASSES, 2, 8))
    for first, second in zip(corpus.train[:-1], corpus.train[1:], strict=True):
        if first < 8:
            table[second, 0, first] += 1
        if second < 8:
            table[first, 1, second] += 1
    table = np.sqrt(table / corpus.counts[:, None, None]).reshape(CLASSES, 16)
    left, values, _ = np.linalg.svd(table, full_matrices=False)
    expected = (left * values)[:, :4]
    found = heads.context_vectors(corpus)
    assert np.allclose(found @ found.T, expected @ expected.T, atol=1e-4)  # up to a rotation


@pytest.mark.parametrize("name", heads.TREES)
def test_trees_have_the_counts_as_their_prior(name: str, corpus: Corpus) -> None:
    tree, _ = heads.tree_of(name, corpus)
    assert np.allclose(tree.prior, corpus.counts / corpus.counts.sum())
    lengths = np.array([len(tree.path(k)[0]) for k in range(CLASSES)])
    expected = float(lengths @ tree.prior)
    entropy = float(-(tree.prior * np.log2(tree.prior)).sum())
    if name == "random":
        assert set(lengths) == {3, 4}
    else:
        assert entropy <= expected < entropy + 1.5


# ---- runs ----


class Clock:
    """Every look at it takes half a second: a step takes half a second of training."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.5
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(identifiers_training, "processor_time", made)
    return made


@pytest.mark.parametrize("name", ["adaptive", "sampled", "clustered sigmoid"])
def test_a_run_goes_on_from_a_checkpoint_to_the_same_end(
    name: str, corpus: Corpus, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpointers: list[Memory] = []

    def train(checkpointer: Memory) -> Outcome:
        checkpointers.append(checkpointer)
        torch.manual_seed(len(checkpointers))  # another process has other random numbers
        clock.now = 1000.0 * len(checkpointers)  # and another clock
        return identifiers_training.train(small(name), checkpointer, corpus)

    whole = assert_goes_on(train, 7, monkeypatch)
    assert whole.metrics["steps"] == 20
    assert checkpointers[-1].seen[0][1] == 8


def test_only_training_takes_time(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    learn, nll = Training._learn, identifiers_model.validation_nll

    def taking(seconds: float, function: Any) -> Any:
        def slow(*arguments: Any) -> Any:
            now[0] += seconds
            return function(*arguments)

        return slow

    monkeypatch.setattr(identifiers_training, "processor_time", lambda: now[0])
    monkeypatch.setattr(Training, "_learn", taking(0.375, learn))
    monkeypatch.setattr(identifiers_training, "validation_nll", taking(100.0, nll))
    outcome = identifiers_training.train(small(), Memory(), corpus)
    assert outcome.metrics["steps"] == 27  # 10 seconds, and what the last step is over them
    assert outcome.metrics["steps_per_second"] == pytest.approx(1 / 0.375)
    seconds = outcome.history["seconds"]
    assert len(seconds) == loop.LOG_POINTS
    assert all(0 <= at - 10 * (place + 1) / 20 < 0.375 for place, at in enumerate(seconds))
    assert outcome.history["steps_by_step"] == [8, 16]
    assert outcome.metrics["nll_at_equal_steps"] == outcome.history["nll_by_step"][1]


def test_a_pass_reads_every_token_once_and_goes_on_with_its_state(corpus: Corpus) -> None:
    training = Training(corpus, small(seconds=1e9))
    targets, states, loss = [], [], training.model.head.loss
    training.window = 0

    def noting(features: Tensor, target: Tensor) -> Tensor:
        targets.append(target.view(4, 8))
        states.append(training.state_of_streams)
        return loss(features, target)

    training.model.head.loss = noting  # type: ignore[method-assign]
    count = 999 // 8
    for _ in range(count + 1):
        training._learn()
    streams = torch.from_numpy(corpus.train.reshape(4, 1000)).long()
    assert torch.equal(torch.cat(targets[:-1], 1), streams[:, 1 : count * 8 + 1])
    assert torch.equal(targets[-1], targets[0])
    assert [bool(state.any()) for state in states] == [False, *[True] * (count - 1), False]


@pytest.mark.parametrize("name", ["linear_cross_entropy", "sampled", "huffman sigmoid"])
def test_heads_learn_what_follows_what(name: str, clock: Clock) -> None:
    corpus = corpus_of(np.tile(np.arange(CLASSES), 300))  # the next token is certain
    outcome = identifiers_training.train(small(name, rate=0.03, seconds=30.0), Memory(), corpus)
    assert outcome.metrics["validation_nll"] < 1.0 < math.log(CLASSES)
    assert outcome.metrics["accuracy_1"] > 0.6
    assert outcome.metrics["perplexity"] == pytest.approx(math.exp(outcome.metrics["validation_nll"]))
    assert outcome.metrics["corpus"] == 7


def test_a_run_that_diverged_has_no_metrics(corpus: Corpus, clock: Clock) -> None:
    outcome = identifiers_training.train(small(rate=math.inf), Memory(), corpus)
    assert math.isnan(outcome.metrics["validation_nll"])
    assert math.isnan(outcome.metrics["accuracy_1"])
    assert outcome.metrics["steps"] == 20


# ---- stages ----


def test_a_run_of_the_search_has_a_fifth_of_the_time() -> None:
    search, _ = identifiers.EXPERIMENT.stages("quick")
    assert {run["seconds"] for run in search.runs(pd.DataFrame())} == {0.2 * 12.0}


# ---- purchases -------------------------------------------------------------------------------------------------------


def test_purchases_are_read_customer_by_customer(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        ("11/2/2000", "b", "milk"),
        ("11/10/2000", "a", "bread"),
        ("11/1/2000", "b", "milk"),
        ("11/1/2000", "b", "bread"),
        ("11/9/2000", "a", "milk"),
        ("11/9/2000", "z", "milk"),
        ("11/9/2000", "z", "tea"),
    ]
    frame = pd.DataFrame(rows, columns=["TRANSACTION_DT", "CUSTOMER_ID", "PRODUCT_ID"])
    monkeypatch.setattr(purchases, "purchases", lambda columns: frame[columns])
    monkeypatch.setattr(purchases, "_place", lambda customer: 0.0 if customer == "z" else 1.0)
    corpus = purchases.load.__wrapped__()
    words = np.array(corpus.words)
    a, b = ["milk", "<basket>", "bread", "<end>"], ["milk", "bread", "<basket>", "milk", "<end>"]
    assert words[corpus.train].tolist() == [*a, *b]
    assert words[corpus.validation].tolist() == ["milk", "<unk>", "<end>"]


@pytest.mark.parametrize("name", ["learned", "learned-10%"])
def test_a_learned_order_takes_its_time_from_the_budget(name: str, corpus: Corpus) -> None:
    assert heads.seconds_to_learn(f"{name} sigmoid", corpus) > 0
    assert heads.seconds_to_learn("clustered sigmoid", corpus) == 0
    assert heads.seconds_to_learn("adaptive", corpus) == 0


def test_a_pass_in_parts_is_the_whole_pass(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = heads.TREES["learned"](corpus)
    monkeypatch.setattr(heads, "PASS_AT_ONCE", 100)
    assert heads.TREES["learned"](corpus) == whole
