"""The corpus: tokens by hand, splits and counts against the standard library's own, the cache."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from catnat_experiments.tasks.identifiers import corpus as identifiers_corpus
from catnat_experiments.tasks.identifiers.corpus import Corpus

FILES = 60


def write_files(folder: Path) -> Path:
    """Small files with words of their own, words that they share, a copy and one that does not parse."""
    folder.mkdir(parents=True)
    for number in range(FILES):
        (folder / f"file{number}.py").write_text(f"def own{number}(shared, x{number % 7}):\n    return own{number}\n")
    (folder / "copy.py").write_text((folder / "file0.py").read_text())
    (folder / "broken.py").write_text("def (:\n    '''\n")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_files(tmp_path / "sources")


def words_of(corpus: Corpus, part: str) -> list[str]:
    return [corpus.words[place] for place in getattr(corpus, part)]


def test_the_tokens_of_a_file() -> None:
    source = b"# why\nif x >= 0x1F:\n    y = f'{x} {z}' + '''two\nlines'''  # more\n"
    expected = ["<comment>", "if", "x", ">=", "0x1F", ":", "y", "=", "<string>", "+", "<string>", "<comment>", "<end>"]
    assert list(identifiers_corpus.tokens(source)) == expected


def test_a_corpus_is_the_same_wherever_its_files_are(folder: Path, tmp_path: Path) -> None:
    first, second = (
        identifiers_corpus.build([folder]),
        identifiers_corpus.build([write_files(tmp_path / "elsewhere" / "sources")]),
    )
    assert np.array_equal(first.train, second.train)
    assert np.array_equal(first.validation, second.validation)
    assert (first.words, first.fingerprint) == (second.words, second.fingerprint)
    (folder / "file1.py").write_text("another = content\n")
    assert identifiers_corpus.build([folder]).fingerprint != first.fingerprint


def test_files_are_split_by_the_hash_of_their_path(folder: Path) -> None:
    validates = {
        number
        for number in range(FILES)
        if int(hashlib.sha256(f"sources/file{number}.py".encode()).hexdigest(), 16) / 2**256
        < identifiers_corpus.VALIDATION
    }
    corpus = identifiers_corpus.build([folder])
    own = {int(word[3:]) for word in words_of(corpus, "train") if word.startswith("own")}
    assert 0 < len(validates) < FILES / 4
    assert own == set(range(FILES)) - validates
    assert words_of(corpus, "validation").count("<end>") == len(validates)
    assert words_of(corpus, "train").count("<end>") == FILES - len(validates)  # no copy, nothing broken


def test_classes_are_the_words_of_the_training_files_by_frequency(folder: Path) -> None:
    corpus = identifiers_corpus.build([folder])
    counts = Counter(words_of(corpus, "train"))
    assert [counts[word] for word in corpus.words] == corpus.counts.tolist()
    assert corpus.counts.tolist() == sorted(corpus.counts, reverse=True)
    assert all(
        count >= identifiers_corpus.LEAST for word, count in counts.items() if word != identifiers_corpus.UNKNOWN
    )
    assert words_of(corpus, "validation").count(identifiers_corpus.UNKNOWN) >= 2  # names that only validation has


def test_fewer_classes_change_nothing_but_the_rare_words(folder: Path) -> None:
    whole = identifiers_corpus.build([folder])
    for classes in (8, 20):
        fewer = whole.most_frequent(classes)
        assert len(fewer.words) == len(fewer.counts) == classes
        assert fewer.counts.tolist() == sorted(fewer.counts, reverse=True)
        assert np.array_equal(np.bincount(fewer.train, minlength=classes), fewer.counts)
        for part in ("train", "validation"):
            expected = [word if word in fewer.words else identifiers_corpus.UNKNOWN for word in words_of(whole, part)]
            assert words_of(fewer, part) == expected
    assert whole.most_frequent(len(whole.words)) is whole
    with pytest.raises(ValueError, match="ask for fewer"):
        whole.most_frequent(len(whole.words) + 1)


def test_a_corpus_is_built_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = []

    def build(folders: list[Path], progress: bool) -> Corpus:
        built.append(folders)
        return original([folder])

    original = identifiers_corpus.build
    monkeypatch.setattr(identifiers_corpus, "build", build)
    monkeypatch.setenv(identifiers_corpus.CACHE, str(tmp_path / "cache"))
    identifiers_corpus.load.cache_clear()
    first = identifiers_corpus.load()
    identifiers_corpus.load.cache_clear()
    second = identifiers_corpus.load(8)
    identifiers_corpus.load.cache_clear()
    assert len(built) == 1
    assert len(built[0]) == 1 + len(identifiers_corpus.PACKAGES)
    assert np.array_equal(first.most_frequent(8).train, second.train)
    assert first.most_frequent(8).fingerprint == second.fingerprint
    monkeypatch.setattr(identifiers_corpus, "LEAST", 3)  # another setting, another corpus
    identifiers_corpus.load()
    identifiers_corpus.load.cache_clear()
    assert len(built) == 2


def test_a_corpus_needs_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No Python file"):
        identifiers_corpus.build([tmp_path])
