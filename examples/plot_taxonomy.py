"""
A taxonomy, and where a classifier backs off
============================================

Labels often stand in a taxonomy: products, diagnoses, species. :class:`catnat.Taxonomy` makes a tree of binary
decisions in which every group is a node, and :class:`catnat.sklearn.TreeClassifier` fits one binary classifier at
each. The probability of a group is then the probability of reaching its node, so all levels agree with each
other, and a classifier that is unsure of the class can still be sure of the group.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import LogisticRegression

import catnat
from catnat.sklearn import TreeClassifier

plt.rcParams["figure.dpi"] = 150

# %%
# Animals
# -------
# Eight classes in four groups. The features are made up: a class is near the others of its group, and a group near
# the others of its own.

taxonomy = catnat.Taxonomy.from_nested(
    {
        "mammal": {"cat": ["lion", "lynx", "tiger"], "dog": ["fox", "wolf"]},
        "insect": {"beetle": ["ladybird", "stag beetle"]},
        "earthworm": None,
    }
)
rng = np.random.default_rng(0)
spread = {1: 8.0, 2: 3.0, 3: 1.2}  # of the entries of a level around their parent
places = {None: np.zeros(4)}
for name in [*taxonomy.groups, *taxonomy.classes]:
    path = taxonomy.path(name)
    places[name] = places[taxonomy.parents[name]] + spread[len(path)] * rng.normal(
        size=4
    )
y = rng.choice(taxonomy.classes, size=800)
X = np.stack([places[name] for name in y]) + rng.normal(size=(800, 4))

# %%
# A fifth of the labels are groups: somebody wrote "cat" and no more. Such a row counts as the probability of its group.

known = [
    rng.choice(taxonomy.path(name)) if i % 5 == 0 else name for i, name in enumerate(y)
]
classifier = TreeClassifier(LogisticRegression(), tree=taxonomy).fit(X, known)
print(f"{classifier.score(X, y):.3f} of the classes are right")

# %%
# A hard case
# -----------
# An animal between lion and lynx. No class is probable enough for 90% confidence, but "cat" is.

hard = (places["lion"] + places["lynx"]) / 2
[answer] = classifier.predict_group(hard[None], confidence=0.9)
print(f"at 90% confidence: {answer}")

probs = dict(
    zip(classifier.classes_, classifier.predict_proba(hard[None])[0], strict=True)
)
probs |= dict(
    zip(classifier.groups_, classifier.group_proba(hard[None])[0], strict=True)
)


def draw(ax, name, top, height):
    """An entry and all that is in it, as nested bars: from left to right the levels
    of the taxonomy.
    """
    depth = len(taxonomy.path(name)) - 1
    shade = plt.cm.Blues(0.15 + 0.7 * probs[name])
    edge = (
        {"edgecolor": "tab:red", "linewidth": 2.5, "zorder": 3}
        if name == answer
        else {"edgecolor": "white"}
    )
    width = 1 if name in taxonomy.groups else 3 - depth
    ax.barh(top - height / 2, width, height, left=depth, color=shade, **edge)
    text = (
        f"{name}\n{probs[name]:.0%}"
        if name in taxonomy.groups
        else f"{name}  {probs[name]:.0%}"
    )
    colour = "white" if probs[name] > 0.6 else "black"
    ax.text(
        depth + 0.5,
        top - height / 2,
        text,
        ha="center",
        va="center",
        fontsize=9,
        color=colour,
        zorder=4,
    )
    for below in (each for each, parent in taxonomy.parents.items() if parent == name):
        size = len(taxonomy.members(below))
        draw(ax, below, top, size)
        top -= size


fig, ax = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
top = len(taxonomy.classes)
for name in (name for name, parent in taxonomy.parents.items() if parent is None):
    size = len(taxonomy.members(name))
    draw(ax, name, top, size)
    top -= size
ax.set_title(
    f"between a lion and a lynx: {answer!r} at 90% confidence (red)", fontsize=9
)
ax.set_axis_off()
plt.show()

# %%
# More confidence, less detail
# ----------------------------
# Over all rows: the more confidence is wanted, the further up the answers stand, and the more of them are right.

levels = np.linspace(0.51, 0.999, 25)
right, depth = [], []
for confidence in levels:
    answers = classifier.predict_group(X, confidence)
    given = [
        (answer, name)
        for answer, name in zip(answers, y, strict=True)
        if answer is not None
    ]
    right.append(np.mean([answer in taxonomy.path(name) for answer, name in given]))
    depth.append(
        np.mean(
            [0 if answer is None else len(taxonomy.path(answer)) for answer in answers]
        )
    )

fig, ax = plt.subplots(figsize=(5.2, 3.2), layout="constrained")
ax.plot(levels, right, color="tab:blue")
ax.plot(levels, levels, color="grey", linewidth=0.8, linestyle=":")
ax.set(xlabel="confidence", ylabel="answers that are right")
ax.yaxis.label.set_color("tab:blue")
other = ax.twinx()
other.plot(levels, depth, color="tab:orange")
other.set_ylabel("mean level of the answer", color="tab:orange")
plt.show()
