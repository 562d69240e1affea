"""catnat.torch for the checks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from conformance import backend
from conformance.backend import Array
from torch import distributions as td

import catnat.torch as lib

torch.set_num_threads(1)


class Backend(backend.Backend):
    name, lib, numpy_like, axis = "torch", lib, torch, "dim"

    def array(self, values: Any) -> torch.Tensor:
        return torch.from_numpy(np.array(values))  # a copy, so that nothing can write into the test's arrays

    def numpy(self, value: torch.Tensor) -> Array:
        return value.numpy()

    def randomness(self, seed: int) -> dict[str, Any]:
        return {"generator": torch.Generator().manual_seed(seed)}

    def seeded(self, seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)  # the compiler takes no generator
        return {}

    def cast(self, value: torch.Tensor, dtype: str) -> torch.Tensor:
        return value.to(getattr(torch, dtype))

    def shape_of(self, function: Callable[[], Any]) -> tuple[int, ...]:
        return tuple(function().shape)

    def value_and_gradient(
        self, function: Callable[[Any], Any], x: Array, cotangent: Array | None = None
    ) -> tuple[Array, Array]:
        leaf = self.array(x).requires_grad_()
        value = self.run(function, leaf)
        # Nothing to differentiate: torch may leave an empty result out of its graph, the compiler also a constant one.
        if value.numel() == 0 or not value.requires_grad:
            return value.detach().numpy(), np.zeros(leaf.shape)
        value.backward(torch.ones_like(value) if cotangent is None else self.array(cotangent))
        assert leaf.grad is not None
        return value.detach().numpy(), leaf.grad.numpy()

    def jacobian(self, function: Callable[[Any], Any], x: Array) -> Array:
        run = functools.partial(self.run, function)
        return torch.autograd.functional.jacobian(run, self.array(x)).detach().numpy()

    def hessian(self, function: Callable[[Any], Any], x: Array) -> Array:
        return torch.autograd.functional.hessian(function, self.array(x)).numpy()

    def first_and_second(self, function: Callable[[Any], Any], x: Array) -> tuple[Array, Array, Array]:
        leaf = self.array(x).requires_grad_()
        value = function(leaf)
        (first,) = torch.autograd.grad(value, leaf, self.array(backend.signs(value.shape)), create_graph=True)
        second = torch.zeros_like(leaf)
        if first.requires_grad:  # otherwise the function is linear
            cotangent = self.array(backend.signs(first.shape))
            (second,) = torch.autograd.grad(first, leaf, cotangent, materialize_grads=True)
        return value.detach().numpy(), first.detach().numpy(), second.numpy()

    def detached(self, value: Any) -> torch.Tensor:
        return value.detach()

    def head(self, tree: Any, activation: Any, weight: Any, bias: Any, **options: Any) -> Any:
        found = lib.CatnatHead(weight.shape[1], tree, activation, dtype=weight.dtype, **options)
        for name, rows in (("weight", weight), ("bias", bias)):
            delattr(found, name)  # a parameter would be a leaf of its own
            setattr(found, name, rows)
        return found

    def kl(self, p: Any, q: Any) -> torch.Tensor:
        return td.kl_divergence(p, q)

    def categorical(self, logits: Any, kind: str) -> td.Distribution:
        logits = torch.as_tensor(logits)
        if kind == "probs":
            return td.Categorical(probs=logits.softmax(-1))
        return (td.OneHotCategorical if kind == "one-hot" else td.Categorical)(logits=logits)
