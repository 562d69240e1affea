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


class Backend(backend.Backend):
    name, lib, numpy_like, axis = "jax", lib, jnp, "axis"

    def array(self, values: Any) -> jax.Array:
        return jnp.asarray(values)

    def numpy(self, value: jax.Array) -> Array:
        return np.asarray(value)

    def randomness(self, seed: int) -> dict[str, Any]:
        return {"key": jax.random.key(seed)}

    def value_and_gradient(self, function: Callable[[Any], Any], x: Array, cotangent: Array) -> tuple[Array, Array]:
        value, pull_back = jax.vjp(function, self.array(x))
        return np.asarray(value), np.asarray(pull_back(self.array(cotangent))[0])

    def jacobian(self, function: Callable[[Any], Any], x: Array) -> Array:
        return np.asarray(jax.jacobian(function)(self.array(x)))

    def kl(self, p: Any, q: Any) -> jax.Array:
        return p.kl_divergence(q)

    # Distributions go through the doors of compiled functions, where all their facts are one program.

    def facts(self, build: Callable[[Any], Any], scores: Array) -> dict[str, Any]:
        return _facts(build(self.array(scores)))

    def gradient_of_fact(
        self, build: Callable[[Any], Any], scores: Array, name: str, classes: Any, cotangent: Array
    ) -> Array:
        return np.asarray(_gradient(build(self.array(scores)), name, classes, self.array(cotangent)))


_facts = jax.jit(backend.facts_of)


@functools.partial(jax.jit, static_argnames="name")
def _gradient(options: Any, name: str, classes: Any, cotangent: jax.Array) -> jax.Array:
    def fact(scores: jax.Array) -> Any:
        return backend.fact_of(dataclasses.replace(options, scores=scores), name, classes)

    return jax.vjp(fact, options.scores)[1](cotangent)[0]
