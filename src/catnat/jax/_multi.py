"""Several categorical variables with different numbers of classes, in one array of scores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from catnat import _checks
from catnat.activations import Activation, resolve
from catnat.jax import _constants, _inputs
from catnat.jax._nodes import Nodes
from catnat.jax.distributions import OfClasses, as_data, fields_of
from catnat.trees.forest import Forest, as_forest, check_width
from catnat.trees.tree import Tree


@as_data
class MultiCatnat(OfClasses):
    r"""N independent categorical variables with different numbers of classes, all computed at once.

    Scores, probabilities and one-hot vectors of the variables are concatenated in the order of ``trees``; a value is a
    vector of N class indices. ``log_prob``, ``entropy`` and the KL divergence are those of the whole vector, sums over
    the variables. There is no loop over variables.

    Args:
        scores: The scores of all variables, :math:`\sum_n (K_n - 1)` on the last axis.
        trees: A tree or a number of classes for every variable, or a :class:`catnat.Forest` of them.
        activation: "natural", "sigmoid", or an activation object, for all variables.
        mask: The valid classes of all variables, boolean, :math:`\sum_n K_n` on the last axis.
        mask_mode: "renormalize" or "prune", as for :class:`Catnat`.
        temperature: The distribution is p^(1/T) / Z for every variable, as for :class:`Catnat`.
        unimix: The fraction of every variable's uniform distribution, as for :class:`Catnat`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from catnat.jax import MultiCatnat
        >>> latent, key = MultiCatnat(jnp.zeros((8, 2 + 4 + 9)), [3, 5, 10]), jax.random.key(0)
        >>> latent.sample(key=key).shape, latent.rsample_one_hot(key=key).shape
        ((8, 3), (8, 18))
        >>> print(jnp.exp(latent.entropy()[0]).round(3))  # 3 * 5 * 10 equally probable values
        150.0
    """

    scores: Float[Array, "*batch nodes"]
    forest: Forest
    activation: Activation
    mask: Bool[Array, "*batch classes"] | None
    mask_mode: str
    temperature: Float[Array, "*batch"] | None
    unimix: float

    @_checks.explains(**_checks.NOT_SCORES)
    def __init__(
        self,
        scores: Float[Array, "*batch nodes"],
        trees: Forest | Iterable[Tree | int],
        activation: Activation | str = "natural",
        *,
        mask: Bool[Array, "*#batch classes"] | None = None,
        mask_mode: Literal["renormalize", "prune"] = "renormalize",
        temperature: float | Float[Array, "*#batch"] | None = 1.0,
        unimix: float = 0.0,
    ) -> None:
        forest = as_forest(trees)
        scores = _inputs.check_scores(scores)
        check_width(scores.shape[-1], forest)
        if mask is not None:
            mask = _inputs.check_array(mask, "mask")
            if mask.dtype != bool:
                raise TypeError(f"`mask` has dtype {mask.dtype}, but with several variables it must be boolean.")
        nodes = Nodes(_inputs.to_computing_dtype(scores), forest, resolve(activation))
        self._set(forest=forest, **fields_of(scores, nodes, mask, mask_mode, temperature, unimix))

    @property
    def _trees(self) -> Forest:
        return self.forest

    @property
    def event_shape(self) -> tuple[int, ...]:
        """One class index per variable."""
        return (len(self.forest.trees),)

    def _classes(self, value: Array) -> Array:
        value, sizes = _inputs.check_array(value, "value"), jnp.asarray(self.forest.sizes)
        if not jnp.issubdtype(value.dtype, jnp.integer) or value.shape[-1:] != self.event_shape:
            raise ValueError(
                f"`value` has dtype {value.dtype} and shape {value.shape}, but one class index per variable is needed "
                f"on the last axis: integers (..., {len(self.forest.trees)})."
            )
        value = value.astype(int)
        outside = (value < 0) | (value >= sizes)
        if _inputs.is_true(outside.any()):
            raise ValueError(
                f"`value` holds {int(value[outside][0])} for a variable that has no such class: those of the variables "
                f"are below {_checks.shown(self.forest.sizes)}."
            )
        return jnp.clip(value, 0, sizes - 1)

    # ---- all classes, concatenated ----

    def split(self, values: Array) -> tuple[Array, ...]:
        """Concatenated values of all classes, such as ``probs``, as one array per variable."""
        return tuple(lax.split(values, self.forest.sizes, values.ndim - 1))

    def one_hot(self, value: Int[Array, "*any variables"]) -> Float[Array, "*any classes"]:
        """The one-hot vectors of a value's variables, concatenated."""
        places = value + _constants.forest_table(self.forest, "first_classes")
        zeros = jnp.zeros((*value.shape[:-1], self.forest.num_classes), self.scores.dtype)
        return jnp.put_along_axis(zeros, places, 1, -1, inplace=False)

    @_inputs.takes_key
    def rsample_one_hot(
        self, sample_shape: Sequence[int] = (), *, key: PRNGKeyArray
    ) -> Float[Array, "*samples_and_batch classes"]:
        """Draw concatenated one-hot vectors whose gradient is that of the probabilities (straight-through)."""
        probs = self.probs
        return self.one_hot(self.sample(sample_shape, key=key)) + (probs - lax.stop_gradient(probs))
