"""The statements of the page on autoencoders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from catnat_experiments.report import statistics
from catnat_experiments.report.cells import p_text
from catnat_experiments.report.statistics import Paired, Sample
from catnat_experiments.tasks.vae.variants import FITTING, PAPER
from values import corrected, line, p, report, row, signed, spread

CONSTANTS = "0.003 0.01 0.9 0.0015 0.1 0.5 0.0005"
NAMES = ("softmax", "sigmoid", "natural")
PAIRS = (("sigmoid", "softmax"), ("natural", "softmax"), ("natural", "sigmoid"))
ONE = "binary MNIST, N = 20, Adam"
PAPERS_ONE = PAPER["adam", "binary", 20][32]
ELBO = "The paper's ELBO, without the prior, N = 10, K = 8"


class Setting(NamedTuple):
    """One setting: the mean NLL of every parameterization, ours and the paper's."""

    ours: dict[str, float]
    papers: dict[str, float]


def settings(preset: str) -> list[Setting]:
    """Return the settings of a preset that have runs of softmax, sigmoid and natural."""
    tables = [numbers for title, numbers in report("vae", preset).items() if title.startswith("Test NLL, ")]
    rows = [(numbers.row(value), numbers.table.paper[value]) for numbers in tables for value in numbers.rows]
    columns = [name + FITTING for name in NAMES]
    return [
        Setting(*({name: of[name + FITTING].mean for name in NAMES} for of in both))
        for both in rows
        if set(columns) <= set(both[0])
    ]


def over(found: list[Setting], one: str, other: str) -> Paired:
    """Compare two parameterizations over settings."""
    return statistics.paired([each.ours[one] for each in found], [each.ours[other] for each in found], "lower")


def trees_over(found: list[Setting]) -> dict[str, float]:
    """Return Wilcoxon's p-values of both trees against softmax over settings, corrected for the two."""
    return statistics.holm({name: over(found, name, "softmax").wilcoxon for name in NAMES[1:]})


def one_cell(title: str) -> dict[str, Sample]:
    """Return the runs of the setting with three seeds."""
    samples = row(report("vae", "one-cell")[f"{title}, {ONE}"])
    return {name: samples[name + FITTING] for name in NAMES}


def gap(name: str) -> float:
    """Return how much higher the NLL of softmax is in that setting."""
    nll = one_cell("Test NLL")
    return nll["softmax"].mean - nll[name].mean


def page() -> Iterator[str]:
    """Yield all statements of the page."""
    yield from _all_settings()
    yield from _one_setting()
    yield from _short()
    yield from _recipe()
    yield from _ablation()
    yield from _sgd()
    yield from _reinforce()


def _all_settings() -> Iterator[str]:
    full = settings("adam")
    sigmoid, natural, trees = (over(full, *pair) for pair in PAIRS)
    yield (
        f"**Yes: at full length sigmoid is ahead of softmax in {sigmoid.ahead} of {sigmoid.cells} settings**, by "
        f"{-sigmoid.median:.1f} nats in the median, and natural in {natural.ahead} of {natural.cells}, by "
        f"{-natural.median:.1f}. In the setting with three seeds sigmoid is ahead by {gap('sigmoid'):.1f} nats and "
        f"natural by {gap('natural'):.1f}."
    )
    off = {name: [each.ours[name] - each.papers[name] for each in full] for name in NAMES}
    above = {name: sum(x > 1 for x in differences) for name, differences in off.items()}
    median = {name: signed(float(np.median(differences))) for name, differences in off.items()}
    yield (
        f"**Our softmax is more than 1 nat above the paper's in {above['softmax']} of {len(full)} settings**, by "
        f"{max(off['softmax']):.1f} at most; natural is in {above['natural']}, sigmoid in {above['sigmoid']}. Medians "
        f"are {median['softmax']}, {median['natural']} and {median['sigmoid']} nats."
    )
    papers = [Setting(target, target) for target in _papers_means()]
    yield (
        f"sigmoid is ahead of natural in {trees.cells - trees.ahead} of {trees.cells} settings, by {trees.median:.1f} "
        f"nats in the median (Wilcoxon, {p(trees.wilcoxon)}). In the paper they do not differ "
        f"({p(over(papers, 'natural', 'sigmoid').wilcoxon)})."
    )


def _papers_means() -> list[dict[str, float]]:
    rows = [row for (optimizer, *_), rows in PAPER.items() if optimizer == "adam" for row in rows.values()]
    return [{name: round(10 * row[name].mean) for name in NAMES} for row in rows]  # integers, so that ties are exact


def _one_setting() -> Iterator[str]:
    nll, elbo = one_cell("Test NLL"), one_cell("Negative ELBO")
    relaxed = one_cell("Test NLL estimated on relaxed draws")

    def cells(title: str, samples: dict[str, Sample]) -> str:
        softmax, sigmoid, natural = (spread(samples[name]) for name in NAMES)
        return line(title, softmax, sigmoid if samples is relaxed else f"**{sigmoid}**", natural)

    yield cells("test NLL, nats", nll)
    yield line("the paper's", *(f"{PAPERS_ONE[name].mean} ± {PAPERS_ONE[name].std}" for name in NAMES))
    yield cells("negative ELBO, nats", elbo)
    yield cells("test NLL on relaxed samples, nats", relaxed)
    for (one, other), p_value in zip(PAIRS, corrected(nll, PAIRS), strict=True):
        tests = p_text(statistics.welch(nll[one], nll[other])), p_text(p_value)
        yield line(f"{one} against {other}", signed(nll[one].mean - nll[other].mean), *tests)
    for start, name in (("softmax: reproduced.**", "sigmoid"), ("as the paper does.", "natural")):
        yield f"{start} The paper's difference is {PAPERS_ONE['softmax'].mean - PAPERS_ONE[name].mean:.1f} nats."
    both = corrected(elbo, PAIRS)
    yield f"**In the negative ELBO both trees are ahead** ({p(both[0])} and {p_text(both[1])}, corrected)."


def _short() -> Iterator[str]:
    short = settings("short")
    sigmoid, natural, trees = (over(short, *pair) for pair in PAIRS)
    yield f"after a fifth of the steps both are ahead in {min(sigmoid.ahead, natural.ahead)} of {len(short)} settings"
    same = row(report("vae", "short")[f"Test NLL, {ONE}"], 32)
    lead = same["softmax" + FITTING].mean - same["natural" + FITTING].mean
    yield f"In the setting with three seeds natural's lead falls from {lead:.1f} to {gap('natural'):.1f} nats."
    yield f"**Natural and sigmoid do not differ significantly** ({p(trees.wilcoxon)})."


def _recipe() -> Iterator[str]:
    nll = {name: sample.mean for name, sample in row(report("vae", "recipe")[f"Test NLL, {ONE}"]).items()}
    yield line("nothing: one-hot samples, the learning rate decays", f"{nll['softmax']:.1f}", "")
    for title, change, bold in (
        ("constant learning rate", "constant-rate", "**"),
        ("relaxed samples in the decoder", "relaxed", ""),
        ("half the weight of the divergence", "half-kl", ""),
        ("temperature down to 0.1", "cold", ""),
        ("gradients clipped to a norm of 1", "clip", ""),
    ):
        changed = nll[f"softmax+{change}"]
        yield line(title, f"{bold}{changed:.1f}{bold}", signed(changed - nll["softmax"]))


def _ablation() -> Iterator[str]:
    tables = report("vae", "ablation")
    names = ("softmax", "softmax-anchored", "softmax-haar", "sigmoid", "natural")
    nll, elbo = (row(tables[f"{title}, {ONE}"]) for title in ("Test NLL", "Negative ELBO"))
    columns = [f"{name}+constant-rate" for name in names]

    def cells(samples: dict[str, Sample]) -> list[str]:
        *others, best = (spread(samples[column]) for column in columns)
        return [*others, f"**{best}**"]

    yield line("test NLL, nats", *cells(nll))
    tests = corrected(nll, [(column, columns[0]) for column in columns[1:]])
    yield line("p against softmax, corrected for four", "", *map(p_text, tests))
    yield line("negative ELBO, nats", *cells(elbo))


def _sgd() -> Iterator[str]:
    found = settings("sgd")
    sigmoid, natural = (over(found, *pair) for pair in PAIRS[:2])
    tests = trees_over(found)
    yield (
        f"sigmoid in {sigmoid.ahead} of {sigmoid.cells}, natural in {natural.ahead} of {natural.cells} "
        f"({p(tests['sigmoid'])} and {p_text(tests['natural'])})."
    )


def reinforced() -> str:
    """Return the gain of sigmoid over softmax in the second model, in words."""
    numbers = report("vae_reinforce", "one-cell")[ELBO]
    elbo, targets = row(numbers), numbers.table.paper[numbers.rows[0]]
    ours = elbo["sigmoid"].mean - elbo["softmax"].mean
    theirs = targets["sigmoid"].mean - targets["softmax"].mean
    return f"by {ours:.1f} nats ({p(statistics.welch(elbo['sigmoid'], elbo['softmax']))}); the paper has {theirs:.1f}."


def _reinforce() -> Iterator[str]:
    tables = report("vae_reinforce", "one-cell")

    def cells(title: str, digits: int = 1) -> list[str]:
        samples = row(tables[title])
        return [", ".join(f"{x:.{digits}f}".replace("-", "−") for x in samples[name].values) for name in NAMES]

    [targets] = (tables[ELBO].table.paper[rate] for rate in tables[ELBO].rows)
    yield line("the paper's ELBO, without the prior", *cells(ELBO))
    yield line("the paper's number", *(f"−{-targets[name].mean} ± {targets[name].std}" for name in NAMES))
    yield line("negative ELBO, nats", *cells("Negative ELBO, N = 10, K = 8"))
    yield line("saturated scores, fraction", *cells("Saturated scores, fraction, N = 10, K = 8", 2))
    yield f"reproduced**, {reinforced()}"
    elbo = row(tables[ELBO])
    softmax, sigmoid = (statistics.welch(elbo["natural"], elbo[name]) for name in ("softmax", "sigmoid"))
    yield (
        f"Natural is {elbo['natural'].mean - elbo['softmax'].mean:.1f} nats ahead of softmax ({p(softmax)}), and not "
        f"significantly behind sigmoid ({p(sigmoid)})."
    )
