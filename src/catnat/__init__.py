"""A natural parameterization of categorical variables: a binary tree in place of softmax.

This top level contains trees and activations and imports only NumPy. ``catnat.torch`` and ``catnat.jax`` contain the
functions, distributions and layers.
"""

from catnat.activations import Activation as Activation
from catnat.activations import EdgeWarning as EdgeWarning
from catnat.activations import isotropic_scale as isotropic_scale
from catnat.activations import natural as natural
from catnat.activations import sigmoid as sigmoid
from catnat.taxonomy.taxonomy import Taxonomy as Taxonomy
from catnat.trees.actions import ActionModels as ActionModels
from catnat.trees.bins import Bins as Bins
from catnat.trees.builders import balanced as balanced
from catnat.trees.builders import chain as chain
from catnat.trees.builders import from_children as from_children
from catnat.trees.builders import from_clusters as from_clusters
from catnat.trees.builders import huffman as huffman
from catnat.trees.changes import MatchingNodes as MatchingNodes
from catnat.trees.changes import grow as grow
from catnat.trees.changes import matching_nodes as matching_nodes
from catnat.trees.changes import remove as remove
from catnat.trees.clustering import from_embeddings as from_embeddings
from catnat.trees.forest import Forest as Forest
from catnat.trees.statistics import ClassMeans as ClassMeans
from catnat.trees.statistics import random_features as random_features
from catnat.trees.statistics import random_projection as random_projection
from catnat.trees.tree import Tree as Tree

__version__ = "0.2.0"

__all__ = [
    "ActionModels",
    "Activation",
    "Bins",
    "ClassMeans",
    "EdgeWarning",
    "Forest",
    "MatchingNodes",
    "Taxonomy",
    "Tree",
    "__version__",
    "balanced",
    "chain",
    "from_children",
    "from_clusters",
    "from_embeddings",
    "grow",
    "huffman",
    "isotropic_scale",
    "matching_nodes",
    "natural",
    "random_features",
    "random_projection",
    "remove",
    "sigmoid",
]
