"""Checks of what users pass in, and the error texts that all backends share."""

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
    """For keywords that people bring along from another function: a call with one of them says what to write instead.

    The function's own signature stays as it is, without arguments that it does not take.
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
    """For arguments that people leave out: a call without one of them says what it is for."""

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


def num_classes(value: int) -> int:
    """Return ``value`` as an int of at least 1, or say what is wrong with it."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"`num_classes` is {value!r} of type {type(value).__name__}, but an integer is needed.")
    if value < 1:
        raise ValueError(f"`num_classes` is {value}, but a categorical variable has at least 1 class.")
    return int(value)


def weights(values: ArrayLike, name: str, size: int | None = None) -> NDArray[np.float64]:
    """Return ``values`` as a float64 vector of positive, finite weights, or say what is wrong with them."""
    array = np.array(values, dtype=np.float64)
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
    """Say that a tree is needed, for example one over ``classes`` classes."""
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
        likely = f" It looks as if one score per class ({classes}) was passed, as softmax takes."
    raise ValueError(
        f"`scores` has {got} entries on its last axis, but a tree over {classes} classes has {classes - 1} nodes."
        f"{likely} catnat takes one score per node (K - 1), not one per class (K): make the last layer {classes - 1} "
        f"wide, or build the tree with balanced({got + 1})."
    )


def width_of_classes(got: int, name: str, classes: int) -> None:
    """Raise unless the last axis of what is not scores has one entry per class."""
    if got != classes:
        raise ValueError(
            f"`{name}` has {got} entries on its last axis, but the tree has {classes} classes. One value "
            f"per class is needed here, not one per node: {classes} of them, or a tree over {got} classes."
        )


def not_a_mask(dtype: object, shape: Sequence[int], classes: int, to_boolean: str) -> NoReturn:
    """Say what is needed of a mask; 0 and 1 cannot be told from class indices, so neither is guessed."""
    raise TypeError(
        f"`mask` has dtype {dtype} and shape {tuple(shape)}, but a boolean mask (..., {classes}), True for valid "
        f"classes, is needed: {to_boolean} makes one of 0 and 1. Indices of the valid classes, padded with -1, are "
        "passed as `valid_classes`."
    )


def not_indices(dtype: object, shape: Sequence[int]) -> NoReturn:
    """Say what is needed of a mask that is given as indices."""
    raise TypeError(
        f"`valid_classes` has dtype {dtype} and shape {tuple(shape)}, but integer indices of the valid classes "
        "(..., m), padded with -1, are needed. A boolean mask over all classes is passed as `mask`."
    )


def mask_or_indices() -> NoReturn:
    """Say that a mask was given twice."""
    raise ValueError("Both `mask` and `valid_classes` are given, but they say the same thing: leave one of them out.")


def width_of_mask(got: int, classes: int) -> None:
    """Raise unless the last axis has one entry per class."""
    if got != classes:
        raise ValueError(
            f"`mask` has {got} entries on its last axis, but one per class is needed: {classes}. "
            "(Masks are over the K classes, not over the K - 1 nodes.)"
        )


def mask_beside_scores(mask: Sequence[int], scores: Sequence[int]) -> None:
    """Raise unless the leading axes of a mask and the batch of the scores broadcast."""
    sizes = zip(reversed(mask), reversed(scores), strict=False)
    if any(size != other and 1 not in (size, other) for size, other in sizes):
        raise ValueError(
            f"`mask` has the leading axes {tuple(mask)} and `scores` the batch shape {tuple(scores)}, but these must "
            "be equal or broadcast; a mask (K,) serves all rows."
        )


def broadcasts(shape: Sequence[int], to: Sequence[int]) -> bool:
    """Whether ``shape`` broadcasts against ``to`` and leaves it as it is."""
    fits = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(size in (1, wanted) for size, wanted in fits)


def shown(sizes: Sequence[int]) -> str:
    """Numbers of classes for an error's text, the first few of many."""
    first = ", ".join(map(str, sizes[:8]))
    return first if len(sizes) <= 8 else f"{first}, ... ({len(sizes)} variables)"


def listed(values: object, name: str) -> tuple[Any, ...]:
    """Return the entries of ``values``, or say that several are needed."""
    if not isinstance(values, Iterable):
        raise TypeError(f"`{name}` is {values!r}, but a list is needed, with one entry for every variable.")
    return tuple(values)


NAN_PROBS = "`distribution` has probabilities that are NaN, and nothing can be drawn: look at what made its parameters."
"""Where NaN would become a number."""


def shape_of_samples(value: Any) -> tuple[int, ...]:
    """Return a shape of draws as a tuple, or say that one is needed."""
    if not isinstance(value, Iterable):
        raise TypeError(f"`sample_shape` is {value!r}, but a shape is needed: ({value},) for {value} draws.")
    return tuple(value)


def one_of(value: str, name: str, choices: Sequence[str]) -> None:
    """Raise unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise ValueError(f"`{name}` is {value!r}, but must be one of {', '.join(map(repr, choices))}.")


def no_rsample(distribution: object) -> NoReturn:
    """Say that classes cannot be drawn with a gradient, and what can."""
    raise NotImplementedError(
        f"{type(distribution).__name__} draws classes, through which no gradient passes. For gradients through draws "
        "take OneHotCatnatStraightThrough, RelaxedOneHotCatnat or MultiCatnat.rsample_one_hot; for gradients of an "
        "expected cost score_function, enumerate_exactly or gumbel_softmax."
    )


def not_diagonal() -> NoReturn:
    """Say why a distribution has no Fisher diagonal."""
    raise ValueError(
        "The Fisher matrix of this distribution is not diagonal: it has a `mask`, a `temperature` or a `unimix`. "
        "Leave them out."
    )


# ---- last layers and heads ----


def in_features(value: object) -> None:
    """Raise unless it is the size of an input."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
        raise TypeError(
            f"`in_features` is {value!r} of type {type(value).__name__}, but the size of the input's last axis is "
            "needed, an integer such as x.shape[-1]."
        )


def width_of_features(shape: Sequence[int], in_features: int) -> None:
    """Raise unless the last axis holds the features of a layer."""
    if len(shape) == 0 or shape[-1] != in_features:
        raise ValueError(
            f"`features` has shape {tuple(shape)}, but this layer takes {in_features} features on the last axis: build "
            f"it with in_features={shape[-1] if len(shape) else 1}, or hand it the output of a layer that is "
            f"{in_features} wide."
        )


def features(shape: Sequence[int], dtype: object, is_floating: bool, in_features: int) -> None:
    """Raise unless the last axis of an input holds the features of a head."""
    if len(shape) == 0 or shape[-1] != in_features or not is_floating:
        raise ValueError(
            f"`input` has shape {tuple(shape)} and dtype {dtype}, but {in_features} floating-point features on the "
            "last axis are needed."
        )


def one_class_per_row(target: Sequence[int], input: Sequence[int]) -> None:
    """Raise unless a target of this shape has one class for every row of an input of that shape."""
    if tuple(target) != tuple(input[:-1]):
        raise ValueError(
            f"`target` has shape {tuple(target)} and `input` {tuple(input)}, but one class per row of the input is "
            f"needed: {tuple(input[:-1])}."
        )


def classes_of_rows(classes: Sequence[int], input: Sequence[int]) -> None:
    """Raise unless the leading axes of the classes are the batch of an input of that shape."""
    batch = tuple(input[:-1])
    if tuple(classes[: len(batch)]) != batch:
        raise ValueError(
            f"`classes` has shape {tuple(classes)} and `input` {tuple(input)}, but the leading axes of the classes "
            f"must be the batch of the input, {batch}."
        )


def class_weights(shape: Sequence[int], name: str, classes: int) -> None:
    """Raise unless there is one factor per class."""
    if tuple(shape) != (classes,):
        raise ValueError(f"`{name}` has shape {tuple(shape)}, but one factor per class is needed: ({classes},).")


def how_many(k: int, classes: int, least: int = 1) -> None:
    """Raise unless ``k`` different classes can be found or drawn."""
    if not isinstance(k, (int, np.integer)):
        raise TypeError(f"`k` is {k!r} of type {type(k).__name__}, but an integer is needed.")
    if not least <= k <= classes:
        raise ValueError(f"`k` is {k}, but {least} .. {classes} classes can be had from this tree.")


def rows_of_indices(indices: Sequence[int], input: Sequence[int]) -> None:
    """Raise unless indices (..., m) serve the rows of an input of that shape."""
    if not broadcasts(indices[:-1], input[:-1]):
        raise ValueError(
            f"`valid_classes` has shape {tuple(indices)} and `input` {tuple(input)}, but a list for all rows, (m,), or "
            f"one for each is needed: {(*input[:-1], 'm')}."
        )


def no_valid_class(rows: int) -> NoReturn:
    """Say that indices leave nothing to draw."""
    raise ValueError(f"`valid_classes` leaves no valid class in {rows} rows, but something must be left to draw.")


# ---- numbers with bins ----


def beside_batch(shape: Sequence[int], batch: Sequence[int], name: str) -> None:
    """Raise unless values broadcast against the batch shape of a distribution, with axes of samples before it."""
    sizes = zip(reversed(shape), reversed(batch), strict=False)
    if any(size != other and 1 not in (size, other) for size, other in sizes):
        raise ValueError(
            f"`{name}` has shape {tuple(shape)}, which does not broadcast against the batch shape {tuple(batch)}. For "
            f"the same numbers in every row put them before the batch: {name}.reshape({(*shape, *[1] * len(batch))})."
        )


def not_a_fraction(value: float) -> NoReturn:
    """Say that a quantile is asked for beyond all."""
    raise ValueError(
        f"`value` holds {value}, but quantiles are at probabilities from 0 to 1: divide percentages by 100, or clamp."
    )


def not_in_order(low: float, high: float) -> NoReturn:
    """Say that an interval is empty."""
    raise ValueError(
        f"`low` is {low} where `high` is {high}, but an interval goes up: exchange them, or clamp `high` to `low`."
    )


def nan_targets() -> NoReturn:
    """Say that a number without a bin is no target."""
    raise ValueError(
        "`value` holds NaN, which lies in no bin: leave such rows out, or, for class indices, set them to the "
        "`ignore_index` of the loss."
    )


# ---- numbers ----


def number(value: Any, name: str) -> None:
    """Raise unless it is one number; to compare anything else ends in an error that does not name the argument."""
    if isinstance(value, (float, int)):
        return
    sizes = tuple(getattr(value, "shape", ()))
    if sizes or not hasattr(value, "__float__"):
        of_shape = f" of shape {sizes}" if sizes else ""
        raise TypeError(f"`{name}` is a {type(value).__name__}{of_shape}, but a number is needed.")


def decay(value: float) -> None:
    """Raise unless it is a fraction of an average to keep."""
    number(value, "decay")
    if not 0 <= value < 1:
        raise ValueError(f"`decay` is {value}, but a number from 0 to below 1 is needed, such as 0.99.")


def unimix(value: float) -> None:
    """Raise unless it is a fraction that leaves something of the other distribution."""
    number(value, "unimix")
    if not 0 <= value < 1:
        raise ValueError(f"`unimix` is {value}, but a fraction from 0 up to but not including 1 is needed.")


def label_smoothing(value: float) -> None:
    """Raise unless it is a fraction."""
    number(value, "label_smoothing")
    if not 0 <= value <= 1:
        raise ValueError(f"`label_smoothing` is {value}, but a fraction between 0 and 1 is needed.")


def draws_for_baseline(num_samples: int, baseline: object) -> None:
    """Raise unless there are draws, and enough for a baseline that has a name."""
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


# The ratios of unordered_set are sums over all 2^k subsets of the classes drawn.
MOST_DISTINCT = 8


def distinct(k: int, classes: int) -> None:
    """Raise unless a set of ``k`` classes can be drawn and its subsets listed."""
    if not 1 <= operator.index(k) <= min(MOST_DISTINCT, classes):
        raise ValueError(
            f"`k` is {k}, but 1 to {min(MOST_DISTINCT, classes)} distinct classes of {classes} can be drawn: "
            f"never more than {MOST_DISTINCT}, because the work grows with 2^k. For more evaluations take "
            'score_function(..., num_samples=n, baseline="leave-one-out"), or enumerate_exactly for all classes.'
        )


def positive(value: float, name: str) -> None:
    """Raise unless it is a positive, finite number."""
    number(value, name)
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"`{name}` is {value}, but a positive, finite number is needed.")
