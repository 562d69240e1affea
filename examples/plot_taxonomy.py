"""
Labels in a taxonomy, with any classifier
=========================================

Labels often form a taxonomy: products, diagnoses, species. From a table with a column for every level and the
probabilities of any classifier, ``catnat.taxonomy`` makes answers of a wanted accuracy, sets that contain the truth
at a stated rate, and metrics of every level.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression

import catnat
from catnat.taxonomy import (
    BackOff,
    ConformalSets,
    back_off_curve,
    coverage_report,
    hierarchical_scores,
    level_metrics,
    plot_back_off,
    plot_calibration,
    plot_probs,
)

plt.rcParams["figure.dpi"] = 150

# %%
# The data
# --------
# Eight animals on three levels, the features are made up: a class is near the others of its group. "earthworm" has no
# groups between the first level and itself, so its other cells are empty.

paths = [
    ("mammal", "cat", "lion"),
    ("mammal", "cat", "lynx"),
    ("mammal", "cat", "tiger"),
    ("mammal", "dog", "fox"),
    ("mammal", "dog", "wolf"),
    ("insect", "beetle", "ladybird"),
    ("insect", "beetle", "stag beetle"),
    ("earthworm", None, None),
]
rng = np.random.default_rng(0)
places = {
    name: rng.normal(size=4) * (4.0, 2.0, 1.0)[level]
    for path in paths
    for level, name in enumerate(path)
    if name
}
rows = rng.integers(len(paths), size=4000)
frame = pd.DataFrame([paths[i] for i in rows], columns=["level1", "level2", "level3"])
X = np.stack([sum(places[name] for name in paths[i] if name) for i in rows])
X += 1.2 * rng.normal(size=X.shape)
train, held_out, test = slice(0, 300), slice(300, 2000), slice(2000, 4000)

# %%
# Any classifier
# --------------
# It is trained on the deepest labels. ``align`` puts the columns of its probabilities into the taxonomy's order.

taxonomy = catnat.Taxonomy.from_frame(frame)
y = taxonomy.labels_of(frame)
model = LogisticRegression(max_iter=1000).fit(X[train], y[train])
probs = taxonomy.align(model.predict_proba(X), model.classes_)
print(taxonomy, f"accuracy of classes: {model.score(X[test], y[test]):.3f}")

# %%
# An answer at 95% accuracy
# -------------------------
# Held-out rows choose the threshold. Where no class is probable enough the answer is a group, or None.

answers = BackOff(taxonomy, accuracy=0.95).fit(probs[held_out], y[held_out])
found = answers.predict(probs[test])
print(pd.Series(found).value_counts(dropna=False).to_string())
given = [name is not None for name in found]
print(hierarchical_scores(taxonomy, y[test][given], found[given]))

# %%
# A set at 90% coverage
# ---------------------
# Sets of classes, and sets of at most two labels. The guarantee is for all rows together: the report shows the groups.

for most in (None, 2):
    sets = ConformalSets(taxonomy, coverage=0.9, max_labels=most)
    sets = sets.fit(probs[held_out], y[held_out]).predict(probs[test])
    for each in coverage_report(sets, y[test]):
        print(
            f"{each.label or 'all':10} coverage {each.coverage:.3f}, "
            f"{each.num_classes:.2f} classes in {each.num_labels:.2f} labels"
        )

# %%
# A hard case
# -----------
# The row of which the model is least sure among those answered "cat". Bars show the probability of every class and
# group, the red one is the answer.

cats = np.flatnonzero(found == "cat")
hardest = cats[probs[test][cats].max(axis=1).argmin()]
plot_probs(taxonomy, probs[test][hardest], marked=[found[hardest]])

# %%
# How much an answer tells
# ------------------------
# From right to left the threshold rises: answers get less specific and more accurate.

plot_back_off(back_off_curve(taxonomy, probs[test], y[test]))

# %%
# Can the probabilities be trusted?
# ---------------------------------

plot_calibration(level_metrics(taxonomy, y[test], probs[test]))
