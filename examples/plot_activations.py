r"""
The two activations, and what clamping does
===========================================

An activation :math:`a` turns a node's score into the probability of yes. The paper has two: the logistic function
:math:`\sigma`, and the natural activation :math:`\nu`, which is a piece of a sine.

.. math:: \nu(x) = \tfrac12\bigl(1 + \sin(\pi x / A)\bigr) \quad\text{for } |x| \le A/2, \qquad A = 2\pi

With two classes the tree has one node, so :math:`p_1 = a(s)`. The curves below are drawn from ``catnat`` itself, and
their slopes are found by automatic differentiation.
"""

import math

import matplotlib.pyplot as plt
import torch

import catnat
import catnat.torch as ct

torch.set_num_threads(1)
plt.rcParams["figure.dpi"] = 150
# Okabe and Ito's colours, safe for colour-blind readers
NATURAL, SIGMOID = "#0072B2", "#CC79A7"


def value_and_slope(activation, x):
    """The probability of yes and its derivative, for one node."""

    def yes(s):
        return ct.catnat(s[:, None], activation=activation)[:, 1]

    return torch.func.jvp(yes, (x,), (torch.ones_like(x),))


def band(ax):
    """Mark the edges of the natural activation's band."""
    for edge in (-math.pi, math.pi):
        ax.axvline(edge, color="0.7", lw=0.8, ls=":")


# %%
# Values and slopes
# -----------------
# Both have slope 1/4 at zero. :math:`\sigma` never reaches 0 or 1. :math:`\nu` reaches them at the edges of its band
# (dotted), with slope zero: it is continuously differentiable.

x = torch.linspace(-6, 6, 1201, dtype=torch.float64)
fig, (left, right) = plt.subplots(1, 2, figsize=(7.2, 2.8), layout="constrained")
for activation, name, colour, style in (
    (ct.sigmoid(), r"$\sigma$", SIGMOID, "--"),
    (ct.natural(), r"$\nu$", NATURAL, "-"),
):
    value, slope = value_and_slope(activation, x)
    left.plot(x, value, color=colour, ls=style, label=name)
    right.plot(x, slope, color=colour, ls=style, label=name)
left.set(xlabel="score", ylabel="probability of yes", title="$a(s)$")
right.set(xlabel="score", ylabel="slope", title="$a'(s)$")
for ax in (left, right):
    band(ax)
    ax.legend()
plt.show()

# %%
# What a score knows
# ------------------
# The Fisher information of a node's score, given that the node is reached, is :math:`a'^2 / (a (1 - a))`. For
# :math:`\sigma` it is :math:`\sigma (1 - \sigma)` and fades in the tails. For :math:`\nu` it is the constant
# :math:`(\pi/A)^2 = 1/4` inside the band: that is the property that the activation was made for.

fig, ax = plt.subplots(figsize=(5.2, 2.8), layout="constrained")
for activation, name, colour, style in (
    (ct.sigmoid(), r"$\sigma$", SIGMOID, "--"),
    (ct.natural(), r"$\nu$", NATURAL, "-"),
):
    inside = x[x.abs() < math.pi - 1e-3] if name == r"$\nu$" else x
    value, slope = value_and_slope(activation, inside)
    ax.plot(
        inside, slope**2 / (value * (1 - value)), color=colour, ls=style, label=name
    )
outside = x[x > math.pi]
for side in (-1, 1):
    ax.plot(side * outside, torch.zeros_like(outside), color=NATURAL)
band(ax)
ax.set(
    xlabel="score",
    ylabel="Fisher information",
    title=r"$a'^2 / (a\,(1 - a))$",
    ylim=(-0.01, 0.28),
)
ax.legend()
plt.show()

# %%
# Outside the band the node is saturated: its answer is certain, its gradient is exactly zero, and the formula is 0/0.
# The library calls the information 0 there, because the score no longer changes anything. Such a node stays where it is
# until something else, such as the layer below it, brings its score back.

# %%
# A prior moves the band
# ----------------------
# Zero scores mean the tree's prior. A node whose prior answer is :math:`f` gets a shifted copy of the activation with
# :math:`a(0) = f`. The more uneven the prior, the nearer one edge of the band comes to zero. When it is nearer than 1,
# the natural activation warns (:class:`catnat.EdgeWarning`).

fig, ax = plt.subplots(figsize=(5.2, 2.8), layout="constrained")
for prior, colour, style in (
    (0.5, "#000000", "-"),
    (0.25, "#555555", "--"),
    (0.1, "#999999", "-."),
):
    tree = catnat.balanced(2).with_prior([1 - prior, prior])
    ax.plot(
        x,
        ct.catnat(x[:, None], tree, "natural")[:, 1],
        color=colour,
        ls=style,
        label=f"$f = {prior}$",
    )
    ax.plot(0, prior, "o", color=colour)
ax.set(
    xlabel="score",
    ylabel="probability of yes",
    title=r"$\nu$ centred on a prior answer $f$",
)
ax.legend()
plt.show()
