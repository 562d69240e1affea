"""Classifiers for scikit-learn whose probabilities come from a tree of binary decisions, such as a taxonomy.

:class:`TreeClassifier` fits a copy of any binary classifier at every node; :class:`HeadClassifier` trains
``catnat.torch.CatnatHead`` and needs PyTorch.
"""

try:
    import sklearn as _sklearn  # noqa: F401
except ImportError as error:
    raise ImportError('catnat.sklearn needs scikit-learn: pip install "catnat[sklearn]".') from error

from catnat.sklearn._head_classifier import HeadClassifier as HeadClassifier
from catnat.sklearn._tree_classifier import TreeClassifier as TreeClassifier

__all__ = ["HeadClassifier", "TreeClassifier"]
