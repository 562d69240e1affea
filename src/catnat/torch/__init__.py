"""catnat for PyTorch: functions, distributions and modules to use in place of softmax and Categorical."""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError('catnat.torch needs PyTorch: pip install "catnat[torch]".') from error

from catnat.activations import Activation as Activation
from catnat.activations import natural as natural
from catnat.activations import sigmoid as sigmoid
from catnat.torch import _kl as _kl  # registers the divergences with torch
from catnat.torch import estimators as estimators
from catnat.torch import geometry as geometry
from catnat.torch import targets as targets
from catnat.torch._binned import BinnedCatnat as BinnedCatnat
from catnat.torch._fused import kernels as kernels
from catnat.torch._inverse import scores_from_logits as scores_from_logits
from catnat.torch._inverse import scores_from_probs as scores_from_probs
from catnat.torch._options import validate_mask as validate_mask
from catnat.torch._topk import TopK as TopK
from catnat.torch.distributions import Catnat as Catnat
from catnat.torch.distributions import MultiCatnat as MultiCatnat
from catnat.torch.distributions import OneHotCatnat as OneHotCatnat
from catnat.torch.distributions import OneHotCatnatStraightThrough as OneHotCatnatStraightThrough
from catnat.torch.distributions import RelaxedOneHotCatnat as RelaxedOneHotCatnat
from catnat.torch.functional import catnat as catnat
from catnat.torch.functional import cross_entropy as cross_entropy
from catnat.torch.functional import entropy as entropy
from catnat.torch.functional import kl_divergence as kl_divergence
from catnat.torch.functional import log_catnat as log_catnat
from catnat.torch.functional import log_prob as log_prob
from catnat.torch.functional import mode as mode
from catnat.torch.functional import sample as sample
from catnat.torch.functional import sample_without_replacement as sample_without_replacement
from catnat.torch.heads import CatnatHead as CatnatHead
from catnat.torch.heads import HeadOutput as HeadOutput
from catnat.torch.layers import CatnatLinear as CatnatLinear
from catnat.torch.ordering import ActionOrder as ActionOrder

__all__ = [
    "ActionOrder",
    "Activation",
    "BinnedCatnat",
    "Catnat",
    "CatnatHead",
    "CatnatLinear",
    "HeadOutput",
    "MultiCatnat",
    "OneHotCatnat",
    "OneHotCatnatStraightThrough",
    "RelaxedOneHotCatnat",
    "TopK",
    "catnat",
    "cross_entropy",
    "entropy",
    "estimators",
    "geometry",
    "kernels",
    "kl_divergence",
    "log_catnat",
    "log_prob",
    "mode",
    "natural",
    "sample",
    "sample_without_replacement",
    "scores_from_logits",
    "scores_from_probs",
    "sigmoid",
    "targets",
    "validate_mask",
]
