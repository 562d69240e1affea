r"""
Two changed lines: a policy learned by REINFORCE
================================================

A bandit has 18 arms, each with its own mean reward. A policy is a categorical distribution over the arms. REINFORCE
moves its scores along :math:`(r - b)\,\nabla \log p(\text{arm})`, where :math:`b` is a running mean of the rewards.
Here a softmax policy becomes a catnat policy. Two lines change: the number of scores, and the distribution.
"""

import matplotlib.pyplot as plt
import torch
from torch.distributions import Categorical

import catnat.torch as ct

torch.set_num_threads(1)
plt.rcParams["figure.dpi"] = 150
ARMS, STEPS = 18, 500

# %%
# Before and after
# ----------------
# ``Catnat`` is a subclass of ``Categorical``: everything that is done with the policy afterwards stays as it was.

WIDTHS = {
    "softmax": ARMS,
    "catnat": ARMS - 1,  # one score per node
}
POLICIES = {
    "softmax": lambda scores: Categorical(logits=scores),
    "catnat": lambda scores: ct.Catnat(scores, activation="natural"),
}


def learn(method, rate, bandits, seed):
    """Average regret of every step; each row of scores learns on a bandit of its
    own.
    """
    torch.manual_seed(seed)
    means = torch.randn(bandits, ARMS)
    lost_at = means.max(-1, keepdim=True).values - means
    scores = torch.zeros(bandits, WIDTHS[method], requires_grad=True)
    optimizer = torch.optim.Adam([scores], lr=rate)
    baseline = torch.zeros(bandits)
    regret = []
    for _ in range(STEPS):
        policy = POLICIES[method](scores)
        arms = policy.sample()
        rewards = means.gather(-1, arms[:, None])[:, 0] + torch.randn(bandits)
        loss = -((rewards - baseline) * policy.log_prob(arms)).sum()
        baseline += 0.05 * (rewards - baseline)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        regret.append(lost_at.gather(-1, arms[:, None])[:, 0])
    return torch.stack(regret)


# %%
# The learning rate is chosen on 100 bandits, per method; the comparison uses 200 others.

RATES = (0.02, 0.04, 0.08, 0.16, 0.32)
results = {}
for method in POLICIES:
    tuning = {rate: float(learn(method, rate, 100, seed=1).mean()) for rate in RATES}
    best = min(tuning, key=tuning.get)
    results[method] = learn(method, best, 200, seed=2)
    print(
        f"{method:8} regret while tuning: "
        + ", ".join(f"{regret:.3f} at {rate}" for rate, regret in tuning.items())
    )
    print(f"{method:8} on the other bandits, at {best}: {results[method].mean():.3f}")

# %%
# Is there a difference?
# ----------------------
# Both methods saw the same 200 bandits, so their regrets come in pairs. If the methods were alike, each difference
# could as well have had the other sign: flip signs at random 10,000 times and see how often the mean is as large as
# measured.

difference = results["catnat"].mean(0) - results["softmax"].mean(0)
signs = (
    torch.randint(
        0, 2, (10_000, len(difference)), generator=torch.Generator().manual_seed(3)
    )
    * 2.0
    - 1
)
p_value = float(
    ((signs * difference).mean(-1).abs() >= difference.mean().abs()).float().mean()
)
error = float(difference.std() / len(difference) ** 0.5)
print(
    f"regret of catnat less that of softmax: {difference.mean():+.4f}, standard "
    f"error {error:.4f}, p = {p_value:.2f}"
)
print("significant at 0.05" if p_value < 0.05 else "not significant at 0.05")

# %%

fig, ax = plt.subplots(figsize=(5.6, 3.2), layout="constrained")
for (method, regret), colour, style in zip(
    results.items(), ("#D55E00", "#0072B2"), ("--", "-"), strict=True
):
    smooth = regret.unfold(0, 20, 20).mean(-1)  # means over 20 steps
    middle, spread = smooth.mean(-1), 1.96 * smooth.std(-1) / smooth.shape[1] ** 0.5
    steps = torch.arange(len(middle)) * 20 + 10
    ax.plot(steps, middle, color=colour, ls=style, label=method)
    ax.fill_between(
        steps, middle - spread, middle + spread, color=colour, alpha=0.2, lw=0
    )
ax.set(
    xlabel="updates",
    ylabel="regret",
    title="REINFORCE on 200 bandits, 18 arms",
    ylim=(0, None),
)
ax.legend(title="mean and 95% interval")
plt.show()

# %%
# The change is two lines, and on this problem it makes no difference that 200 bandits can show. (The paper reports the
# same for PPO on two Atari games: its means are higher with catnat, but not significantly.) What the tree brings to a
# policy here is a distribution whose scores do not interact and whose sampling cost grows with log K, not a better
# return.
