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

CONSTANTS = "0.003 0.01 0.9 0.0015 0.1 0.5 0.0005 0.0001 0.0004"
NAMES = ("softmax", "sigmoid", "natural")
PAIRS = (("sigmoid", "softmax"), ("natural", "softmax"), ("natural", "sigmoid"))
ONE = "binary MNIST, N = 20, Adam"
PAPERS_ONE = PAPER["adam", "binary", 20][32]
ELBO = "The paper's ELBO, without the prior, N = 10, K = 8"


class Setting(NamedTuple):
    """One setting: N, K, and the mean NLL of every parameterization, ours and the paper's."""

    title: str
    latents: int
    classes: int
    ours: dict[str, float]
    papers: dict[str, float]


def settings(preset: str) -> list[Setting]:
    """Return the settings of a preset that have runs of softmax, sigmoid and natural.

    The setting with three seeds at full length has the mean of all three.
    """
    more = report("vae", "one-cell") if preset == "adam" else {}
    found = []
    for title, table in report("vae", preset).items():
        for classes in table.rows if title.startswith("Test NLL, ") else ():
            numbers = more[title] if title in more and classes in more[title].rows else table
            both = numbers.row(classes), numbers.table.paper[classes]
            if all(name + FITTING in both[0] for name in NAMES):
                means = ({name: of[name + FITTING].mean for name in NAMES} for of in both)
                found.append(Setting(title, int(table.table.where["latents"]), int(classes), *means))
    return found


def leads(found: list[Setting], name: str, whose: str = "ours") -> list[float]:
    """Return how much higher the NLL of softmax is than that of a tree, in every setting."""
    return [getattr(each, whose)["softmax"] - getattr(each, whose)[name] for each in found]


def by_latents(found: list[Setting]) -> tuple[list[Setting], list[Setting]]:
    """Return the settings with N = 10, where our softmax is far from the paper's, and the others."""
    return [each for each in found if each.latents == 10], [each for each in found if each.latents > 10]


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
    few, more = by_latents(full)
    yield (
        f"**Yes: at full length both trees are ahead of softmax**, sigmoid in {sigmoid.ahead} of {sigmoid.cells} "
        f"settings and natural in {natural.ahead} of {natural.cells}."
    )
    medians = [float(np.median(leads(more, name, whose))) for whose in ("ours", "papers") for name in NAMES[1:]]
    yield (
        "At N = 20 and 30 sigmoid leads by {:.1f} nats in the median and natural by {:.1f}; in the paper it is {:.1f} "
        "and {:.1f}."
    ).format(*medians)
    yield (
        f"At N = 10 our softmax is {_range([_off(each, 'softmax') for each in few])} nats above the paper's, and "
        f"sigmoid's lead {_range(leads(few, 'sigmoid'))}."
    )
    sigmoids, naturals = map(gap, NAMES[1:])
    yield f"In the setting with three seeds sigmoid leads by {sigmoids:.1f} nats and natural by {naturals:.1f}."
    above = {name: sum(_off(each, name) > 1 for each in full) for name in NAMES}
    yield (
        f"**Our softmax is more than 1 nat above the paper's in {above['softmax']} of {len(full)} settings**, "
        f"{sum(_off(each, 'softmax') > 1 for each in few)} of them at N = 10; natural is in {above['natural']}, "
        f"sigmoid in {above['sigmoid']}."
    )
    yield f"Elsewhere softmax is at most {max(_off(each, 'softmax') for each in more):.1f} nats above."
    lost = {name: [_lost_by_one_hot_samples(each, name) for each in few] for name in NAMES}
    yield (f"Its NLL on one-hot samples is {_range(lost['softmax'])} nats higher, sigmoid's {_range(lost['sigmoid'])}.")
    papers = [Setting("", 0, 0, target, target) for target in _papers_means()]
    yield (
        f"sigmoid is ahead of natural in {trees.cells - trees.ahead} of {trees.cells} settings, by {trees.median:.1f} "
        f"nats in the median (Wilcoxon, {p(trees.wilcoxon)}). In the paper's 18 settings they do not differ "
        f"({p(over(papers, 'natural', 'sigmoid').wilcoxon)})."
    )


def _off(setting: Setting, name: str) -> float:
    """Return how far our NLL is above the paper's."""
    return setting.ours[name] - setting.papers[name]


def _lost_by_one_hot_samples(setting: Setting, name: str) -> float:
    """Return how much higher our NLL is than the one estimated on the relaxed samples of training."""
    relaxed = report("vae", "adam")[setting.title.replace("Test NLL", "Test NLL estimated on relaxed draws")]
    return setting.ours[name] - relaxed.row(setting.classes)[name + FITTING].mean


def _range(values: list[float]) -> str:
    return f"{min(values):.1f} to {max(values):.1f}"


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


def shrinking() -> list[tuple[float, float]]:
    """Return sigmoid's median lead after a fifth of the steps and at full length, at N = 10 and at larger N.

    Only settings that have runs at full length are compared.
    """
    full = settings("adam")
    where = [(each.title, each.classes) for each in full]
    short = [each for each in settings("short") if (each.title, each.classes) in where]
    pairs = zip(by_latents(short), by_latents(full), strict=True)
    return [tuple(float(np.median(leads(found, "sigmoid"))) for found in pair) for pair in pairs]


def _short() -> Iterator[str]:
    short = settings("short")
    sigmoid, natural, trees = (over(short, *pair) for pair in PAIRS)
    yield f"after a fifth of the steps both are ahead in {min(sigmoid.ahead, natural.ahead)} of {len(short)} settings"
    few, more = shrinking()
    yield (
        f"Sigmoid's median lead at N = 20 and 30 is {more[0]:.1f} nats here and {more[1]:.1f} at full length, at "
        f"N = 10 {few[0]:.1f} and {few[1]:.1f}."
    )
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
