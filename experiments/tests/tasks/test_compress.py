"""An archive of files: round trips, its size against the paths of the tree by hand, and what other compressors see."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from catnat.coding import CodingError, quantize
from catnat_experiments.engine.records import Record, write
from catnat_experiments.engine.types import Outcome
from catnat_experiments.tasks.identifiers import archive, compress
from catnat_experiments.tasks.identifiers.corpus import END, Corpus, Ints
from catnat_experiments.tasks.identifiers.heads import TreeHead
from catnat_experiments.tasks.identifiers.model import Model

CLASSES, SIZE, END_CLASS = 200, 16, 3
OVERHEAD = 48
"""Bytes of the coder's format: a header and two checksums."""


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    """Tokens by their frequency, and 20 files of very different lengths that validate; one has nothing but its end."""
    rng = np.random.default_rng(0)
    weights = 1 / np.arange(1, CLASSES + 1)
    tokens = rng.choice(CLASSES, 8000, p=weights / weights.sum()).astype(np.int32)
    words = [f"word{k}" for k in range(CLASSES)]
    words[END_CLASS] = END
    lengths = [1, 2, 300, *rng.integers(3, 100, 17)]
    files = [np.append(file[file != END_CLASS], END_CLASS) for file in (rng.choice(tokens, n - 1) for n in lengths)]
    counts = np.bincount(tokens, minlength=CLASSES) + 1
    return Corpus(tokens, np.concatenate(files).astype(np.int32), counts, tuple(words), 7)


@pytest.fixture(scope="module")
def files(corpus: Corpus) -> list[Ints]:
    return archive.files_of(corpus.validation, END_CLASS)


@pytest.fixture(scope="module")
def model(corpus: Corpus) -> Model:
    """Not trained, but with weights of the size that training gives: what was read matters."""
    torch.manual_seed(0)
    made = Model("clustered sigmoid", SIZE, corpus, torch.Generator())
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape))
    return made


def bits_by_hand(model: Model, file: Ints) -> float:
    """One file alone in one pass, one decision after the other, with the probabilities that the coder rounds."""
    assert isinstance(model.head, TreeHead)
    layer, before = model.head.layer, np.concatenate(([END_CLASS], file[:-1]))
    features = model.features(torch.from_numpy(before).long().unsqueeze(0))[0].detach().double().numpy()
    weight, bias = (part.detach().double().numpy() for part in (layer.weight, layer.bias))
    offset = layer.activation.offset(layer.tree)
    total = 0.0
    for row, token in zip(features, file, strict=True):
        nodes, bits = map(np.array, layer.tree.path(int(token)))
        yes = quantize(1 / (1 + np.exp(-(weight[nodes] @ row + bias[nodes] + offset[nodes])))) / 65536
        total -= np.log2(np.where(bits, yes, 1 - yes)).sum()
    return float(total)


# ---- the archive ----


def test_files_end_with_their_end(corpus: Corpus, files: list[Ints]) -> None:
    assert np.array_equal(np.concatenate(files), corpus.validation)
    assert all(list(np.flatnonzero(file == END_CLASS)) == [len(file) - 1] for file in files)
    with pytest.raises(ValueError, match="must end with 3"):
        archive.files_of(corpus.validation[:-1], END_CLASS)


def test_every_file_comes_back_from_about_its_negative_log_likelihood(model: Model, files: list[Ints]) -> None:
    data = archive.encode(model, files, END_CLASS)
    found = archive.decode(model, data, END_CLASS)
    assert [file.tolist() for file in found] == [file.tolist() for file in files]
    expected = sum(bits_by_hand(model, file) for file in files)
    assert 8 * (len(data) - 4 - OVERHEAD) == pytest.approx(expected, rel=0.01)
    assert archive.bits(model, files, END_CLASS).sum() == pytest.approx(expected, rel=0.01)


def test_a_file_costs_the_same_whatever_is_beside_it(model: Model, files: list[Ints]) -> None:
    together = archive.bits(model, files, END_CLASS)
    alone = [archive.bits(model, [file], END_CLASS)[0] for file in files[:5]]
    assert together[:5] == pytest.approx(np.array(alone), rel=1e-5)
    assert together.min() > 0


@pytest.mark.parametrize("longest", [1, 7, 299, 300])
def test_long_files_are_cut(longest: int, model: Model, files: list[Ints], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "LONGEST", longest)
    some = files[:4]
    data = archive.encode(model, some, END_CLASS)
    assert [file.tolist() for file in archive.decode(model, data, END_CLASS)] == [file.tolist() for file in some]
    parts = [file[first : first + longest] for file in some for first in range(0, len(file), longest)]
    assert int.from_bytes(data[:4], "little") == len(parts)
    expected = sum(bits_by_hand(model, part) for part in parts)
    assert archive.bits(model, some, END_CLASS).sum() == pytest.approx(expected, rel=0.01)


def test_other_features_are_noticed(model: Model, files: list[Ints]) -> None:
    data = archive.encode(model, files, END_CLASS)
    with torch.no_grad():
        model.recurrent.bias_ih_l0[0] += 0.5
    try:
        with pytest.raises(CodingError):
            archive.decode(model, data, END_CLASS)
    finally:
        with torch.no_grad():
            model.recurrent.bias_ih_l0[0] -= 0.5


def test_a_head_without_a_tree_is_refused(corpus: Corpus, files: list[Ints]) -> None:
    softmax = Model("softmax", SIZE, corpus, torch.Generator())
    with pytest.raises(TypeError, match=r"Softmax.*needs a head on a tree"):
        archive.encode(softmax, files, END_CLASS)


# ---- other compressors ----


def test_bytes_of_tokens(corpus: Corpus) -> None:
    tokens = np.array([0, 127, 128, 16383, 16384, 99_999], np.int32)
    expected = b""
    for token in tokens.tolist():
        while token >= 128:
            expected += bytes([128 | token & 127])
            token >>= 7
        expected += bytes([token])
    assert compress.as_varints(tokens, corpus) == expected
    assert compress.as_numbers(tokens[:2], corpus) == b"\0\0\0\0\x7f\0\0\0"
    assert compress.as_words(np.array([0, 3], np.int32), corpus) == b"word0\n<end>"


def test_xz_comes_back(corpus: Corpus) -> None:
    data = compress.as_varints(corpus.validation, corpus)
    packed = compress.xz(data)
    assert len(packed) < len(data)
    assert compress.unxz(packed, len(data)) == data


def test_zstd_comes_back_and_reads_its_dictionary(corpus: Corpus) -> None:
    pytest.importorskip("zstandard")
    data = compress.as_varints(corpus.validation, corpus)
    packed = compress.zstd(data)
    assert len(packed) < len(data)
    assert compress.unzstd(packed, len(data)) == data
    assert len(compress.zstd(data, b"something else" + data)) < 50  # a copy of what is there


def test_order_0_is_the_cross_entropy_of_the_frequencies(corpus: Corpus, files: list[Ints]) -> None:
    frequencies = corpus.counts / corpus.counts.sum()
    expected = -np.log2(frequencies[corpus.validation]).sum() / 8
    assert compress.order_0(corpus, files) - OVERHEAD == pytest.approx(expected, rel=0.01)


def test_a_measurement_has_all_metrics_and_a_report(
    model: Model, corpus: Corpus, files: list[Ints], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("zstandard")
    monkeypatch.setattr(compress, "TIMED_WINDOWS", 2)
    found = compress.measure(model, corpus, files)
    assert found["bits_ideal"] < found["bits_model"]
    assert 8 * found["bytes"] == pytest.approx(found["bits_model"] * len(corpus.validation))
    config = {"classes": CLASSES, "seconds": 1.0}
    kept = Record.of(
        Outcome(found | {"steps": 1.0}, {}),
        config,
        experiment="compression",
        stage="final",
        seconds=1.0,
        versions={},
        commit=None,
    )
    write(kept, tmp_path / "results")
    compress.report(tmp_path / "results", tmp_path / "report")
    page = (tmp_path / "report" / "README.md").read_text()
    assert all(f"| {title} | {found[f'bits_{name}']:.3f} |" in page for name, title in compress.METHODS.items())
    assert (tmp_path / "report" / "bits.png").stat().st_size > 1000


def test_a_report_needs_one_record(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="0 records"):
        compress.report(tmp_path, tmp_path)
