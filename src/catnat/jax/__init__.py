"""catnat for JAX: functions and distributions in place of softmax and Categorical."""

try:
    import jax as _jax  # noqa: F401
except ImportError as error:
    raise ImportError('catnat.jax needs JAX: pip install "catnat[jax]".') from error

from catnat.jax._activations import Activation as Activation
from catnat.jax._activations import natural as natural
from catnat.jax._activations import sigmoid as sigmoid
from catnat.jax._distributions import Catnat as Catnat
from catnat.jax._distributions import OneHotCatnat as OneHotCatnat
from catnat.jax._distributions import OneHotCatnatStraightThrough as OneHotCatnatStraightThrough
from catnat.jax._distributions import RelaxedOneHotCatnat as RelaxedOneHotCatnat
from catnat.jax._estimators import MovingAverage as MovingAverage
from catnat.jax._estimators import enumerate_exactly as enumerate_exactly
from catnat.jax._estimators import gumbel_softmax as gumbel_softmax
from catnat.jax._estimators import sample_counts as sample_counts
from catnat.jax._estimators import score_function as score_function
from catnat.jax._estimators import straight_through as straight_through
from catnat.jax._estimators import unordered_set as unordered_set
from catnat.jax._fisher import fisher_diagonal as fisher_diagonal
from catnat.jax._fisher import reach as reach
from catnat.jax._fisher import saturated as saturated
from catnat.jax._functional import catnat as catnat
from catnat.jax._functional import cross_entropy as cross_entropy
from catnat.jax._functional import entropy as entropy
from catnat.jax._functional import kl_divergence as kl_divergence
from catnat.jax._functional import log_catnat as log_catnat
from catnat.jax._functional import log_prob as log_prob
from catnat.jax._functional import mode as mode
from catnat.jax._functional import sample as sample
from catnat.jax._functional import sample_without_replacement as sample_without_replacement
from catnat.jax._geometry import fisher_rao_distance as fisher_rao_distance
from catnat.jax._geometry import kl_step as kl_step
from catnat.jax._geometry import natural_gradient as natural_gradient
from catnat.jax._geometry import softmax_natural_gradient as softmax_natural_gradient
from catnat.jax._heads import CatnatHead as CatnatHead
from catnat.jax._heads import HeadOutput as HeadOutput
from catnat.jax._inverse import scores_from_logits as scores_from_logits
from catnat.jax._inverse import scores_from_probs as scores_from_probs
from catnat.jax._masks import validate_mask as validate_mask
from catnat.jax._modules import LogProbsLayer as LogProbsLayer
from catnat.jax._modules import ProbsLayer as ProbsLayer
from catnat.jax._modules import ScoreLayer as ScoreLayer
from catnat.jax._multi import MultiCatnat as MultiCatnat
from catnat.jax._topk import TopK as TopK

__all__ = [
    "Activation",
    "Catnat",
    "CatnatHead",
    "HeadOutput",
    "LogProbsLayer",
    "MovingAverage",
    "MultiCatnat",
    "OneHotCatnat",
    "OneHotCatnatStraightThrough",
    "ProbsLayer",
    "RelaxedOneHotCatnat",
    "ScoreLayer",
    "TopK",
    "catnat",
    "cross_entropy",
    "entropy",
    "enumerate_exactly",
    "fisher_diagonal",
    "fisher_rao_distance",
    "gumbel_softmax",
    "kl_divergence",
    "kl_step",
    "log_catnat",
    "log_prob",
    "mode",
    "natural",
    "natural_gradient",
    "reach",
    "sample",
    "sample_counts",
    "sample_without_replacement",
    "saturated",
    "score_function",
    "scores_from_logits",
    "scores_from_probs",
    "sigmoid",
    "softmax_natural_gradient",
    "straight_through",
    "unordered_set",
    "validate_mask",
]
