"""catnat.torch as functions of NumPy arrays: arrays keep their dtype on the way in and out."""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from cases import ActivationCase, LawCase

import catnat
import catnat.torch as lib

Array = np.ndarray
Activation = ActivationCase | str

torch.set_num_threads(1)


@dataclasses.dataclass(frozen=True)
class Cauchit(lib.Activation):
    """A user's own activation, written against the documented protocol and nothing else."""

    def logit(self, x: torch.Tensor) -> torch.Tensor:
        # atan2 measures each side from its own end, so neither underflows; the clamp keeps the slope from overflowing.
        x, one = x.clamp(-1e15, 1e15), torch.ones_like(x)
        return torch.log(torch.atan2(one, -x)) - torch.log(torch.atan2(one, x))

    def score(self, yes: Array) -> Array:
        return np.tan(math.pi * (yes - 0.5))


@functools.cache
def build_activation(case: Activation) -> Any:
    if isinstance(case, str):
        return case
    if case.kind == "sigmoid":
        return lib.sigmoid(scaling=case.scaling)
    if case.kind == "natural":
        boundary = "clamp" if case.clamps else "reflect"
        return lib.natural(width=case.width, boundary=boundary, scaling=case.scaling)
    return Cauchit(scaling=case.scaling)


def quietly(function: Callable[..., Any]) -> Callable[..., Any]:
    """Ignore the warning about edges near zero: some rows are that case on purpose, and one test is about it."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", catnat.EdgeWarning)
            return function(*args, **kwargs)

    return call


def tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(array))  # a copy, so that nothing can write into the test's arrays


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Backend:
    name = "torch"

    # ---- values ----

    @quietly
    def catnat(self, scores: Array, tree: Any, activation: Activation, axis: int = -1) -> Array:
        return lib.catnat(tensor(scores), tree, build_activation(activation), dim=axis).numpy()

    @quietly
    def log_catnat(self, scores: Array, tree: Any, activation: Activation, axis: int = -1) -> Array:
        return lib.log_catnat(tensor(scores), tree, build_activation(activation), dim=axis).numpy()

    @quietly
    def log_prob(self, scores: Array, classes: Array, tree: Any, activation: Activation) -> Array:
        return lib.log_prob(tensor(scores), tensor(classes), tree, build_activation(activation)).numpy()

    @quietly
    def mode(self, scores: Array, tree: Any, activation: Activation) -> Array:
        return lib.mode(tensor(scores), tree, build_activation(activation)).numpy()

    @quietly
    def entropy(self, scores: Array, tree: Any, activation: Activation) -> Array:
        return lib.entropy(tensor(scores), tree, build_activation(activation)).numpy()

    @quietly
    def kl_divergence(self, p_scores: Array, q_scores: Array, tree: Any, activation: Activation) -> Array:
        return lib.kl_divergence(tensor(p_scores), tensor(q_scores), tree, build_activation(activation)).numpy()

    @quietly
    def reach(self, scores: Array, tree: Any, activation: Activation) -> Array:
        return lib.reach(tensor(scores), tree, build_activation(activation)).numpy()

    @quietly
    def saturated(self, scores: Array, tree: Any, activation: Activation) -> Array:
        return lib.saturated(tensor(scores), tree, build_activation(activation)).numpy()

    @quietly
    def fisher_diagonal(self, scores: Array, tree: Any, activation: Activation) -> Array:
        return lib.fisher_diagonal(tensor(scores), tree, build_activation(activation)).numpy()

    @quietly
    def natural_gradient(
        self, scores: Array, gradient: Array, tree: Any, activation: Activation, damping: float = 0.0
    ) -> tuple[Array, Array]:
        """The value of ``natural_gradient``, and what becomes of ``gradient`` on the way back through it."""
        native = tensor(scores).requires_grad_()
        value = lib.natural_gradient(native, tree, build_activation(activation), damping=damping)
        (replaced,) = torch.autograd.grad(value, native, tensor(gradient))
        return value.detach().numpy(), replaced.numpy()

    @quietly
    def kl_step(self, scores: Array, gradient: Array, kl: Any, tree: Any, activation: Activation) -> Array:
        wanted = tensor(kl) if isinstance(kl, np.ndarray) else kl
        return lib.kl_step(tensor(scores), tensor(gradient), wanted, tree, build_activation(activation)).numpy()

    @quietly
    def fisher_rao_distance(self, p_scores: Array, q_scores: Array, tree: Any, activation: Activation) -> Array:
        return lib.fisher_rao_distance(tensor(p_scores), tensor(q_scores), tree, build_activation(activation)).numpy()

    @quietly
    def scores_from_probs(self, probs: Array, tree: Any, activation: Activation) -> Array:
        return lib.scores_from_probs(tensor(probs), tree, build_activation(activation)).numpy()

    @quietly
    def scores_from_logits(self, logits: Array, tree: Any, activation: Activation) -> Array:
        return lib.scores_from_logits(tensor(logits), tree, build_activation(activation)).numpy()

    def loudly(self, name: str, scores: Array, tree: Any, activation: Activation) -> None:
        """Call a function and let its warnings through."""
        getattr(lib, name)(tensor(scores), tree, build_activation(activation))

    # ---- random ----

    @quietly
    def sample(
        self, scores: Array, tree: Any, activation: Activation, sample_shape: tuple[int, ...] = (), seed: int = 0
    ) -> Array:
        kind = build_activation(activation)
        drawn = lib.sample(tensor(scores), tree, kind, sample_shape=sample_shape, generator=generator(seed))
        return drawn.numpy()

    @quietly
    def sample_without_replacement(
        self, scores: Array, k: int, tree: Any, activation: Activation, seed: int = 0
    ) -> Array:
        kind = build_activation(activation)
        return lib.sample_without_replacement(tensor(scores), k, tree, kind, generator=generator(seed)).numpy()

    # ---- derivatives ----

    @quietly
    def grad(self, name: str, cotangent: Array, *args: Any, argnum: int = 0) -> Array:
        """The gradient of sum(cotangent * function) in one of the function's arguments, by default the scores."""
        native = [tensor(a) if isinstance(a, np.ndarray) else a for a in args]
        native[-1] = build_activation(native[-1])
        native[argnum].requires_grad_()
        value = getattr(lib, name)(*native)
        if value.numel() == 0:  # nothing to differentiate: torch may leave an empty result out of its graph
            return np.zeros(native[argnum].shape)
        value.backward(tensor(cotangent))
        return native[argnum].grad.numpy()

    @quietly
    def jacobian(self, function: Callable[[Any], Any], x: Array) -> Array:
        """The Jacobian of a function of native arrays, at ``x``."""
        return torch.autograd.functional.jacobian(function, tensor(x)).detach().numpy()

    @quietly
    def class_jacobian(self, scores: Array, tree: Any, activation: Activation) -> Array:
        """d log p_k / d s_i, shape (K, K-1), for one row of scores."""
        return self.jacobian(lambda s: lib.log_catnat(s, tree, build_activation(activation)), scores)

    def network_jacobians(
        self, network: Callable[[Any, Any], Any], theta: Array, tree: Any, activation: Activation
    ) -> tuple[Array, Array]:
        """d scores / d theta and d log p / d theta of ``network(array namespace, theta)`` followed by catnat."""
        kind = build_activation(activation)
        inner = self.jacobian(lambda t: network(torch, t), theta)
        return inner, self.jacobian(lambda t: lib.log_catnat(network(torch, t), tree, kind), theta)

    # ---- distributions ----

    @quietly
    def distribution(self, scores: Array, tree: Any, activation: Activation) -> dict[str, Array]:
        """What the categorical and the one-hot distribution say about themselves."""
        kind = build_activation(activation)
        flat, hot = lib.Catnat(tensor(scores), tree, kind), lib.OneHotCatnat(tensor(scores), tree, kind)
        facts = {
            "probs": flat.probs,
            "logits": flat.logits,
            "entropy": flat.entropy(),
            "mode": flat.mode,
            "one_hot_probs": hot.probs,
            "one_hot_mean": hot.mean,
            "one_hot_variance": hot.variance,
            "one_hot_entropy": hot.entropy(),
            "one_hot_mode": hot.mode,
        }
        return {name: fact.detach().numpy() for name, fact in facts.items()}

    @quietly
    def distribution_sample(
        self, scores: Array, tree: Any, activation: Activation, sample_shape: tuple[int, ...], seed: int = 0
    ) -> tuple[Array, Array, Array, Array]:
        """Draws of the categorical and of the one-hot distribution, each with its log-probabilities."""
        kind = build_activation(activation)
        flat, hot = lib.Catnat(tensor(scores), tree, kind), lib.OneHotCatnat(tensor(scores), tree, kind)
        classes = flat.sample(sample_shape, generator=generator(seed))
        rows = hot.sample(sample_shape, generator=generator(seed + 1))
        return classes.numpy(), flat.log_prob(classes).numpy(), rows.numpy(), hot.log_prob(rows).numpy()

    @quietly
    def straight_through(
        self, scores: Array, tree: Any, activation: Activation, cotangent: Array, seed: int = 0
    ) -> tuple[Array, Array]:
        """A straight-through draw, and the gradient of sum(cotangent * draw) in the scores."""
        native = tensor(scores).requires_grad_()
        torch.manual_seed(seed)
        draw = lib.OneHotCatnatStraightThrough(native, tree, build_activation(activation)).rsample()
        draw.backward(tensor(cotangent))
        assert native.grad is not None
        return draw.detach().numpy(), native.grad.numpy()

    @quietly
    def relaxed(
        self, temperature: float, scores: Array, tree: Any, activation: Activation, cotangent: Array, seed: int = 0
    ) -> tuple[Array, Array]:
        """A relaxed draw per row, and the gradient of sum(cotangent * draw) in the scores."""
        native = tensor(scores).requires_grad_()
        torch.manual_seed(seed)
        kind = build_activation(activation)
        draw = lib.RelaxedOneHotCatnat(torch.tensor(temperature, dtype=native.dtype), native, tree, kind).rsample()
        draw.backward(tensor(cotangent))
        assert native.grad is not None
        return draw.detach().numpy(), native.grad.numpy()

    @quietly
    def relaxed_log_prob(
        self, temperature: float, scores: Array, value: Array, tree: Any, activation: Activation
    ) -> Array:
        native = tensor(scores)
        law = lib.RelaxedOneHotCatnat(
            torch.tensor(temperature, dtype=native.dtype), native, tree, build_activation(activation)
        )
        return law.log_prob(tensor(value)).numpy()

    # ---- masks, temperatures, mixtures ----

    @staticmethod
    def _options(law: LawCase, mask: Array | None) -> dict[str, Any]:
        valid = None if mask is None else tensor(mask)
        return {"mask": valid, "mask_mode": law.mask_mode, "unimix": law.unimix}

    def _law(self, scores: Any, tree: Any, activation: Activation, law: LawCase, mask: Array | None) -> lib.Catnat:
        options = self._options(law, mask)
        return lib.Catnat(scores, tree, build_activation(activation), temperature=law.temperature, **options)

    @quietly
    def law(
        self, scores: Array, tree: Any, activation: Activation, law: LawCase, mask: Array | None
    ) -> dict[str, Array]:
        """What the distribution says about itself."""
        found = self._law(tensor(scores), tree, activation, law, mask)
        facts = {"probs": found.probs, "logits": found.logits, "entropy": found.entropy(), "mode": found.mode}
        return {name: fact.numpy() for name, fact in facts.items()}

    @quietly
    def law_log_prob(
        self, scores: Array, classes: Array, tree: Any, activation: Activation, law: LawCase, mask: Array | None
    ) -> Array:
        return self._law(tensor(scores), tree, activation, law, mask).log_prob(tensor(classes)).numpy()

    @quietly
    def law_sample(
        self,
        scores: Array,
        tree: Any,
        activation: Activation,
        law: LawCase,
        mask: Array | None,
        sample_shape: tuple[int, ...] = (),
        seed: int = 0,
    ) -> Array:
        found = self._law(tensor(scores), tree, activation, law, mask)
        return found.sample(sample_shape, generator=generator(seed)).numpy()

    @quietly
    def law_grad(
        self,
        name: str,
        cotangent: Array,
        scores: Array,
        tree: Any,
        activation: Activation,
        law: LawCase,
        mask: Array | None,
        classes: Array | None = None,
    ) -> Array:
        """The gradient of sum(cotangent * fact) in the scores; the fact "log_prob" is that of ``classes``."""
        native = tensor(scores).requires_grad_()
        found = self._law(native, tree, activation, law, mask)
        value = found.log_prob(tensor(classes)) if classes is not None else getattr(found, name)
        value = value() if callable(value) else value
        value.backward(tensor(cotangent))
        assert native.grad is not None
        return native.grad.numpy()

    @quietly
    def law_jacobian(self, scores: Array, tree: Any, activation: Activation, law: LawCase, mask: Array) -> Array:
        """d log p_k / d s_i, shape (K, K-1), for one row of scores."""
        return self.jacobian(lambda s: self._law(s, tree, activation, law, mask).logits, scores)

    @quietly
    def law_fisher(self, scores: Array, tree: Any, activation: Activation, mask: Array) -> tuple[Array, Array]:
        """The Fisher diagonal of a pruned tree, from the distribution and from the function."""
        kind = build_activation(activation)
        found = lib.Catnat(tensor(scores), tree, kind, mask=tensor(mask)).fisher_diagonal()
        return found.numpy(), lib.fisher_diagonal(tensor(scores), tree, kind, mask=tensor(mask)).numpy()

    @quietly
    def law_kl(self, p: tuple[Any, ...], q: tuple[Any, ...]) -> Array:
        """KL(p || q) of two laws, each given as (scores, tree, activation, law, mask)."""
        first, second = (self._law(tensor(scores), *rest) for scores, *rest in (p, q))
        return torch.distributions.kl_divergence(first, second).numpy()

    @quietly
    def law_straight_through(
        self,
        scores: Array,
        tree: Any,
        activation: Activation,
        law: LawCase,
        mask: Array | None,
        cotangent: Array,
        seed: int = 0,
    ) -> tuple[Array, Array]:
        """A straight-through draw, and the gradient of sum(cotangent * draw) in the scores."""
        native, options = tensor(scores).requires_grad_(), self._options(law, mask)
        found = lib.OneHotCatnatStraightThrough(
            native, tree, build_activation(activation), temperature=law.temperature, **options
        )
        draw = found.rsample(generator=generator(seed))
        draw.backward(tensor(cotangent))
        assert native.grad is not None
        return draw.detach().numpy(), native.grad.numpy()

    @quietly
    def law_relaxed(
        self,
        temperature: float,
        scores: Array,
        tree: Any,
        activation: Activation,
        law: LawCase,
        mask: Array | None,
        cotangent: Array,
        seed: int = 0,
    ) -> tuple[Array, Array]:
        """A relaxed draw per row, and the gradient of sum(cotangent * draw) in the scores."""
        native = tensor(scores).requires_grad_()
        found = lib.RelaxedOneHotCatnat(
            temperature, native, tree, build_activation(activation), **self._options(law, mask)
        )
        draw = found.rsample(generator=generator(seed))
        draw.backward(tensor(cotangent))
        assert native.grad is not None
        return draw.detach().numpy(), native.grad.numpy()

    @quietly
    def law_relaxed_log_prob(
        self,
        temperature: float,
        scores: Array,
        value: Array,
        tree: Any,
        activation: Activation,
        law: LawCase,
        mask: Array | None,
    ) -> Array:
        options = self._options(law, mask)
        found = lib.RelaxedOneHotCatnat(temperature, tensor(scores), tree, build_activation(activation), **options)
        return found.log_prob(tensor(value)).numpy()
