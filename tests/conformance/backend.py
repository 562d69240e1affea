"""What a backend is to the checks: the library as functions of NumPy arrays, which keep their dtype in and out.

No framework is imported here. A subclass names its library, and makes arrays, random
numbers and derivatives in it.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from cases import MASK_ALONE, ActivationCase, OptionsCase

import catnat

Array = np.ndarray
Activation = ActivationCase | str


@dataclasses.dataclass(frozen=True)
class Cauchit(catnat.Activation):
    """A user's own activation, written against the documented protocol and nothing else."""

    def logit(self, x: Any, xp: Any) -> Any:
        # arctan2 measures each side from its own end, so neither underflows; the clip keeps the slope from overflowing.
        x, one = xp.clip(x, -1e15, 1e15), xp.ones_like(x)
        return xp.log(xp.arctan2(one, -x)) - xp.log(xp.arctan2(one, x))

    def inverse(self, p: Array) -> Array:
        return np.tan(math.pi * (p - 0.5))


def quietly(function: Callable[..., Any]) -> Callable[..., Any]:
    """Ignore the warning about edges near zero: some rows are that case on purpose, and one test is about it."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", catnat.EdgeWarning)
            return function(*args, **kwargs)

    return call


def signs(shape: tuple[int, ...]) -> Array:
    """Every third is -1, the others are 1: a cotangent under which nothing cancels."""
    return np.where(np.arange(math.prod(shape)).reshape(shape) % 3 == 0, -1.0, 1.0)


def facts_of(distribution: Any) -> dict[str, Any]:
    """What a distribution says about itself, in native arrays."""
    names = ["probs", "logits", "mode", *(["mean", "variance"] if distribution.event_shape else [])]
    return {"entropy": distribution.entropy(), **{name: getattr(distribution, name) for name in names}}


def fact_of(distribution: Any, name: str, classes: Any) -> Any:
    """One fact; "log_prob" is that of ``classes``."""
    found = getattr(distribution, name)
    if classes is not None:
        return found(classes)
    return found() if callable(found) else found


class Backend(abc.ABC):
    name: str
    lib: Any
    numpy_like: ModuleType
    """The framework's functions of arrays, for a network that is written for any."""
    axis: str
    """What the library calls the axis of a tensor."""

    # ---- the framework ----

    @abc.abstractmethod
    def array(self, values: Any) -> Any:
        """A native array."""

    @abc.abstractmethod
    def numpy(self, value: Any) -> Array:
        """The inverse of ``array``."""

    @abc.abstractmethod
    def randomness(self, seed: int) -> dict[str, Any]:
        """The argument that seeds a random function."""

    def seeded(self, seed: int) -> dict[str, Any]:
        """The same where the function may be compiled."""
        return self.randomness(seed)

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function of native arrays; another backend compiles it first."""
        return function(*args)

    @abc.abstractmethod
    def cast(self, value: Any, dtype: str) -> Any:
        """A native array of another dtype, by its name."""

    @abc.abstractmethod
    def shape_of(self, function: Callable[[], Any]) -> tuple[int, ...]:
        """The shape of what a function returns, by tracing alone where that is possible."""

    @abc.abstractmethod
    def value_and_gradient(
        self, function: Callable[[Any], Any], x: Array, cotangent: Array | None = None
    ) -> tuple[Array, Array]:
        """The value of a function of native arrays at ``x``, and the gradient of sum(cotangent * value)."""

    @abc.abstractmethod
    def jacobian(self, function: Callable[[Any], Any], x: Array) -> Array:
        """The Jacobian of a function of native arrays, at ``x``."""

    @abc.abstractmethod
    def hessian(self, function: Callable[[Any], Any], x: Array) -> Array:
        """The Hessian of a function of native arrays, at ``x``."""

    @abc.abstractmethod
    def first_and_second(self, function: Callable[[Any], Any], x: Array) -> tuple[Array, Array, Array]:
        """The value of a function of native arrays, its gradient and the gradient's: of sums with both signs."""

    def facts(self, build: Callable[[Any], Any], scores: Array) -> dict[str, Any]:
        """The facts about the distribution that ``build`` makes of its scores."""
        return self.run(lambda leaf: facts_of(build(leaf)), self.array(scores))

    def gradient_of_fact(
        self, build: Callable[[Any], Any], scores: Array, name: str, classes: Any, cotangent: Array
    ) -> Array:
        return self.value_and_gradient(lambda leaf: fact_of(build(leaf), name, classes), scores, cotangent)[1]

    @abc.abstractmethod
    def detached(self, value: Any) -> Any:
        """Without what autograd has recorded, where it records anything."""

    @abc.abstractmethod
    def head(self, tree: Any, activation: Any, weight: Any, bias: Any, **options: Any) -> Any:
        """A ``CatnatHead`` with these rows, native arrays that may be differentiated."""

    @abc.abstractmethod
    def kl(self, p: Any, q: Any) -> Any:
        """KL(p || q) of two distributions."""

    @abc.abstractmethod
    def categorical(self, logits: Any, kind: str) -> Any:
        """A categorical distribution that is not ours: of "logits", of "probs", or of "one-hot" vectors."""

    # ---- arguments ----

    def build_activation(self, case: Activation) -> Any:
        return built(case)

    def native(self, argument: Any) -> Any:
        """What the library takes for an argument of a check."""
        if isinstance(argument, np.ndarray):
            return self.array(argument)
        return self.build_activation(argument) if isinstance(argument, ActivationCase) else argument

    # ---- values ----

    def function(self, name: str) -> Any:
        """A function of the library, wherever it is public."""
        return getattr(self.lib, name, None) or getattr(self.lib.geometry, name)

    @quietly
    def _value(self, name: str, *args: Any, **more: Any) -> Array:
        return self.numpy(self.run(functools.partial(self.function(name), **more), *map(self.native, args)))

    def catnat(self, scores: Array, tree: Any, activation: Activation, axis: int = -1) -> Array:
        return self._value("catnat", scores, tree, activation, **{self.axis: axis})

    def log_catnat(self, scores: Array, tree: Any, activation: Activation, axis: int = -1) -> Array:
        return self._value("log_catnat", scores, tree, activation, **{self.axis: axis})

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
        """The value of ``natural_gradient``, and what becomes of ``gradient`` in the backward pass through it."""
        kind, function = self.build_activation(activation), self.lib.geometry.natural_gradient
        return self.value_and_gradient(lambda leaf: function(leaf, tree, kind, damping=damping), scores, gradient)

    def loudly(self, name: str, scores: Array, tree: Any, activation: Activation) -> None:
        """Call a function and let its warnings through."""
        self.function(name)(self.array(scores), tree, self.build_activation(activation))

    # ---- random ----

    @quietly
    def sample(
        self, scores: Array, tree: Any, activation: Activation, sample_shape: tuple[int, ...] = (), seed: int = 0
    ) -> Array:
        kind, more = self.build_activation(activation), self.randomness(seed)
        return self.numpy(self.lib.sample(self.array(scores), tree, kind, sample_shape=sample_shape, **more))

    @quietly
    def sample_without_replacement(
        self, scores: Array, k: int, tree: Any, activation: Activation, seed: int = 0
    ) -> Array:
        kind, more = self.build_activation(activation), self.randomness(seed)
        return self.numpy(self.lib.sample_without_replacement(self.array(scores), k, tree, kind, **more))

    # ---- derivatives ----

    @quietly
    def grad(self, name: str, cotangent: Array, *args: Any, argnum: int = 0) -> Array:
        """The gradient of sum(cotangent * function) in one of the function's arguments, by default the scores."""
        function, taken = self.function(name), [self.native(argument) for argument in args]
        before, after = taken[:argnum], taken[argnum + 1 :]
        return self.value_and_gradient(lambda x: function(*before, x, *after), args[argnum], cotangent)[1]

    @quietly
    def class_jacobian(self, scores: Array, tree: Any, activation: Activation) -> Array:
        """d log p_k / d s_i, shape (K, K-1), for one row of scores."""
        kind, log_catnat = self.build_activation(activation), self.lib.log_catnat
        return self.jacobian(lambda s: log_catnat(s, tree, kind), scores)

    @quietly
    def network_jacobians(
        self, network: Callable[[Any, Any], Any], theta: Array, tree: Any, activation: Activation
    ) -> tuple[Array, Array]:
        """d scores / d theta and d log p / d theta of ``network(array namespace, theta)`` followed by catnat."""
        kind, log_catnat, xp = self.build_activation(activation), self.lib.log_catnat, self.numpy_like
        inner = self.jacobian(lambda t: network(xp, t), theta)
        return inner, self.jacobian(lambda t: log_catnat(network(xp, t), tree, kind), theta)

    # ---- distributions ----

    @quietly
    def distribution(self, scores: Array, tree: Any, activation: Activation) -> dict[str, Array]:
        """What the categorical and the one-hot distribution say about themselves."""
        kind = self.build_activation(activation)
        flat, hot = (
            self.facts(lambda leaf, each=each: each(leaf, tree, kind), scores)
            for each in (self.lib.Catnat, self.lib.OneHotCatnat)
        )
        facts = {**flat, **{f"one_hot_{name}": fact for name, fact in hot.items()}}
        return {name: self.numpy(fact) for name, fact in facts.items()}

    @quietly
    def distribution_sample(
        self, scores: Array, tree: Any, activation: Activation, sample_shape: tuple[int, ...], seed: int = 0
    ) -> tuple[Array, Array, Array, Array]:
        """Draws of the categorical and of the one-hot distribution, each with its log-probabilities."""
        args = self.array(scores), tree, self.build_activation(activation)
        flat, hot = self.lib.Catnat(*args), self.lib.OneHotCatnat(*args)
        classes = flat.sample(sample_shape, **self.randomness(seed))
        rows = hot.sample(sample_shape, **self.randomness(seed + 1))
        found = classes, flat.log_prob(classes), rows, hot.log_prob(rows)
        classes, log_prob, rows, one_hot_log_prob = map(self.numpy, found)
        return classes, log_prob, rows, one_hot_log_prob

    def straight_through(
        self, scores: Array, tree: Any, activation: Activation, cotangent: Array, seed: int = 0
    ) -> tuple[Array, Array]:
        """A straight-through draw, and the gradient of sum(cotangent * draw) in the scores."""
        return self.masked_straight_through(scores, tree, activation, MASK_ALONE, None, cotangent, seed)

    def relaxed(
        self, temperature: float, scores: Array, tree: Any, activation: Activation, cotangent: Array, seed: int = 0
    ) -> tuple[Array, Array]:
        """A relaxed draw per row, and the gradient of sum(cotangent * draw) in the scores."""
        return self.masked_relaxed(temperature, scores, tree, activation, MASK_ALONE, None, cotangent, seed)

    def relaxed_log_prob(
        self, temperature: float, scores: Array, value: Array, tree: Any, activation: Activation
    ) -> Array:
        return self.masked_relaxed_log_prob(temperature, scores, value, tree, activation, MASK_ALONE, None)

    # ---- masks, temperatures, mixtures ----

    def _build(
        self, tree: Any, activation: Activation, options: OptionsCase, mask: Array | None, kind: str = "Catnat"
    ) -> Callable[[Any], Any]:
        """The distribution as a function of its scores."""
        args, made = (tree, self.build_activation(activation)), getattr(self.lib, kind)
        given = {"mask": None if mask is None else self.array(mask), **options.arguments}
        return lambda leaf: made(leaf, *args, **given)

    def _relaxed(
        self, temperature: float, tree: Any, activation: Activation, options: OptionsCase, mask: Array | None
    ) -> Callable[[Any], Any]:
        """The relaxed distribution as a function of its scores; its temperature is that of the relaxation."""
        args, made = (tree, self.build_activation(activation)), self.lib.RelaxedOneHotCatnat
        valid, unimix = None if mask is None else self.array(mask), options.unimix
        return lambda leaf: made(temperature, leaf, *args, mask=valid, unimix=unimix)

    @quietly
    def masked(
        self, scores: Array, tree: Any, activation: Activation, options: OptionsCase, mask: Array | None
    ) -> dict[str, Array]:
        """What the distribution says about itself."""
        facts = self.facts(self._build(tree, activation, options, mask), scores)
        return {name: self.numpy(fact) for name, fact in facts.items()}

    @quietly
    def masked_log_prob(
        self, scores: Array, classes: Array, tree: Any, activation: Activation, options: OptionsCase, mask: Array | None
    ) -> Array:
        build = self._build(tree, activation, options, mask)
        native = self.array(scores), self.array(classes)
        return self.numpy(self.run(lambda leaf, at: build(leaf).log_prob(at), *native))

    @quietly
    def masked_sample(
        self,
        scores: Array,
        tree: Any,
        activation: Activation,
        options: OptionsCase,
        mask: Array | None,
        sample_shape: tuple[int, ...] = (),
        seed: int = 0,
    ) -> Array:
        found = self._build(tree, activation, options, mask)(self.array(scores))
        return self.numpy(found.sample(sample_shape, **self.randomness(seed)))

    @quietly
    def masked_grad(
        self,
        name: str,
        cotangent: Array,
        scores: Array,
        tree: Any,
        activation: Activation,
        options: OptionsCase,
        mask: Array | None,
        classes: Array | None = None,
    ) -> Array:
        """The gradient of sum(cotangent * fact) in the scores; the fact "log_prob" is that of ``classes``."""
        build, given = self._build(tree, activation, options, mask), None if classes is None else self.array(classes)
        return self.gradient_of_fact(build, scores, name, given, cotangent)

    @quietly
    def masked_jacobian(
        self, scores: Array, tree: Any, activation: Activation, options: OptionsCase, mask: Array
    ) -> Array:
        """d log p_k / d s_i, shape (K, K-1), for one row of scores."""
        build = self._build(tree, activation, options, mask)
        return self.jacobian(lambda leaf: build(leaf).logits, scores)

    @quietly
    def masked_kl(self, p: tuple[Any, ...], q: tuple[Any, ...]) -> Array:
        """KL(p || q) of two distributions, each given as (scores, tree, activation, options, mask)."""
        first, second = (self._build(*rest)(self.array(scores)) for scores, *rest in (p, q))
        return self.numpy(self.kl(first, second))

    @quietly
    def masked_straight_through(
        self,
        scores: Array,
        tree: Any,
        activation: Activation,
        options: OptionsCase,
        mask: Array | None,
        cotangent: Array,
        seed: int = 0,
    ) -> tuple[Array, Array]:
        """A straight-through draw, and the gradient of sum(cotangent * draw) in the scores."""
        build, more = self._build(tree, activation, options, mask, "OneHotCatnatStraightThrough"), self.seeded(seed)
        return self.value_and_gradient(lambda leaf: build(leaf).rsample(**more), scores, cotangent)

    @quietly
    def masked_relaxed(
        self,
        temperature: float,
        scores: Array,
        tree: Any,
        activation: Activation,
        options: OptionsCase,
        mask: Array | None,
        cotangent: Array,
        seed: int = 0,
    ) -> tuple[Array, Array]:
        """A relaxed draw per row, and the gradient of sum(cotangent * draw) in the scores."""
        build, more = self._relaxed(temperature, tree, activation, options, mask), self.seeded(seed)
        return self.value_and_gradient(lambda leaf: build(leaf).rsample(**more), scores, cotangent)

    @quietly
    def masked_relaxed_log_prob(
        self,
        temperature: float,
        scores: Array,
        value: Array,
        tree: Any,
        activation: Activation,
        options: OptionsCase,
        mask: Array | None,
    ) -> Array:
        build, native = (
            self._relaxed(temperature, tree, activation, options, mask),
            (self.array(scores), self.array(value)),
        )
        return self.numpy(self.run(lambda leaf, at: build(leaf).log_prob(at), *native))


@functools.cache
def built(case: Activation) -> Any:
    if isinstance(case, str):
        return case
    if case.kind == "sigmoid":
        return catnat.sigmoid()
    if case.kind == "natural":
        return catnat.natural(width=case.width)
    if case.kind == "cauchit":
        return Cauchit()
    raise ValueError(f"The case {case.name!r} is of kind {case.kind!r}, which no backend builds.")
