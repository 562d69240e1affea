"""The statements of the page on policies for games."""

from __future__ import annotations

from collections.abc import Iterator

from catnat_experiments.report import statistics
from catnat_experiments.report.robust import mann_whitney_tests
from values import p, report

CONSTANTS = "0.01"  # the damping of natural gradients
BREAKOUT, INVADERS = "Breakout", "SpaceInvaders"


def page() -> Iterator[str]:
    """Yield all statements of the page."""
    yield from _minatar()
    yield from _atari()


def _minatar() -> Iterator[str]:
    tables = report("minatar", "evidence")
    final, whole = (
        mann_whitney_tests(tables[title], "softmax") for title in ("Return", "Return over the whole training")
    )
    least = min(final[name, game] for game in (BREAKOUT, INVADERS) for name in ("sigmoid", "natural"))
    yield f"(Mann-Whitney, corrected: {p(least)} or more)"
    yield f"averaged over the training it is ahead ({p(whole['natural', BREAKOUT])})"
    damped = whole["softmax-damped-gradient", BREAKOUT]
    worse = statistics.mann_whitney(
        *(tables["Return"].row(BREAKOUT)[f"natural{more}"] for more in ("", "-damped-gradient"))
    )
    yield f"in Breakout natural ({p(worse)}, not corrected)."
    yield f"Averaged over the training, softmax is better with them in Breakout ({p(damped)})."

    returns, entropy, dead = (
        {game: tables[title].row(game) for game in (BREAKOUT, INVADERS)}
        for title in ("Return", "Entropy of the policy at the end", "Saturated scores, fraction, at the end")
    )
    name = "sigmoid-trust-region"
    alone = max(statistics.mann_whitney(samples[name], samples["sigmoid"]) for samples in returns.values())
    [nats] = {f"{samples[name].mean:.2f}" for samples in entropy.values()}
    yield f"({p(alone)} in each game against sigmoid, not corrected)"
    yield f"and end with an entropy of {nats} nats"
    shares = [dead[game]["natural"].mean for game in (BREAKOUT, INVADERS)]
    yield f"Natural ends with {shares[0]:.0%} and {shares[1]:.0%} of its scores saturated for a state."


def _atari() -> Iterator[str]:
    tables = report("atari", "games")
    dead = [tables["Saturated scores, fraction"].row(game)["natural"].mean for game in ("breakout", "seaquest")]
    yield f"At the end {dead[0]:.0%} of natural's scores are saturated in Breakout and {dead[1]:.0%} in Seaquest."
    returns = tables["Return"]
    times = returns.table.paper["breakout"]["softmax"].mean / returns.row("breakout")["softmax"].mean
    yield f"After the whole length, softmax's return in Breakout is {times:.0f} times as high."
