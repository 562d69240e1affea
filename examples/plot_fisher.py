r"""
Fisher matrices: softmax beside catnat
======================================

The Fisher information matrix says how far apart, in KL divergence, two nearby score vectors are: :math:`KL(p_s \| p_{s
+ d}) \approx d^\top G\, d / 2`. Here it is computed from its definition,

.. math:: G = \sum_k p_k\, \nabla \log p_k\, \nabla \log p_k^\top,

with gradients from automatic differentiation, for the *same* distribution over eight classes.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import catnat
import catnat.torch as ct

torch.set_num_threads(1)
plt.rcParams["figure.dpi"] = 150

NATURAL = ct.natural()


def fisher(log_probs, scores):
    """The definition: the expected outer product of the score function with itself."""
    gradients = torch.func.jacrev(log_probs)(scores)
    return torch.einsum("k,ki,kj->ij", log_probs(scores).exp(), gradients, gradients)


def scores_for(p, tree, activation):
    """The scores whose distribution is p: a node's probability is the mass on its yes
    side over the mass below it.
    """
    masses = np.concatenate([tree.reach(p), p])  # of the nodes, then of the leaves
    branches = masses[tree.child_ids[:, 1]] / tree.reach(p)
    return torch.tensor(activation.inverse(branches) - activation.offset(tree))


# %%
# Dense and diagonal
# ------------------
# Softmax's matrix is :math:`\mathrm{diag}(p) - p p^\top`: every score pulls on every other, and adding a constant to
# all scores changes nothing, so it is singular. The tree's matrix is diagonal with either activation. With the natural
# one an entry is 1/4 times the probability of reaching the node.

tree = catnat.balanced(8)
p = np.random.default_rng(1).dirichlet(np.ones(8))
matrices = {
    "softmax, 8 scores": fisher(lambda s: s.log_softmax(-1), torch.tensor(p).log())
}
for name, activation in (
    ("catnat, sigmoid, 7 scores", ct.sigmoid()),
    ("catnat, natural, 7 scores", NATURAL),
):
    scores = scores_for(p, tree, activation)
    torch.testing.assert_close(
        ct.catnat(scores, tree, activation), torch.tensor(p)
    )  # the same distribution
    matrices[name] = fisher(lambda s, a=activation: ct.log_catnat(s, tree, a), scores)

fig, axes = plt.subplots(1, 3, figsize=(7.4, 2.5), layout="constrained")
for ax, (name, matrix) in zip(axes, matrices.items(), strict=True):
    picture = ax.imshow(matrix, cmap="PuOr_r", vmin=-0.25, vmax=0.25)
    ax.set_title(name, fontsize=9)
    ax.set_xticks(range(0, len(matrix), 2))
    ax.set_yticks(range(0, len(matrix), 2))
    ax.set_xlabel("score", fontsize=9)
axes[0].set_ylabel("score", fontsize=9)
fig.colorbar(picture, ax=axes, label="$G_{ij}$")
plt.show()

for name, matrix in matrices.items():
    rest = matrix - matrix.diagonal().diag()
    smallest = torch.linalg.eigvalsh(matrix)[0]
    print(
        f"{name:26} largest off-diagonal entry {rest.abs().max():.1e}, smallest "
        f"eigenvalue {smallest:.1e}"
    )

# %%
# Diagonal is not well conditioned
# --------------------------------
# A diagonal matrix can still have entries of very different size, and then one learning rate does not suit all scores.
# The condition number (largest over smallest eigenvalue) says how different. Softmax has a null direction in which
# nothing changes; it is left out here.


def condition(matrix, null=0):
    eigenvalues = torch.linalg.eigvalsh(matrix)[null:]
    return float(eigenvalues[-1] / eigenvalues[0])


def conditions(p):
    tree = catnat.balanced(len(p))
    softmax = fisher(lambda s: s.log_softmax(-1), torch.tensor(p).log())
    factors = torch.tensor(catnat.isotropic_scale(tree, NATURAL))
    scores = scores_for(p, tree, NATURAL)
    paper, isotropic = (
        fisher(lambda s, c=c: ct.log_catnat(c * s, tree, NATURAL), scores / c)
        for c in (torch.ones_like(factors), factors)
    )
    return condition(softmax, null=1), condition(paper), condition(isotropic)


sizes = (4, 8, 16, 32, 64)
uniform = np.array([conditions(np.full(k, 1 / k)) for k in sizes])
rng = np.random.default_rng(0)
random = np.array(
    [
        np.median([conditions(rng.dirichlet(np.ones(k))) for _ in range(25)], axis=0)
        for k in sizes
    ]
)

names = ("softmax", "natural, paper", "natural, isotropic")
fig, axes = plt.subplots(1, 2, figsize=(7.2, 3.0), sharey=True, layout="constrained")
for ax, values, title in zip(
    axes, (uniform, random), ("uniform $p$", "random $p$, median of 25"), strict=True
):
    for column, name, colour, marker in zip(
        values.T, names, ("#D55E00", "#0072B2", "#E69F00"), "so^", strict=True
    ):
        ax.loglog(sizes, column, color=colour, marker=marker, label=name)
    ax.set(xlabel="classes $K$", title=title)
    ax.set_xticks(sizes, sizes)
    ax.minorticks_off()
axes[0].set_ylabel("condition number")
axes[0].legend()
plt.show()

print("   K  " + "  ".join(f"{name:>24}" for name in names))
for k, at_uniform, at_random in zip(sizes, uniform, random, strict=True):
    print(
        f"{k:4}  "
        + "  ".join(
            f"{u:12.1f} {r:11.1f}" for u, r in zip(at_uniform, at_random, strict=True)
        )
    )

# %%
# (Each column: at uniform p, then at random p.) At the uniform distribution the tree has condition number
# :math:`K/2`, because a node at the bottom is reached :math:`2/K` of the time. Softmax has 1. The isotropic scale, a
# factor per node that scores are multiplied by, gives every score the same information at zero scores: 1, for every K.
#
# Away from the uniform distribution none is well conditioned, and softmax loses its lead: at random p its condition
# number is the largest of the three and that with the isotropic scale the smallest. Nor is the condition number the
# whole story:
# a flat direction along which the loss hardly changes does no harm. The example on the isotropic scale counts the steps.
