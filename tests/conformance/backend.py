"""What a backend is to the checks: the library as functions of NumPy arrays, which keep their dtype in and out.

No framework is imported here. A subclass names its library, and makes arrays, random
numbers and derivatives in it.
"""

from __future__ import annotations

import abc
import functools
import math
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from cases import ActivationCase, OptionsCase

import catnat

Array = np.ndarray
Activation = ActivationCase | str


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


def weights_like(value: Array) -> Array:
    """Weights that tell the entries apart."""
    return np.linspace(-1, 2, value.size).reshape(value.shape)


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

    def native(self, argument: Any) -> Any:
        """What the library takes for an argument of a check."""
        if isinstance(argument, np.ndarray):
            return self.array(argument)
        return built(argument)

    # ---- values ----

    def function(self, name: str) -> Any:
        """A function of the library, wherever it is public."""
        return getattr(self.lib, name, None) or getattr(self.lib.geometry, name)

    @quietly
    def value(self, name: str, *args: Any, axis: int = -1) -> Array:
        """What a function returns, of NumPy arrays, a tree and an activation."""
        more = {} if axis == -1 else {self.axis: axis}
        return self.numpy(self.run(functools.partial(self.function(name), **more), *map(self.native, args)))

    catnat = functools.partialmethod(value, "catnat")
    log_catnat = functools.partialmethod(value, "log_catnat")
    log_prob = functools.partialmethod(value, "log_prob")
    mode = functools.partialmethod(value, "mode")
    entropy = functools.partialmethod(value, "entropy")
    kl_divergence = functools.partialmethod(value, "kl_divergence")
    reach = functools.partialmethod(value, "reach")
    saturated = functools.partialmethod(value, "saturated")
    fisher_diagonal = functools.partialmethod(value, "fisher_diagonal")
    kl_step = functools.partialmethod(value, "kl_step")
    fisher_rao_distance = functools.partialmethod(value, "fisher_rao_distance")
    scores_from_probs = functools.partialmethod(value, "scores_from_probs")
    scores_from_logits = functools.partialmethod(value, "scores_from_logits")

    @quietly
    def natural_gradient(
        self, scores: Array, gradient: Array, tree: Any, activation: Activation, damping: float = 0.0
    ) -> tuple[Array, Array]:
        """The value of ``natural_gradient``, and what becomes of ``gradient`` in the backward pass through it."""
        kind, function = built(activation), self.lib.geometry.natural_gradient
        return self.value_and_gradient(lambda leaf: function(leaf, tree, kind, damping=damping), scores, gradient)

    def loudly(self, name: str, scores: Array, tree: Any, activation: Activation) -> None:
        """Call a function and let its warnings through."""
        self.function(name)(self.array(scores), tree, built(activation))

    # ---- random ----

    @quietly
    def sample(
        self, scores: Array, tree: Any, activation: Activation, sample_shape: tuple[int, ...] = (), seed: int = 0
    ) -> Array:
        kind, more = built(activation), self.randomness(seed)
        return self.numpy(self.lib.sample(self.array(scores), tree, kind, sample_shape=sample_shape, **more))

    @quietly
    def sample_without_replacement(
        self, scores: Array, k: int, tree: Any, activation: Activation, seed: int = 0
    ) -> Array:
        kind, more = built(activation), self.randomness(seed)
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
        kind, log_catnat = built(activation), self.lib.log_catnat
        return self.jacobian(lambda s: log_catnat(s, tree, kind), scores)

    @quietly
    def network_jacobians(
        self, network: Callable[[Any, Any], Any], theta: Array, tree: Any, activation: Activation
    ) -> tuple[Array, Array]:
        """d scores / d theta and d log p / d theta of ``network(array namespace, theta)`` followed by catnat."""
        kind, log_catnat, xp = built(activation), self.lib.log_catnat, self.numpy_like
        inner = self.jacobian(lambda t: network(xp, t), theta)
        return inner, self.jacobian(lambda t: log_catnat(network(xp, t), tree, kind), theta)

    # ---- distributions ----

    def _build(
        self, tree: Any, activation: Activation, options: OptionsCase, mask: Array | None, kind: str = "Catnat"
    ) -> Callable[[Any], Any]:
        """A distribution as a function of its scores."""
        made, valid = getattr(self.lib, kind), None if mask is None else self.array(mask)
        return lambda leaf: made(leaf, tree, built(activation), mask=valid, **options.arguments)

    def _relaxed(
        self, temperature: float, tree: Any, activation: Activation, options: OptionsCase, mask: Array | None
    ) -> Callable[[Any], Any]:
        """The relaxed distribution as a function of its scores; its temperature is that of the relaxation."""
        made, valid = self.lib.RelaxedOneHotCatnat, None if mask is None else self.array(mask)
        return lambda leaf: made(temperature, leaf, tree, built(activation), mask=valid, unimix=options.unimix)

    @quietly
    def facts_of(self, scores: Array, *given: Any, kind: str = "Catnat") -> dict[str, Array]:
        """What a distribution says about itself; ``given`` are a tree, an activation, options and a mask."""
        return {name: self.numpy(fact) for name, fact in self.facts(self._build(*given, kind), scores).items()}

    @quietly
    def log_prob_of(self, scores: Array, classes: Array, *given: Any, kind: str = "Catnat") -> Array:
        build, native = self._build(*given, kind), (self.array(scores), self.array(classes))
        return self.numpy(self.run(lambda leaf, at: build(leaf).log_prob(at), *native))

    @quietly
    def draws_of(
        self, scores: Array, *given: Any, sample_shape: tuple[int, ...] = (), seed: int = 0, kind: str = "Catnat"
    ) -> Array:
        found = self._build(*given, kind)(self.array(scores))
        return self.numpy(found.sample(sample_shape, **self.randomness(seed)))

    @quietly
    def grad_of(self, name: str, cotangent: Array, scores: Array, *given: Any, classes: Array | None = None) -> Array:
        """The gradient of sum(cotangent * fact) in the scores; the fact "log_prob" is that of ``classes``."""
        at = None if classes is None else self.array(classes)
        return self.gradient_of_fact(self._build(*given), scores, name, at, cotangent)

    @quietly
    def kl_of(self, p: tuple[Any, ...], q: tuple[Any, ...]) -> Array:
        """KL(p || q) of two distributions, each given as (scores, tree, activation, options, mask)."""
        first, second = (self._build(*rest)(self.array(scores)) for scores, *rest in (p, q))
        return self.numpy(self.kl(first, second))

    @quietly
    def straight_through(self, scores: Array, *given: Any, cotangent: Array, seed: int = 0) -> tuple[Array, Array]:
        """A straight-through draw, and the gradient of sum(cotangent * draw) in the scores."""
        build, more = self._build(*given, "OneHotCatnatStraightThrough"), self.seeded(seed)
        return self.value_and_gradient(lambda leaf: build(leaf).rsample(**more), scores, cotangent)

    @quietly
    def relaxed(
        self, temperature: float, scores: Array, *given: Any, cotangent: Array, seed: int = 0
    ) -> tuple[Array, Array]:
        """A relaxed draw per row, and the gradient of sum(cotangent * draw) in the scores."""
        build, more = self._relaxed(temperature, *given), self.seeded(seed)
        return self.value_and_gradient(lambda leaf: build(leaf).rsample(**more), scores, cotangent)

    @quietly
    def relaxed_log_prob(self, temperature: float, scores: Array, value: Array, *given: Any) -> Array:
        build, native = self._relaxed(temperature, *given), (self.array(scores), self.array(value))
        return self.numpy(self.run(lambda leaf, at: build(leaf).log_prob(at), *native))


def built(case: Any) -> Any:
    """What the library takes for the case of an activation; anything else is what it is."""
    return case.activation if isinstance(case, ActivationCase) else case
