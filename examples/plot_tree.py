"""
Trees of yes/no decisions
=========================

A tree over :math:`K` classes has :math:`K - 1` inner nodes. Each node asks one question and has one score. The answer
is yes with probability :math:`a(s_i)` and no with probability :math:`1 - a(s_i)`. The probability of a class is the
product of the answers on the way from the root to its leaf.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import catnat
import catnat.torch as ct

torch.set_num_threads(1)
plt.rcParams["figure.dpi"] = 150

# %%
# The balanced tree over eight classes
# ------------------------------------
# This is the tree of the paper. Circles are nodes, boxes are classes. Blue edges are yes, grey edges are no, and a
# thicker edge carries more probability. With three questions per class, the class number written in binary is the path:
# class 5 is 101, that is yes, no, yes.

tree = catnat.balanced(8)
scores = np.random.default_rng(3).normal(size=7)
ax = tree.plot(scores, "natural")
ax.set_title(f"{tree}: $a(s_i)$ on blue edges, $1 - a(s_i)$ on grey ones", fontsize=9)
plt.show()

# %%
# The numbers in the boxes are what :func:`catnat.torch.catnat` returns:

print(ct.catnat(torch.tensor(scores), tree).numpy().round(3))

# %%
# Any number of classes
# ---------------------
# With five classes the balanced tree cannot be complete. Its answers are centred instead: a node with two classes on
# one side and three on the other says yes with probability 2/5 or 3/5 when its score is zero. So zero scores always
# mean the tree's prior, which is uniform unless you give one. No class is added, and none is masked out.
#
# ``chain`` asks about one class after another. This is stick-breaking.

fig, axes = plt.subplots(1, 2, figsize=(7.2, 3.6), layout="constrained")
for ax, tree in zip(axes, (catnat.balanced(5), catnat.chain(5)), strict=True):
    tree.plot(ax=ax)
    ax.set_title(f"{tree} at zero scores", fontsize=9)
plt.show()

# %%
# Frequent classes near the root
# ------------------------------
# ``huffman(weights)`` makes the tree with the fewest expected questions and keeps the weights as its prior. Here a draw
# asks fewer than two questions on average, where the balanced tree would ask more than two.

weights = np.array([8, 4, 2, 1, 1])
fig, axes = plt.subplots(1, 2, figsize=(7.2, 3.6), layout="constrained")
for ax, name, tree in (
    (
        axes[0],
        "balanced(5).with_prior(weights)",
        catnat.balanced(5).with_prior(weights),
    ),
    (axes[1], "huffman(weights)", catnat.huffman(weights)),
):
    questions = sum(p * len(tree.path(k)[0]) for k, p in enumerate(tree.prior))
    tree.plot(ax=ax)
    ax.set_title(f"{name}\n{questions:.3f} questions on average", fontsize=9)
plt.show()

# %%
# Both give the same probabilities at zero scores. They differ in which classes share a question, and so in which
# directions a gradient step can take. ``from_clusters`` and ``from_children`` take a grouping of your own.

groups = catnat.from_clusters([[0, 3], [1, [2, 4]]])
print([groups.path(k)[1].tolist() for k in range(5)])
