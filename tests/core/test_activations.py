"""Activations as data: equal by content, the same in every array library, saved and found by name."""

import dataclasses
import json
import math
import pickle

import numpy as np
import pytest
from cases import ACTIVATIONS
from conformance.backend import built

import catnat
from catnat import activations
from catnat.trees import saving

ROWS = [row for row in ACTIVATIONS.values() if row.scaling == "paper"]
every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)


@every_row
def test_probability_is_the_oracles(row):
    x = np.linspace(-9, 9, 181)
    wanted = [row.reference.yes(each) for each in x]
    np.testing.assert_allclose(built(row).probability(x), wanted, rtol=1e-12, atol=1e-15)


@every_row
def test_logit_is_the_log_odds_in_numpy(row):
    x = np.linspace(-9, 9, 181)
    logit, yes = built(row).logit(x, np), np.array([row.reference.yes(each) for each in x])
    inside = (yes > 1e-9) & (yes < 1 - 1e-9)
    np.testing.assert_allclose(logit[inside], np.log(yes[inside]) - np.log1p(-yes[inside]), rtol=1e-6, atol=1e-9)
    assert np.isfinite(logit).all()
    assert (1 / (1 + np.exp(-logit[yes == 0].clip(-700))) < 1e-300).all()


@every_row
def test_inverse_is_the_inverse(row):
    p = np.array([0.001, 0.1, 0.5, 0.8, 0.999])
    np.testing.assert_allclose(built(row).probability(built(row).inverse(p)), p, rtol=1e-12)


def test_the_reflecting_boundary_is_finite_however_far_out():
    x = np.array([-1e30, -1e6, 1e6, 1e30])
    assert np.isfinite(catnat.natural(boundary="reflect").logit(x, np)).all()


def test_equal_and_hashed_by_content():
    assert catnat.natural(width=3.0) == catnat.natural(width=3.0) != catnat.natural()
    assert len({catnat.sigmoid(), catnat.sigmoid(), catnat.natural()}) == 2
    assert catnat.sigmoid(scaling="isotropic") != catnat.sigmoid()
    assert pickle.loads(pickle.dumps(catnat.natural(boundary="reflect"))) == catnat.natural(boundary="reflect")
    with pytest.raises(dataclasses.FrozenInstanceError):
        catnat.natural().width = 1.0


@pytest.mark.parametrize(
    "activation", [catnat.sigmoid(), catnat.natural(width=2.5, boundary="reflect", scaling="isotropic")]
)
def test_saved_as_json(activation):
    text = json.dumps(saving.activation_parts(activation))
    assert saving.activation_from_parts(json.loads(text)) == activation


def test_one_registry_serves_names_saving_and_messages():
    for name, activation in activations.REGISTRY.items():
        assert activations.resolve(name) is activation
        assert saving.activation_parts(activation)["name"] == name
        with pytest.raises(TypeError, match=f"'{name}'"):
            activations.resolve(3.0)
        with pytest.raises(ValueError, match=name):
            activations.resolve("sofmax")


def test_isotropic_information_of_ones_own_activation_is_a_difference_quotient():
    cauchit = built(ACTIVATIONS["own-cauchit"])
    p = np.array([0.1, 0.5, 0.9])
    density = np.sin(math.pi * p) ** 2 / math.pi  # of the Cauchy distribution, where its distribution function is p
    np.testing.assert_allclose(cauchit.information(p), density**2 / (p * (1 - p)), rtol=1e-7)
