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
from catnat.torch._modules import LogProbsLayer as LogProbsLayer
from catnat.torch._modules import ProbsLayer as ProbsLayer
from catnat.torch._modules import ScoreLayer as ScoreLayer

__all__ = [
    "Activation",
    "Catnat",
    "LogProbsLayer",
    "OneHotCatnat",
    "OneHotCatnatStraightThrough",
    "ProbsLayer",
    "RelaxedOneHotCatnat",
    "ScoreLayer",
    "catnat",
    "cross_entropy",
    "entropy",
    "fisher_diagonal",
    "kl_divergence",
    "log_catnat",
    "log_prob",
    "mode",
    "natural",
    "reach",
    "sample",
    "sample_without_replacement",
    "saturated",
    "sigmoid",
]
