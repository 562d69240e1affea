"""Caches of constants, such as plans, tables and index tensors."""

from __future__ import annotations

import functools
import itertools
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_MOST_KEPT = 512
_caches: list[dict[tuple[Any, ...], Any]] = []
_lock = threading.Lock()


def _after_fork() -> None:
    """Replace the lock in a forked child, where a lock held by another thread would never be released."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def constant(build: F) -> F:
    """Cache the results of ``build`` by its hashable arguments; the compiler treats a result as a graph constant.

    At most 512 results are kept, and the oldest are dropped; compiled functions keep theirs. With fake tensors nothing
    is kept, because real and fake constants cannot replace each other.
    """
    look_up = constant_of_data(build)

    @functools.wraps(build)
    def look_up_or_build(*args: Any) -> Any:
        if torch.compiler.is_compiling() or type(torch.empty(0)) is torch.Tensor:
            return look_up(*args)
        return build(*args)

    return look_up_or_build  # type: ignore[return-value]


def constant_of_data(build: F) -> F:
    """Cache as :func:`constant` does, without its check for fake tensors; with these, call ``__wrapped__``."""
    kept: dict[tuple[Any, ...], Any] = {}
    _caches.append(kept)
    names: dict[tuple[Any, ...], str] = {}

    def name_of(*args: Any) -> str:
        if args not in names:
            name = f"{build.__name__}_{next(_numbers)}"
            setattr(_named, name, remember(args))
            names[args] = name
        return names[args]

    # `torch.compiler.assume_constant_result` does this, but imports the compiler: 1.5 s at each import of catnat.torch.
    name_of._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def remember(args: tuple[Any, ...]) -> Any:
        value = apart(functools.partial(build, *args))
        with _lock:
            while len(kept) >= _MOST_KEPT:
                kept.pop(next(iter(kept)))
            return kept.setdefault(args, value)

    @functools.wraps(build)
    def look_up(*args: Any) -> Any:
        if torch.compiler.is_compiling():
            return getattr(_named, name_of(*args))
        try:
            found = kept.get(args)
        except TypeError:  # an unhashable argument, for which `build` raises a clear error
            return build(*args)
        return remember(args) if found is None else found

    return look_up  # type: ignore[return-value]


def forget(argument: object) -> None:
    """Drop the cached results for a large argument, such as a tree that a layer no longer has."""
    with _lock:
        for kept in _caches:
            for args in [args for args in kept if any(each is argument for each in args)]:
                del kept[args]


class _Named:
    """A namespace for cached values: the compiler can guard on an attribute, but not on a function's result."""


_named = _Named()
_numbers = itertools.count()


def apart(build: Callable[[], T]) -> T:
    """Call ``build`` in a new thread and return its result.

    A new thread has no transforms, fake tensors, autocast, inference mode or default device. Cached values must not
    depend on those of the first call.
    """
    result: list[T] = []
    error: list[BaseException] = []

    def run() -> None:
        try:
            result.append(build())
        except BaseException as raised:
            error.append(raised)

    thread = threading.Thread(target=run, name="catnat-constant")
    thread.start()
    thread.join()
    if error:
        raise error[0]
    return result[0]
