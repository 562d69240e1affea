"""catnat for JAX: functions, distributions and layers that replace softmax and Categorical."""

try:
    import jax as _jax  # noqa: F401
except ImportError as error:
    raise ImportError('catnat.jax needs JAX: pip install "catnat[jax]".') from error

from catnat.activations import Activation as Activation
from catnat.activations import natural as natural
from catnat.activations import sigmoid as sigmoid
from catnat.jax import estimators as estimators
from catnat.jax import geometry as geometry
from catnat.jax import targets as targets
from catnat.jax._binned import BinnedCatnat as BinnedCatnat
from catnat.jax._fused import kernels as kernels
from catnat.jax._inverse import scores_from_logits as scores_from_logits
from catnat.jax._inverse import scores_from_probs as scores_from_probs
from catnat.jax._multi import MultiCatnat as MultiCatnat
from catnat.jax._options import validate_mask as validate_mask
from catnat.jax._topk import TopK as TopK
from catnat.jax.distributions import Catnat as Catnat
from catnat.jax.distributions import OneHotCatnat as OneHotCatnat
from catnat.jax.distributions import OneHotCatnatStraightThrough as OneHotCatnatStraightThrough
from catnat.jax.distributions import RelaxedOneHotCatnat as RelaxedOneHotCatnat
from catnat.jax.functional import catnat as catnat
from catnat.jax.functional import cross_entropy as cross_entropy
from catnat.jax.functional import entropy as entropy
from catnat.jax.functional import kl_divergence as kl_divergence
from catnat.jax.functional import log_catnat as log_catnat
from catnat.jax.functional import log_prob as log_prob
from catnat.jax.functional import mode as mode
from catnat.jax.functional import sample as sample
from catnat.jax.functional import sample_without_replacement as sample_without_replacement
from catnat.jax.heads import CatnatHead as CatnatHead
from catnat.jax.heads import HeadOutput as HeadOutput
from catnat.jax.layers import CatnatLinear as CatnatLinear

__all__ = [
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
