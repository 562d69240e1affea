r"""
Loss landscapes, drawn fairly
=============================

Three classes, a uniform target, the cross-entropy loss. catnat has two scores, so its landscape is a plane. Softmax has
three scores, and a picture needs two coordinates: *which* two decides how softmax looks. The paper draws the slice
:math:`s_3 = 0`. This script draws that slice, then the plane :math:`s_1 + s_2 + s_3 = 0`, in which gradient descent
with all three scores moves anyway (softmax gradients sum to zero), and then catnat.
"""

import math

import matplotlib.pyplot as plt
import torch

import catnat
import catnat.torch as ct

torch.set_num_threads(1)
plt.rcParams["figure.dpi"] = 150

TREE = catnat.balanced(3)
# Two orthonormal directions that span the plane sum(s) = 0.
PLANE = (
    torch.tensor([[1, -1, 0], [1, 1, -2]], dtype=torch.float64)
    / torch.tensor([[2], [6]]).sqrt()
)


def slice_of_softmax(s):
    return torch.cat([s, torch.zeros_like(s[..., :1])], -1).log_softmax(-1)


def plane_of_softmax(s):
    return (s @ PLANE).log_softmax(-1)


def natural(s):
    return ct.log_catnat(s, TREE, "natural")


LANDSCAPES = {
    "softmax, $s_3 = 0$": slice_of_softmax,
    "softmax, $s_1 + s_2 + s_3 = 0$": plane_of_softmax,
    "catnat, natural": natural,
}


def loss(log_probs, s):
    """Cross-entropy with the uniform target, less its minimum: the KL divergence."""
    return -log_probs(s).mean(-1) - math.log(3)


# %%
# The curvature at the minimum
# ----------------------------
# At the minimum the Hessian of the cross-entropy is the Fisher matrix. Its eigenvalues say how a learning rate acts:
# along a direction of curvature :math:`\lambda` one step multiplies the error by :math:`1 - \mathrm{lr}\,\lambda`.

for name, log_probs in LANDSCAPES.items():
    hessian = torch.func.hessian(lambda s, f=log_probs: loss(f, s))(
        torch.zeros(2, dtype=torch.float64)
    )
    low, high = torch.linalg.eigvalsh(hessian)
    print(
        f"{name:32} eigenvalues {low:.3f} and {high:.3f}, ratio {high / low:.2f}, "
        f"stable below lr = {2 / high:.0f}"
    )

# %%
# The slice is stretched by a factor of three. The plane is perfectly round at its centre. The tree lies in between: its
# second node is reached by two classes of three, so its two entries are 1/4 and 1/6.
#
# Gradient descent from one distribution
# --------------------------------------
# Every panel starts at the same p = (0.75, 0.20, 0.05). The starting scores are found by inverting each map.


def start(log_probs, p):
    """The two scores that stand for p."""
    if log_probs is slice_of_softmax:
        return (p.log() - p.log()[..., 2:])[..., :2]
    if log_probs is plane_of_softmax:
        return p.log() @ PLANE.T
    answers = torch.stack(
        [p[..., 2], p[..., 1] / p[..., :2].sum(-1)], -1
    )  # root: class 2 or not; then class 1 or 0
    return torch.tensor(
        ct.natural().inverse(answers.numpy()) - ct.natural().offset(TREE)
    )


def descend(log_probs, p, rate, steps=40):
    """The points that gradient descent visits, starting at the scores of p."""
    s = start(log_probs, p)
    torch.testing.assert_close(log_probs(s).exp(), p)
    gradient = torch.func.grad(lambda s: loss(log_probs, s).sum())
    visited = [s]
    for _ in range(steps):
        visited.append(visited[-1] - rate * gradient(visited[-1]))
    return torch.stack(visited)


p = torch.tensor([0.75, 0.20, 0.05], dtype=torch.float64)
STYLES = {
    1: ("#0072B2", ".", "-"),
    4: ("#000000", "o", "-"),
    5: ("#D55E00", "s", "--"),
}  # one per learning rate
ticks = torch.linspace(-3.1, 3.1, 161, dtype=torch.float64)
levels = torch.linspace(0, 1.5, 16)

fig, axes = plt.subplots(1, 3, figsize=(7.6, 3.0), layout="constrained")
for ax, (name, log_probs) in zip(axes, LANDSCAPES.items(), strict=True):
    heights = loss(
        log_probs, torch.stack(torch.meshgrid(ticks, ticks, indexing="xy"), -1)
    ).clamp(max=1.5)
    ax.contourf(ticks, ticks, heights, levels=levels, cmap="Greys", alpha=0.35)
    ax.contour(
        ticks, ticks, heights, levels=levels[1:-1], colors="0.65", linewidths=0.5
    )
    ax.plot(0, 0, "*", color="#F0E442", mec="black", mew=0.6, ms=9, zorder=5)
    for rate, (colour, marker, style) in STYLES.items():
        line = descend(log_probs, p, rate)
        ax.plot(
            *line.T,
            color=colour,
            marker=marker,
            ls=style,
            ms=3,
            lw=1,
            label=f"lr = {rate}",
        )
    ax.set_title(name, fontsize=9)
    ax.set(xlim=(-2.1, 3.1), ylim=(-2.6, 2.6), aspect="equal")
    ax.tick_params(labelsize=8)
axes[0].set(xlabel="$s_1$", ylabel="$s_2$")
axes[1].set(xlabel="along $(1, -1, 0)$", ylabel="along $(1, 1, -2)$")
axes[2].set(xlabel="score of the root", ylabel="score of the second node")
fig.legend(
    *axes[0].get_legend_handles_labels(),
    loc="outside lower center",
    ncols=3,
    fontsize=9,
)
plt.show()

# %%
# Many starts, every rate
# -----------------------
# One line is an anecdote. Here are 500 starting distributions, drawn uniformly from the simplex: the median number of
# steps until KL < 0.001, and in brackets the fraction of starts that never got there in 100 steps.


torch.manual_seed(0)
many = torch.distributions.Dirichlet(torch.ones(3, dtype=torch.float64)).sample((500,))
rates = (1, 2, 3, 4, 5, 6, 7)
print(f"{'':32}" + "".join(f"{f'lr = {rate}':>11}" for rate in rates))
for name, log_probs in LANDSCAPES.items():
    cells = []
    for rate in rates:
        reached = (
            loss(log_probs, descend(log_probs, many, rate, steps=100)) < 1e-3
        ).cumsum(0) > 0
        never = float((~reached[-1]).double().mean())
        steps = str(int((~reached).sum(0).median())) if never < 0.5 else "-"
        cells.append(f"{steps} ({never:.0%})" if never else steps)
    print(f"{name:32}" + "".join(f"{cell:>11}" for cell in cells))

# %%
# Both halves of the story. At a rate of 4 or 5 softmax swings from side to side while catnat goes to the minimum with
# few turns, as the paper's figure shows. But that is not all:
#
# * A learning rate does not mean the same thing in two parameterizations. Softmax's largest curvature is 1/3 and the
#   tree's is 1/4, so 3 is the rate that suits softmax and 4 the one that suits catnat. Each at its own best rate, they
#   need two steps.
# * The slice adds a stretch that softmax with all its scores does not have: on the plane softmax is quicker than on the
#   slice at every rate up to 4.
# * The natural activation loses some starts for good. Its loss is steep near the edges of the band, so a long step from
#   there jumps over the other edge, where the gradient is zero.
