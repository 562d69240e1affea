"""The statements of the page on the order of classes."""

from __future__ import annotations

from collections.abc import Iterator

import identifiers
from values import p, report, row

CONSTANTS = "0.05"


def rewards() -> list[str]:
    """Return the rewards of softmax, and of trees in an arbitrary order, a learned one, and that of true features."""
    samples = row(report("defaults", "order")["Bandit with masks: reward"])
    tree = "sigmoid, renormalize"
    columns = "softmax", tree, f"{tree}, learned", f"{tree}, embeddings"
    return [f"{samples[column].mean:.2f}" for column in columns]


def page() -> Iterator[str]:
    """Yield all statements of the page."""
    title = "Validation NLL at equal processor time"
    nll, p_values = identifiers.means(title), identifiers.p_values(title, identifiers.OURS)
    yield (
        f"similar classes side by side bring {nll[identifiers.OURS]:.2f} nats in five minutes, an arbitrary order "
        f"{nll['random sigmoid']:.2f} (three seeds, {p(p_values['random sigmoid'])};"
    )
    softmax, arbitrary, learned, features = rewards()
    yield f"{learned} in place of {arbitrary}."
    yield f"in an arbitrary order this earns {learned}"
    yield f"Softmax has {softmax}, and the tree without it {arbitrary}."
    yield f"true action features, which a policy rarely has, earns {features}."
