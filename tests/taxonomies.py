"""Taxonomies to test with: one of animals, drawn ones, and probabilities over them."""

import numpy as np
from hypothesis import strategies as st

ANIMALS = {"mammal": {"cat": ["lion", "lynx", "tiger"], "dog": ["fox", "wolf"]}, "insect": ["ant"], "worm": None}


@st.composite
def tables(draw):
    """Parents of ragged depth: every entry hangs below an earlier one or at the top, then all are shuffled."""
    size = draw(st.integers(1, 25))
    parents = [draw(st.one_of(st.none(), st.integers(0, i - 1))) if i else None for i in range(size)]
    return draw(st.permutations(list(enumerate(parents))))


def drawn_probs(taxonomy, seed, rows=4):
    """Rows of probabilities, some with zeros."""
    rng = np.random.default_rng(seed)
    weights = rng.gamma(0.5, size=(rows, taxonomy.num_classes)) * (rng.random((rows, taxonomy.num_classes)) < 0.8)
    weights[weights.sum(1) == 0] = 1
    return weights / weights.sum(1, keepdims=True)
