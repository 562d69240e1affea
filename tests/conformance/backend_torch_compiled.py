"""catnat.torch through torch.compile: traced into one graph and differentiated by the compiler, no code generated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from conformance import backend_torch


class Backend(backend_torch.Backend):
    name = "torch_compiled"

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        torch._dynamo.reset()  # every row is another function to it, and it gives up after some
        return torch.compile(function, fullgraph=True, backend="aot_eager")(*args)
