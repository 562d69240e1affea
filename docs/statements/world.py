"""The statements of the page on the world model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from catnat_experiments.report.cells import bold_columns, cell_text, p_text
from catnat_experiments.report.tables import Numbers
from values import corrected, line, p, report, row

CONSTANTS = "0.1 0.002 0.016"  # a weight, free nats, the ends of the grid of learning rates
NAMES = ("softmax", "sigmoid", "natural")
TREES = (("sigmoid", "softmax"), ("natural", "softmax"))
LOSS = "Open-loop predictions, log-loss"
K = 24


def page() -> Iterator[str]:
    """Yield all statements of the page."""
    decay, constant = report("world", "decay"), report("world", "evidence")
    loss = decay[LOSS]
    yield _line("the learning rate decays in the second half", loss)
    yield _line("the learning rate is constant", constant[LOSS])
    [guess] = loss.frame["history.ahead_mean_frame"].dropna()
    exact = loss.samples[K, "exact"].mean
    yield f"The exact distribution costs {exact:.2f}, the mean frame {np.mean(guess):.1f}."

    gain = {name: row(constant[LOSS])[name].mean - row(loss)[name].mean for name in NAMES}
    yield (
        f"it is worth {gain['softmax']:.2f} nats to softmax, {gain['natural']:.2f} to natural "
        f"and {gain['sigmoid']:.2f} to sigmoid."
    )
    alive = row(decay["Classes alive"])
    sigmoid, natural = corrected(alive, TREES)
    yield (
        f"{alive['natural'].mean:.2f} (natural) and {alive['sigmoid'].mean:.2f} (sigmoid) of {K}, softmax "
        f"{alive['softmax'].mean:.2f}; not significant ({p(natural)} and {p_text(sigmoid)})."
    )
    dead = row(decay["Saturated scores, fraction"])["natural"].mean
    yield f"**Of natural's scores {dead:.0%} are saturated** for a frame."
    [rate] = set(loss.frame["config.rate"]) - {0.0}  # 0 is that of the exact distribution
    yield f"all three chose {rate}."


def _line(title: str, loss: Numbers) -> str:
    """Return a line of the table: the log-losses, and the p-values of both trees."""
    best = bold_columns(loss, K)
    cells = (cell_text(loss, K, name, bold=name in best) for name in NAMES)
    return line(title, *cells, *map(p_text, corrected(row(loss), TREES)))
