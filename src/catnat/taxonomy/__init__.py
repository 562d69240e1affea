"""Tools for labels in a taxonomy and the probabilities of any model; they need only NumPy.

Every function takes class probabilities in the order of ``taxonomy.classes``, which are sorted like scikit-learn's
``classes_``, or a frame whose columns are the classes. ``taxonomy.align`` puts a model's columns in that order.
"""

from catnat.taxonomy.backoff import BackOff as BackOff
from catnat.taxonomy.backoff import BackOffCurve as BackOffCurve
from catnat.taxonomy.backoff import back_off as back_off
from catnat.taxonomy.backoff import back_off_curve as back_off_curve
from catnat.taxonomy.conformal import ConformalSets as ConformalSets
from catnat.taxonomy.conformal import GroupCoverage as GroupCoverage
from catnat.taxonomy.conformal import LabelSets as LabelSets
from catnat.taxonomy.conformal import coverage_report as coverage_report
from catnat.taxonomy.metrics import HierarchicalScores as HierarchicalScores
from catnat.taxonomy.metrics import LevelMetrics as LevelMetrics
from catnat.taxonomy.metrics import hierarchical_scores as hierarchical_scores
from catnat.taxonomy.metrics import lca_distance as lca_distance
from catnat.taxonomy.metrics import level_metrics as level_metrics
from catnat.taxonomy.metrics import log_loss as log_loss
from catnat.taxonomy.plots import plot_back_off as plot_back_off
from catnat.taxonomy.plots import plot_calibration as plot_calibration
from catnat.taxonomy.plots import plot_probs as plot_probs
from catnat.taxonomy.taxonomy import Taxonomy as Taxonomy

__all__ = [
    "BackOff",
    "BackOffCurve",
    "ConformalSets",
    "GroupCoverage",
    "HierarchicalScores",
    "LabelSets",
    "LevelMetrics",
    "Taxonomy",
    "back_off",
    "back_off_curve",
    "coverage_report",
    "hierarchical_scores",
    "lca_distance",
    "level_metrics",
    "log_loss",
    "plot_back_off",
    "plot_calibration",
    "plot_probs",
]
