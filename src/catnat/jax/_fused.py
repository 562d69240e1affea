"""The log-probabilities of all classes by one call of a compiled kernel, on CPU and if catnat-kernels is installed.

The plain operations of ``_dense``, compiled by XLA, are the definition, the fallback and, in tests, the oracle. Second
and higher derivatives use them too. The environment variable ``CATNAT_KERNELS`` is read at the first call: ``0``
switches kernels off; ``baseline``, ``avx2`` and ``avx512`` select an instruction set.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.custom_batching import custom_vmap
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from catnat import _kernels
from catnat.activations import natural
from catnat.jax import _dense
from catnat.jax._plan import Plan
from catnat.trees import tables


def kernels() -> dict[str, str]:
    """Return the fused kernels in use for each device type: their name and version, or the reason why there are none.

    Kernels change the time of a call and the last digits of its result, and nothing else.

    Example:
        >>> from catnat.jax import kernels
        >>> sorted(kernels())
        ['cpu']
    """
    return _kernels.in_use("jax")


@functools.partial(jax.jit, static_argnames=("plan", "floored"))
def log_probs(scores: Array, plan: Plan, *, floored: bool = True) -> Array:
    """Return the log-probability of every class, by a kernel if one supports this plan.

    If not ``floored``, the exponential is exactly 0 where the probability is 0.
    """
    served = (
        type(plan.activation) in tables.FUSED and plan.dtype in (jnp.float32, jnp.float64) and _kernels.found("jax")[0]
    )
    # XLA cannot partition foreign calls: scores on a mesh of devices, whole or one shard, use the plain operations.
    if not served or plan.tree.num_nodes == 0 or not jax.typeof(scores).sharding.mesh.empty:
        return _dense.log_probs(scores, plan, floored=floored)
    return _log_probs(scores, Problem(plan, floored))


class Problem(NamedTuple):
    """The static arguments of the log-probabilities, and their computation by plain operations or kernels."""

    plan: Plan
    floored: bool

    def plain(self, scores: Array) -> Array:
        """Return the log-probabilities, by plain operations."""
        return _dense.log_probs(scores, self.plan, floored=self.floored)

    def plain_push(self, scores: Array, tangent: Array) -> Array:
        """Return the tangent of the log-probabilities, by plain operations."""
        pushed: Array = jax.jvp(self.plain, (scores,), (tangent,))[1]
        return pushed

    def plain_pull(self, scores: Array, grad: Array) -> Array:
        """Return the gradient of the scores, by plain operations."""
        return jax.vjp(self.plain, scores)[1](grad)[0]

    def call(self, target: str, *arrays: Array, columns: int) -> Array:
        """Call the CPU kernel ``target``; the result has the arrays' leading axes and ``columns`` on its last axis."""
        tree, activation, dtype = self.plan.tree, self.plan.activation, arrays[0].dtype
        rows = jnp.stack([jnp.asarray(row, dtype).reshape(-1) for row in self._constants()])
        attributes = {
            "depth": np.int64(tree.depth),
            "activation": np.int64(tables.FUSED[type(activation)]),
            "floored": self.floored,
        }
        shape = jax.ShapeDtypeStruct((*arrays[0].shape[:-1], columns), dtype)
        return jax.ffi.ffi_call(target, shape)(*arrays, rows, tables.fused_table(tree), **attributes)

    def _constants(self) -> list[Any]:
        """Return the rows that the kernels read: the offset, or the band and the angle per score."""
        rows = list(self.plan.constants())
        if isinstance(self.plan.activation, natural):
            rows.append(rows[0] * 0 + math.pi / (2 * self.plan.activation.width))
        return rows


def _on_cpu(kernel: Callable[..., Array], plain: Callable[..., Array], *arrays: Array) -> Array:
    """Call ``kernel`` in programs compiled for the CPU, else ``plain``; ``vmap`` adds a leading axis to its arrays."""
    batched = custom_vmap(kernel)
    batched.def_vmap(lambda size, is_batched, *given: (batched(*_lead(given, is_batched, size)), True))
    return lax.platform_dependent(*arrays, cpu=batched, default=plain)


def _lead(arrays: tuple[Array, ...], is_batched: list[bool], size: int) -> list[Array]:
    """Return the arrays with the batch axis first; repeat the arrays that have none."""
    pairs = zip(arrays, is_batched, strict=True)
    return [array if has else jnp.broadcast_to(array, (size, *array.shape)) for array, has in pairs]


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _log_probs(scores: Array, problem: Problem) -> Array:
    def kernel(scores: Array) -> Array:
        return problem.call("catnat_log_probs", scores, columns=problem.plan.tree.num_classes)

    return _on_cpu(kernel, problem.plain, scores)


@_log_probs.defjvp
def _slopes_of_log_probs(problem: Problem, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return _log_probs(*primals, problem), _push.bind(*primals, *tangents, problem=problem)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _pull(scores: Array, grad: Array, problem: Problem) -> Array:
    """Return the gradient of the scores, from the gradient of the log-probabilities."""

    def kernel(scores: Array, grad: Array) -> Array:
        return problem.call("catnat_log_probs_backward", grad, scores, columns=problem.plan.tree.num_nodes)

    return _on_cpu(kernel, problem.plain_pull, scores, grad)


@_pull.defjvp
def _slopes_of_pull(
    problem: Problem, primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    found: tuple[Array, Array] = jax.jvp(problem.plain_pull, primals, tangents)
    return found


# The tangent is a linear primitive whose transpose is the kernel, because `jax.custom_vjp` does not support forward
# mode.
_push = Primitive("catnat_push")


@_push.def_impl
def _push_impl(scores: Array, tangent: Array, *, problem: Problem) -> Array:
    return problem.plain_push(scores, tangent)


@_push.def_abstract_eval
def _push_shape(scores: Any, tangent: Any, *, problem: Problem) -> Any:
    return scores.update(shape=(*scores.shape[:-1], problem.plan.tree.num_classes))


def _push_transpose(grad: Any, scores: Array, tangent: Any, *, problem: Problem) -> tuple[None, Any]:
    return None, ad.Zero(tangent.aval) if type(grad) is ad.Zero else _pull(scores, grad, problem)


def _push_jvp(primals: Any, tangents: Any, *, problem: Problem) -> Any:
    return jax.jvp(problem.plain_push, primals, tuple(map(ad.instantiate_zeros, tangents)))


def _push_batch(arrays: Any, axes: Any, *, problem: Problem) -> Any:
    is_batched = [axis is not None for axis in axes]
    moved = [
        jnp.moveaxis(array, axis, 0) if has else array
        for array, axis, has in zip(arrays, axes, is_batched, strict=True)
    ]
    size = next(array.shape[0] for array, has in zip(moved, is_batched, strict=True) if has)
    return _push.bind(*_lead(tuple(moved), is_batched, size), problem=problem), 0


ad.primitive_transposes[_push] = _push_transpose
ad.primitive_jvps[_push] = _push_jvp
batching.primitive_batchers[_push] = _push_batch
mlir.register_lowering(_push, mlir.lower_fun(_push_impl, multiple_results=False))
