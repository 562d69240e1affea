r"""
The isotropic scale: where plain gradient descent is slow on a tree, and a remedy
=================================================================================

A test with no noise and no network: fit the cross-entropy to 32 random targets, drawn from a Dirichlet(1), from zero
scores. Count the steps until the KL divergence is below 0.001. Each method gets its best learning rate from the powers
of two. The number reported is the step by which half of the 32 targets were reached.

* **softmax**;
* **natural** and **sigmoid**: a tree with either activation;
* **sigmoid, scaled**: scores are multiplied by ``catnat.isotropic_scale``, :math:`c_i = \sqrt{I_{ref} / (P_0(i) I_i)}`,
  so that the Fisher matrix at zero scores is 1/4 times the identity, whatever the tree.
"""

import math

import matplotlib.pyplot as plt
import torch

import catnat
import catnat.torch as ct

torch.set_num_threads(1)
plt.rcParams["figure.dpi"] = 150

SIZES = (8, 32, 128, 512)
MOST_STEPS, CLOSE_ENOUGH = 600, 1e-3


def scaled(scores):
    factors = catnat.isotropic_scale(catnat.balanced(scores.shape[-1] + 1))
    return ct.log_catnat(torch.tensor(factors, dtype=scores.dtype) * scores)


METHODS = {
    "softmax": lambda s: s.log_softmax(-1),
    "natural": lambda s: ct.log_catnat(s, activation="natural"),
    "sigmoid": ct.log_catnat,
    "sigmoid, scaled": scaled,
}
RATES = {
    "gradient descent": [2.0**e for e in range(-2, 9)],
    "Adam": [2.0**e for e in range(-7, 1)],
}


def targets(num_classes, count=32):
    """Uniform draws from the simplex: normalized exponential variables."""
    draws = torch.empty(count, num_classes).exponential_(
        generator=torch.Generator().manual_seed(0)
    )
    return draws / draws.sum(-1, keepdim=True)


def adam_direction(gradient, state, step):
    """Adam with its usual constants; every rate and target is a row of one tensor."""
    first, second = state
    first.lerp_(gradient, 0.1)
    second.lerp_(gradient.square(), 0.001)
    return (first / (1 - 0.9**step)) / ((second / (1 - 0.999**step)).sqrt() + 1e-8)


def steps_needed(method, optimizer, num_classes):
    """For every rate, the steps by which half of the targets are fitted.

    Infinite if not within MOST_STEPS, or if the rate is given up: at four times the
    steps of the best one.
    """
    target = targets(num_classes)
    width = num_classes if method == "softmax" else num_classes - 1
    rates = torch.tensor(RATES[optimizer])[:, None, None]
    scores = torch.zeros(len(rates), len(target), width, requires_grad=True)
    state = (torch.zeros_like(scores), torch.zeros_like(scores))
    reached = torch.zeros(scores.shape[:2], dtype=torch.bool)
    needed = torch.full((len(rates),), math.inf)
    least = torch.special.entr(target).sum(-1)
    for step in range(MOST_STEPS + 1):
        losses = -(target * METHODS[method](scores)).sum(-1)
        reached |= losses - least < CLOSE_ENOUGH
        done = reached.float().mean(-1) >= 0.5
        needed = torch.where(done & needed.isinf(), float(step), needed)
        if done.all() or step >= 4 * needed.min():
            break
        (gradient,) = torch.autograd.grad(losses.sum(), scores)
        with torch.no_grad():
            scores -= rates * (
                adam_direction(gradient, state, step + 1)
                if optimizer == "Adam"
                else gradient
            )
    return needed


results = {
    (optimizer, method, k): steps_needed(method, optimizer, k)
    for optimizer in RATES
    for method in METHODS
    for k in SIZES
}

# %%
# The table
# ---------
# Steps, with the best rate in brackets.


def entry(optimizer, method, k):
    needed = results[optimizer, method, k]
    if needed.isinf().all():
        return f"> {MOST_STEPS}"
    return f"{int(needed.min())} ({RATES[optimizer][int(needed.argmin())]:g})"


for optimizer in RATES:
    print(f"{optimizer}\n{'K':>5} " + "".join(f"{method:>22}" for method in METHODS))
    for k in SIZES:
        print(
            f"{k:5} "
            + "".join(f"{entry(optimizer, method, k):>22}" for method in METHODS)
        )
    print()

# %%
# The picture
# -----------

STYLES = {
    "softmax": ("#D55E00", "s", ":"),
    "natural": ("#0072B2", "o", "--"),
    "sigmoid": ("#CC79A7", "D", "-."),
    "sigmoid, scaled": ("#E69F00", "^", "-"),
}

fig, axes = plt.subplots(1, 2, figsize=(7.2, 3.3), sharey=True, layout="constrained")
for ax, optimizer in zip(axes, RATES, strict=True):
    for method, (colour, marker, line) in STYLES.items():
        best = torch.stack([results[optimizer, method, k].min() for k in SIZES])
        ax.plot(
            SIZES,
            best.clamp(max=MOST_STEPS),
            color=colour,
            marker=marker,
            ls=line,
            label=method,
        )
        for k, value in zip(SIZES, best.tolist(), strict=True):
            if math.isinf(value):
                ax.annotate(
                    "not within 600",
                    (k, 1.15 * MOST_STEPS),
                    ha="right",
                    va="bottom",
                    fontsize=9,
                    color=colour,
                )
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="classes $K$",
        title=optimizer,
        ylim=(4, 1100),
    )
    ax.set_xticks(SIZES, SIZES)
    ax.set_yticks([5, 10, 20, 50, 100, 200, 500], [5, 10, 20, 50, 100, 200, 500])
    ax.minorticks_off()
    ax.grid(alpha=0.3)
axes[0].set_ylabel("steps to KL < 0.001")
axes[1].legend(loc="upper left", fontsize=9)
plt.show()

# %%
# Both halves of the story
# ------------------------
# Plain gradient descent: natural matches softmax at K = 8 and needs about twice, then more than five times, then more
# than nine times as many steps as K grows; the sigmoid needs as many. The reason is conditioning. A node at the bottom
# of the tree is reached :math:`2/K` of the time, so its gradient is small, and a rate that would suit it makes the root
# diverge: the best rate stays at 4, for the sigmoid at 8. Softmax's curvature is small but even, and a rate that grows
# with K makes up for it. The isotropic scale gives every node the same information at the start. Then some 20 steps are
# enough, and the best rate is 2 to 4 for every K.
#
# Adam: no difference. Adam divides each coordinate by the size of its own gradient, which is what the scale does by
# hand. All need 38 to 49 steps. The factors :math:`c_i` only make Adam's steps longer, and its best rate *falls* as K
# grows.
#
# So: with plain gradient descent, multiply the scores by the isotropic scale. With Adam it gains nothing on this
# problem. And this is a noise-free toy with free scores. It says nothing about a network with noisy gradients.
