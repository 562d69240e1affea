"""The fused kernels on a GPU: are the values right, and what do they cost? python benchmarks/gpu.py

Values and gradients against float64 on the CPU, extreme scores, frequencies of draws; then times, forward and backward,
beside torch's log_softmax. A minute, and a few more the first time, to compile. CATNAT_KERNELS=0 before it measures the
plain operations. These kernels were written without a GPU: please send what it prints. The exit status is 1 if a value
is wrong.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import warnings

import numpy as np
import torch
from run import ACTIVATIONS, Function, Job, forward_backward
from torch import Tensor
from torch.nn import functional as F

import catnat
import catnat.torch as ct

os.environ.setdefault("CATNAT_TRITON", "1")  # off elsewhere until somebody has seen this script pass

SIZES = ((65536, 32), (7680, 32), (4096, 1024), (256, 32768))
TREES = {
    **{f"balanced({k})": catnat.balanced(k) for k in (18, 1000, 32768)},
    "huffman, 1000 classes": catnat.huffman(1 / np.arange(1.0, 1001)),
}
KINDS = {**ACTIVATIONS, "reflected": ct.natural(boundary="reflect")}
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


# ---- values ----


def values_and_gradient(scores: Tensor, tree: catnat.Tree, activation: ct.Activation, grad: Tensor) -> list[Tensor]:
    leaf = scores.detach().requires_grad_()
    values = ct.log_catnat(leaf, tree, activation)
    values.backward(grad)
    assert leaf.grad is not None
    return [values.detach().double().cpu(), leaf.grad.double().cpu()]


def errors(tree: catnat.Tree, activation: ct.Activation, dtype: torch.dtype, device: torch.device) -> list[float]:
    """The largest relative error of a log-probability, and of a gradient relative to the largest one.

    Of scores inside of every band: elsewhere the floor, that of the dtype, is what comes out.
    """
    spread = 2.4 if tree.kind == "balanced" else 0.35
    scores = spread * (2 * torch.rand(65, tree.num_nodes, dtype=dtype) - 1)
    grad = torch.randn(65, tree.num_classes, dtype=dtype)
    got = values_and_gradient(scores.to(device), tree, activation, grad.to(device))
    wanted = values_and_gradient(scores.double(), tree, activation, grad.double())
    differences = [(g - w).abs() for g, w in zip(got, wanted, strict=True)]
    return [float((differences[0] / wanted[0].abs()).max()), float(differences[1].max() / wanted[1].abs().max())]


def extreme_scores_are_finite(tree: catnat.Tree, activation: ct.Activation, device: torch.device) -> bool:
    limits = torch.finfo(torch.float32)
    sizes = torch.tensor([0.0, limits.tiny, limits.eps, 3.1415925, 3.1415927, 90.0, 1e4, 1e30, limits.max])
    scores = torch.cat([sizes, -sizes])[:, None].expand(-1, tree.num_nodes).contiguous().to(device)
    grad = torch.ones(len(scores), tree.num_classes, device=device)
    return all(bool(found.isfinite().all()) for found in values_and_gradient(scores, tree, activation, grad))


def largest_deviation(tree: catnat.Tree, activation: ct.Activation, device: torch.device) -> float:
    """How far the frequency of a class in a million draws is from its probability, in standard deviations."""
    scores, draws = torch.randn(tree.num_nodes, device=device), 1_000_000
    counts = ct.sample(scores, tree, activation, sample_shape=(draws,)).bincount(minlength=tree.num_classes)
    p = ct.catnat(scores, tree, activation).double()
    return float(((counts - draws * p).abs() / (draws * p * (1 - p)).clamp(min=1).sqrt()).max())


def check_values(device: torch.device) -> bool:
    """Print what was found, and return whether all of it is right."""
    passed = True
    print(f"\n{'tree':24}{'activation':12}{'dtype':10}{'values':>10}{'gradients':>11}")
    for name, tree in TREES.items():
        for kind, activation in KINDS.items():
            for dtype, tolerance in TOLERANCE.items():
                found = errors(tree, activation, dtype, device)
                right = max(found) < tolerance
                passed &= right
                print(
                    f"{name:24}{kind:12}{str(dtype).removeprefix('torch.'):10}{found[0]:10.1e}{found[1]:11.1e}"
                    f"{'' if right else '   WRONG'}"
                )
            if not extreme_scores_are_finite(tree, activation, device):
                passed = False
                print(f"{name:24}{kind:12}extreme scores give NaN or inf   WRONG")
            if tree.num_classes <= 1000 and (sigmas := largest_deviation(tree, activation, device)) > 6:
                passed = False
                print(f"{name:24}{kind:12}frequencies are off by {sigmas:.1f} standard deviations   WRONG")
    return passed


# ---- times ----


def milliseconds(job: Job, device: torch.device, repeats: int = 20) -> float:
    """Of one call, in a row of calls that keeps the device busy."""
    start = time.perf_counter()
    for _ in range(repeats):
        job()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start) / repeats


def compare_times(device: torch.device) -> None:
    print(f"\n{'forward + backward':24}{'log_softmax':>14}" + "".join(f"{kind:>24}" for kind in KINDS))
    for rows, classes in SIZES:
        grad = torch.randn(rows, classes, device=device)
        softmax: Function = lambda x: F.log_softmax(x, -1)  # noqa: E731
        jobs = [forward_backward(softmax, torch.randn(rows, classes, device=device), grad)]
        for activation in KINDS.values():
            function: Function = lambda s, a=activation: ct.log_catnat(s, activation=a)  # noqa: E731
            jobs.append(forward_backward(function, torch.randn(rows, classes - 1, device=device), grad))
        for job in jobs:  # compile
            milliseconds(job, device, repeats=3)
        rounds = [[milliseconds(job, device) for job in jobs] for _ in range(7)]
        softmax_time, *ours = (statistics.median(times) for times in zip(*rounds, strict=True))
        print(
            f"{f'{rows}x{classes}':24}{softmax_time:11.3f} ms"
            + "".join(f"{time:11.3f} ms {time / softmax_time:5.2f} times" for time in ours)
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=torch.device, default="cuda", help="another one only to try this script")
    device: torch.device = parser.parse_args().device
    if device.type == "cuda" and not torch.cuda.is_available():
        print(f"torch {torch.__version__} sees no GPU here: nothing was measured.")
        return 1
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    print(f"{where}, torch {torch.__version__}, catnat {catnat.__version__}, kernels: {ct.kernels()[device.type]}")
    torch.manual_seed(0)
    warnings.simplefilter("ignore", catnat.EdgeWarning)  # of the tree that is not balanced
    passed = check_values(device)
    compare_times(device)
    print("\nall values are right" if passed else "\nthere are wrong values above")
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
