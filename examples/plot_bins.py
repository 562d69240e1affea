"""
Regression over ordered bins
============================

A network that predicts a whole distribution, not a number: 64 bins of the target are the classes of a tree, and
:class:`catnat.torch.BinnedCatnat` reads quantiles, intervals and scores from it. Nothing is assumed about the shape:
here it has two branches that part and meet again.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import catnat
import catnat.torch as ct

plt.rcParams["figure.dpi"] = 150
torch.manual_seed(0)

# %%
# Data with two branches
# ----------------------

rng = np.random.default_rng(0)
x = rng.uniform(-1, 1, 4000)
y = rng.choice([-1, 1], 4000) * np.sin(np.pi * (x + 1) / 2) * 1.5 + 0.25 * rng.normal(
    size=4000
)
bins = catnat.Bins.from_quantiles(y, 64, tails=True)

# %%
# One score per node: 63 for 64 bins. The loss is the negative log-density, which reads one path for every example.

body = torch.nn.Sequential(
    torch.nn.Linear(1, 64), torch.nn.SiLU(), torch.nn.Linear(64, 64), torch.nn.SiLU()
)
layer = ct.CatnatLinear(64, 64)


def distribution(inputs):
    return ct.BinnedCatnat(layer.scores(body(inputs)), bins)


inputs, values = torch.tensor(x).float().unsqueeze(-1), torch.tensor(y).float()
optimizer = torch.optim.Adam([*body.parameters(), *layer.parameters()], lr=3e-3)
for _ in range(300):
    batch = torch.randint(4000, (256,))
    made = distribution(inputs[batch])
    loss = -made.log_prob(values[batch]).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
crps = made.crps(values[batch]).mean()
print(f"negative log-density {loss.item():.2f}, CRPS {crps.item():.3f}")

# %%
# The density, quantiles along one path each, and the same distribution with an eighth of the bins: its tree, cut.

grid, lines = torch.linspace(-1, 1, 120).unsqueeze(-1), torch.linspace(-2.4, 2.4, 200)
with torch.no_grad():
    made = distribution(grid)
    density = made.log_prob(lines.unsqueeze(-1)).exp()
    quantiles = made.icdf(torch.tensor([0.1, 0.25, 0.5, 0.75, 0.9]).unsqueeze(-1))
    one = distribution(torch.tensor([0.0]))
    fine, coarse = (each.log_prob(lines).exp() for each in (one, one.coarsen(3)))

fig, (left, right) = plt.subplots(
    1, 2, figsize=(8.4, 3.4), width_ratios=[1.6, 1], layout="constrained"
)
left.pcolormesh(grid[:, 0], lines, density, cmap="Blues", vmax=1.2, rasterized=True)
left.plot(grid[:, 0], quantiles.T, color="tab:red", linewidth=0.9)
left.scatter(x[:300], y[:300], s=2, color="black", alpha=0.4, linewidth=0)
left.set(
    xlabel="input",
    ylabel="target",
    title="density, and the quantiles 10, 25, 50, 75, 90%",
    ylim=(-2.4, 2.4),
)
right.fill_between(
    lines, fine, color="tab:blue", alpha=0.35, linewidth=0, label="64 bins"
)
right.plot(lines, coarse, color="tab:orange", label="8 bins: the first 3 levels")
right.set(xlabel="target", title="at input 0")
right.set_ylim(0, 1.45)
right.legend(frameon=False, fontsize=8, loc="upper center")
plt.show()

# %%
# Are the intervals right?
# ------------------------
# Of the targets, those inside the central interval at every level.

levels = torch.linspace(0.05, 0.95, 19)
with torch.no_grad():
    every = distribution(inputs).cdf(values)
inside = [((every - 0.5).abs() < level / 2).float().mean().item() for level in levels]

fig, ax = plt.subplots(figsize=(3.6, 3.2), layout="constrained")
ax.plot([0, 1], [0, 1], color="grey", linewidth=0.8, linestyle=":")
ax.plot(levels, inside, marker="o", markersize=3, color="tab:blue")
ax.set(
    xlabel="probability of the interval",
    ylabel="targets inside",
    title="calibration on the training data",
)
plt.show()
