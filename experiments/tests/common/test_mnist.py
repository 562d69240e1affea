"""MNIST: the original files, their hashes, the split, and errors that say what to do."""

from __future__ import annotations

import functools
import gzip
import http.server
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from catnat_experiments.common import mnist


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of our own, with real files in it."""
    (tmp_path / "mnist").mkdir()
    for name in mnist.HASHES:
        shutil.copy(mnist._path(name), tmp_path / "mnist" / name)
    monkeypatch.setenv(mnist.FOLDER, str(tmp_path))
    return tmp_path / "mnist"


def test_the_parts_are_those_of_the_files() -> None:
    grey = mnist.load("grey")
    assert [tuple(part.shape) for part in (grey.train, grey.validation, grey.test)] == [
        (55_000, 784),
        (5_000, 784),
        (10_000, 784),
    ]
    for name, part in (("train", torch.cat((grey.train, grey.validation))), ("t10k", grey.test)):
        content = gzip.decompress(mnist._path(f"{name}-images-idx3-ubyte.gz").read_bytes())
        assert part.numpy().tobytes() == content[16:]


def test_binary_pixels_are_above_half() -> None:
    grey, binary = mnist.load("grey"), mnist.load("binary")
    some = grey.floats(grey.test[:500])
    assert some.min() == 0
    assert some.max() == 1
    assert torch.equal(binary.floats(binary.test[:500]), (some > 0.5).float())
    assert np.isin(binary.train[:500].numpy(), (0, 1)).all()


def test_images_are_read_once() -> None:
    assert mnist.load("binary") is mnist.load("binary")


def test_unknown_pixels_are_refused() -> None:
    with pytest.raises(ValueError, match='"grey" or "binary"'):
        mnist.load("colour")  # type: ignore[arg-type]


def test_a_changed_file_is_refused(folder: Path) -> None:
    path = folder / "t10k-images-idx3-ubyte.gz"
    assert len(mnist._checked(path.name)) == path.stat().st_size
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is not the original file: its SHA-256 differs"):
        mnist._checked(path.name)


def test_a_missing_file_is_an_error_that_says_where_it_belongs(folder: Path) -> None:
    (folder / "t10k-images-idx3-ubyte.gz").unlink()
    with pytest.raises(FileNotFoundError, match=r"mnist, or unset CATNAT_DATA to download them"):
        mnist._checked("t10k-images-idx3-ubyte.gz")


def test_without_a_folder_the_files_are_downloaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With real files behind an address of this machine."""
    served = mnist._path("t10k-images-idx3-ubyte.gz").parent
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Silent, directory=str(served))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.delenv(mnist.FOLDER, raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setattr(mnist, "ADDRESS", f"http://127.0.0.1:{server.server_port}/")
        path = mnist._path("t10k-images-idx3-ubyte.gz")
        assert tmp_path in path.parents
        assert path.read_bytes() == (served / path.name).read_bytes()
        server.shutdown()
    assert mnist._path(path.name) == path  # found again, though nobody answers any more
    path.unlink()
    with pytest.raises(ConnectionError, match="could not be downloaded"):
        mnist._path(path.name)


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass
