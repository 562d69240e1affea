"""Fixtures of the shared suite: every backend, every tree, every activation."""

import cases
import pytest
from conformance import backends


@pytest.fixture(
    scope="session", params=["torch", pytest.param("torch_compiled", marks=pytest.mark.expensive_compile), "jax"]
)
def backend(request):
    return backends.load(request.param)


@pytest.fixture(scope="session", params=["torch", "jax"])
def framework(request):
    """A backend, where torch's compiler has tests of its own."""
    return backends.load(request.param)


@pytest.fixture(params=cases.TREE_NAMES)
def tree(request):
    return cases.tree_case(request.param)


@pytest.fixture(params=cases.ACTIVATIONS.values(), ids=cases.ACTIVATIONS.keys())
def activation(request):
    return request.param
