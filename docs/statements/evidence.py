"""The statements of pages that collect results: evidence, README, the page for readers of the paper, limits."""

from __future__ import annotations

from collections.abc import Iterator

import autoencoders
import defaults
import games
import graphs
import identifiers
import numpy as np
import order
import world
from autoencoders import NAMES, PAIRS, by_latents, leads, over, settings, shrinking, trees_over
from catnat_experiments.report import statistics
from catnat_experiments.report.cells import p_text
from values import corrected, p, report, row

CONSTANTS = {
    "verdicts": "0.5 0.9",  # theta*, an information
    "readme": "0.2 2.0 3.11 0.25",  # versions, theta*
    "paper": "0.1 0.75",  # theta*
    "limits": "0.001 0.5 0.125 0.25 0.0625 0.03125 0.015625",  # a divergence, learning rates of an example
}


def verdicts() -> Iterator[str]:
    """Yield all statements of the page of evidence."""
    for name in graphs.COLUMNS:
        words = f"({name})" if name == "MAE on θ" else name
        yield f"{words} | reproduced in {_graphs(name)} settings"
    full, short, sgd = settings("adam"), settings("short"), settings("sgd")
    nll = autoencoders.one_cell("Test NLL")
    two, three = (dict(zip(pairs, corrected(nll, pairs), strict=True)) for pairs in (PAIRS[:2], PAIRS))
    for pair in PAIRS[:2]:
        long, fifth = over(full, *pair), over(short, *pair)
        seeds = f"({p(two[pair])})"
        if pair[0] == "natural":
            both = p(two[pair]), p_text(three[pair])
            seeds = "({} corrected for the paper's two claims, {} for all three comparisons)".format(*both)
        yield (
            f"Adam: {pair[0]} is better than softmax | full length: ahead in {long.ahead} of {long.cells} settings of "
            f"binary MNIST ({p(trees_over(full)[pair[0]])} over the settings, one seed), and in one with three seeds "
            f"{seeds}. A fifth of the steps: ahead in {fifth.ahead} of {fifth.cells} ({p(trees_over(short)[pair[0]])})"
        )
    sigmoid, natural, tests = *(over(sgd, *pair) for pair in PAIRS[:2]), trees_over(sgd)
    yield (
        f"sigmoid is ahead in {sigmoid.ahead} of {sigmoid.cells} settings and natural in {natural.ahead} of "
        f"{natural.cells} ({p(tests['sigmoid'])} and {p_text(tests['natural'])}, one seed)"
    )
    for where, found in zip(("20 and 30", "10"), reversed(by_latents(full)), strict=True):
        gaps = [float(np.median(leads(found, name, whose))) for whose in ("ours", "papers") for name in NAMES[1:]]
        yield "N = {}: {:.1f} nats for sigmoid and {:.1f} for natural, in the paper {:.1f} and {:.1f}".format(
            where, *gaps
        )
    trees = over(full, "natural", "sigmoid")
    yield (
        f"not significant: sigmoid is ahead in {trees.cells - trees.ahead} of {trees.cells} settings "
        f"({p(trees.wilcoxon)} over the settings"
    )
    yield f"reproduced in one setting, N = 10, K = 8, {autoencoders.reinforced()}"
    digits = report("defaults", "evidence")["Classifier: log loss"]
    against_all = statistics.holm(digits.tests())["softmax", digits.rows[0], "sigmoid, embeddings"]
    alone = defaults.against_softmax_alone()
    yield f"corrected ({p(alone)}), not with those against the default ({p(against_all)}); five"
    returns = report("atari", "games")["Return"]
    tests = statistics.holm(returns.tests())
    values = [tests["softmax", game, "natural"] for game in returns.rows]
    yield f"(three seeds, {p(values[0])} and {p_text(values[1])}), nor on two small games"


def _graphs(name: str) -> str:
    return graphs.reproduced(graphs.against_softmax(report("gsl", "paper")[graphs.COLUMNS[name]]))


def readme() -> Iterator[str]:
    """Yield the rows of the README's table: one number of ours and one of softmax for each use."""
    full, nll = settings("adam"), autoencoders.one_cell("Test NLL")
    ahead = over(full, "sigmoid", "softmax")
    yield (
        f"yes, in {ahead.ahead} of {ahead.cells} settings of binary MNIST at full length; here the one with three "
        f"seeds | **{nll['sigmoid'].mean:.1f}**, {nll['softmax'].mean:.1f} |"
    )
    error = report("gsl", "paper")[graphs.COLUMNS["MAE on θ"]].row(0.25)
    yield (
        f"natural: yes, in {_graphs('MAE on θ')} settings; here at θ* = 0.25. The sigmoid: no, "
        f"{error['sigmoid'].mean:.3f} | **{error['natural'].mean:.3f}**, {error['softmax'].mean:.3f} |"
    )
    heads = identifiers.means("Validation NLL at equal processor time")
    yield (
        f"level with adaptive softmax, {heads['adaptive']:.2f} | **{heads[identifiers.OURS]:.2f}**, "
        f"{heads['linear_cross_entropy']:.2f} |"
    )
    softmax, arbitrary, learned, _ = order.rewards()
    yield f"no in an arbitrary one, {arbitrary} | **{learned}**, {softmax} |"
    returns = report("minatar", "evidence")["Return"].row(games.BREAKOUT)
    natural, softmax = (statistics.interquartile_mean([returns[name]]).value for name in ("natural", "softmax"))
    yield f"the best of its games | {natural:.1f}, {softmax:.1f} |"
    digits = row(report("defaults", "evidence")["Classifier: log loss"])
    yield f"| no | {digits['sigmoid, embeddings'].mean:.3f}, **{digits['softmax'].mean:.3f}** |"


def paper() -> Iterator[str]:
    """Yield all statements of the page for readers of the paper."""
    full, short = settings("adam"), settings("short")
    yield f"error on θ in {_graphs('MAE on θ')} settings, scores in fewer"
    yield (
        f"both trees ahead in {min(over(full, *pair).ahead for pair in PAIRS[:2])} of {len(full)} settings of binary "
        f"MNIST at full length, and [in {min(over(short, *pair).ahead for pair in PAIRS[:2])} of {len(short)}](vae.md)"
    )


def limits() -> Iterator[str]:
    """Yield the pieces of the table on the page on limits."""
    digits = row(report("defaults", "evidence")["Classifier: log loss"])
    yield f"log loss {digits['sigmoid, embeddings'].mean:.3f}, softmax [{digits['softmax'].mean:.3f}](which"
    boosters = row(report("classifiers", "evidence")["Log loss"], "digits")
    yield f"log loss {boosters['tree, centroids'].mean:.2f}, LightGBM [{boosters['LightGBM'].mean:.2f}](class"
    softmax, arbitrary, learned, features = order.rewards()
    yield f"reward {arbitrary}, softmax [{softmax}](order"
    yield f"acting): {learned}; a tree of action features: {features}"
    nll = identifiers.means("Validation NLL at equal steps")
    softmaxes = [nll[head] for head in identifiers.SOFTMAXES]
    yield f"{nll['random sigmoid']:.2f} nats, softmaxes [{min(softmaxes):.2f} to {max(softmaxes):.2f}]"
    _, (early, late) = shrinking()
    yield f"sigmoid's median lead at N = 20 and 30 [falls from {early:.1f} to {late:.1f} nats](vae"
    loss = row(report("world", "evidence")[world.LOSS])
    yield (
        f"{loss['natural'].mean:.2f} and {loss['sigmoid'].mean:.2f} nats, softmax [{loss['softmax'].mean:.2f}](world"
    )
