"""The fused kernels of GPUs, in Triton. They have not run on one yet: see docs/kernels.md for how they are checked.

A balanced tree is cut into slabs of up to ten levels, which is all of it up to 1,024 classes. One program takes one
subtree of a slab in some rows, and goes through its levels in registers: the two sums of the nodes of a level, side by
side, are those of the level below. For any other tree the nodes are fused, and the sums are those of ``_dense``.

Imported only where Triton is, by ``_fused``. With ``TRITON_INTERPRET=1`` in the environment it runs on the CPU.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-untyped, import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-untyped, import-not-found, unused-ignore]
from torch import Tensor

from catnat.activations import MOST_FOLDS, SATURATED_LOGIT
from catnat.torch import _constants, _dense, _kernels
from catnat.torch._fused import Plan
from catnat.trees.tables import REFLECTED, SIGMOID

# ---- elementary functions ----
#
# Only what Triton has on every device, of arguments that occur here. Comparisons are written so that NaN passes
# through, which `tl.maximum` and `tl.clamp` swallow.


@triton.jit
def _at_least(x: tl.tensor, limit: tl.tensor) -> tl.tensor:
    return tl.where(x < limit, limit, x)


@triton.jit
def _at_most(x: tl.tensor, limit: tl.tensor) -> tl.tensor:
    return tl.where(x > limit, limit, x)


@triton.jit
def _exp(x: tl.tensor) -> tl.tensor:
    """exp(x) for x <= 0 to full relative precision: `tl.exp` alone multiplies x by log2(e), and rounds."""
    is_double: tl.constexpr = x.dtype == tl.float64
    # ln 2 as a sum, whose first part times any exponent is exact.
    high: tl.constexpr = 6.93147180369123816490e-01 if is_double else 0.693359375
    low: tl.constexpr = 1.90821492927058770002e-10 if is_double else -2.12194440e-4
    x = _at_least(x, -746.0 if is_double else -104.0)  # below, the result is 0
    exponent = tl.floor(x * 1.4426950408889634 + 0.5)
    rest = tl.exp((x - exponent * high) - exponent * low)
    return rest * tl.exp2(exponent + 64.0) * 2.0**-64  # `tl.exp2` may flush a subnormal number to 0


@triton.jit
def _log1p(x: tl.tensor) -> tl.tensor:
    """log(1 + x) for x in 0 .. 1 to full relative precision: 2 atanh s with s = x / (2 + x), by its Taylor series."""
    terms: tl.constexpr = 18 if x.dtype == tl.float64 else 8
    s = x / (2.0 + x)
    square = s * s
    series = tl.full(x.shape, 1.0 / (2 * terms + 1), x.dtype)
    for i in tl.static_range(1, terms + 1):
        series = series * square + 1.0 / (2 * (terms - i) + 1)
    return 2.0 * s * series


@triton.jit
def _tan(x: tl.tensor) -> tl.tensor:
    return _sin(x) / _alternating(x * x, 1)


@triton.jit
def _sin(x: tl.tensor) -> tl.tensor:
    return x * _alternating(x * x, 2)


@triton.jit
def _alternating(square: tl.tensor, first: tl.constexpr) -> tl.tensor:
    """1 - t/(n (n + 1)) (1 - t/((n + 2) (n + 3)) (1 - ...)): cos x from n = 1 and sin(x)/x from n = 2, up to pi/4.

    `tl.sin` and `tl.cos` would bring the code that reduces the largest arguments, once for every level of a tree.
    """
    terms: tl.constexpr = 9 if square.dtype == tl.float64 else 6
    series = tl.full(square.shape, 1.0, square.dtype)
    for i in tl.static_range(terms - 1, -1, -1):
        series = 1.0 - square * (1.0 / ((first + 2 * i) * (first + 2 * i + 1))) * series
    return series


# ---- activations: what a node makes of its score ----
#
# The formulas are those of `_kernels`. `kind` is a plan's code, `constants` are those of the nodes. `bound` is where a
# node is flat: the sigmoid's largest logit, or the natural activation's smallest angle.

IS_SIGMOID, IS_REFLECTED = tl.constexpr(SIGMOID), tl.constexpr(REFLECTED)
FARTHEST_FOLD = tl.constexpr(MOST_FOLDS)


@triton.jit
def _node_constants(
    table: tl.tensor, node: tl.tensor, used: tl.tensor, columns: tl.tensor, shared: tl.constexpr, kind: tl.constexpr
) -> tl.tensor:
    """Those of ``node``, from the rows of ``table``, one column for each node or one that they have ``shared``."""
    if shared:
        node, used, columns = 0, True, 1
    if kind == IS_SIGMOID:
        return _row(table, 0, columns, node, used), _row(table, 1, columns, node, used)
    else:
        lower, lower_rest = _row(table, 0, columns, node, used), _row(table, 1, columns, node, used)
        upper, upper_rest = _row(table, 2, columns, node, used), _row(table, 3, columns, node, used)
        centre, rate = _row(table, 4, columns, node, used), _row(table, 5, columns, node, used)
        return lower, lower_rest, upper, upper_rest, centre, rate, _row(table, 6, columns, node, used)


@triton.jit
def _row(table: tl.tensor, row: tl.constexpr, columns: tl.tensor, node: tl.tensor, used: tl.tensor) -> tl.tensor:
    return tl.load(table + row * columns + node, mask=used, other=1.0)


@triton.jit
def _logit(score: tl.tensor, constants: tl.tensor, bound: tl.constexpr) -> tl.tensor:
    """The logit of the sigmoid, finite for every finite score, and its derivative."""
    scale, offset = constants
    logit = _at_most(_at_least(score, -bound), bound) * scale + offset
    flat = (tl.abs(score) > bound) | (tl.abs(logit) > bound)
    return logit, tl.where(flat, 0.0, scale)


@triton.jit
def _sigmoid(x: tl.tensor) -> tl.tensor:
    small = _exp(-tl.abs(x))
    return tl.where(x > 0, 1.0, small) / (1.0 + small)


@triton.jit
def _angle(score: tl.tensor, constants: tl.tensor, kind: tl.constexpr) -> tl.tensor:
    """The angle to the nearer edge of the band, if that is the upper one, and the derivative of the angle's size."""
    lower, lower_rest, upper, upper_rest, centre, rate, period = constants
    slope = rate
    if kind == IS_REFLECTED:
        limit = period * FARTHEST_FOLD
        score = _at_most(_at_least(score, -limit), limit)
        score = score - tl.floor((score - centre) / period + 0.5) * period
        above, under = score > upper, score < lower
        score = tl.where(above, 2.0 * upper - score, tl.where(under, 2.0 * lower - score, score))
        slope = tl.where(above | under, -rate, rate)
    from_upper, from_lower = (upper - score) + upper_rest, (score - lower) - lower_rest
    in_upper_half = from_upper <= from_lower
    return tl.where(in_upper_half, from_upper, from_lower) * rate, in_upper_half, slope


@triton.jit
def _branch_log_probs(
    score: tl.tensor, constants: tl.tensor, kind: tl.constexpr, bound: tl.constexpr, lost: tl.constexpr
) -> tl.tensor:
    """Of no and of yes; the rarer branch of a flat node of the natural activation has ``lost`` so much."""
    if kind == IS_SIGMOID:
        logit, _ = _logit(score, constants, bound)
        both = _log1p(_exp(-tl.abs(logit)))
        return -(_at_most(_at_least(logit, 0.0), bound) + both), _at_least(_at_most(logit, 0.0), -bound) - both
    else:
        angle, in_upper_half, _ = _angle(score, constants, kind)
        tan = _tan(_at_least(angle, bound))
        odds = tan * tan
        likely = -_log1p(odds)
        rare = tl.log(odds) + likely
        rare = tl.where(angle <= bound, rare - lost, rare)
        return tl.where(in_upper_half, rare, likely), tl.where(in_upper_half, likely, rare)


@triton.jit
def _score_gradient(
    no: tl.tensor, yes: tl.tensor, score: tl.tensor, constants: tl.tensor, kind: tl.constexpr, bound: tl.constexpr
) -> tl.tensor:
    """From the gradients of the log-probabilities of ``no`` and ``yes``."""
    if kind == IS_SIGMOID:
        logit, slope = _logit(score, constants, bound)
        return (yes * _sigmoid(-logit) - no * _sigmoid(logit)) * slope
    else:
        # The derivatives of the branches are -2 rate tan z and 2 rate cot z.
        angle, in_upper_half, slope = _angle(score, constants, kind)
        tan = _tan(_at_least(angle, bound))
        cot = 1.0 / tan
        grad = tl.where(in_upper_half, yes * tan - no * cot, yes * cot - no * tan) * (2.0 * slope)
        return tl.where(angle <= bound, 0.0, grad)


@triton.jit
def _yes_prob(score: tl.tensor, constants: tl.tensor, kind: tl.constexpr, bound: tl.constexpr) -> tl.tensor:
    """The probability of yes, exactly 0 and 1 where it is."""
    if kind == IS_SIGMOID:
        logit, _ = _logit(score, constants, bound)
        return _sigmoid(logit)
    else:
        angle, in_upper_half, _ = _angle(score, constants, kind)
        sine = _sin(_at_least(angle, 0.0))
        return tl.where(in_upper_half, 1.0 - sine * sine, sine * sine)


# ---- balanced trees: a subtree of up to ten levels, in some rows ----
#
# A node's heap number is its own plus one; its branches have 2h and 2h + 1. The leaves are the numbers from K on: those
# from 2^depth on are the first classes; the others, a level higher, are the last.


@triton.jit
def _subtree(num_rows: tl.tensor, first: tl.constexpr, rows: tl.constexpr) -> tl.tensor:
    """What this program computes: a subtree, by its place among the roots on level ``first``, and its rows."""
    program = tl.program_id(0)
    row = (program >> first).to(tl.int64) * rows + tl.arange(0, rows)[:, None]
    return program & ((1 << first) - 1), row, row < num_rows


@triton.jit
def _lowest(
    root: tl.tensor, num_classes: tl.tensor, end: tl.constexpr, height: tl.constexpr, depth: tl.constexpr
) -> tl.tensor:
    """The places on level ``end``, below the subtree, which of them exist, and how many are in a row."""
    place = (root << height) + tl.arange(0, 1 << height)[None, :]
    width = num_classes if end == depth else (1 << end)
    return place, place + (1 << end) < 2 * num_classes, width


@triton.jit
def _level(
    root: tl.tensor, num_classes: tl.tensor, first: tl.constexpr, level: tl.constexpr, depth: tl.constexpr
) -> tl.tensor:
    """The nodes on a level of the subtree, whether they are nodes, and, on the last level, which class if not."""
    heap = ((root + (1 << first)) << level) + tl.arange(0, 1 << level)[None, :]
    return heap - 1, heap < num_classes, heap - (1 << depth) + num_classes


@triton.jit
def _sums_down(
    scores: tl.tensor,
    table: tl.tensor,
    above: tl.tensor,
    below: tl.tensor,
    num_rows: tl.tensor,
    num_classes: tl.tensor,
    columns: tl.tensor,
    shared: tl.constexpr,
    kind: tl.constexpr,
    bound: tl.constexpr,
    lost: tl.constexpr,
    first: tl.constexpr,
    height: tl.constexpr,
    depth: tl.constexpr,
    rows: tl.constexpr,
) -> None:
    """The sums along the paths to level ``first + height``, or to the leaves, from those to level ``first``."""
    root, row, is_row = _subtree(num_rows, first, rows)
    sums = tl.zeros((rows, 1), scores.dtype.element_ty)
    if first > 0:
        sums = tl.load(above + (row << first) + root, mask=is_row)
    for level in tl.static_range(height):
        node, is_node, as_class = _level(root, num_classes, first, level, depth)
        if first + level == depth - 1:
            tl.store(below + row * num_classes + as_class, sums, mask=is_row & ~is_node)
        score = tl.load(scores + row * (num_classes - 1) + node, mask=is_row & is_node, other=0.0)
        constants = _node_constants(table, node, is_node, columns, shared, kind)
        no, yes = _branch_log_probs(score, constants, kind, bound, lost)
        sums = tl.reshape(tl.join(sums + no, sums + yes), (rows, 2 << level))
    place, exists, width = _lowest(root, num_classes, first + height, height, depth)
    tl.store(below + row * width + place, sums, mask=is_row & exists)


@triton.jit
def _sums_up(
    grad: tl.tensor,
    scores: tl.tensor,
    table: tl.tensor,
    above: tl.tensor,
    below: tl.tensor,
    num_rows: tl.tensor,
    num_classes: tl.tensor,
    columns: tl.tensor,
    shared: tl.constexpr,
    kind: tl.constexpr,
    bound: tl.constexpr,
    first: tl.constexpr,
    height: tl.constexpr,
    depth: tl.constexpr,
    rows: tl.constexpr,
) -> None:
    """The transpose: ``grad`` of the scores, and of the sums to level ``first``, from that of the sums ``below``."""
    root, row, is_row = _subtree(num_rows, first, rows)
    place, exists, width = _lowest(root, num_classes, first + height, height, depth)
    sums = tl.load(below + row * width + place, mask=is_row & exists, other=0.0)
    for level in tl.static_range(height - 1, -1, -1):
        node, is_node, as_class = _level(root, num_classes, first, level, depth)
        no, yes = tl.split(tl.reshape(sums, (rows, 1 << level, 2)))
        score = tl.load(scores + row * (num_classes - 1) + node, mask=is_row & is_node, other=0.0)
        constants = _node_constants(table, node, is_node, columns, shared, kind)
        slope = _score_gradient(no, yes, score, constants, kind, bound)
        tl.store(grad + row * (num_classes - 1) + node, slope, mask=is_row & is_node)
        sums = no + yes
        if first + level == depth - 1:
            sums += tl.load(below + row * num_classes + as_class, mask=is_row & ~is_node, other=0.0)
    if first > 0:
        tl.store(above + (row << first) + root, sums, mask=is_row)


# ---- any other tree: its nodes one by one ----


@triton.jit
def _nodes_forward(
    scores: tl.tensor,
    table: tl.tensor,
    no: tl.tensor,
    yes: tl.tensor,
    num_scores: tl.tensor,
    num_nodes: tl.tensor,
    columns: tl.tensor,
    shared: tl.constexpr,
    kind: tl.constexpr,
    bound: tl.constexpr,
    lost: tl.constexpr,
    block: tl.constexpr,
) -> None:
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    used = at < num_scores
    constants = _node_constants(table, at % num_nodes, used, columns, shared, kind)
    branches = _branch_log_probs(tl.load(scores + at, mask=used, other=0.0), constants, kind, bound, lost)
    tl.store(no + at, branches[0], mask=used)
    tl.store(yes + at, branches[1], mask=used)


@triton.jit
def _nodes_backward(
    grad: tl.tensor,
    scores: tl.tensor,
    table: tl.tensor,
    no: tl.tensor,
    yes: tl.tensor,
    num_scores: tl.tensor,
    num_nodes: tl.tensor,
    columns: tl.tensor,
    shared: tl.constexpr,
    kind: tl.constexpr,
    bound: tl.constexpr,
    block: tl.constexpr,
) -> None:
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    used = at < num_scores
    constants = _node_constants(table, at % num_nodes, used, columns, shared, kind)
    sides = tl.load(no + at, mask=used, other=0.0), tl.load(yes + at, mask=used, other=0.0)
    score = tl.load(scores + at, mask=used, other=0.0)
    tl.store(grad + at, _score_gradient(sides[0], sides[1], score, constants, kind, bound), mask=used)


# ---- walks ----


@triton.jit
def _walk(
    scores: tl.tensor,
    table: tl.tensor,
    children: tl.tensor,
    uniforms: tl.tensor,
    drawn: tl.tensor,
    num_draws: tl.tensor,
    num_rows: tl.tensor,
    num_classes: tl.tensor,
    columns: tl.tensor,
    shared: tl.constexpr,
    kind: tl.constexpr,
    bound: tl.constexpr,
    depth: tl.constexpr,
    is_heap: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """One draw in each lane. A balanced tree is walked by heap numbers, from 1; any other by ids, from 0."""
    draw = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    is_draw = draw < num_draws
    start: tl.constexpr = 1 if is_heap else 0
    at = tl.full((block,), start, tl.int64)
    for level in range(depth):
        node = at - start
        used = is_draw & (node < num_classes - 1)
        score = tl.load(scores + draw % num_rows * (num_classes - 1) + node, mask=used, other=0.0)
        uniform = tl.load(uniforms + draw * depth + level, mask=used, other=0.0)
        constants = _node_constants(table, node, used, columns, shared, kind)
        is_yes = uniform < _yes_prob(score, constants, kind, bound)  # NaN takes the branch no
        child = 2 * at + is_yes.to(tl.int64)
        if not is_heap:
            child = tl.load(children + child, mask=used, other=0)
        at = tl.where(used, child, at)
    if is_heap:
        leaf = at - (1 << depth)
        leaf = tl.where(leaf < 0, leaf + num_classes, leaf)
    else:
        leaf = at - (num_classes - 1)
    tl.store(drawn + draw, leaf, mask=is_draw)


# ---- what the seam calls ----

# How many levels of a subtree one program takes, how many numbers it has at once, and how many draws.
_MOST_LEVELS, _BLOCK, _DRAWS = 10, 1024, 256


class _Slab(NamedTuple):
    """Some levels of a balanced tree."""

    first: int
    height: int

    @property
    def end(self) -> int:
        return self.first + self.height

    @property
    def rows(self) -> int:
        """How many one program takes."""
        return max(_BLOCK >> self.height, 1)

    def grid(self, num_rows: int) -> tuple[int]:
        return (triton.cdiv(num_rows, self.rows) << self.first,)

    def options(self, depth: int) -> dict[str, int]:
        return {"first": self.first, "height": self.height, "depth": depth, "rows": self.rows}


def _slabs(depth: int) -> list[_Slab]:
    """Of as many levels as possible, but for the first."""
    ends = range(depth, 0, -_MOST_LEVELS)
    return [_Slab(max(end - _MOST_LEVELS, 0), min(end, _MOST_LEVELS)) for end in reversed(ends)]


class Triton:
    """The kernels of this file, as an :class:`~catnat.torch._fused.Implementation`."""

    def describe(self) -> str:
        """What is in use, in words."""
        return f"Triton {triton.__version__}"

    def log_probs(self, scores: Tensor, plan: Plan, floored: bool) -> Tensor:
        """From scores (rows, nodes) the log-probabilities of all classes (rows, classes)."""
        options = {**_options(plan, floored), "lost": 0.0 if floored else SATURATED_LOGIT}
        with torch.cuda.device_of(scores):
            if plan.tree.kind != "balanced":
                no, yes = torch.empty_like(scores), torch.empty_like(scores)
                _nodes_forward[(triton.cdiv(scores.numel(), _BLOCK),)](
                    scores, plan.constants, no, yes, scores.numel(), plan.tree.num_nodes, **options, block=_BLOCK
                )
                return _dense.path_sums(no, yes, plan.tree, to="leaves")
            rows, depth = len(scores), plan.tree.depth
            sums = scores  # above the root, where nothing is read
            for slab in _slabs(depth):
                below = scores.new_empty(rows, plan.tree.num_classes if slab.end == depth else 1 << slab.end)
                _sums_down[slab.grid(rows)](
                    scores, plan.constants, sums, below, rows, plan.tree.num_classes, **options, **slab.options(depth)
                )
                sums = below
            return sums

    def log_probs_backward(self, grad: Tensor, scores: Tensor, plan: Plan, floored: bool) -> Tensor:
        """The gradient of the scores, from that of the log-probabilities."""
        options, found = _options(plan, floored), torch.empty_like(scores)
        with torch.cuda.device_of(scores):
            if plan.tree.kind != "balanced":
                no, yes = (side.contiguous() for side in _dense.leaf_sums(grad, plan.tree))
                _nodes_backward[(triton.cdiv(scores.numel(), _BLOCK),)](
                    found, scores, plan.constants, no, yes, scores.numel(), plan.tree.num_nodes, **options, block=_BLOCK
                )
                return found
            rows, depth = len(scores), plan.tree.depth
            sums = grad
            for slab in reversed(_slabs(depth)):
                above = scores.new_empty(rows, 1 << slab.first)
                _sums_up[slab.grid(rows)](
                    found,
                    scores,
                    plan.constants,
                    above,
                    sums,
                    rows,
                    plan.tree.num_classes,
                    **options,
                    **slab.options(depth),
                )
                sums = above
            return found

    def draw(self, scores: Tensor, plan: Plan, uniforms: Tensor) -> Tensor:
        """A class for every row of ``uniforms`` (draws, depth): draw i from row i modulo their number of the scores."""
        draws, depth = uniforms.shape
        drawn = torch.empty(draws, dtype=torch.int64, device=scores.device)
        is_heap = plan.tree.kind == "balanced"
        children = drawn if is_heap else _constants.index_table(plan.tree, "children", scores.device)
        with torch.cuda.device_of(scores):
            _walk[(triton.cdiv(draws, _DRAWS),)](
                scores,
                plan.constants,
                children,
                uniforms,
                drawn,
                draws,
                len(scores),
                plan.tree.num_classes,
                **_options(plan, floored=False),
                depth=depth,
                is_heap=is_heap,
                block=_DRAWS,
            )
        return drawn


def _options(plan: Plan, floored: bool) -> dict[str, Any]:
    """What all kernels are told about the nodes."""
    dtype, columns = plan.constants.dtype, plan.constants.shape[1]
    bound = _kernels.largest_logit(dtype) if plan.code == SIGMOID else _kernels.smallest_angle(dtype, floored)
    # a * b + c in one step; without the last entry, Triton warns that its default will change.
    return {"columns": columns, "shared": columns == 1, "kind": plan.code, "bound": bound, "enable_fp_fusion": True}
