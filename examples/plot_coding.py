"""
A tree as a compressor
======================

An arithmetic coder codes binary decisions, and a class is a path of them. ``catnat.coding`` compresses classes to
their negative log-likelihood, however many classes there are: it needs the probabilities on a path, never all of them.
"""

import lzma
import zlib

import matplotlib.pyplot as plt
import numpy as np

import catnat
from catnat import coding

plt.rcParams["figure.dpi"] = 150

# %%
# Words with Zipf's frequencies
# -----------------------------
# 20,000 draws of 50,000 words, the k-th with a probability proportional to 1 / k. The tree's prior is all the model
# there is: zero scores.

rng = np.random.default_rng(0)
weights = 1 / np.arange(1, 50_001)
probs = weights / weights.sum()
words = rng.choice(50_000, 20_000, p=probs)
entropy = -(probs * np.log2(probs)).sum()
plain = words.astype("<u2").tobytes()
sizes = {
    "16 bits a word": len(plain),
    "zlib": len(zlib.compress(plain, 9)),
    "xz": len(lzma.compress(plain, preset=9)),
}
for name, tree in (
    ("balanced tree", catnat.balanced(50_000).with_prior(weights)),
    ("Huffman tree", catnat.huffman(weights)),
):
    scores = np.zeros(tree.num_nodes)
    data = coding.encode(tree, scores, words, "sigmoid")
    assert (coding.decode(tree, scores, data, "sigmoid") == words).all()
    sizes[f"catnat, {name} tree"] = len(data)

fig, ax = plt.subplots(figsize=(6.2, 2.6), layout="constrained")
bits = [8 * size / len(words) for size in sizes.values()]
bars = ax.barh(
    list(sizes),
    bits,
    color=["lightgrey", "lightgrey", "lightgrey", "tab:blue", "tab:blue"],
)
ax.bar_label(bars, [f"{each:.2f}" for each in bits], padding=3, fontsize=8)
ax.axvline(entropy, color="tab:red", linewidth=1)
above = {"transform": ax.get_xaxis_transform(), "ha": "center", "va": "bottom"}
ax.text(entropy, 1.02, f"entropy {entropy:.2f}", color="tab:red", fontsize=8, **above)
ax.invert_yaxis()
ax.set(xlabel="bits a word", xlim=(0, 18))
plt.show()

# %%
# Damage is noticed
# -----------------
# A flipped bit, another tree or another head is an error, never another word.

damaged = bytearray(data)
damaged[1000] ^= 4
try:
    coding.decode(tree, scores, bytes(damaged), "sigmoid")
except coding.CodingError as error:
    print(error)
