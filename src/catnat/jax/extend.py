"""What an adapter to another JAX library needs beyond the public functions.

The names here are for code that puts catnat into a framework of its own, as ``catnat.integrations`` does: checks with
the library's messages, dtypes, and the nodes of a tree with what they compute. They change more often than the rest.
"""

from catnat._checks import NOT_SCORES, explains, needs, not_a_tree
from catnat.activations import resolve as resolve_activation
from catnat.jax._constants import node_constants
from catnat.jax._dense import path_sums
from catnat.jax._inputs import nearest_classes, saturate
from catnat.jax._leaves import divergence
from catnat.jax._nodes import Nodes, prepare
from catnat.jax.geometry import check_damping, natural_factor
from catnat.trees.saving import check_names, names

__all__ = [
    "NOT_SCORES",
    "Nodes",
    "check_damping",
    "check_names",
    "divergence",
    "explains",
    "names",
    "natural_factor",
    "nearest_classes",
    "needs",
    "node_constants",
    "not_a_tree",
    "path_sums",
    "prepare",
    "resolve_activation",
    "saturate",
]
