"""The statements of the page on 100,000 classes."""

from __future__ import annotations

from collections.abc import Iterator

from catnat_experiments.report.cells import p_text
from values import all_records, corrected_against, line, p, report, row

CONSTANTS = "0.002"
OURS = "clustered sigmoid"
SHOWN = (OURS, "adaptive", "huffman sigmoid", "sampled", "random sigmoid", "linear_cross_entropy")
SOFTMAXES = ("sampled", "adaptive", "linear_cross_entropy")
CATALOGUE = ("adaptive", "learned sigmoid", "random sigmoid", "sampled", "linear_cross_entropy")


def means(title: str, preset: str = "evidence") -> dict[str, float]:
    """Return the mean of every head."""
    return {head: sample.mean for head, sample in row(report("identifiers", preset)[title]).items()}


def p_values(title: str, one: str, preset: str = "evidence") -> dict[str, float]:
    """Return the p-values of one head against all others, by head, corrected for these tests."""
    return corrected_against(row(report("identifiers", preset)[title]), one)


def page() -> Iterator[str]:
    """Yield all statements of the page."""
    title = "Validation NLL at equal processor time"
    best, second, *others = (f"{means(title)[head]:.2f}" for head in SHOWN)
    yield line("validation NLL, nats a token", f"**{best}**", f"**{second}**", *others)
    yield line("p against *clustered*, corrected", "", *(p_text(p_values(title, OURS)[head]) for head in SHOWN[1:]))

    title = "Validation NLL at equal steps"
    nll = means(title)
    softmaxes = [nll[head] for head in SOFTMAXES]
    yield (
        f"after 128 steps it is at {nll['random sigmoid']:.2f} nats, and sampled, adaptive and fused softmax are at "
        f"{min(softmaxes):.2f} to {max(softmaxes):.2f} (against *sampled* "
        f"{p(p_values(title, 'sampled')['random sigmoid'])})."
    )
    yield "clustered has {:.2f}, sampled {:.2f} and adaptive {:.2f}.".format(
        *map(_at_equal_steps, (OURS, *SOFTMAXES[:2]))
    )

    share = means("Share of scores that the search for five classes took")[OURS]
    accuracy = means("Accuracy of the five most probable tokens")
    ours, adaptive = (f"{100 * accuracy[head]:.0f}%" for head in (OURS, "adaptive"))
    yield f"The five most probable tokens come from about {100 * share:.1f}% of them, exactly."
    yield f"They contain the next token in {ours} of cases, with *adaptive* in {adaptive}."
    yield from _catalogue()


def _at_equal_steps(head: str) -> float:
    """Return a head's NLL after 128 steps in the search, at the learning rate that most heads chose."""
    [nll] = [
        record.metrics["nll_at_equal_steps"]
        for record in all_records("identifiers")
        if (record.config["parameterization"], record.config["rate"], record.config["seconds"]) == (head, 0.002, 60)
        and record.config["classes"] == 100_000
        and record.config["validation_windows"] == 256
    ]
    return nll


def _catalogue() -> Iterator[str]:
    title = "Validation NLL at equal processor time"
    best, *others = (f"{means(title, 'purchases')[head]:.2f}" for head in CATALOGUE)
    yield line("validation NLL, nats a token", f"**{best}**", *others)
    tests = p_values(title, "adaptive", "purchases")
    yield line("p against *adaptive*, corrected", "", *(p_text(tests[head]) for head in CATALOGUE[1:]))
    among = means("Accuracy of the five most probable tokens", "purchases")
    speed = means("Steps a second of processor time", "purchases")
    shares = [f"{among[head]:.1%}" for head in CATALOGUE]
    yield line("the next product is among the five most probable", *shares)
    yield line("steps a second", *(f"{speed[head]:.1f}" for head in CATALOGUE))
    exact, learned = means(title, "purchases"), p_values(title, "learned sigmoid", "purchases")
    yield (
        f"{exact['learned sigmoid']:.3f} nats, the random one {exact['random sigmoid']:.3f}. The learned tree is ahead "
        f"of the full softmax ({p(learned['linear_cross_entropy'])})."
    )
