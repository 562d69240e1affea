"""A classifier for scikit-learn on a tree over the classes, such as a taxonomy.

:class:`TreeClassifier` fits a copy of any classifier at every node. For the probabilities of other models see
:mod:`catnat.taxonomy`.
"""

try:
    import sklearn as _sklearn  # noqa: F401
except ImportError as error:
    raise ImportError('catnat.sklearn needs scikit-learn: pip install "catnat[sklearn]".') from error

from catnat.sklearn._scorer import log_loss_scorer as log_loss_scorer
from catnat.sklearn._tree_classifier import TreeClassifier as TreeClassifier

__all__ = ["TreeClassifier", "log_loss_scorer"]
