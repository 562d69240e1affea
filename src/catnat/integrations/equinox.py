"""Files of equinox that contain the names of the trees and activations of their weights.

Nothing else of equinox needs an adapter: the layers of :mod:`catnat.jax` are pytrees, which can be fields of an
``eqx.Module``. But ``eqx.tree_serialise_leaves`` writes only arrays and no static fields, so weights could be read into
a layer with another tree of as many classes.
"""

from __future__ import annotations

import contextlib
import pathlib
from typing import IO, Any

try:
    import equinox as eqx
except ImportError as error:
    raise ImportError('catnat.integrations.equinox needs equinox: pip install "catnat[equinox]".') from error

import jax
import numpy as np
from numpy.typing import NDArray

import catnat.jax as cj
from catnat.trees.saving import check_names, names

__all__ = ["tree_deserialise_leaves", "tree_serialise_leaves"]

_LAYERS = (cj.CatnatLinear, cj.CatnatHead)


def tree_serialise_leaves(path_or_file: str | pathlib.Path | IO[bytes], pytree: Any, **options: Any) -> None:
    """Write the names of the trees and activations of catnat's layers, then call ``eqx.tree_serialise_leaves``.

    Args:
        path_or_file: The file to write; ``.eqx`` is added to a path without a suffix, as in equinox.
        pytree: The model.
        **options: Arguments of equinox's function, ``filter_spec`` and ``is_leaf``.

    Example:
        >>> import io, jax
        >>> from catnat.integrations.equinox import tree_serialise_leaves
        >>> from catnat.jax import CatnatLinear
        >>> tree_serialise_leaves(io.BytesIO(), CatnatLinear(8, 10, key=jax.random.key(0)))
    """
    with _opened(path_or_file, "wb") as file:
        np.save(file, np.array(_names(pytree), dtype=str).reshape(-1, 2))
        eqx.tree_serialise_leaves(file, pytree, **options)


def tree_deserialise_leaves(path_or_file: str | pathlib.Path | IO[bytes], like: Any, **options: Any) -> Any:
    """Read a file of :func:`tree_serialise_leaves`; raise if it has another tree or activation than ``like``.

    Args:
        path_or_file: The file to read; ``.eqx`` is added to a path without a suffix, as in equinox.
        like: A model of the same structure, such as from ``eqx.filter_eval_shape``.
        **options: Arguments of equinox's function, ``filter_spec`` and ``is_leaf``.

    Example:
        >>> import io, jax
        >>> from catnat.integrations.equinox import (
        ...     tree_deserialise_leaves,
        ...     tree_serialise_leaves,
        ... )
        >>> from catnat.jax import CatnatLinear
        >>> file = io.BytesIO()
        >>> tree_serialise_leaves(file, CatnatLinear(8, 10, "natural", key=jax.random.key(0)))
        >>> _ = file.seek(0)
        >>> tree_deserialise_leaves(file, CatnatLinear(8, 10, "sigmoid", key=jax.random.key(1)))
        Traceback (most recent call last):
        ValueError: The weights are of a layer with another activation: ...
    """
    with _opened(path_or_file, "rb") as file:
        layers, saved = _layers(like), _read_names(file)
        if len(saved) != len(layers):
            raise ValueError(
                f"The file holds a model with {len(saved)} layers of catnat, but `like` has {len(layers)}: build "
                "`like` as the model that was saved."
            )
        for layer, found in zip(layers, saved.tolist(), strict=True):
            check_names(found, layer.tree, layer.activation)
        model = eqx.tree_deserialise_leaves(file, like, **options)
        # Equinox reads only what it needs. The rest may be intended, with an open file or with options.
        if file is not path_or_file and not options and file.read(1):
            raise ValueError(
                "The file holds more arrays than `like` has, such as the bias of a last layer: build `like` as the "
                "model that was saved."
            )
        return model


def _layers(pytree: Any) -> list[Any]:
    leaves = jax.tree.leaves(pytree, is_leaf=lambda node: isinstance(node, _LAYERS))
    return [leaf for leaf in leaves if isinstance(leaf, _LAYERS)]


def _names(pytree: Any) -> list[tuple[str, str]]:
    return [names(layer.tree, layer.activation) for layer in _layers(pytree)]


def _read_names(file: IO[bytes]) -> NDArray[np.str_]:
    try:
        found = np.load(file)
    except (EOFError, ValueError):  # NumPy's own text advises to allow pickles
        found = np.zeros(0)
    if found.dtype.kind != "U" or found.shape[1:] != (2,):
        raise ValueError(
            "The file does not begin with the names of trees and activations: probably equinox's own "
            "tree_serialise_leaves wrote it. Read it with eqx.tree_deserialise_leaves, which checks no tree, and save "
            "it again with catnat.integrations.equinox.tree_serialise_leaves."
        )
    return found


def _opened(path_or_file: str | pathlib.Path | IO[bytes], mode: str) -> contextlib.AbstractContextManager[IO[bytes]]:
    """Open a path under the name that equinox uses, or return an open file."""
    if not isinstance(path_or_file, (str, pathlib.Path)):
        return contextlib.nullcontext(path_or_file)
    path = pathlib.Path(path_or_file)
    return open(path if path.suffix else path.with_suffix(".eqx"), mode)
