r"""
Gradient estimators: bias and variance
======================================

A loss on draws from a categorical distribution has a gradient that must be estimated, unless all K classes can be
tried. Here is one problem on which everything can be measured, because it is small enough to be enumerated.

Class k stands for a random point :math:`c_k` in eight dimensions. The cost of a one-hot vector y is its squared
distance from a target, :math:`f(y) = \tfrac18 |C y - t|^2`. It is not linear in y, and defined off the corners too, as
the relaxed estimators need. The scores are normal with standard deviation 0.7. We draw 10 such problems and estimate
the gradient of :math:`E f` in the scores many times on each.

Both measures are relative to the true gradient g: the variance :math:`E |\hat g - E \hat g|^2 / |g|^2`, and the bias
:math:`|E \hat g - g| / |g|`. A relative variance of 1 means that one estimate is as much noise as signal.
"""

import matplotlib.pyplot as plt
import torch

import catnat.torch as ct

torch.set_num_threads(1)
plt.rcParams["figure.dpi"] = 150
torch.manual_seed(0)

PROBLEMS, DIMENSIONS = 10, 8


class Problem:
    """Ten problems with K classes; every one of their estimates is a row, so that one
    backward pass does them all.
    """

    def __init__(self, num_classes, repeats):
        seed = torch.Generator().manual_seed(num_classes)
        self.points = torch.randn(PROBLEMS, 1, DIMENSIONS, num_classes, generator=seed)
        self.target = torch.randn(PROBLEMS, 1, DIMENSIONS, generator=seed)
        start = 0.7 * torch.randn(PROBLEMS, 1, num_classes - 1, generator=seed)
        self.scores = start.expand(-1, repeats, -1).clone().requires_grad_()
        self.costs = (
            (self.points - self.target[..., None]).square().mean(-2)
        )  # of every class: (problems, 1, K)
        self.dist = ct.Catnat(self.scores, activation="natural")
        self.truth = self.gradient(
            ct.estimators.enumerate_exactly(
                lambda k: self.costs.movedim(-1, 0).expand(k.shape), self.dist
            )
        )

    def cost_of_class(self, k):
        return self.costs.expand(*k.shape, -1).gather(-1, k[..., None])[..., 0]

    def cost_of_vector(self, y):
        return ((self.points @ y[..., None])[..., 0] - self.target).square().mean(-1)

    def mean_cost(self):
        return (self.dist.probs.detach() * self.costs).sum(-1)

    def gradient(self, value):
        return torch.autograd.grad(value.sum(), self.scores, retain_graph=True)[0]

    def measure(self, estimator, evaluations):
        """Relative variance and bias."""
        gradients = self.gradient(estimator(self, evaluations))
        signal = self.truth[:, 0].square().sum()
        variance = gradients.var(1).sum()
        squared = (
            gradients.mean(1) - self.truth[:, 0]
        ).square().sum() - variance / gradients.shape[1]
        return (variance / signal).item(), (squared.clamp(min=0) / signal).sqrt().item()


# %%
# The estimators
# --------------
# Each is given the same number of evaluations of f.


def score_function(baseline):
    def estimate(problem, n):
        chosen = problem.mean_cost() if baseline == "mean" else baseline
        return ct.estimators.score_function(
            problem.cost_of_class, problem.dist, num_samples=n, baseline=chosen
        )

    return estimate


def gumbel_softmax(temperature, hard=False):
    def estimate(problem, n):
        y = ct.estimators.gumbel_softmax(
            problem.dist, temperature, hard=hard, sample_shape=(n,)
        )
        return problem.cost_of_vector(y).mean(0)

    return estimate


def straight_through(problem, n):
    return problem.cost_of_vector(
        ct.estimators.straight_through(problem.dist, sample_shape=(n,))
    ).mean(0)


def unordered_set(problem, n):
    return ct.estimators.unordered_set(problem.cost_of_class, problem.dist, n)


ESTIMATORS = {
    "score function": score_function(None),
    "score function, mean cost as baseline": score_function("mean"),
    "score function, leave-one-out": score_function("leave-one-out"),
    "unordered set": unordered_set,
    "Gumbel-softmax, T = 0.5": gumbel_softmax(0.5),
    "straight-through": straight_through,
}

# %%
# Variance against the number of classes
# --------------------------------------
# Four evaluations for each estimate. At K = 4 the unordered set is all classes: nothing is left to chance.

SIZES = (4, 8, 16, 32, 64, 128, 256)
by_size = {name: [] for name in ESTIMATORS}
for k in SIZES:
    problem = Problem(k, repeats=200)
    for name, estimator in ESTIMATORS.items():
        by_size[name].append(problem.measure(estimator, 4)[0])

print(
    f"{'relative variance, 4 evaluations':38}"
    + "".join(f"{f'K = {k}':>9}" for k in SIZES)
)
for name, values in by_size.items():
    print(f"{name:38}" + "".join(f"{value:9.3f}" for value in values))

# %%
# Variance against the number of evaluations
# ------------------------------------------
# K = 16.

COUNTS = (1, 2, 3, 4, 6, 8)
problem = Problem(16, repeats=1000)
by_count = {
    name: [
        float("nan") if n == 1 and "leave" in name else problem.measure(estimator, n)[0]
        for n in COUNTS
    ]
    for name, estimator in ESTIMATORS.items()
}

print(f"{'relative variance, K = 16':38}" + "".join(f"{f'n = {n}':>9}" for n in COUNTS))
for name, values in by_count.items():
    print(f"{name:38}" + "".join(f"{value:9.3f}" for value in values))

# %%
# Bias
# ----
# K = 16 again, and 3000 estimates from 8 evaluations each, so that a bias of a few percent can be told from noise. The
# unbiased estimators are there as a check of the measurement.

TEMPERATURES = (0.1, 0.2, 0.5, 1.0, 2.0)
problem = Problem(16, repeats=3000)
relaxed = {
    "relaxed": [problem.measure(gumbel_softmax(t), 8) for t in TEMPERATURES],
    "hard": [problem.measure(gumbel_softmax(t, hard=True), 8) for t in TEMPERATURES],
}
rest = {
    name: problem.measure(ESTIMATORS[name], 8)
    for name in ("straight-through", "unordered set")
}

print(f"{'K = 16, 8 evaluations':28}{'variance':>10}{'bias':>8}")
for name, values in relaxed.items():
    for t, (variance, bias) in zip(TEMPERATURES, values, strict=True):
        print(f"{f'Gumbel-softmax, {name}, T = {t}':28}{variance:10.3f}{bias:8.3f}")
for name, (variance, bias) in rest.items():
    print(f"{name:28}{variance:10.3f}{bias:8.3f}")

# %%
# The picture
# -----------
# Dashed: biased. They use the gradient of f, which the others do not need.

STYLES = {
    "score function": ("#999999", "s", "-"),
    "score function, mean cost as baseline": ("#56B4E9", "v", "-"),
    "score function, leave-one-out": ("#0072B2", "o", "-"),
    "unordered set": ("#009E73", "D", "-"),
    "Gumbel-softmax, T = 0.5": ("#D55E00", "^", "--"),
    "straight-through": ("#E69F00", "x", "--"),
}

fig, axes = plt.subplots(1, 3, figsize=(7.6, 4.8), layout="constrained")
for name, (colour, marker, line) in STYLES.items():
    style = {"color": colour, "marker": marker, "ls": line, "ms": 5}
    shown = [(k, v) for k, v in zip(SIZES, by_size[name], strict=True) if v > 1e-6]
    axes[0].plot(*zip(*shown, strict=True), label=name, **style)
    axes[1].plot(COUNTS, by_count[name], **style)
axes[0].set(
    xscale="log",
    yscale="log",
    xlabel="classes $K$",
    ylabel="relative variance",
    title="4 evaluations",
)
axes[0].set_xticks(SIZES, SIZES)
axes[1].set(yscale="log", xlabel="evaluations", title="$K = 16$")
axes[1].set_xticks(COUNTS, COUNTS)
for name, (colour, marker, line) in {
    "relaxed": ("#D55E00", "^", "--"),
    "hard": ("#CC79A7", "P", "--"),
}.items():
    biases = [bias for _, bias in relaxed[name]]
    axes[2].plot(
        TEMPERATURES,
        biases,
        color=colour,
        marker=marker,
        ls=line,
        label=f"Gumbel-softmax, {name}",
    )
for name in rest:
    colour, _, line = STYLES[name]
    axes[2].axhline(rest[name][1], color=colour, ls=line, lw=1.5, label=name)
axes[2].set(
    xscale="log",
    xlabel="temperature",
    ylabel="relative bias",
    title="$K = 16$, 8 evaluations",
)
axes[2].set(ylim=(-0.03, 1.15), yticks=[0, 0.2, 0.4, 0.6, 0.8])
axes[2].set_xticks(TEMPERATURES, TEMPERATURES)
for ax in axes:
    ax.minorticks_off()
    ax.grid(alpha=0.3)
for ax in axes[:2]:
    ax.set(
        ylim=(0.1, 250), yticks=[0.1, 1, 10, 100], yticklabels=["0.1", "1", "10", "100"]
    )
    ax.minorticks_off()
axes[2].legend(fontsize=9, loc="upper left")
fig.legend(
    *axes[0].get_legend_handles_labels(),
    loc="outside lower center",
    ncols=3,
    fontsize=9,
)
plt.show()

# %%
# What to take from it
# --------------------
# * If f can be evaluated at all K classes, do so: ``enumerate_exactly`` has neither bias nor variance.
# * A score-function estimate without a baseline is mostly noise here: the costs are all positive. Subtracting the mean
#   cost, known from elsewhere, takes away a factor of 6 to 12 in variance. Leave-one-out needs no such knowledge and
#   pays for it: a factor of :math:`n / (n - 1)`, about.
# * The unordered set is never worse than leave-one-out here. It is far better where its k classes hold much of the
#   probability (K = 16, k = 8: 2.4 times less variance), and no better where they hold little (K = 256, k = 4). With
#   one evaluation it has no baseline, and is the plain score function.
# * All unbiased estimators get noisier with K, and so does Gumbel-softmax at a fixed temperature.
# * Gumbel-softmax trades: at T = 0.1 it has a bias of a few percent and more variance than leave-one-out; at T = 2 it
#   has next to no variance, and points mostly elsewhere. Hard draws have less bias than relaxed ones at the same
#   temperature, and about three times the variance or more.
# * Straight-through has the least variance and a relative bias of 0.6, whatever the number of evaluations. Averaging
#   does not help it. That it trains many models well is not explained by its accuracy.
#
# One family of problems, with a quadratic cost. On a cost that is linear in y, straight-through would be unbiased.
