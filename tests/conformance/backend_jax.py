"""catnat.jax for the checks."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from conformance import backend
from conformance.backend import Array

import catnat.jax as lib

jax.config.update("jax_enable_x64", True)  # the checks are stated in float64


@dataclasses.dataclass
class Categorical:
    """A user's own distribution, with nothing but the members that the estimators name: JAX has none."""

    logits: jax.Array
    one_hot: bool = False

    @property
    def event_shape(self) -> tuple[int, ...]:
        return self.logits.shape[-1:] if self.one_hot else ()

    @property
    def probs(self) -> jax.Array:
        return jnp.exp(self.logits)

    def sample(self, sample_shape: tuple[int, ...] = (), *, key: jax.Array) -> jax.Array:
        classes = jax.random.categorical(key, self.logits, shape=(*sample_shape, *self.logits.shape[:-1]))
        return jax.nn.one_hot(classes, self.logits.shape[-1]) if self.one_hot else classes

    def log_prob(self, value: jax.Array) -> jax.Array:
        classes = value.argmax(-1) if self.one_hot else value
        every = jnp.broadcast_to(self.logits, (*classes.shape, self.logits.shape[-1]))
        return jnp.take_along_axis(every, classes[..., None], -1)[..., 0]


class Backend(backend.Backend):
    name, lib, numpy_like, axis = "jax", lib, jnp, "axis"

    def array(self, values: Any) -> jax.Array:
        return jnp.asarray(values)

    def numpy(self, value: jax.Array) -> Array:
        return np.asarray(value)

    def randomness(self, seed: int) -> dict[str, Any]:
        return {"key": jax.random.key(seed)}

    def cast(self, value: jax.Array, dtype: str) -> jax.Array:
        return value.astype(dtype)

    def shape_of(self, function: Callable[[], Any]) -> tuple[int, ...]:
        return jax.eval_shape(function).shape

    def value_and_gradient(
        self, function: Callable[[Any], Any], x: Array, cotangent: Array | None = None
    ) -> tuple[Array, Array]:
        @jax.jit  # one program rather than one for the value, one for the gradient and one for each step between them
        def both(at: jax.Array) -> tuple[jax.Array, jax.Array]:
            value, pull_back = jax.vjp(function, at)
            weights = jnp.ones_like(value) if cotangent is None else self.array(cotangent)
            return value, pull_back(weights)[0]

        value, gradient = both(self.array(x))
        return np.asarray(value), np.asarray(gradient)

    def jacobian(self, function: Callable[[Any], Any], x: Array) -> Array:
        return np.asarray(jax.jit(jax.jacobian(function))(self.array(x)))

    def hessian(self, function: Callable[[Any], Any], x: Array) -> Array:
        return np.asarray(jax.jit(jax.hessian(function))(self.array(x)))

    def first_and_second(self, function: Callable[[Any], Any], x: Array) -> tuple[Array, Array, Array]:
        def weighted(at: jax.Array) -> tuple[jax.Array, jax.Array]:
            value = function(at)
            return (value * backend.signs(value.shape)).sum(), value

        @jax.jit
        def both(at: jax.Array) -> tuple[jax.Array, ...]:
            first, pull_back, value = jax.vjp(jax.grad(weighted, has_aux=True), at, has_aux=True)
            return value, first, pull_back(jnp.asarray(backend.signs(at.shape)))[0]

        value, first, second = map(np.asarray, both(self.array(x)))
        return value, first, second

    def detached(self, value: Any) -> jax.Array:
        return jax.lax.stop_gradient(value)

    def head(self, tree: Any, activation: Any, weight: Any, bias: Any, **options: Any) -> Any:
        found = lib.CatnatHead(weight.shape[1], tree, activation, dtype=weight.dtype, key=jax.random.key(0), **options)
        found.weight, found.bias = weight, bias
        return found

    def kl(self, p: Any, q: Any) -> jax.Array:
        return p.kl_divergence(q)

    def categorical(self, logits: Any, kind: str) -> Categorical:
        return Categorical(jax.nn.log_softmax(jnp.asarray(logits)), one_hot=kind == "one-hot")

    # Distributions go through the doors of compiled functions, where all their facts are one program.

    def facts(self, build: Callable[[Any], Any], scores: Array) -> dict[str, Any]:
        return _facts(build(self.array(scores)))

    def gradient_of_fact(
        self, build: Callable[[Any], Any], scores: Array, name: str, classes: Any, cotangent: Array
    ) -> Array:
        return np.asarray(_gradient(build(self.array(scores)), name, classes, self.array(cotangent)))


_facts = jax.jit(backend.facts_of)


@functools.partial(jax.jit, static_argnames="name")
def _gradient(distribution: Any, name: str, classes: Any, cotangent: jax.Array) -> jax.Array:
    def fact(scores: jax.Array) -> Any:
        return backend.fact_of(dataclasses.replace(distribution, scores=scores), name, classes)

    return jax.vjp(fact, distribution.scores)[1](cotangent)[0]
