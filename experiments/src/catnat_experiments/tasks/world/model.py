"""The recurrent state-space model, its loss, and how it is evaluated."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch import distributions as td
from torch.nn import functional as F

import catnat.torch as ct
from catnat_experiments.common.latents import classes_alive
from catnat_experiments.common.parameterizations import Catnat, Parameterization
from catnat_experiments.tasks.world.environment import PIXELS

# ---- the model -------------------------------------------------------------------------------------------------------

UNIMIX = 0.01
REPRESENTATION = 0.1
"""The weight of the half of the KL divergence that teaches the posterior; the half that teaches the prior has 1."""


FREE_NATS = 0.1
"""DreamerV3 has 1, for frames that tell far more. Ours tell half a nat on average: of a prior that may miss by a whole
one nothing would be asked."""


def latent(kind: Parameterization, scores: Tensor) -> td.Independent[td.OneHotCategorical]:
    """The distribution of N one-hot vectors, (..., N, K), from scores (..., N, scores), with unimix."""
    if isinstance(kind, Catnat):
        each: td.OneHotCategorical = ct.OneHotCatnatStraightThrough(
            scores, activation=kind.activation, unimix=UNIMIX, validate_args=False
        )
    else:
        probs = kind.probs(scores)
        mixed = (1 - UNIMIX) * probs + UNIMIX / probs.shape[-1]
        each = td.OneHotCategoricalStraightThrough(probs=mixed, validate_args=False)
    return td.Independent(each, 1, validate_args=False)


class Beliefs(NamedTuple):
    """What a model thinks of each of some frames; all start with (time, sequences)."""

    state: Tensor  # hidden: h
    drawn: Tensor  # N * K: z, a draw from the posterior
    prior: Tensor  # N, scores
    posterior: Tensor  # N, scores


class WorldModel(nn.Module):
    """A recurrent state-space model."""

    def __init__(self, kind: Parameterization, latents: int, classes: int, hidden: int) -> None:
        super().__init__()
        self.kind, self.hidden, self.width = kind, hidden, latents * classes
        shape = (latents, kind.num_scores(classes))
        self.embed = nn.Sequential(nn.Linear(PIXELS, hidden), nn.ReLU())
        self.recurrent = nn.GRUCell(self.width, hidden)
        self.prior = nn.Sequential(_two_layers(hidden, hidden, math.prod(shape)), nn.Unflatten(-1, shape))
        self.posterior = nn.Sequential(_two_layers(2 * hidden, hidden, math.prod(shape)), nn.Unflatten(-1, shape))
        self.decoder = _two_layers(hidden + self.width, hidden, PIXELS)

    def observe(self, frames: Tensor, generator: torch.Generator) -> Beliefs:
        """Follow frames (time, sequences, pixels), one draw from the posterior at each."""
        state, drawn = frames.new_zeros(frames.shape[1], self.hidden), frames.new_zeros(frames.shape[1], self.width)
        found = []
        for seen in self.embed(frames):
            state = self.recurrent(drawn, state)
            posterior = self.posterior(torch.cat((state, seen), -1))
            drawn = self._draw(posterior, generator)
            found.append((state, drawn, posterior))
        states, draws, posteriors = (torch.stack(part) for part in zip(*found, strict=True))
        return Beliefs(states, draws, self.prior(states), posteriors)

    def imagine(self, state: Tensor, drawn: Tensor, steps: int, generator: torch.Generator) -> Tensor:
        """Go on without frames, one draw from the prior at each step: the log-odds of pixels."""
        found = []
        for _ in range(steps):
            state = self.recurrent(drawn, state)
            drawn = self._draw(self.prior(state), generator)
            found.append(self.decode(state, drawn))
        return torch.stack(found)

    def decode(self, state: Tensor, drawn: Tensor) -> Tensor:
        """The log-odds of pixels."""
        logits: Tensor = self.decoder(torch.cat((state, drawn), -1))
        return logits

    def _draw(self, scores: Tensor, generator: torch.Generator) -> Tensor:
        return ct.estimators.straight_through(latent(self.kind, scores), generator=generator).flatten(-2)


def _two_layers(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


# ---- the loss --------------------------------------------------------------------------------------------------------


def balanced_divergence(
    kind: Parameterization, posterior: Tensor, prior: Tensor, free_nats: float
) -> tuple[Tensor, Tensor]:
    r"""The term of DreamerV3's loss, and the divergence itself: from (..., N, scores) to (...), summed over variables.

    .. math:: \max(f, \mathrm{KL}(\mathrm{stop}(q) \,\|\, p)) + 0.1 \max(f, \mathrm{KL}(q \,\|\, \mathrm{stop}(p)))

    The first half teaches the prior to predict, the second the posterior to be predictable. Below f free nats neither
    learns. Both halves have one value, so it is computed once: with the gradient of q, and not of p, made smaller.
    """
    fixed = posterior.detach()
    divergence = td.kl_divergence(latent(kind, fixed + REPRESENTATION * (posterior - fixed)), latent(kind, prior))
    halves = divergence.clamp(min=free_nats)
    return halves + REPRESENTATION * halves.detach(), divergence


class Loss(NamedTuple):
    """Means over all frames of a batch."""

    objective: Tensor  # what is minimized
    reconstruction: Tensor
    kl: Tensor


def loss(model: WorldModel, frames: Tensor, free_nats: float, generator: torch.Generator) -> tuple[Loss, Beliefs]:
    """Of frames (time, sequences, pixels)."""
    beliefs = model.observe(frames, generator)
    logits = model.decode(beliefs.state, beliefs.drawn)
    reconstruction = F.binary_cross_entropy_with_logits(logits, frames, reduction="none").sum(-1).mean()
    term, kl = balanced_divergence(model.kind, beliefs.posterior, beliefs.prior, free_nats)
    return Loss(reconstruction + term.mean(), reconstruction, kl.mean()), beliefs


# ---- evaluation ------------------------------------------------------------------------------------------------------

CONTEXT, AHEAD = 5, 15
"""Frames that a model sees before it predicts, and frames that it predicts."""
ROWS = 1600
"""Rollouts that are computed at a time: memory stays small."""


@torch.no_grad()
def rollout_loss(model: WorldModel, frames: Tensor, samples: int, seed: int) -> Tensor:
    """The log-loss of open-loop predictions, nats a frame, for each step ahead.

    A pixel's probability is its mean over some rollouts: its draws from the posterior while there are frames, and from
    the prior afterwards.

    Args:
        model: Any.
        frames: (CONTEXT + AHEAD, sequences, pixels).
        samples: Rollouts for each sequence.
        seed: Of their random numbers.
    """
    generator, found = torch.Generator().manual_seed(seed), torch.zeros(AHEAD, dtype=torch.float64)
    for some in torch.split(frames, max(1, ROWS // samples), 1):
        seen = model.observe(some[:CONTEXT].repeat(1, samples, 1), generator)
        logits = model.imagine(seen.state[-1], seen.drawn[-1], AHEAD, generator)
        probs = logits.double().sigmoid().view(AHEAD, samples, -1, PIXELS).mean(1)
        found += log_loss(probs, some[CONTEXT:]).sum(1)
    return found / frames.shape[1]


def log_loss(probs: Tensor, frames: Tensor) -> Tensor:
    """Summed over pixels. A pixel that was certain and wrong costs 100 nats."""
    return F.binary_cross_entropy(probs, frames.to(probs), reduction="none").sum(-1)


@torch.no_grad()
def belief_metrics(model: WorldModel, frames: Tensor, seed: int) -> dict[str, float]:
    """The evidence lower bound of some frames, and what the distributions of the latents look like."""
    found, beliefs = loss(model, frames, 0.0, torch.Generator().manual_seed(seed))
    posterior, prior = (latent(model.kind, scores).base_dist.probs for scores in (beliefs.posterior, beliefs.prior))
    mean = posterior.mean((0, 1))
    return {
        "loss": float(found.reconstruction + found.kl),
        "reconstruction": float(found.reconstruction),
        "kl": float(found.kl),
        "entropy": float(torch.special.entr(posterior).sum(-1).mean()),
        "prior_entropy": float(torch.special.entr(prior).sum(-1).mean()),
        "dead": float(model.kind.saturated(beliefs.posterior).double().mean()),
        "classes_alive": classes_alive(mean),
    }
