"""The statements of the page on the order of classes."""

from __future__ import annotations

from collections.abc import Iterator

import identifiers
from catnat_experiments.report.cells import p_text
from values import line, report, row

CONSTANTS = "0.05"
SHOWN = ("learned sigmoid", "clustered sigmoid", "adaptive", "random sigmoid")
PASSES = ("learned-1% sigmoid", "learned-10% sigmoid", "learned sigmoid")
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
TITLE = "Validation NLL at equal processor time"


def rewards() -> list[str]:
    """Return the rewards of softmax, and of trees in an arbitrary order, a learned one, and that of true features."""
    samples = row(report("defaults", "order")["Bandit with masks: reward"])
    tree = "sigmoid, renormalize"
    columns = "softmax", tree, f"{tree}, learned", f"{tree}, embeddings"
    return [f"{samples[column].mean:.2f}" for column in columns]


def page() -> Iterator[str]:
    """Yield all statements of the page."""
    yield from _identifiers()
    softmax, arbitrary, learned, features = rewards()
    yield f"{learned} in place of {arbitrary}."
    yield f"in an arbitrary order this earns {learned}"
    yield f"Softmax has {softmax}, and the tree without it {arbitrary}."
    yield f"true action features, which a policy rarely has, earns {features}."


def seeds(preset: str) -> str:
    """Return the number of seeds that all heads have, as a word."""
    return NUMBERS[min(len(sample.values) for sample in row(report("identifiers", preset)[TITLE]).values())]


def _identifiers() -> Iterator[str]:
    nll, p_values = identifiers.means(TITLE, "order"), identifiers.p_values(TITLE, SHOWN[0], "order")
    lead, behind = nll["random sigmoid"] - nll[SHOWN[0]], nll[SHOWN[0]] - nll["clustered sigmoid"]
    yield f"a learned order is {lead:.2f} nats ahead of a random one, and {behind:.2f} behind clusters"
    yield f"| five minutes of one core, {seeds('order')} seeds |"
    yield line("validation NLL, nats a token", *(f"{nll[head]:.3f}" for head in SHOWN))
    yield line("p against *learned*, corrected", "", *(p_text(p_values[head]) for head in SHOWN[1:]))
    parts, tests = identifiers.means(TITLE, "order-pass"), identifiers.p_values(TITLE, PASSES[-1], "order-pass")
    yield f"| part of the tokens, {seeds('order-pass')} seeds |"
    yield line("NLL, nats a token", *(f"{parts[head]:.3f}" for head in PASSES))
    yield line("p against all, corrected", *(p_text(tests[head]) for head in PASSES[:-1]), "")
