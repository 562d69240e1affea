"""Every float32 there is as a score: no NaN and no infinity, and how far a log-probability is from float64.

    python benchmarks/every_float32.py                 every activation, some minutes each
    python benchmarks/every_float32.py --stride 1009   every 1009th

With the kernels of catnat-kernels installed it tests them, with ``CATNAT_KERNELS=0`` the plain operations. Prints, for
each activation, the largest relative error of the log-probability of either branch against a formula in float64.
"""

from __future__ import annotations

import argparse
import math

import torch

import catnat
import catnat.torch as ct

ROW, AT_A_TIME = 1024, 1 << 17
TINY, LARGEST = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max ** (1 / 3)
PAIRS = catnat.Forest([2] * ROW)  # every score is a variable of two classes
WEIGHTS = torch.tensor([1.0, -1.0]).repeat(AT_A_TIME, 1)


def sigmoid(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The log-probabilities of no and of yes."""
    logit = scores.clamp(-LARGEST, LARGEST)
    shared = logit.abs().neg_().exp_().log1p_()
    return logit.neg().clamp_(max=0).sub_(shared), logit.clamp(max=0).sub_(shared)


def natural(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    smallest = math.atan(math.sqrt(torch.finfo(torch.float32).eps))
    no, yes = ((math.pi + side) / 4 for side in (-scores, scores))
    logs = (angle.clamp_(smallest, math.pi / 2 - smallest).sin_().log_().mul_(2) for angle in (no, yes))
    return next(logs), next(logs)


# An activation, and the log-probabilities by its definition.
REFERENCES = {"sigmoid": (ct.sigmoid(), sigmoid), "natural": (ct.natural(), natural)}


def evaluate(scores: torch.Tensor, activation: ct.Activation) -> tuple[torch.Tensor, bool]:
    """The log-probabilities of no and yes, (scores, 2), and whether they and their gradients are as they must be."""
    leaf = scores.view(-1, ROW).requires_grad_()
    leaves = ct.MultiCatnat(leaf, PAIRS, activation).logits.view(-1, 2)
    (gradient,) = torch.autograd.grad(leaves, leaf, WEIGHTS[: len(leaves)])
    leaves = leaves.detach()
    (lowest, highest), bounds = leaves.aminmax(), torch.stack(gradient.aminmax())  # both are NaN if anything is
    return leaves, bool(lowest.isfinite() & (highest <= 0) & bounds.isfinite().all())


def check(name: str, stride: int) -> None:
    activation, reference = REFERENCES[name]
    worst, where, seen, wrong = 0.0, 0.0, 0, 0
    for first in range(0, 1 << 31, AT_A_TIME * stride):
        bits = torch.arange(first, first + AT_A_TIME * stride, stride).clamp_(max=(1 << 31) - 1)
        magnitude = bits.to(torch.int32).view(torch.float32)
        magnitude = torch.where(magnitude.isfinite(), magnitude, 0)
        wanted = torch.stack(reference(magnitude.double()), -1)
        for scores, exact in ((magnitude, wanted), (-magnitude, wanted.flip(-1))):  # their branches are each other's
            leaves, is_good = evaluate(scores, activation)
            # Beyond the smallest normal number there are no relative errors.
            errors = leaves.double().sub_(exact).abs_().div_(exact.clamp_(max=-TINY))
            wrong, seen, least = wrong + (not is_good), seen + len(scores), float(errors.min())
            if -least > worst:
                worst, where = -least, float(scores[errors.argmin() // 2])
    print(
        f"{name}: {seen} scores; {wrong} blocks of {AT_A_TIME} with a log-probability or gradient that is NaN, infinite"
        f" or above 0; relative error at most {worst:.2e} (at {where!r})",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stride", type=int, default=1)
    stride = parser.parse_args().stride
    print(ct.kernels())
    for name in REFERENCES:
        check(name, stride)


if __name__ == "__main__":
    main()
