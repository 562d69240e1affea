"""A natural parameterization for categorical random variables: a tree of yes/no decisions in place of softmax.

This top level holds what needs no framework: the trees. ``catnat.torch`` has the functions, distributions and modules
for PyTorch; importing ``catnat`` alone loads NumPy only.
"""

from catnat._activations import EdgeWarning as EdgeWarning
from catnat._builders import balanced as balanced
from catnat._builders import chain as chain
from catnat._builders import from_children as from_children
from catnat._builders import from_clusters as from_clusters
from catnat._builders import huffman as huffman
from catnat._clustering import from_embeddings as from_embeddings
from catnat._forest import Forest as Forest
from catnat._tree import Tree as Tree

__version__ = "0.1.0"

__all__ = [
    "EdgeWarning",
    "Forest",
    "Tree",
    "__version__",
    "balanced",
    "chain",
    "from_children",
    "from_clusters",
    "from_embeddings",
    "huffman",
]
