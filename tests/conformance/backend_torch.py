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
from cases import PRUNE, ActivationCase, LawCase

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


def native(argument: Any) -> Any:
    """What the library takes for an argument of a check: arrays become tensors, rows of activations activations."""
    if isinstance(argument, np.ndarray):
        return tensor(argument)
    return build_activation(argument) if isinstance(argument, ActivationCase) else argument


class Backend:
    name = "torch"

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function of the library; another backend compiles it first."""
        return function(*args)

    @quietly
    def _value(self, name: str, *args: Any, **more: Any) -> Array:
        return self.run(functools.partial(getattr(lib, name), **more), *map(native, args)).numpy()

    # ---- values ----

    def catnat(self, scores: Array, tree: Any, activation: Activation, axis: int = -1) -> Array:
        return self._value("catnat", scores, tree, activation, dim=axis)

    def log_catnat(self, scores: Array, tree: Any, activation: Activation, axis: int = -1) -> Array:
        return self._value("log_catnat", scores, tree, activation, dim=axis)

    def log_prob(self, scores: Array, classes: Array, tree: Any, activation: Activation) -> Array:
        return self._value("log_prob", scores, np.asarray(classes), tree, activation)

    def mode(self, scores: Array, tree: Any, activation: Activation) -> Array:
        return self._value("mode", scores, tree, activation)

    def entropy(self, scores: Array, tree: Any, activation: Activation) -> Array:
        return self._value("entropy", scores, tree, activation)

    def kl_divergence(self, p_scores: Array, q_scores: Array, tree: Any, activation: Activation) -> Array:
        return self._value("kl_divergence", p_scores, q_scores, tree, activation)

    def reach(self, scores: Array, tree: Any, activation: Activation) -> Array:
        return self._value("reach", scores, tree, activation)

    def saturated(self, scores: Array, tree: Any, activation: Activation) -> Array:
        return self._value("saturated", scores, tree, activation)

    def fisher_diagonal(self, scores: Array, tree: Any, activation: Activation) -> Array:
        return self._value("fisher_diagonal", scores, tree, activation)

    def kl_step(self, scores: Array, gradient: Array, kl: Any, tree: Any, activation: Activation) -> Array:
        return self._value("kl_step", scores, gradient, kl, tree, activation)

    def fisher_rao_distance(self, p_scores: Array, q_scores: Array, tree: Any, activation: Activation) -> Array:
        return self._value("fisher_rao_distance", p_scores, q_scores, tree, activation)

    def scores_from_probs(self, probs: Array, tree: Any, activation: Activation) -> Array:
        return self._value("scores_from_probs", probs, tree, activation)

    def scores_from_logits(self, logits: Array, tree: Any, activation: Activation) -> Array:
        return self._value("scores_from_logits", logits, tree, activation)

    @quietly
    def natural_gradient(
        self, scores: Array, gradient: Array, tree: Any, activation: Activation, damping: float = 0.0
    ) -> tuple[Array, Array]:
        """The value of ``natural_gradient``, and what becomes of ``gradient`` on the way back through it."""
        function = functools.partial(lib.natural_gradient, damping=damping)
        leaf = tensor(scores).requires_grad_()
        value = self.run(function, leaf, tree, build_activation(activation))
        (replaced,) = torch.autograd.grad(value, leaf, tensor(gradient))
        return value.detach().numpy(), replaced.numpy()

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
        taken = [native(argument) for argument in args]
        taken[argnum].requires_grad_()
        value = self.run(getattr(lib, name), *taken)
        # Nothing to differentiate: torch may leave an empty result out of its graph, the compiler also a constant one.
        if value.numel() == 0 or not value.requires_grad:
            return np.zeros(taken[argnum].shape)
        value.backward(tensor(cotangent))
        return taken[argnum].grad.numpy()

    @quietly
    def jacobian(self, function: Callable[[Any], Any], x: Array) -> Array:
        """The Jacobian of a function of native arrays, at ``x``."""
        return torch.autograd.functional.jacobian(functools.partial(self.run, function), tensor(x)).detach().numpy()

    @quietly
    def class_jacobian(self, scores: Array, tree: Any, activation: Activation) -> Array:
        """d log p_k / d s_i, shape (K, K-1), for one row of scores."""
        kind = build_activation(activation)
        return self.jacobian(lambda s: lib.log_catnat(s, tree, kind), scores)

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

        def facts(leaf: torch.Tensor) -> dict[str, torch.Tensor]:
            flat, hot = lib.Catnat(leaf, tree, kind), lib.OneHotCatnat(leaf, tree, kind)
            return {
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

        return {name: fact.numpy() for name, fact in self.run(facts, tensor(scores)).items()}

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

    def _value_and_gradient(
        self, function: Callable[[Any], Any], scores: Array, cotangent: Array
    ) -> tuple[Array, Array]:
        """A value, and the gradient of sum(cotangent * value) in the scores."""
        leaf = tensor(scores).requires_grad_()
        value = self.run(function, leaf)
        value.backward(tensor(cotangent))
        assert leaf.grad is not None
        return value.detach().numpy(), leaf.grad.numpy()

    def straight_through(
        self, scores: Array, tree: Any, activation: Activation, cotangent: Array, seed: int = 0
    ) -> tuple[Array, Array]:
        """A straight-through draw, and the gradient of sum(cotangent * draw) in the scores."""
        return self.law_straight_through(scores, tree, activation, PRUNE, None, cotangent, seed)

    def relaxed(
        self, temperature: float, scores: Array, tree: Any, activation: Activation, cotangent: Array, seed: int = 0
    ) -> tuple[Array, Array]:
        """A relaxed draw per row, and the gradient of sum(cotangent * draw) in the scores."""
        return self.law_relaxed(temperature, scores, tree, activation, PRUNE, None, cotangent, seed)

    def relaxed_log_prob(
        self, temperature: float, scores: Array, value: Array, tree: Any, activation: Activation
    ) -> Array:
        return self.law_relaxed_log_prob(temperature, scores, value, tree, activation, PRUNE, None)

    # ---- masks, temperatures, mixtures ----

    @staticmethod
    def _options(law: LawCase, mask: Array | None) -> dict[str, Any]:
        valid = None if mask is None else tensor(mask)
        return {"mask": valid, "mask_mode": law.mask_mode, "unimix": law.unimix}

    def _law(self, tree: Any, activation: Activation, law: LawCase, mask: Array | None) -> Callable[[Any], lib.Catnat]:
        """The law as a function of its scores."""
        kind, options = build_activation(activation), {"temperature": law.temperature, **self._options(law, mask)}
        return lambda leaf: lib.Catnat(leaf, tree, kind, **options)

    @quietly
    def law(
        self, scores: Array, tree: Any, activation: Activation, law: LawCase, mask: Array | None
    ) -> dict[str, Array]:
        """What the distribution says about itself."""
        build = self._law(tree, activation, law, mask)

        def facts(leaf: torch.Tensor) -> dict[str, torch.Tensor]:
            found = build(leaf)
            return {"probs": found.probs, "logits": found.logits, "entropy": found.entropy(), "mode": found.mode}

        return {name: fact.numpy() for name, fact in self.run(facts, tensor(scores)).items()}

    @quietly
    def law_log_prob(
        self, scores: Array, classes: Array, tree: Any, activation: Activation, law: LawCase, mask: Array | None
    ) -> Array:
        build = self._law(tree, activation, law, mask)
        return self.run(lambda leaf, at: build(leaf).log_prob(at), tensor(scores), tensor(classes)).numpy()

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
        found = self._law(tree, activation, law, mask)(tensor(scores))
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
        build, given = self._law(tree, activation, law, mask), None if classes is None else tensor(classes)

        def fact(leaf: torch.Tensor) -> torch.Tensor:
            found = getattr(build(leaf), name)
            if given is not None:
                return found(given)
            return found() if callable(found) else found

        return self._value_and_gradient(fact, scores, cotangent)[1]

    @quietly
    def law_jacobian(self, scores: Array, tree: Any, activation: Activation, law: LawCase, mask: Array) -> Array:
        """d log p_k / d s_i, shape (K, K-1), for one row of scores."""
        build = self._law(tree, activation, law, mask)
        return self.jacobian(lambda leaf: build(leaf).logits, scores)

    @quietly
    def law_fisher(self, scores: Array, tree: Any, activation: Activation, mask: Array) -> tuple[Array, Array]:
        """The Fisher diagonal of a pruned tree, from the distribution and from the function."""
        kind, valid = build_activation(activation), tensor(mask)
        functions = (
            lambda leaf: lib.Catnat(leaf, tree, kind, mask=valid).fisher_diagonal(),
            lambda leaf: lib.fisher_diagonal(leaf, tree, kind, mask=valid),
        )
        first, second = (self.run(function, tensor(scores)).numpy() for function in functions)
        return first, second

    @quietly
    def law_kl(self, p: tuple[Any, ...], q: tuple[Any, ...]) -> Array:
        """KL(p || q) of two laws, each given as (scores, tree, activation, law, mask)."""
        first, second = (self._law(*rest)(tensor(scores)) for scores, *rest in (p, q))
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
        kind, options = build_activation(activation), {"temperature": law.temperature, **self._options(law, mask)}
        torch.manual_seed(seed)
        draw = lambda leaf: lib.OneHotCatnatStraightThrough(leaf, tree, kind, **options).rsample()  # noqa: E731
        return self._value_and_gradient(draw, scores, cotangent)

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
        kind, options = build_activation(activation), self._options(law, mask)
        torch.manual_seed(seed)
        draw = lambda leaf: lib.RelaxedOneHotCatnat(temperature, leaf, tree, kind, **options).rsample()  # noqa: E731
        return self._value_and_gradient(draw, scores, cotangent)

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
        kind, options = build_activation(activation), self._options(law, mask)
        density = lambda leaf, at: lib.RelaxedOneHotCatnat(temperature, leaf, tree, kind, **options).log_prob(at)  # noqa: E731
        return self.run(density, tensor(scores), tensor(value)).numpy()
