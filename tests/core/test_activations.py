"""Activations as data: equal by content, the same in every array library, saved and found by name."""

import dataclasses
import json
import math
import pickle

import numpy as np
import pytest
from cases import ACTIVATIONS

import catnat
from catnat import activations
from catnat.trees import saving

every_row = pytest.mark.parametrize("row", ACTIVATIONS.values(), ids=ACTIVATIONS)


@every_row
def test_probability_is_the_oracles(row):
    x = np.linspace(-9, 9, 181)
    wanted = [row.reference.yes(each) for each in x]
    np.testing.assert_allclose(row.activation.probability(x), wanted, rtol=1e-12, atol=1e-15)


@every_row
def test_logit_is_the_log_odds_in_numpy(row):
    x = np.linspace(-9, 9, 181)
    logit, yes = row.activation.logit(x, np), np.array([row.reference.yes(each) for each in x])
    inside = (yes > 1e-9) & (yes < 1 - 1e-9)
    np.testing.assert_allclose(logit[inside], np.log(yes[inside]) - np.log1p(-yes[inside]), rtol=1e-6, atol=1e-9)
    assert np.isfinite(logit).all()
    assert (1 / (1 + np.exp(-logit[yes == 0].clip(-700))) < 1e-300).all()


@every_row
def test_inverse_is_the_inverse(row):
    p = np.array([0.001, 0.1, 0.5, 0.8, 0.999])
    np.testing.assert_allclose(row.activation.probability(row.activation.inverse(p)), p, rtol=1e-12)


def test_equal_and_hashed_by_content():
    assert catnat.natural(width=3.0) == catnat.natural(width=3.0) != catnat.natural()
    assert len({catnat.sigmoid(), catnat.sigmoid(), catnat.natural()}) == 2
    assert pickle.loads(pickle.dumps(catnat.natural(width=3.0))) == catnat.natural(width=3.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        catnat.natural().width = 1.0


@pytest.mark.parametrize("activation", [catnat.sigmoid(), catnat.natural(width=2.5)])
def test_saved_as_json(activation):
    text = json.dumps(saving.activation_parts(activation))
    assert saving.activation_from_parts(json.loads(text)) == activation


def test_settings_of_version_0_2_load_or_are_refused():
    old = {"name": "natural", "width": 2.5, "scaling": "paper", "boundary": "clamp"}
    assert saving.activation_from_parts(old) == catnat.natural(width=2.5)
    for changed, remedy in (({"scaling": "isotropic"}, "isotropic_scale"), ({"boundary": "reflect"}, "boundary")):
        with pytest.raises(ValueError, match=remedy):
            saving.activation_from_parts(old | changed)


def test_one_registry_serves_names_saving_and_messages():
    for name, activation in activations.REGISTRY.items():
        assert activations.resolve(name) is activation
        assert saving.activation_parts(activation)["name"] == name
        with pytest.raises(TypeError, match=f"'{name}'"):
            activations.resolve(3.0)
        with pytest.raises(ValueError, match=name):
            activations.resolve("sofmax")


def test_the_information_of_ones_own_activation_is_a_difference_quotient():
    cauchit = ACTIVATIONS["own-cauchit"].activation
    p = np.array([0.1, 0.5, 0.9])
    density = np.sin(math.pi * p) ** 2 / math.pi  # of the Cauchy distribution, where its distribution function is p
    np.testing.assert_allclose(cauchit.information(p), density**2 / (p * (1 - p)), rtol=1e-7)


class Undecorated(catnat.Activation):
    def __init__(self, scale):
        self.scale = scale

    def logit(self, x, xp):
        return self.scale * x

    def inverse(self, p):
        return (np.log(p) - np.log1p(-p)) / self.scale


def test_attributes_that_equality_ignores_are_refused():
    assert Undecorated(1.0) == Undecorated(3.0)  # so a cache would give the constants of one to the other
    with pytest.raises(TypeError, match=r"@dataclasses\.dataclass\(frozen=True\) above `class Undecorated`"):
        activations.resolve(Undecorated(3.0))
    plain = type("Plain", (catnat.natural,), {})()  # has the fields of natural alone
    assert activations.resolve(plain) is plain


def test_the_slope_at_the_centre_is_no_special_case():
    """Zero is where every layer starts; an absolute value or a sign there would have slope 0."""
    torch = pytest.importorskip("torch")
    jax = pytest.importorskip("jax")
    natural = catnat.natural()
    x = torch.zeros((), dtype=torch.float64, requires_grad=True)
    natural.logit(x, torch).backward()
    h = 1e-6
    wanted = float(natural.logit(np.array(h), np) - natural.logit(np.array(-h), np)) / (2 * h)
    np.testing.assert_allclose([x.grad.item(), float(jax.grad(lambda x: natural.logit(x, jax.numpy))(0.0))], wanted)
