"""catnat.jax as functions of NumPy arrays: arrays keep their dtype on the way in and out."""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from cases import PRUNE, ActivationCase, LawCase

import catnat
import catnat.jax as lib

Array = np.ndarray
Activation = ActivationCase | str

jax.config.update("jax_enable_x64", True)  # the laws are stated in float64


@dataclasses.dataclass(frozen=True)
class Cauchit(lib.Activation):
    """A user's own activation, written against the documented protocol and nothing else."""

    def logit(self, x: jax.Array) -> jax.Array:
        # arctan2 measures each side from its own end, so neither underflows; the clip keeps the slope from overflowing.
        x, one = jnp.clip(x, -1e15, 1e15), jnp.ones_like(x)
        return jnp.log(jnp.arctan2(one, -x)) - jnp.log(jnp.arctan2(one, x))

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


class Backend:
    name = "jax"

    # ---- values ----

    @quietly
    def catnat(self, scores: Array, tree: Any, activation: Activation, axis: int = -1) -> Array:
        return np.asarray(lib.catnat(jnp.asarray(scores), tree, build_activation(activation), axis=axis))

    @quietly
    def log_catnat(self, scores: Array, tree: Any, activation: Activation, axis: int = -1) -> Array:
        return np.asarray(lib.log_catnat(jnp.asarray(scores), tree, build_activation(activation), axis=axis))

    @quietly
    def log_prob(self, scores: Array, classes: Array, tree: Any, activation: Activation) -> Array:
        kind = build_activation(activation)
        return np.asarray(lib.log_prob(jnp.asarray(scores), jnp.asarray(classes), tree, kind))

    def _value(self, name: str, scores: Array, tree: Any, activation: Activation) -> Array:
        return np.asarray(getattr(lib, name)(jnp.asarray(scores), tree, build_activation(activation)))

    @quietly
    def mode(self, scores: Array, tree: Any, activation: Activation) -> Array:
        return self._value("mode", scores, tree, activation)

    @quietly
    def entropy(self, scores: Array, tree: Any, activation: Activation) -> Array:
        return self._value("entropy", scores, tree, activation)

    @quietly
    def kl_divergence(self, p_scores: Array, q_scores: Array, tree: Any, activation: Activation) -> Array:
        kind = build_activation(activation)
        return np.asarray(lib.kl_divergence(jnp.asarray(p_scores), jnp.asarray(q_scores), tree, kind))

    @quietly
    def reach(self, scores: Array, tree: Any, activation: Activation) -> Array:
        return self._value("reach", scores, tree, activation)

    @quietly
    def saturated(self, scores: Array, tree: Any, activation: Activation) -> Array:
        return self._value("saturated", scores, tree, activation)

    @quietly
    def fisher_diagonal(self, scores: Array, tree: Any, activation: Activation) -> Array:
        return self._value("fisher_diagonal", scores, tree, activation)

    @quietly
    def natural_gradient(
        self, scores: Array, gradient: Array, tree: Any, activation: Activation, damping: float = 0.0
    ) -> tuple[Array, Array]:
        """The value of ``natural_gradient``, and what becomes of ``gradient`` on the way back through it."""
        kind = build_activation(activation)
        value, pull_back = jax.vjp(lambda s: lib.natural_gradient(s, tree, kind, damping=damping), jnp.asarray(scores))
        (replaced,) = pull_back(jnp.asarray(gradient))
        return np.asarray(value), np.asarray(replaced)

    @quietly
    def kl_step(self, scores: Array, gradient: Array, kl: Any, tree: Any, activation: Activation) -> Array:
        kind = build_activation(activation)
        return np.asarray(lib.kl_step(jnp.asarray(scores), jnp.asarray(gradient), kl, tree, kind))

    @quietly
    def fisher_rao_distance(self, p_scores: Array, q_scores: Array, tree: Any, activation: Activation) -> Array:
        kind = build_activation(activation)
        return np.asarray(lib.fisher_rao_distance(jnp.asarray(p_scores), jnp.asarray(q_scores), tree, kind))

    @quietly
    def scores_from_probs(self, probs: Array, tree: Any, activation: Activation) -> Array:
        return self._value("scores_from_probs", probs, tree, activation)

    @quietly
    def scores_from_logits(self, logits: Array, tree: Any, activation: Activation) -> Array:
        return self._value("scores_from_logits", logits, tree, activation)

    def loudly(self, name: str, scores: Array, tree: Any, activation: Activation) -> None:
        """Call a function and let its warnings through."""
        self._value(name, scores, tree, activation)

    # ---- random ----

    @quietly
    def sample(
        self, scores: Array, tree: Any, activation: Activation, sample_shape: tuple[int, ...] = (), seed: int = 0
    ) -> Array:
        kind, key = build_activation(activation), jax.random.key(seed)
        return np.asarray(lib.sample(jnp.asarray(scores), tree, kind, sample_shape=sample_shape, key=key))

    @quietly
    def sample_without_replacement(
        self, scores: Array, k: int, tree: Any, activation: Activation, seed: int = 0
    ) -> Array:
        kind, key = build_activation(activation), jax.random.key(seed)
        return np.asarray(lib.sample_without_replacement(jnp.asarray(scores), k, tree, kind, key=key))

    # ---- derivatives ----

    @quietly
    def grad(self, name: str, cotangent: Array, *args: Any, argnum: int = 0) -> Array:
        """The gradient of sum(cotangent * function) in one of the function's arguments, by default the scores."""
        native = [jnp.asarray(a) if isinstance(a, np.ndarray) else a for a in args]
        native[-1] = build_activation(native[-1])

        def function(x: jax.Array) -> jax.Array:
            result: jax.Array = getattr(lib, name)(*native[:argnum], x, *native[argnum + 1 :])
            return result

        _, pull_back = jax.vjp(function, native[argnum])
        (gradient,) = pull_back(jnp.asarray(cotangent))
        return np.asarray(gradient)

    @quietly
    def jacobian(self, function: Callable[[Any], Any], x: Array) -> Array:
        """The Jacobian of a function of native arrays, at ``x``."""
        return np.asarray(jax.jacobian(function)(jnp.asarray(x)))

    @quietly
    def class_jacobian(self, scores: Array, tree: Any, activation: Activation) -> Array:
        """d log p_k / d s_i, shape (K, K-1), for one row of scores."""
        return self.jacobian(lambda s: lib.log_catnat(s, tree, build_activation(activation)), scores)

    def network_jacobians(
        self, network: Callable[[Any, Any], Any], theta: Array, tree: Any, activation: Activation
    ) -> tuple[Array, Array]:
        """d scores / d theta and d log p / d theta of ``network(array namespace, theta)`` followed by catnat."""
        kind = build_activation(activation)
        inner = self.jacobian(lambda t: network(jnp, t), theta)
        return inner, self.jacobian(lambda t: lib.log_catnat(network(jnp, t), tree, kind), theta)

    # ---- distributions ----

    @quietly
    def distribution(self, scores: Array, tree: Any, activation: Activation) -> dict[str, Array]:
        """What the categorical and the one-hot distribution say about themselves."""
        kind, native = build_activation(activation), jnp.asarray(scores)
        flat, hot = _facts(lib.Catnat(native, tree, kind)), _facts(lib.OneHotCatnat(native, tree, kind))
        facts = {**flat, **{f"one_hot_{name}": fact for name, fact in hot.items()}}
        return {name: np.asarray(fact) for name, fact in facts.items()}

    @quietly
    def distribution_sample(
        self, scores: Array, tree: Any, activation: Activation, sample_shape: tuple[int, ...], seed: int = 0
    ) -> tuple[Array, Array, Array, Array]:
        """Draws of the categorical and of the one-hot distribution, each with its log-probabilities."""
        kind, native = build_activation(activation), jnp.asarray(scores)
        flat, hot = lib.Catnat(native, tree, kind), lib.OneHotCatnat(native, tree, kind)
        classes = flat.sample(sample_shape, key=jax.random.key(seed))
        rows = hot.sample(sample_shape, key=jax.random.key(seed + 1))
        found = classes, flat.log_prob(classes), rows, hot.log_prob(rows)
        classes, log_prob, rows, one_hot_log_prob = map(np.asarray, found)
        return classes, log_prob, rows, one_hot_log_prob

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
        valid = None if mask is None else jnp.asarray(mask)
        return {"mask": valid, "mask_mode": law.mask_mode, "unimix": law.unimix}

    def _law(self, scores: Any, tree: Any, activation: Activation, law: LawCase, mask: Array | None) -> lib.Catnat:
        options = self._options(law, mask)
        kind = build_activation(activation)
        return lib.Catnat(jnp.asarray(scores), tree, kind, temperature=law.temperature, **options)

    @quietly
    def law(
        self, scores: Array, tree: Any, activation: Activation, law: LawCase, mask: Array | None
    ) -> dict[str, Array]:
        """What the distribution says about itself."""
        found = _facts(self._law(scores, tree, activation, law, mask))
        return {name: np.asarray(fact) for name, fact in found.items()}

    @quietly
    def law_log_prob(
        self, scores: Array, classes: Array, tree: Any, activation: Activation, law: LawCase, mask: Array | None
    ) -> Array:
        return np.asarray(self._law(scores, tree, activation, law, mask).log_prob(jnp.asarray(classes)))

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
        found = self._law(scores, tree, activation, law, mask)
        return np.asarray(found.sample(sample_shape, key=jax.random.key(seed)))

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
        given = None if classes is None else jnp.asarray(classes)
        found = self._law(scores, tree, activation, law, mask)
        return np.asarray(_gradient(found, name, given, jnp.asarray(cotangent)))

    @quietly
    def law_jacobian(self, scores: Array, tree: Any, activation: Activation, law: LawCase, mask: Array) -> Array:
        """d log p_k / d s_i, shape (K, K-1), for one row of scores."""
        return self.jacobian(lambda s: self._law(s, tree, activation, law, mask).logits, scores)

    @quietly
    def law_fisher(self, scores: Array, tree: Any, activation: Activation, mask: Array) -> tuple[Array, Array]:
        """The Fisher diagonal of a pruned tree, from the distribution and from the function."""
        native, kind, valid = jnp.asarray(scores), build_activation(activation), jnp.asarray(mask)
        found = lib.Catnat(native, tree, kind, mask=valid).fisher_diagonal()
        return np.asarray(found), np.asarray(lib.fisher_diagonal(native, tree, kind, mask=valid))

    @quietly
    def law_kl(self, p: tuple[Any, ...], q: tuple[Any, ...]) -> Array:
        """KL(p || q) of two laws, each given as (scores, tree, activation, law, mask)."""
        return np.asarray(self._law(*p).kl_divergence(self._law(*q)))

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
        kind, options = build_activation(activation), self._options(law, mask)

        def draw(native: jax.Array) -> jax.Array:
            found = lib.OneHotCatnatStraightThrough(native, tree, kind, temperature=law.temperature, **options)
            return found.rsample(key=jax.random.key(seed))

        return self._draw_and_gradient(draw, scores, cotangent)

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

        def draw(native: jax.Array) -> jax.Array:
            found = lib.RelaxedOneHotCatnat(temperature, native, tree, kind, **options)
            return found.rsample(key=jax.random.key(seed))

        return self._draw_and_gradient(draw, scores, cotangent)

    @staticmethod
    def _draw_and_gradient(draw: Callable[[Any], Any], scores: Array, cotangent: Array) -> tuple[Array, Array]:
        drawn, pull_back = jax.vjp(draw, jnp.asarray(scores))
        return np.asarray(drawn), np.asarray(pull_back(jnp.asarray(cotangent))[0])

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
        found = lib.RelaxedOneHotCatnat(temperature, jnp.asarray(scores), tree, kind, **options)
        return np.asarray(found.log_prob(jnp.asarray(value)))


# Distributions go through the doors of compiled functions, where everything asked of them is one program.


@jax.jit
def _facts(law: Any) -> dict[str, jax.Array]:
    names = ["probs", "logits", "mode"] + ["mean", "variance"] * isinstance(law, lib.OneHotCatnat)
    return {"entropy": law.entropy(), **{name: getattr(law, name) for name in names}}


@functools.partial(jax.jit, static_argnames="name")
def _gradient(law: Any, name: str, classes: Any, cotangent: jax.Array) -> jax.Array:
    def fact(scores: jax.Array) -> jax.Array:
        found = dataclasses.replace(law, scores=scores)
        value = found.log_prob(classes) if classes is not None else getattr(found, name)
        result: jax.Array = value() if callable(value) else value
        return result

    return jax.vjp(fact, law.scores)[1](cotangent)[0]
