"""The kernels as targets of ``jax.ffi``: "catnat_log_probs" and "catnat_log_probs_backward", on the CPU."""

import ctypes

import jax

import catnat_kernels

try:
    _library = ctypes.CDLL(catnat_kernels.path_of("jax"))
except OSError as error:
    raise ImportError(f"catnat-kernels {catnat_kernels.__version__} was built without JAX: {error}") from error
instruction_set = catnat_kernels.instruction_set(_library)

for _target in ("catnat_log_probs", "catnat_log_probs_backward"):
    jax.ffi.register_ffi_target(_target, jax.ffi.pycapsule(getattr(_library, _target)), platform="cpu")
