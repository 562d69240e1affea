"""What an adapter to another PyTorch library needs beyond the public functions.

The names here are for code that puts catnat into a framework of its own, as ``catnat.integrations`` does: checks with
the library's messages, dtypes, and the nodes of a tree with what they compute. They change more often than the rest.
"""

from catnat._checks import NOT_SCORES, broadcasts, explains, listed, not_a_tree, one_of
from catnat.activations import resolve as resolve_activation
from catnat.torch._constants import node_constants
from catnat.torch._dense import path_sums
from catnat.torch._inputs import check_tensor, is_true, returned_dtype, saturate, to_computing_dtype
from catnat.torch._nodes import LazyNodes, Nodes, NodeScores, ReadNodes, prepare
from catnat.torch.distributions import check_not_nan
from catnat.torch.functional import node_divergences
from catnat.torch.heads import Paths, WalkingHead
from catnat.torch.layers import Fingerprinted, OnTree
from catnat.torch.parallel import copied_to_ranks, exchange, sum_over_ranks
from catnat.trees.saving import names

__all__ = [
    "NOT_SCORES",
    "Fingerprinted",
    "LazyNodes",
    "NodeScores",
    "Nodes",
    "OnTree",
    "Paths",
    "ReadNodes",
    "WalkingHead",
    "broadcasts",
    "check_not_nan",
    "check_tensor",
    "copied_to_ranks",
    "exchange",
    "explains",
    "is_true",
    "listed",
    "names",
    "node_constants",
    "node_divergences",
    "not_a_tree",
    "one_of",
    "path_sums",
    "prepare",
    "resolve_activation",
    "returned_dtype",
    "saturate",
    "sum_over_ranks",
    "to_computing_dtype",
]
