"""Held-out files, compressed with the next-token model and decoded: sizes and times beside other compressors.

Train a model and measure, then draw a table and a figure of the record::

    python -m catnat_experiments.tasks.identifiers.compress measure --results results/compression
    python -m catnat_experiments.tasks.identifiers.compress report --results results/compression --output reports

All compress the same tokens of the validation files. For xz and zstd a token is its number in 32 bits, its number in
one to three bytes, or its text in a line. The smallest result counts, without headers and checksums. The measurement
needs the extra ``compression``.
"""

from __future__ import annotations

import argparse
import functools
import lzma
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import constriction
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

import catnat
from catnat import coding
from catnat_experiments.engine.extras import extra
from catnat_experiments.engine.loop import Printing, resume_training
from catnat_experiments.engine.provenance import commit, versions
from catnat_experiments.engine.records import Record, load_all, write
from catnat_experiments.engine.types import Outcome
from catnat_experiments.report.colours import PALETTE
from catnat_experiments.report.markdown import markdown_table
from catnat_experiments.report.plots import WIDTH, save
from catnat_experiments.tasks.identifiers.archive import bits, decode, encode, files_of
from catnat_experiments.tasks.identifiers.corpus import END, Corpus, Ints, load
from catnat_experiments.tasks.identifiers.heads import Softmax, TreeHead
from catnat_experiments.tasks.identifiers.model import Model, windows
from catnat_experiments.tasks.identifiers.task import PRESETS, config
from catnat_experiments.tasks.identifiers.training import Training

HEAD, RATE, SEED = "clustered sigmoid", 0.0005, 1
"""The head, its best learning rate in the preset "evidence", and the seed."""
DICTIONARY = 1 << 23
"""The number of bytes, from the end of the training files, in zstd's dictionary."""
TIMED_WINDOWS, ROWS = 32, 128
"""The number of windows with which head and coder are timed, and the number of tokens in a piece."""

METHODS = {
    "order_0": "a Huffman tree of the training files' frequencies",
    "xz_each": "xz, each file alone",
    "zstd_each": "zstd, each file alone",
    "zstd_each_dictionary": "zstd, each file alone, with a dictionary",
    "xz_all": "xz, all files in one",
    "zstd_all": "zstd, all files in one",
    "zstd_all_dictionary": "zstd, all files in one, with a dictionary",
    "model": "the model and catnat.coding",
}
Returned = TypeVar("Returned")


# ---- other compressors -----------------------------------------------------------------------------------------------


def as_words(tokens: Ints, corpus: Corpus) -> bytes:
    """Return a line for every token."""
    return "\n".join(corpus.words[token] for token in tokens).encode()


def as_numbers(tokens: Ints, corpus: Corpus) -> bytes:
    """Return 32 bits for every token."""
    return tokens.astype("<u4").tobytes()


def as_varints(tokens: Ints, corpus: Corpus) -> bytes:
    """Return seven bits per byte, lowest first; all bytes of a token but its last have the eighth bit."""
    shifted = tokens.astype(np.int64)[:, None] >> np.array([0, 7, 14])
    more = np.column_stack((shifted[:, 1:] > 0, np.zeros(len(tokens), bool)))
    needed = np.column_stack((np.ones(len(tokens), bool), shifted[:, 1:] > 0))
    return bytes((shifted % 128 + 128 * more)[needed].astype(np.uint8))


FORMATS = (as_words, as_numbers, as_varints)


def _xz(size: int) -> dict[str, Any]:
    """Return options for the strongest preset, with a window for all data, without header and checksum."""
    strongest = {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": max(4096, size)}
    return {"format": lzma.FORMAT_RAW, "filters": [strongest]}


def xz(data: bytes) -> bytes:
    """Compress with xz at its strongest preset."""
    return bytes(lzma.compress(data, **_xz(len(data))))


def unxz(data: bytes, size: int) -> bytes:
    """Decompress ``size`` bytes of :func:`xz`."""
    return bytes(lzma.decompress(data, **_xz(size)))


def zstd(data: bytes, dictionary: bytes = b"") -> bytes:
    """Compress with zstd at its strongest level, with a window for all data, without header and checksum."""
    return bytes(_zstd(dictionary).compress(data))


@functools.lru_cache(maxsize=2)
def _zstd(dictionary: bytes) -> Any:
    """Return a compressor; the dictionary is raw content before the data."""
    with extra("compression"):
        import zstandard
    about = zstandard.ZstdCompressionParameters.from_level(
        22, window_log=27, format=zstandard.FORMAT_ZSTD1_MAGICLESS, write_content_size=False, write_checksum=False
    )
    if not dictionary:
        return zstandard.ZstdCompressor(compression_params=about)
    before = zstandard.ZstdCompressionDict(dictionary, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    before.precompute_compress(compression_params=about)  # once, not for every file
    return zstandard.ZstdCompressor(compression_params=about, dict_data=before)


def unzstd(data: bytes, size: int) -> bytes:
    """Decompress ``size`` bytes of :func:`zstd` without a dictionary."""
    with extra("compression"):
        import zstandard
    tool = zstandard.ZstdDecompressor(format=zstandard.FORMAT_ZSTD1_MAGICLESS, max_window_size=1 << 27)
    return bytes(tool.decompress(data, max_output_size=size))


def sizes(corpus: Corpus, files: Sequence[Ints]) -> dict[str, list[int]]:
    """Return the bytes of each file alone, or of all in one, in the format with the smallest total."""
    before = {form: form(corpus.train[-DICTIONARY:], corpus)[-DICTIONARY:] for form in FORMATS}
    together = [np.concatenate(files)]
    tools: dict[str, tuple[Callable[[bytes, bytes], bytes], Sequence[Ints]]] = {
        "xz_each": (lambda data, _: xz(data), files),
        "zstd_each": (lambda data, _: zstd(data), files),
        "zstd_each_dictionary": (zstd, files),
        "xz_all": (lambda data, _: xz(data), together),
        "zstd_all": (lambda data, _: zstd(data), together),
        "zstd_all_dictionary": (zstd, together),
    }
    return {
        name: min(([len(tool(form(part, corpus), before[form])) for part in parts] for form in FORMATS), key=sum)
        for name, (tool, parts) in tools.items()
    }


def order_0(corpus: Corpus, files: Sequence[Ints]) -> int:
    """Return the bytes of all files with the frequencies of the training files."""
    tree = catnat.huffman(corpus.counts)
    return len(coding.encode(tree, np.zeros(tree.num_nodes), np.concatenate(files), "sigmoid"))


# ---- times -----------------------------------------------------------------------------------------------------------


def _timed(function: Callable[..., Returned], *arguments: Any) -> tuple[Returned, float]:
    """Return the result of a function, and the processor time that it took."""
    began = time.process_time()
    found = function(*arguments)
    return found, time.process_time() - began


def tree_times(head: TreeHead, features: Tensor, target: Tensor) -> tuple[float, float]:
    """Return the seconds to encode and to decode tokens with given features, in pieces.

    The fingerprint of all weights, which an archive needs once, is not included.
    """
    pieces = list(zip(torch.split(features, ROWS), torch.split(target, ROWS), strict=True))
    encoder = coding.Encoder(head.layer)

    def write_all() -> None:
        for rows, classes in pieces:
            encoder.write(rows, classes)

    _, writing = _timed(write_all)
    decoder = coding.Decoder(head.layer, encoder.finish())
    found, reading = _timed(lambda: [decoder.read(rows, len(rows)) for rows, _ in pieces])
    assert np.array_equal(np.concatenate(found), target.numpy())
    return writing, reading


@torch.no_grad()
def softmax_times(head: Softmax, features: Tensor, target: Tensor) -> tuple[float, float]:
    """Return them for all probabilities of a softmax and the categorical model of the same range coder."""
    family = constriction.stream.model.Categorical(perfect=False)  # the fast one

    def write_all() -> Any:
        encoder = constriction.stream.queue.RangeEncoder()
        for rows, classes in zip(torch.split(features, ROWS), torch.split(target, ROWS), strict=True):
            encoder.encode(classes.int().numpy(), family, head.scores(rows).softmax(1).numpy())
        return encoder.get_compressed()

    def read_all(words: Any) -> Tensor:
        decoder = constriction.stream.queue.RangeDecoder(words)
        parts = [decoder.decode(family, head.scores(rows).softmax(1).numpy()) for rows in torch.split(features, ROWS)]
        return torch.from_numpy(np.concatenate(parts))

    words, writing = _timed(write_all)
    found, reading = _timed(read_all, words)
    assert torch.equal(found.long(), target)
    return writing, reading


def _times_of_heads(model: Model, corpus: Corpus) -> dict[str, float]:
    """Return both heads' times on the same features; training does not change that of a softmax."""
    chosen = windows(corpus, TIMED_WINDOWS)
    with torch.no_grad():
        features, _ = model.features(chosen[:, :-1])
    target = chosen[:, 1:].flatten()
    assert isinstance(model.head, TreeHead)
    found = {
        "tree": tree_times(model.head, features, target),
        "softmax": softmax_times(Softmax(features.shape[1], corpus.counts), features, target),
    }
    return {
        f"{name}_{way}": 1e6 * seconds / len(target)
        for name, both in found.items()
        for way, seconds in zip(("encode", "decode"), both, strict=True)
    }


def _times_of_compressors(corpus: Corpus, files: Sequence[Ints]) -> dict[str, float]:
    data = as_varints(np.concatenate(files), corpus)
    found = {}
    for name, there, back in (("xz", xz, unxz), ("zstd", zstd, unzstd)):
        packed, found[f"{name}_encode"] = _timed(there, data)
        unpacked, found[f"{name}_decode"] = _timed(back, packed, len(data))
        assert unpacked == data
    return {name: 1e6 * seconds / sum(map(len, files)) for name, seconds in found.items()}


# ---- the measurement -------------------------------------------------------------------------------------------------


def measure(model: Model, corpus: Corpus, files: Sequence[Ints]) -> dict[str, float]:
    """Compress all files, and return sizes and times; a file that is decoded to other tokens raises an error."""
    end, tokens = corpus.words.index(END), sum(map(len, files))
    data, writing = _timed(encode, model, files, end)
    found, reading = _timed(decode, model, data, end)
    for number, (mine, theirs) in enumerate(zip(found, files, strict=True)):
        if not np.array_equal(mine, theirs):
            raise RuntimeError(f"File {number} was decoded to other tokens than it has.")
    print(f"{len(files)} files came back, {8 * len(data) / tokens:.3f} bits a token", flush=True)
    ideal, others = bits(model, files, end), sizes(corpus, files)
    total = {"order_0": order_0(corpus, files), "model": len(data)} | {name: sum(each) for name, each in others.items()}
    alone = {name: 8.0 * np.array(others[name]) for name in ("xz_each", "zstd_each_dictionary")}
    lengths = np.array([len(file) for file in files])
    return {
        **{f"bits_{name}": 8 * size / tokens for name, size in total.items()},
        "bits_ideal": float(ideal.sum()) / tokens,
        "files": float(len(files)),
        "tokens": float(tokens),
        "bytes": float(len(data)),
        "smaller_than_xz": float((ideal < alone["xz_each"]).mean()),
        "smaller_than_dictionary": float((ideal < alone["zstd_each_dictionary"]).mean()),
        **{f"median_{name}": float(np.median(each / lengths)) for name, each in ({"ideal": ideal} | alone).items()},
        "encode": 1e6 * writing / tokens,
        "decode": 1e6 * reading / tokens,
        **_times_of_compressors(corpus, files),
        **_times_of_heads(model, corpus),
    }


def record(results: Path) -> Path:
    """Train, measure, and write a record."""
    began = time.monotonic()
    plan = PRESETS["evidence"]
    run = config(HEAD, RATE, SEED, plan)
    corpus = load(plan.classes)
    torch.set_num_threads(1)
    training = Training(corpus, run)
    resume_training(training, Printing())
    about = {
        "steps": float(training.done),
        "corpus": float(corpus.fingerprint),
        "corpus_tokens": float(len(corpus.train)),
    }
    metrics = measure(training.model, corpus, files_of(corpus.validation, corpus.words.index(END))) | about
    kept = Record.of(
        Outcome(metrics, {}),
        run | {"experiment": "compression"},
        experiment="compression",
        stage="final",
        seconds=time.monotonic() - began,
        versions=versions("constriction", "zstandard"),
        commit=commit(),
    )
    return write(kept, results)


# ---- the report ------------------------------------------------------------------------------------------------------


def report(results: Path, output: Path) -> None:
    """Write the tables and the figure of a record to a folder."""
    records, damaged = load_all(results)
    if len(records) != 1 or damaged:
        raise ValueError(
            f"{results} has {len(records)} records and {len(damaged)} damaged files, but one record is needed: "
            "`measure` writes it."
        )
    found = records[0].metrics
    output.mkdir(parents=True, exist_ok=True)
    (output / "README.md").write_text(_page(records[0]), encoding="utf-8")
    save(_picture(found), output / "bits.png")


def _page(kept: Record) -> str:
    found = kept.metrics
    over = found["bits_model"] / found["bits_ideal"] - 1
    made = ", ".join(f"{name} {version}" for name, version in kept.versions.items())
    parts = (
        f"{found['files']:.0f} files, {found['tokens']:,.0f} tokens of {kept.config['classes']:,} classes, all of them "
        f"decoded and compared. The archive has {found['bytes']:,.0f} bytes, **{over:.3%} over the model's negative "
        "log-likelihood**.",
        _sizes(found),
        "![Bits a token of every compressor](bits.png)",
        f"Of the files, {found['smaller_than_xz']:.0%} have a smaller negative log-likelihood than xz needs for them "
        f"alone, and {found['smaller_than_dictionary']:.0%} than zstd needs with a dictionary. In the median file a "
        f"token has {found['median_ideal']:.2f} bits with the model, {found['median_xz_each']:.2f} with xz and "
        f"{found['median_zstd_each_dictionary']:.2f} with zstd and a dictionary.",
        "Microseconds of a token, processor time of one thread:",
        _times(found),
        f"Training: {kept.config['seconds']:g} s of processor time, {found['steps']:,.0f} steps. Commit "
        f"`{(kept.commit or 'unknown')[:12]}`, {made}.",
    )
    return "\n\n".join(parts) + "\n"


def _sizes(found: dict[str, float]) -> str:
    rows = [(title, f"{found[f'bits_{name}']:.3f}") for name, title in METHODS.items()]
    rows.append(("*the model's negative log-likelihood*", f"{found['bits_ideal']:.3f}"))
    return markdown_table(["compressor", "bits a token"], rows)


def _times(found: dict[str, float]) -> str:
    titles = {
        "": "all files: the model and catnat.coding",
        "xz_": "all files: xz",
        "zstd_": "all files: zstd",
        "tree_": "head and coder alone: tree",
        "softmax_": "head and coder alone: softmax, all probabilities",
    }
    ways = ("encode", "decode")
    rows = [(title, *(f"{found[f'{name}{way}']:,.2f}" for way in ways)) for name, title in titles.items()]
    return markdown_table(["", *ways], rows)


def _picture(found: dict[str, float]) -> Figure:
    figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
    axes = figure.subplots()
    shades = [PALETTE["sigmoid"] if name == "model" else "silver" for name in METHODS]
    drawn = axes.barh(list(METHODS.values()), [found[f"bits_{name}"] for name in METHODS], color=shades)
    axes.bar_label(drawn, fmt="%.2f", padding=3, fontsize=9)
    axes.axvline(found["bits_ideal"], color="black", lw=1, ls="--", label="the model's negative log-likelihood")
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlabel("bits a token")
    figure.legend(loc="outside lower right", fontsize=9)
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write a record, or report on it."""
    parser = argparse.ArgumentParser(
        prog="python -m catnat_experiments.tasks.identifiers.compress", description=main.__doc__
    )
    parser.add_argument("what", choices=("measure", "report"))
    parser.add_argument("--results", type=Path, default=Path("results/compression"), help="the folder of the record")
    parser.add_argument("--output", type=Path, default=Path("reports/compression"), help="the folder of the report")
    given = parser.parse_args(arguments)
    if given.what == "measure":
        print(record(given.results))
    else:
        report(given.results, given.output)


if __name__ == "__main__":
    main()
