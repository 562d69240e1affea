"""The picture of a tree: an Axes whose texts are the probabilities."""

import matplotlib.pyplot as plt
import numpy as np
import oracle
import pytest

import catnat


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def texts(ax):
    return [text.get_text() for text in ax.texts]


def test_plot_returns_axes_with_a_label_per_class():
    ax = catnat.balanced(5).plot()
    assert isinstance(ax, plt.Axes)
    labels = "\n".join(texts(ax))
    for k in range(5):
        assert f"class {k}" in labels
    assert labels.count("0.200") == 5  # zero scores mean the prior
    ax.figure.canvas.draw()


@pytest.mark.parametrize("name", ["natural", "sigmoid"])
def test_plot_shows_the_probabilities_of_the_scores(name):
    scores = np.array([0.5, -1.0, 2.0, 0.25])
    activation = oracle.Natural() if name == "natural" else oracle.Sigmoid()
    model = oracle.Model(oracle.balanced(5), (1.0,) * 5, activation)
    labels = texts(catnat.balanced(5).plot(scores, name))
    for k, p in enumerate(model.probs(scores)):
        assert any(f"class {k}" in label and f"{p:.3f}" in label for label in labels)
    for yes in model.yes(scores):
        assert f"{yes:.2f}" in labels
        assert f"{1 - yes:.2f}" in labels


def test_plot_draws_where_it_is_told():
    ax = plt.figure().add_subplot()
    assert catnat.chain(4).plot(ax=ax) is ax
    assert len(ax.lines) == 6  # one edge per child


@pytest.mark.parametrize(
    "tree", [catnat.balanced(1), catnat.chain(6), catnat.huffman([5, 4, 3, 2, 1]), catnat.balanced(32)], ids=repr
)
def test_every_tree_can_be_drawn(tree):
    tree.plot().figure.canvas.draw()


def test_plot_refuses_the_wrong_number_of_scores():
    with pytest.raises(ValueError, match="scores"):
        catnat.balanced(5).plot(np.zeros(5))
    with pytest.raises(ValueError, match="scores"):
        catnat.balanced(5).plot(np.zeros((2, 4)))
