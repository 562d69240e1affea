"""The log-probabilities of all classes in one autograd step, by C++ kernels if installed, else by written derivatives.

``_dense`` is the definition, the fallback and, in tests, the oracle. The package catnat-kernels contains kernels for
the CPU; :func:`kernels` returns whether they are in use. The environment variable ``CATNAT_KERNELS=0`` disables them,
and ``=baseline``, ``=avx2`` or ``=avx512`` selects their instruction set.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from catnat import _kernels
from catnat.activations import natural
from catnat.torch import _dense, _walk
from catnat.torch._branches import FEW
from catnat.torch._inputs import is_data, runs_eagerly
from catnat.torch._plan import MOST_WALKED_LEVELS, Plan
from catnat.trees.tables import FUSED, fused_parents, fused_table


def log_probs(plan: Plan, scores: Tensor, *, floored: bool = True) -> Tensor:
    """Return the log-probability of every class; unless ``floored``, its exponential is 0 at impossible classes."""
    if torch.compiler.is_compiling():
        return _compiled_log_probs(plan, scores, floored)
    method: Method | None = plan.method
    if method is None or scores.numel() <= method.most_plain or not is_data(scores):
        return _dense.log_probs(plan, scores, floored=floored)
    if scores.requires_grad and torch.is_grad_enabled():
        leaves: Tensor = _LeafLogProbs.apply(scores, method, floored)
        return leaves
    return method.forward(scores, floored)[0]


def draw(plan: Plan, scores: Tensor, count: int, generator: torch.Generator | None) -> Tensor | None:
    """Draw ``count`` classes for every row, (count, ...), or return None if no kernel can be used."""
    kernel = plan.method
    if not isinstance(kernel, Kernel) or plan.tree.depth > MOST_WALKED_LEVELS or not runs_eagerly(scores):
        return None
    return kernel.draw(scores, count, generator)


def path_log_probs(plan: Plan, scores: Tensor, classes: Tensor) -> Tensor | None:
    """Return the floored log-probability of ``classes``, rows + (n,), or None if no kernel can be used."""
    kernel = plan.method
    if not isinstance(kernel, Kernel) or scores.shape[:-1] != classes.shape[:-1] or not (runs_eagerly(scores, classes)):
        return None
    rows = kernel.rows(scores)
    places = classes.reshape(len(rows), classes.shape[-1]).contiguous()
    if scores.requires_grad and torch.is_grad_enabled():
        found: Tensor = _PathLogProbs.apply(rows, kernel, places)
    else:
        found = kernel.path_log_probs(rows, places)
    return found.view(classes.shape)


# ---- methods ----


class Method(Protocol):
    """A method to compute the log-probabilities of all classes, and their derivative, for a plan."""

    plan: Plan
    most_plain: int
    """The number of scores up to which plain operations are faster."""

    def forward(self, scores: Tensor, floored: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the log-probabilities, and the tensors that :meth:`backward` needs."""

    def backward(self, grad: Tensor, scores: Tensor, kept: tuple[Tensor, ...], floored: bool) -> Tensor:
        """Return the gradient of the scores, from the gradient of the log-probabilities."""


class ByHand:
    """Plain operations with a written derivative, which takes a third of the time of autograd."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.most_plain = FEW if plan.log_odds is not None else 0

    def forward(self, scores: Tensor, floored: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Compute the branches, then sum down the tree."""
        no, yes = self.plan.branches.forward(scores, floored=floored)
        return _dense.path_sums(self.plan, no, yes, to="leaves"), (no, yes)

    def backward(self, grad: Tensor, scores: Tensor, kept: tuple[Tensor, ...], floored: bool) -> Tensor:
        """Sum up the tree, then differentiate the branches."""
        no, yes = kept
        return self.plan.branches.backward(no, yes, *_dense.leaf_sums(self.plan, grad), floored=floored)


class Kernel:
    """The C++ kernels for the CPU in the package catnat-kernels, for contiguous float32 or float64 matrices."""

    most_plain = 0

    def __init__(self, plan: Plan) -> None:
        self.plan, tree, branches = plan, plan.tree, plan.branches
        constants, code = branches.columns(plan.device, plan.dtype), FUSED[type(plan.activation)]
        if isinstance(plan.activation, natural):  # also the angle per unit of the score
            constants.append(torch.full_like(constants[0], torch.pi / (2 * plan.activation.width)))
        self._shape = tree.num_classes, tree.depth
        self._code = code
        self._constants = torch.stack(constants)
        self._table = torch.as_tensor(fused_table(tree), device=plan.device)
        self._parents = torch.as_tensor(fused_parents(tree), device=plan.device)

    @staticmethod
    def rows(scores: Tensor) -> Tensor:
        """Return ``scores`` as a contiguous matrix; a matrix is not viewed, which would add a step to autograd."""
        return (scores if scores.ndim == 2 else scores.reshape(-1, scores.shape[-1])).contiguous()

    def forward(self, scores: Tensor, floored: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Compute all classes in one pass."""
        classes, depth = self._shape
        leaves = torch.ops.catnat.log_probs.default(
            self.rows(scores), self._constants, self._table, classes, depth, self._code, floored
        )
        return leaves if scores.ndim == 2 else leaves.view(*scores.shape[:-1], classes), ()

    def compiled(self, scores: Tensor, floored: bool) -> Tensor:
        """Return the log-probabilities from an operator that has its own autograd."""
        classes, depth = self._shape
        leaves = torch.ops.catnat.differentiable_log_probs(
            self.rows(scores), self._constants, self._table, classes, depth, self._code, floored
        )
        return leaves.view(*scores.shape[:-1], classes)

    def backward(self, grad: Tensor, scores: Tensor, kept: tuple[Tensor, ...], floored: bool) -> Tensor:
        """Compute the gradient of the scores in one pass."""
        found = torch.ops.catnat.log_probs_backward.default(
            self.rows(grad), self.rows(scores), self._constants, self._table, self._shape[1], self._code, floored
        )
        return found.view(scores.shape)

    def draw(self, scores: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
        """Draw ``count`` classes for every row, (count, ...)."""
        rows = self.rows(scores.detach())
        uniforms = _walk.rand((count * len(rows), self.plan.tree.depth), rows, generator)
        drawn = torch.empty(len(uniforms), dtype=torch.int64, device=scores.device)
        torch.ops.catnat.draw.default(rows, self._constants, self._table, uniforms, self._code, drawn)
        return drawn.view(count, *scores.shape[:-1])

    def path_log_probs(self, rows: Tensor, classes: Tensor) -> Tensor:
        """Return the floored log-probabilities of classes (rows, n)."""
        return torch.ops.catnat.path_log_probs.default(
            rows, self._constants, self._parents, classes, self._shape[1], self._code, True
        )

    def path_log_probs_backward(self, grad: Tensor, rows: Tensor, classes: Tensor) -> Tensor:
        """Return the gradient of the scores."""
        return torch.ops.catnat.path_log_probs_backward.default(
            grad.contiguous(), rows, self._constants, self._parents, classes, self._shape[1], self._code, True
        )


def with_method(plan: Plan) -> Plan:
    """Set ``plan.method`` if the activation has one, and return the plan."""
    if type(plan.activation) in FUSED and plan.tree.num_nodes > 0:
        plan.method = Kernel(plan) if plan.device.type == "cpu" and kernels_in_use() else ByHand(plan)
    return plan


def kernels_in_use() -> bool:
    """Return whether kernels for the CPU are in use."""
    return _kernels.found("torch")[0]


def kernels() -> dict[str, str]:
    """Return the fused kernels in use for each device type: their name and version, or the reason why there are none.

    Kernels change the time of a call, the last digits of results, and the draws that belong to a seed.

    Example:
        >>> from catnat.torch import kernels
        >>> sorted(kernels())
        ['cpu']
    """
    return _kernels.in_use("torch")


# ---- autograd ----


class _LeafLogProbs(torch.autograd.Function):
    """The log-probabilities of all classes by a :class:`Method`; second derivatives are those of plain operations."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, method: Method, floored: bool) -> Tensor:
        leaves, kept = method.forward(scores, floored)
        ctx.save_for_backward(scores, *kept)
        ctx.method, ctx.floored = method, floored
        return leaves

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        scores, *kept = ctx.saved_tensors
        if torch.is_grad_enabled() or not is_data(grad):
            with torch.enable_grad():
                plain = _dense.log_probs(ctx.method.plan, scores, floored=ctx.floored)
            return *torch.autograd.grad(plain, scores, grad, create_graph=torch.is_grad_enabled()), None, None
        return ctx.method.backward(grad, scores, kept, ctx.floored), None, None


class _PathLogProbs(torch.autograd.Function):
    """The log-probabilities of given classes by a kernel; second derivatives are those of plain operations."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, kernel: Kernel, classes: Tensor) -> Tensor:
        ctx.save_for_backward(rows, classes)
        ctx.kernel = kernel
        return kernel.path_log_probs(rows, classes)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, classes = ctx.saved_tensors
        plan = ctx.kernel.plan
        if torch.is_grad_enabled() or not is_data(grad):
            with torch.enable_grad():
                plain = _dense.log_probs(plan, rows, floored=True).gather(-1, classes)
                if plan.walks:
                    plain = _walk.path_log_prob(plan, _walk.ScoreReader(rows), classes)
            return *torch.autograd.grad(plain, rows, grad, create_graph=torch.is_grad_enabled()), None, None
        return ctx.kernel.path_log_probs_backward(grad, rows, classes), None, None


# ---- inside the compiler ----
#
# The compiler calls the operator with its own autograd, in a quarter of the time of the plain operations after fusion.
# Exported graphs contain plain operations, so that they run without the kernels.


def _compiled_log_probs(plan: Plan, scores: Tensor, floored: bool) -> Tensor:
    if torch.compiler.is_exporting() or not isinstance(plan.method, Kernel):
        return _dense.log_probs(plan, scores, floored=floored)
    return plan.method.compiled(scores, floored)
