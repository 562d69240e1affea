"""Pruning: what a mask leaves of a tree is a tree again, another one in every row.

A node of which one side is masked is not active. Centring and scaling are those of the prior restricted to the valid
classes, so that zero scores mean that prior.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array

from catnat.activations import sigmoid
from catnat.jax import _constants, _dense
from catnat.jax._nodes import Masses, Nodes
from catnat.jax._variables import variables_of
from catnat.trees.forest import Forest
from catnat.trees.tree import Tree


@jax.jit
def pruned(nodes: Nodes, valid: Array) -> Nodes:
    """The same nodes with only the ``valid`` classes (..., K) left."""
    dtype, tree = nodes.scores.dtype, nodes.tree
    no, yes = _dense.leaf_sums(valid.astype(dtype) * _constants.leaf_weights(tree, dtype), tree)
    reach = (no + yes) / variables_of(tree).per_node(no + yes) if nodes.activation.scaling == "isotropic" else None
    left = dataclasses.replace(nodes, masses=Masses(no, yes, reach))
    return left.expand(jnp.broadcast_shapes(nodes.scores.shape[:-1], valid.shape[:-1]))


def weighed(weights: Array, tree: Tree | Forest) -> Nodes:
    """Nodes with probabilities proportional to ``weights`` (..., K): zero scores on a tree with that prior, by row.

    A class of weight 0 is pruned, so that it is never drawn.
    """
    no, yes = _dense.leaf_sums(weights, tree)
    return Nodes(jnp.zeros_like(no), tree, sigmoid(), Masses(no, yes, None))
