"""The examples outside of the gallery, which need data that a checkout does not have."""

import os
import pathlib
import re
import subprocess
import sys

import matplotlib.image
import pytest

ROOT = pathlib.Path(__file__).parents[2]
FILES = ["train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz"]


def mnist():
    """The folder with MNIST's original files, or skip."""
    if "CATNAT_DATA" not in os.environ:
        pytest.skip("needs MNIST: set CATNAT_DATA to a folder whose folder `mnist` holds the original files")
    folder = pathlib.Path(os.environ["CATNAT_DATA"]) / "mnist"
    missing = [name for name in FILES if not (folder / name).exists()]
    if missing:
        pytest.skip(f"needs MNIST: {', '.join(missing)} not in {folder}")
    return folder


def jax_vae(steps, picture):
    """The bounds that the script prints, before the first step and after the last."""
    for library in ("flax", "optax"):
        pytest.importorskip(library)
    script, folder = ROOT / "examples" / "mnist" / "jax_vae.py", mnist()
    command = [sys.executable, str(script), str(folder), "--steps", str(steps), "--picture", str(picture)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    return [float(elbo) for elbo in re.findall(r"ELBO +(-[0-9.]+)", done.stdout)]


@pytest.mark.slow
def test_jax_vae_learns(tmp_path):
    first, last = jax_vae(200, tmp_path / "vae.png")
    assert first < -500  # at the start every pixel costs log 2, 543 nats in all
    assert -200 < last < -100  # without latents the mean picture is the best: 206 nats
    picture = matplotlib.image.imread(tmp_path / "vae.png")
    assert picture.shape[:2] == (3 * 4 * 28, 3 * 12 * 28)
    assert picture[..., 0].std() > 0.1


def test_jax_vae_is_short():
    lines = (ROOT / "examples" / "mnist" / "jax_vae.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) < 80
