"""Argument checks and error messages that all backends share."""

from __future__ import annotations

import functools
import inspect
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Function = TypeVar("Function", bound=Callable[..., Any])


def explains(**texts: str) -> Callable[[Function], Function]:
    """Make a decorator that raises a TypeError for the given keywords, with a text that names the replacement.

    The keywords do not appear in the signature of the decorated function.
    """

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for name in kwargs:
                if name in texts:
                    raise TypeError(f"There is no argument `{name}` here. {texts[name]}")
            return function(*args, **kwargs)

        return call  # type: ignore[return-value]

    return decorate


def needs(**texts: str) -> Callable[[Function], Function]:
    """Make a decorator that raises a TypeError for a missing argument, with a text that explains the argument."""

    def decorate(function: Function) -> Function:
        parameters = inspect.signature(function).parameters
        positional = [name for name, each in parameters.items() if each.kind is not each.KEYWORD_ONLY]
        places = {name: positional.index(name) if name in positional else math.inf for name in texts}

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for name, place in places.items():
                if name not in kwargs and len(args) <= place:
                    raise TypeError(f"The argument `{name}` is missing. {texts[name]}")
            return function(*args, **kwargs)

        return call  # type: ignore[return-value]

    return decorate


NOT_SCORES = {
    name: f"catnat has one score per node of a tree (K - 1), not one {what} per class (K). For scores of the same "
    f"distribution pass scores_from_{name}({name}); in a model that learns them take the scores of its last layer: "
    "CatnatLinear(in_features, K).scores(x)."
    for name, what in (("logits", "logit"), ("probs", "probability"))
}


def num_classes(value: int | np.integer[Any]) -> int:
    """Return ``value`` as an int, or raise unless it is an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"`num_classes` is {value!r} of type {type(value).__name__}, but an integer is needed.")
    if value < 1:
        raise ValueError(f"`num_classes` is {value}, but a categorical variable has at least 1 class.")
    return int(value)


def classes_of_layer(value: Any) -> int:
    """Return a number of classes, or raise an error that says what a layer takes as `classes`."""
    if isinstance(value, (int, np.integer)):
        return num_classes(value)
    hint = " Call its method tree()." if hasattr(value, "tree") else ""
    raise TypeError(
        f"`classes` is {value!r:.80} of type {type(value).__name__}, but the number of classes or a catnat.Tree is "
        f"needed, such as catnat.from_clusters([[0, 1], [2, 3]]).{hint}"
    )


NOT_CLASSES = dict.fromkeys(
    ("out_features", "num_classes", "n_classes", "tree"),
    "Pass the number of classes, or a tree over them, as `classes`.",
)


def weights(values: ArrayLike, name: str, size: int | None = None) -> NDArray[np.float64]:
    """Return ``values`` as a float64 vector (K,), or raise unless all entries are positive and finite."""
    array = np.asarray(values, dtype=np.float64).copy()  # np.array passes `copy` to tensors, which warn
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"`{name}` has shape {array.shape}, but one weight per class is needed: a vector (K,).")
    if size is not None and array.size != size:
        raise ValueError(f"`{name}` has {array.size} entries, but the tree has {size} classes: give one per class.")
    bad = np.flatnonzero(~(np.isfinite(array) & (array > 0)))
    if bad.size:
        raise ValueError(
            f"`{name}` must be positive and finite, but {bad.size} of {array.size} entries are not: the first is "
            f"entry {bad[0]}, {array[bad[0]]}. A class of weight 0 could never be learned from zero scores: add a "
            "small count to every class."
        )
    return array


def not_a_tree(value: object, classes: int = 10) -> NoReturn:
    """Raise an error for a value that is not a tree; the text suggests a tree over ``classes`` classes."""
    raise TypeError(
        f"`tree` is {value!r}, but a catnat.Tree or the number of classes is needed, such as {classes} or "
        f"catnat.balanced({classes})."
    )


def width_of_scores(got: int, classes: int) -> None:
    """Raise unless the last axis has one score per inner node."""
    if got == classes - 1:
        return
    likely = ""
    if got == classes:
        likely = f" It looks as if one score per class ({classes}) was passed, as for softmax."
    raise ValueError(
        f"`scores` has {got} entries on its last axis, but a tree over {classes} classes has {classes - 1} nodes."
        f"{likely} catnat takes one score per node (K - 1), not one per class (K): make the last layer {classes - 1} "
        f"wide, or build the tree with balanced({got + 1})."
    )


def width_of_classes(got: int, name: str, classes: int) -> None:
    """Raise unless the last axis of the argument ``name`` has one entry per class."""
    if got != classes:
        raise ValueError(
            f"`{name}` has {got} entries on its last axis, but the tree has {classes} classes. One value "
            f"per class is needed here, not one per node: {classes} of them, or a tree over {got} classes."
        )


def not_a_mask(dtype: object, shape: Sequence[int], classes: int, to_boolean: str) -> NoReturn:
    """Raise an error for a mask that is not boolean: integers 0 and 1 could also be class indices."""
    raise TypeError(
        f"`mask` has dtype {dtype} and shape {tuple(shape)}, but a boolean mask (..., {classes}), True for valid "
        f"classes, is needed: {to_boolean} makes one of 0 and 1. Indices of the valid classes, padded with -1, are "
        "passed as `valid_classes`."
    )


def not_indices(dtype: object, shape: Sequence[int]) -> NoReturn:
    """Raise an error for ``valid_classes`` that are not integer indices."""
    raise TypeError(
        f"`valid_classes` has dtype {dtype} and shape {tuple(shape)}, but integer indices of the valid classes "
        "(..., m), padded with -1, are needed. A boolean mask over all classes is passed as `mask`."
    )


def mask_or_indices() -> NoReturn:
    """Raise an error for a call that passes both forms of a mask."""
    raise ValueError("Both `mask` and `valid_classes` are given, but they mean the same: leave one of them out.")


def width_of_mask(got: int, classes: int) -> None:
    """Raise unless the last axis of a mask has one entry per class."""
    if got != classes:
        raise ValueError(
            f"`mask` has {got} entries on its last axis, but one per class is needed: {classes}. "
            "(Masks are over the K classes, not over the K - 1 nodes.)"
        )


def mask_beside_scores(mask: Sequence[int], scores: Sequence[int]) -> None:
    """Raise unless the leading axes of a mask and the batch shape of the scores broadcast."""
    sizes = zip(reversed(mask), reversed(scores), strict=False)
    if any(size != other and 1 not in (size, other) for size, other in sizes):
        raise ValueError(
            f"`mask` has the leading axes {tuple(mask)} and `scores` the batch shape {tuple(scores)}, but these must "
            "be equal or broadcast; a mask (K,) applies to all rows."
        )


def broadcasts(shape: Sequence[int], to: Sequence[int]) -> bool:
    """Return whether ``shape`` broadcasts to the shape ``to``."""
    fits = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(size in (1, wanted) for size, wanted in fits)


def shown(sizes: Sequence[int]) -> str:
    """Format numbers of classes for an error message, at most the first eight."""
    first = ", ".join(map(str, sizes[:8]))
    return first if len(sizes) <= 8 else f"{first}, ... ({len(sizes)} variables)"


def listed(values: object, name: str) -> tuple[Any, ...]:
    """Return the entries of ``values`` as a tuple, or raise unless it is iterable."""
    if not isinstance(values, Iterable):
        raise TypeError(f"`{name}` is {values!r}, but a list is needed, with one entry for every variable.")
    return tuple(values)


NAN_PROBS = "`distribution` has probabilities that are NaN, and nothing can be drawn: look at what made its parameters."
"""The error message for NaN probabilities, from which a draw would be an arbitrary number."""


def shape_of_samples(value: Any) -> tuple[int, ...]:
    """Return a sample shape as a tuple, or raise unless it is iterable."""
    if not isinstance(value, Iterable):
        raise TypeError(f"`sample_shape` is {value!r}, but a shape is needed: ({value},) for {value} draws.")
    return tuple(value)


def one_of(value: str, name: str, choices: Sequence[str]) -> None:
    """Raise unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise ValueError(f"`{name}` is {value!r}, but must be one of {', '.join(map(repr, choices))}.")


def no_rsample(distribution: object) -> NoReturn:
    """Raise an error for ``rsample`` of a distribution over classes; the text names the alternatives."""
    raise NotImplementedError(
        f"{type(distribution).__name__} draws classes, through which no gradient passes. For gradients through draws "
        "take OneHotCatnatStraightThrough, RelaxedOneHotCatnat or MultiCatnat.rsample_one_hot; for gradients of an "
        "expected cost score_function, enumerate_exactly or gumbel_softmax."
    )


def not_diagonal() -> NoReturn:
    """Raise an error for the Fisher diagonal of a distribution whose Fisher matrix is not diagonal."""
    raise ValueError(
        "The Fisher matrix of this distribution is not diagonal: it has a `mask`, a `temperature` or a `unimix`. "
        "Leave them out."
    )


# ---- last layers and heads ----


def in_features(value: object) -> None:
    """Raise unless ``value`` is a nonnegative integer."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
        raise TypeError(
            f"`in_features` is {value!r} of type {type(value).__name__}, but the size of the input's last axis is "
            "needed, an integer such as x.shape[-1]."
        )


def width_of_features(shape: Sequence[int], in_features: int) -> None:
    """Raise unless the last axis has the size ``in_features`` of a layer."""
    if len(shape) == 0 or shape[-1] != in_features:
        raise ValueError(
            f"`features` has shape {tuple(shape)}, but this layer takes {in_features} features on the last axis: build "
            f"it with in_features={shape[-1] if len(shape) else 1}, or pass it the output of a layer that is "
            f"{in_features} wide."
        )


def features(shape: Sequence[int], dtype: object, is_floating: bool, in_features: int) -> None:
    """Raise unless an input of a head is floating-point and its last axis has the size ``in_features``."""
    if len(shape) == 0 or shape[-1] != in_features or not is_floating:
        raise ValueError(
            f"`input` has shape {tuple(shape)} and dtype {dtype}, but {in_features} floating-point features on the "
            "last axis are needed."
        )


def one_class_per_row(target: Sequence[int], input: Sequence[int]) -> None:
    """Raise unless the shape ``target`` has one class for every row of the shape ``input``."""
    if tuple(target) != tuple(input[:-1]):
        raise ValueError(
            f"`target` has shape {tuple(target)} and `input` {tuple(input)}, but one class per row of the input is "
            f"needed: {tuple(input[:-1])}."
        )


def classes_of_rows(classes: Sequence[int], input: Sequence[int]) -> None:
    """Raise unless the leading axes of the shape ``classes`` are the batch axes of the shape ``input``."""
    batch = tuple(input[:-1])
    if tuple(classes[: len(batch)]) != batch:
        raise ValueError(
            f"`classes` has shape {tuple(classes)} and `input` {tuple(input)}, but the leading axes of the classes "
            f"must be the batch of the input, {batch}."
        )


def class_weights(shape: Sequence[int], name: str, classes: int) -> None:
    """Raise unless ``shape`` is that of one factor per class, (K,)."""
    if tuple(shape) != (classes,):
        raise ValueError(f"`{name}` has shape {tuple(shape)}, but one factor per class is needed: ({classes},).")


def how_many(k: int, classes: int, least: int = 1) -> None:
    """Raise unless ``k`` is an integer from ``least`` to the number of classes."""
    if not isinstance(k, (int, np.integer)):
        raise TypeError(f"`k` is {k!r} of type {type(k).__name__}, but an integer is needed.")
    if not least <= k <= classes:
        raise ValueError(f"`k` is {k}, but {least} .. {classes} classes are possible with this tree.")


def rows_of_indices(indices: Sequence[int], input: Sequence[int]) -> None:
    """Raise unless the shape (..., m) of indices broadcasts to the rows of the shape ``input``."""
    if not broadcasts(indices[:-1], input[:-1]):
        raise ValueError(
            f"`valid_classes` has shape {tuple(indices)} and `input` {tuple(input)}, but a list for all rows, (m,), or "
            f"one per row, {(*input[:-1], 'm')}, is needed."
        )


def no_valid_class(rows: int) -> NoReturn:
    """Raise an error for rows of indices without a valid class."""
    raise ValueError(f"`valid_classes` leaves no valid class in {rows} rows, but each row needs at least one to draw.")


# ---- numbers with bins ----


def beside_batch(shape: Sequence[int], batch: Sequence[int], name: str) -> None:
    """Raise unless ``shape``, which may have leading sample axes, broadcasts against a distribution's batch shape."""
    sizes = zip(reversed(shape), reversed(batch), strict=False)
    if any(size != other and 1 not in (size, other) for size, other in sizes):
        raise ValueError(
            f"`{name}` has shape {tuple(shape)}, which does not broadcast against the batch shape {tuple(batch)}. For "
            f"the same numbers in every row put them before the batch: {name}.reshape({(*shape, *[1] * len(batch))})."
        )


def not_a_fraction(value: float) -> NoReturn:
    """Raise an error for a quantile at a probability outside [0, 1]."""
    raise ValueError(
        f"`value` holds {value}, but quantiles are at probabilities from 0 to 1: divide percentages by 100, or clamp."
    )


def not_in_order(low: float, high: float) -> NoReturn:
    """Raise an error for an interval whose ends are in the wrong order."""
    raise ValueError(
        f"`low` is {low} where `high` is {high}, but `low` must not exceed `high`: swap them, or clamp `high` to `low`."
    )


def nan_targets() -> NoReturn:
    """Raise an error for a target that is NaN."""
    raise ValueError(
        "`value` holds NaN, which lies in no bin: remove such rows, or, for class indices, set them to the "
        "`ignore_index` of the loss."
    )


# ---- numbers ----


def number(value: Any, name: str) -> None:
    """Raise an error with the argument's name unless ``value`` is a number."""
    if isinstance(value, (float, int)):
        return
    sizes = tuple(getattr(value, "shape", ()))
    if sizes or not hasattr(value, "__float__"):
        of_shape = f" of shape {sizes}" if sizes else ""
        raise TypeError(f"`{name}` is a {type(value).__name__}{of_shape}, but a number is needed.")


def decay(value: float) -> None:
    """Raise unless ``value`` is in [0, 1)."""
    number(value, "decay")
    if not 0 <= value < 1:
        raise ValueError(f"`decay` is {value}, but a number from 0 to below 1 is needed, such as 0.99.")


def unimix(value: float) -> None:
    """Raise unless ``value`` is in [0, 1)."""
    number(value, "unimix")
    if not 0 <= value < 1:
        raise ValueError(f"`unimix` is {value}, but a fraction from 0 up to but not including 1 is needed.")


def label_smoothing(value: float) -> None:
    """Raise unless ``value`` is in [0, 1]."""
    number(value, "label_smoothing")
    if not 0 <= value <= 1:
        raise ValueError(f"`label_smoothing` is {value}, but a fraction between 0 and 1 is needed.")


def draws_for_baseline(num_samples: int, baseline: object) -> None:
    """Raise unless ``num_samples`` is at least 1, and at least 2 for the baseline "leave-one-out"."""
    if num_samples < 1:
        raise ValueError(f"`num_samples` is {num_samples}, but at least 1 draw is needed.")
    if isinstance(baseline, str):
        if baseline != "leave-one-out":
            raise ValueError(f'`baseline` is {baseline!r}, but the only baseline with a name is "leave-one-out".')
        if num_samples < 2:
            raise ValueError(
                f'`baseline` is "leave-one-out", but `num_samples` is {num_samples}: there is no other draw. '
                "Take num_samples=2 or more, or a MovingAverage() as the baseline."
            )


# unordered_set sums over all 2^k subsets of the drawn classes.
MOST_DISTINCT = 8


def distinct(k: int, classes: int) -> None:
    """Raise unless ``k`` distinct classes can be drawn and their 2^k subsets enumerated."""
    if not 1 <= operator.index(k) <= min(MOST_DISTINCT, classes):
        raise ValueError(
            f"`k` is {k}, but 1 to {min(MOST_DISTINCT, classes)} distinct classes of {classes} can be drawn: "
            f"never more than {MOST_DISTINCT}, because the work grows with 2^k. For more evaluations take "
            'score_function(..., num_samples=n, baseline="leave-one-out"), or enumerate_exactly for all classes.'
        )


def positive(value: float, name: str) -> None:
    """Raise unless ``value`` is a positive, finite number."""
    number(value, name)
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"`{name}` is {value}, but a positive, finite number is needed.")
