"""NUTS on the simplex through CatnatTransform beside NumPyro's stick breaking: python benchmarks/nuts.py

Effective draws per second of processor time and per gradient, for the class whose probability mixes worst, after
warm-up. Every round is a seed: all methods warm up and draw, in alternating order. Figures are medians over rounds,
ratios are to stick breaking in the same round. It claims nothing: results/nuts.json is what was measured, and
results/nuts_environment.json where.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

# One thread, before JAX starts: processor time is then that of the job.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import distributions as dist
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import NUTS
from numpyro.infer.reparam import ExplicitReparam
from records import RESULTS, machine

import catnat
from catnat.integrations.numpyro import CatnatTransform

WARM_UP, DRAWS, ROUNDS = 500, 1000, 4
Model = Callable[[], None]


def methods(classes: int) -> dict[str, CatnatTransform | None]:
    """Maps onto the simplex, NumPyro's own first."""
    trees = {"balanced": catnat.balanced(classes), "chain": catnat.chain(classes)}
    ours = {
        f"{shape} {activation}": CatnatTransform(tree, activation)
        for activation in ("sigmoid", "natural")
        for shape, tree in trees.items()
    }
    return {"StickBreakingTransform": None} | ours


# ---- the posteriors ----


def counts(classes: int, total: int, concentration: float) -> tuple[Model, np.ndarray]:
    """Uneven counts (1/k, shuffled) under a Dirichlet prior. The posterior is a Dirichlet, with a known mean."""
    generator = np.random.default_rng(0)
    weights = generator.permutation(1 / np.arange(1, classes + 1))
    seen = generator.multinomial(total, weights / weights.sum())

    def model() -> None:
        p = numpyro.sample("p", dist.Dirichlet(jnp.full(classes, concentration)))
        numpyro.sample("counts", dist.Multinomial(total, p), obs=seen)

    return model, (seen + concentration) / (total + classes * concentration)


def mixture(classes: int, points: int) -> tuple[Model, None]:
    """Weights of a mixture of normals, known but for them, that overlap: the posterior is no Dirichlet."""
    generator = np.random.default_rng(0)
    weights = generator.permutation(1 / np.arange(1, classes + 1))
    centres = 1.5 * np.arange(classes)
    x = generator.choice(centres, points, p=weights / weights.sum()) + generator.normal(size=points)

    def model() -> None:
        weights = numpyro.sample("p", dist.Dirichlet(jnp.ones(classes)))
        parts = dist.MixtureSameFamily(dist.Categorical(probs=weights), dist.Normal(jnp.asarray(centres), 1.0))
        numpyro.sample("x", parts, obs=x)

    return model, None


POSTERIORS = {
    "counts, K=8": (8, lambda: counts(8, 200, 1.0)),
    "counts, K=64": (64, lambda: counts(64, 1000, 1.0)),
    "sparse counts, K=64": (64, lambda: counts(64, 200, 0.1)),
    "mixture weights, K=8": (8, lambda: mixture(8, 300)),
}


# ---- the measurement ----


class Sampler:
    """NUTS through one map, compiled once for all rounds."""

    def __init__(self, model: Model, transform: CatnatTransform | None) -> None:
        if transform is not None:
            model = numpyro.handlers.reparam(model, config={"p": ExplicitReparam(transform.inv)})
        self.kernel = NUTS(model)
        self.advance: Any = None

    def start(self, seed: int) -> Any:
        """The state after warm-up."""
        state = self.kernel.init(jax.random.key(seed), WARM_UP, None, (), {})
        if self.advance is None:

            def step(state: Any, _: None) -> tuple[Any, Any]:
                state = self.kernel.sample(state, (), {})
                return state, (state.z, state.num_steps, state.diverging)

            self.advance = jax.jit(lambda state: jax.lax.scan(step, state, length=WARM_UP))
        return jax.block_until_ready(self.advance(state)[0])

    def draw(self, state: Any) -> dict[str, Any]:
        """Time and properties of some draws."""
        parts = []
        start = time.process_time()  # processor time: other processes on the machine then count for less
        for _ in range(DRAWS // WARM_UP):
            state, drawn = jax.block_until_ready(self.advance(state))
            parts.append(drawn)
        seconds = time.process_time() - start
        z, gradients, diverging = jax.tree.map(lambda *each: jnp.concatenate(each), *parts)
        p = np.asarray(jax.vmap(self.kernel.postprocess_fn((), {}))(z)["p"], np.float64)
        effective = effective_sample_size(p[None])
        return {
            "p": p,
            "standard errors": p.std(0) / np.sqrt(effective),
            "seconds": seconds,
            "gradients": int(gradients.sum()),
            "divergences": int(diverging.sum()),
            "effective": float(effective.min()),
        }


def compare(classes: int, model: Model, mean: np.ndarray | None) -> dict[str, dict[str, float]]:
    """The figures of every method."""
    samplers = {name: Sampler(model, transform) for name, transform in methods(classes).items()}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in samplers}
    for seed in range(ROUNDS):
        for name in list(samplers) if seed % 2 else list(reversed(samplers)):
            runs[name].append(samplers[name].draw(samplers[name].start(seed)))
    if mean is None:  # not known: that of all methods together
        mean = np.mean([run["p"].mean(0) for those in runs.values() for run in those], 0)
    first = next(iter(runs))
    return {name: figures(those, runs[first], mean) for name, those in runs.items()}


def figures(runs: list[dict[str, Any]], firsts: list[dict[str, Any]], mean: np.ndarray) -> dict[str, float]:
    """Medians over rounds; how far the mean of all draws is from the posterior's."""

    def per(run: dict[str, Any], what: str) -> float:
        return run["effective"] / run[what]

    def ratio(what: str) -> float:
        return statistics.median(per(run, what) / per(first, what) for run, first in zip(runs, firsts, strict=True))

    found = np.mean([run["p"].mean(0) for run in runs], 0)
    error = np.sqrt(np.mean([run["standard errors"] ** 2 for run in runs], 0) / len(runs))
    return {
        "effective draws per second": round(statistics.median(per(run, "seconds") for run in runs), 1),
        "ratio": round(ratio("seconds"), 3),
        "effective draws per gradient": round(statistics.median(per(run, "gradients") for run in runs), 4),
        "ratio per gradient": round(ratio("gradients"), 3),
        "gradients per draw": round(statistics.median(run["gradients"] / DRAWS for run in runs), 2),
        "microseconds per gradient": round(
            statistics.median(1e6 * run["seconds"] / run["gradients"] for run in runs), 2
        ),
        "divergences": sum(run["divergences"] for run in runs),
        "largest error of a mean, in standard errors": round(float((np.abs(found - mean) / error).max()), 2),
    }


def environment() -> dict[str, str | int]:
    return {
        **machine(),
        "threads used": 1,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "numpyro": numpyro.__version__,
        "catnat": catnat.__version__,
        "dtype": "float32",
        "warm-up": WARM_UP,
        "draws": DRAWS,
        "rounds": ROUNDS,
    }


def main() -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "nuts_environment.json").write_text(json.dumps(environment(), indent=1) + "\n")
    results = {}
    for case, (classes, posterior) in POSTERIORS.items():
        results[case] = compare(classes, *posterior())
        print(case, flush=True)
        for method, row in results[case].items():
            print(f"  {method:24}", "  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    (RESULTS / "nuts.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
