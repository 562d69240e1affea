"""The models of actions, from their definition."""

import numpy as np
import pytest

import catnat


def data(n=60, actions=5, features=3):
    random = np.random.default_rng(0)
    return random.normal(size=(n, features)), random.integers(actions - 1, size=n), random.normal(size=n)


def collected(x, taken, better, actions=5):
    models = catnat.ActionModels(actions, x.shape[1])
    models.update(x, taken, better)
    return models


def test_coefficients_minimize_the_penalized_squares():
    x, taken, better = data()
    found = collected(x, taken, better).coefficients(ridge=0.7)
    for k in range(4):
        rows, target = x[taken == k], better[taken == k]
        # the same as least squares with sqrt(ridge) times the identity below the rows
        augmented = np.vstack([rows, np.sqrt(0.7) * np.eye(3)])
        expected = np.linalg.lstsq(augmented, np.append(target, np.zeros(3)), rcond=None)[0]
        np.testing.assert_allclose(found[k], expected, rtol=1e-5, atol=1e-6)
    assert (found[4] == 0).all()  # never taken


def test_parts_are_merged_by_addition():
    x, taken, better = data()
    whole, part = collected(x, taken, better), collected(x[:20], taken[:20], better[:20])
    part.merge(collected(x[20:], taken[20:], better[20:]))
    np.testing.assert_allclose(part.coefficients(), whole.coefficients(), rtol=1e-5)
    again = catnat.ActionModels(5, 3)
    again.load_state_dict(whole.state_dict())
    assert (again.coefficients() == whole.coefficients()).all()
    assert whole.tree() == again.tree()


def test_arrays_that_others_share_are_not_changed():
    """Ray's store gives read-only arrays."""
    whole, once = collected(*data()), collected(*data())
    for array in whole.state_dict().values():
        array.setflags(write=False)
    whole.update(np.zeros((0, 3)), [], [])  # no action at all
    whole.update(*data())
    once.merge(once)
    np.testing.assert_allclose(whole.sums, once.sums)
    np.testing.assert_allclose(whole.products, once.products)


def test_actions_with_the_same_models_share_a_subtree():
    random = np.random.default_rng(1)
    x, taken = random.normal(size=(4000, 4)), random.integers(40, size=4000)
    kinds = random.permutation(np.repeat([0, 1], 20))
    tree = collected(x, taken, x @ [1.0, 0, 0, 0] * np.where(kinds, 1, -1)[taken], 40).tree()
    sides = np.array([tree.path(k)[1][0] for k in range(40)])
    assert np.mean(sides == kinds) in (0.0, 1.0)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([[1.0, 2.0]], [0], [1.0]), ValueError, r"\(n, 3\), \(n,\) and \(n,\) are needed"),
        (([[1.0, 2.0, 3.0]], [5], [1.0]), ValueError, r"`actions` holds 5, but the actions are 0 \.\. 4"),
        (([[1.0, 2.0, 3.0]], [0.5], [1.0]), TypeError, "integers are needed"),
        (([[1.0, 2.0, np.nan]], [0], [1.0]), ValueError, "NaN, or a number beyond"),
        (([[1.0, 2.0, 1e200]], [0], [1.0]), ValueError, "a number beyond"),
    ],
)
def test_what_cannot_be_used_is_refused_and_nothing_is_added(arguments, error, message):
    models = catnat.ActionModels(5, 3)
    with pytest.raises(error, match=message):
        models.update(*arguments)
    assert not models.products.any()
    assert not models.sums.any()


def test_wrong_settings_raise():
    with pytest.raises(ValueError, match="at least 1 feature"):
        catnat.ActionModels(5, 0)
    with pytest.raises(ValueError, match="positive, finite"):
        catnat.ActionModels(5, 3).coefficients(ridge=0)
    with pytest.raises(ValueError, match="only those of the same"):
        catnat.ActionModels(5, 3).merge(catnat.ActionModels(4, 3))
    with pytest.raises(ValueError, match="other actions or features"):
        catnat.ActionModels(5, 3).load_state_dict(catnat.ActionModels(4, 3).state_dict())
