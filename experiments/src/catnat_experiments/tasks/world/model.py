"""The recurrent state-space model, its loss and its evaluation."""

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
"""The weight of the KL divergence that trains the posterior; that for the prior has weight 1."""


FREE_NATS = 0.1
"""The free nats. DreamerV3 has 1, for frames with much more information. Ours have half a nat on average, so with 1 the
prior would not be trained."""


def latent(kind: Parameterization, scores: Tensor) -> td.Independent[td.OneHotCategorical]:
    """Return the distribution of N one-hot vectors, (..., N, K), from scores (..., N, scores), with unimix."""
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
    """The states and latents of a model for some frames; all shapes start with (time, sequences)."""

    state: Tensor  # hidden: h
    drawn: Tensor  # N * K: z, a sample from the posterior
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
        """Return the states and latents for frames (time, sequences, pixels), with one posterior sample per frame."""
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
        """Return the log-odds of pixels in the next steps, without their frames and with one prior sample per step."""
        found = []
        for _ in range(steps):
            state = self.recurrent(drawn, state)
            drawn = self._draw(self.prior(state), generator)
            found.append(self.decode(state, drawn))
        return torch.stack(found)

    def decode(self, state: Tensor, drawn: Tensor) -> Tensor:
        """Return the log-odds of pixels."""
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
    r"""Return the KL term of DreamerV3's loss, and the divergence: (..., N, scores) to (...), summed over variables.

    .. math:: \max(f, \mathrm{KL}(\mathrm{stop}(q) \,\|\, p)) + 0.1 \max(f, \mathrm{KL}(q \,\|\, \mathrm{stop}(p)))

    The first part trains the prior p to predict, the second the posterior q to be predictable. Below f free nats
    neither is trained. Both parts have the same value, so it is computed once, with 0.1 of the gradient in q.
    """
    fixed = posterior.detach()
    divergence = td.kl_divergence(latent(kind, fixed + REPRESENTATION * (posterior - fixed)), latent(kind, prior))
    halves = divergence.clamp(min=free_nats)
    return halves + REPRESENTATION * halves.detach(), divergence


class Loss(NamedTuple):
    """The loss and its parts, means over all frames of a batch."""

    objective: Tensor  # minimized in training
    reconstruction: Tensor
    kl: Tensor


def loss(model: WorldModel, frames: Tensor, free_nats: float, generator: torch.Generator) -> tuple[Loss, Beliefs]:
    """Return the loss of frames (time, sequences, pixels), and the states and latents for them."""
    beliefs = model.observe(frames, generator)
    logits = model.decode(beliefs.state, beliefs.drawn)
    reconstruction = F.binary_cross_entropy_with_logits(logits, frames, reduction="none").sum(-1).mean()
    term, kl = balanced_divergence(model.kind, beliefs.posterior, beliefs.prior, free_nats)
    return Loss(reconstruction + term.mean(), reconstruction, kl.mean()), beliefs


# ---- evaluation ------------------------------------------------------------------------------------------------------

CONTEXT, AHEAD = 5, 15
"""The number of frames that a model receives before it predicts, and the number that it predicts."""
ROWS = 1600
"""The number of rollouts that are computed at a time, to limit memory."""


@torch.no_grad()
def rollout_loss(model: WorldModel, frames: Tensor, samples: int, seed: int) -> Tensor:
    """Return the log-loss of open-loop predictions for each step ahead, in nats per frame.

    A pixel's probability is its mean over several rollouts. They sample from the posterior of the first CONTEXT frames,
    and from the prior afterwards.

    Args:
        model: The model.
        frames: The frames, (CONTEXT + AHEAD, sequences, pixels).
        samples: The number of rollouts for each sequence.
        seed: The seed of their random numbers.
    """
    generator, found = torch.Generator().manual_seed(seed), torch.zeros(AHEAD, dtype=torch.float64)
    for some in torch.split(frames, max(1, ROWS // samples), 1):
        seen = model.observe(some[:CONTEXT].repeat(1, samples, 1), generator)
        logits = model.imagine(seen.state[-1], seen.drawn[-1], AHEAD, generator)
        probs = logits.double().sigmoid().view(AHEAD, samples, -1, PIXELS).mean(1)
        found += log_loss(probs, some[CONTEXT:]).sum(1)
    return found / frames.shape[1]


def log_loss(probs: Tensor, frames: Tensor) -> Tensor:
    """Return the log-loss, summed over pixels. A wrong prediction with probability 1 costs 100 nats."""
    return F.binary_cross_entropy(probs, frames.to(probs), reduction="none").sum(-1)


@torch.no_grad()
def belief_metrics(model: WorldModel, frames: Tensor, seed: int) -> dict[str, float]:
    """Return the negative ELBO of some frames with its parts, and metrics of the latents."""
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
