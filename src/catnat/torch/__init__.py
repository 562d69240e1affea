"""catnat for PyTorch: functions, distributions and modules in place of softmax and Categorical."""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError('catnat.torch needs PyTorch: pip install "catnat[torch]".') from error

from catnat.torch import _kl as _kl  # registers the divergences with torch
from catnat.torch._activations import Activation as Activation
from catnat.torch._activations import natural as natural
from catnat.torch._activations import sigmoid as sigmoid
from catnat.torch._distributions import Catnat as Catnat
from catnat.torch._distributions import OneHotCatnat as OneHotCatnat
from catnat.torch._distributions import OneHotCatnatStraightThrough as OneHotCatnatStraightThrough
from catnat.torch._distributions import RelaxedOneHotCatnat as RelaxedOneHotCatnat
from catnat.torch._estimators import MovingAverage as MovingAverage
from catnat.torch._estimators import enumerate_exactly as enumerate_exactly
from catnat.torch._estimators import gumbel_softmax as gumbel_softmax
from catnat.torch._estimators import sample_counts as sample_counts
from catnat.torch._estimators import score_function as score_function
from catnat.torch._estimators import straight_through as straight_through
from catnat.torch._estimators import unordered_set as unordered_set
from catnat.torch._fisher import fisher_diagonal as fisher_diagonal
from catnat.torch._fisher import reach as reach
from catnat.torch._fisher import saturated as saturated
from catnat.torch._functional import catnat as catnat
from catnat.torch._functional import cross_entropy as cross_entropy
from catnat.torch._functional import entropy as entropy
from catnat.torch._functional import kl_divergence as kl_divergence
from catnat.torch._functional import log_catnat as log_catnat
from catnat.torch._functional import log_prob as log_prob
from catnat.torch._functional import mode as mode
from catnat.torch._functional import sample as sample
from catnat.torch._functional import sample_without_replacement as sample_without_replacement
from catnat.torch._geometry import fisher_rao_distance as fisher_rao_distance
from catnat.torch._geometry import kl_step as kl_step
from catnat.torch._geometry import natural_gradient as natural_gradient
from catnat.torch._geometry import softmax_natural_gradient as softmax_natural_gradient
from catnat.torch._heads import CatnatHead as CatnatHead
from catnat.torch._heads import HeadOutput as HeadOutput
from catnat.torch._inverse import scores_from_logits as scores_from_logits
from catnat.torch._inverse import scores_from_probs as scores_from_probs
from catnat.torch._masks import validate_mask as validate_mask
from catnat.torch._modules import LogProbsLayer as LogProbsLayer
from catnat.torch._modules import ProbsLayer as ProbsLayer
from catnat.torch._modules import ScoreLayer as ScoreLayer
from catnat.torch._multi import MultiCatnat as MultiCatnat
from catnat.torch._topk import TopK as TopK

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
