"""Every float32 there is as a score: no NaN and no infinity, and how far a log-probability is from float64.

    python benchmarks/every_float32.py                 every activation, some ten minutes each
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

ROW, AT_A_TIME = 1024, 1 << 18
TINY = torch.finfo(torch.float32).tiny
PAIRS = catnat.Forest([2] * ROW)  # every score is a variable of two classes


def sigmoid(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The log-probabilities of the rarer and of the likelier branch."""
    distance = scores.abs().clamp(max=torch.finfo(torch.float32).max ** (1 / 3))
    likely = -torch.log1p(torch.exp(-distance))
    return likely - distance, likely


def natural(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    smallest = math.atan(math.sqrt(torch.finfo(torch.float32).eps))
    angle = ((math.pi - scores.abs()) / 4).clamp(min=smallest)
    return 2 * angle.sin().log(), torch.log1p(-angle.sin().square())


def fold(scores: torch.Tensor) -> torch.Tensor:
    """Where a reflected score comes to lie in the band, rounded as documented: the period is a float32 too."""
    band, period = torch.tensor(math.pi), torch.tensor(4 * math.pi)
    near = scores.clamp(-(period * 2**18), period * 2**18)
    near = near - (near / period).round() * period
    return torch.where(
        near > band, near + 2 * (band - near), torch.where(near < -band, near + 2 * (-band - near), near)
    )


# An activation, where its scores come to lie, and the log-probabilities there.
REFERENCES = {
    "sigmoid": (ct.sigmoid(), torch.clone, sigmoid),
    "natural": (ct.natural(), torch.clone, natural),
    "natural, reflected": (ct.natural(boundary="reflect"), fold, natural),
}


def check(name: str, stride: int) -> None:
    activation, place, reference = REFERENCES[name]
    worst, where, wrong, seen = 0.0, 0.0, 0, 0
    for first in range(0, 1 << 31, AT_A_TIME * stride):
        bits = torch.arange(first, first + AT_A_TIME * stride, stride).clamp(max=(1 << 31) - 1)
        magnitude = bits.to(torch.int32).view(torch.float32)
        magnitude = torch.where(magnitude.isfinite(), magnitude, 0)
        for scores in (magnitude, -magnitude):
            leaf = scores.view(-1, ROW).requires_grad_()
            leaves = ct.MultiCatnat(leaf, PAIRS, activation).logits.view(-1, 2)
            (gradient,) = torch.autograd.grad(leaves, leaf, torch.tensor([1.0, -1.0]).expand_as(leaves))
            wrong += int((~leaves.isfinite()).sum() + (leaves > 0).sum() + (~gradient.isfinite()).sum())
            placed = place(scores)
            rare, likely = reference(placed.double())
            up = placed.signbit().logical_not()
            wanted = torch.stack([torch.where(up, rare, likely), torch.where(up, likely, rare)], -1)
            # Beyond the smallest normal number there are no relative errors.
            error = ((leaves.detach() - wanted).abs() / wanted.abs().clamp(min=TINY)).amax(-1)
            seen += len(scores)
            at = int(error.argmax())
            if float(error[at]) > worst:
                worst, where = float(error[at]), float(scores[at])
    print(f"{name}: {seen} scores, {wrong} not finite or above 0, relative error at most {worst:.2e} (at {where!r})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stride", type=int, default=1)
    stride = parser.parse_args().stride
    print(ct.kernels())
    for name in REFERENCES:
        check(name, stride)


if __name__ == "__main__":
    main()
