"""Relative error of log-probabilities against fifty digits: below 1e-5 in float32 and 1e-13 in float64.

Over the whole open band: from its centre to one ulp inside its edges. Natural's node log-probability is floored at
log eps of the computing dtype; where the truth is below the floor, the floor is what must come out.
"""

import math

import cases
import numpy as np
import pytest
from conformance import checks

import catnat

DTYPES = ["float32", "float64"]
DEEP = catnat.balanced(2**20)
CLASSES = (0, 2**20 - 1, 0b10101010101010101010, 0b00000000001111111111, 123456, 987654)


def floor_distance(dtype):
    """How far from the edge of the default band nu meets its floor: sin^2(d / 4) = eps."""
    return 4 * math.asin(math.sqrt(np.finfo(dtype).eps))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize("name", ["natural"])
def test_natural_over_the_open_band(backend, name, dtype, side):
    checks.accuracy_of_one_node(backend, cases.ACTIVATIONS[name], checks.band_sweep(dtype, side))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["natural", "sigmoid"])
def test_around_the_centre(backend, name, dtype):
    tiny = np.geomspace(np.finfo(dtype).tiny, 1, 60).astype(dtype)
    checks.accuracy_of_one_node(backend, cases.ACTIVATIONS[name], np.concatenate([-tiny, np.zeros(1, dtype), tiny]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("yes", [0.5, 1 / 3, 0.2, 0.96])
def test_sigmoid(backend, dtype, yes):
    """Until the larger side's logarithm, -exp(-|x|), leaves the normal numbers."""
    largest = 0.92 * -math.log(np.finfo(dtype).tiny)
    scores = np.geomspace(1e-3, largest, 80).astype(dtype)
    checks.accuracy_of_one_node(backend, cases.SIGMOID, np.concatenate([-scores, scores]), yes)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("yes", [1 / 3, 0.2, 0.75, 0.96])
def test_natural_with_a_prior(backend, dtype, yes):
    """A moved band: its edges are no longer simple numbers, but as exact."""
    offset = 2 * math.asin(2 * yes - 1)
    distances = np.geomspace(floor_distance(dtype) * 1.01, 2, 60)
    upper, lower = math.pi - offset - distances, -math.pi - offset + distances
    scores = np.concatenate([lower, upper]).astype(dtype)
    checks.accuracy_of_one_node(backend, cases.NATURAL, scores, yes)


# ---- depth 20 ----


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spread", ["centre", "edges", "beyond the floor"])
def test_natural_at_depth_20(backend, dtype, spread):
    rng = np.random.default_rng(0)
    low = {"centre": 0.5, "edges": 1.01 * floor_distance(dtype), "beyond the floor": np.finfo(dtype).eps}[spread]

    def on_path(length):
        distances = np.exp(rng.uniform(math.log(low), math.log(math.pi), length))
        return (rng.choice([-1, 1], length) * (math.pi - distances)).astype(dtype)

    checks.accuracy_of_paths(backend, cases.NATURAL, DEEP, CLASSES, on_path)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("likely", [True, False])
def test_natural_at_depth_20_with_all_nodes_near_one_edge(backend, dtype, likely):
    """Every branch on the path all but certain (log-probability near 0), or all but impossible."""
    rng = np.random.default_rng(1)
    for k in CLASSES:
        bits = DEEP.path(k)[1]

        def on_path(length, bits=bits):
            distances = np.exp(rng.uniform(math.log(1.01 * floor_distance(dtype)), math.log(1e-2), length))
            return ((2 * bits - 1) * (1 if likely else -1) * (math.pi - distances)).astype(dtype)

        checks.accuracy_of_paths(backend, cases.NATURAL, DEEP, [k], on_path)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1.0, 10.0, 80.0])
def test_sigmoid_at_depth_20(backend, dtype, size):
    rng = np.random.default_rng(2)
    checks.accuracy_of_paths(
        backend, cases.SIGMOID, DEEP, CLASSES, lambda length: rng.uniform(-size, size, length).astype(dtype)
    )


# ---- the dense function ----


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["natural", "sigmoid"])
@pytest.mark.parametrize("num_classes", [2, 8, 32, 64, 256])
def test_every_class_of_a_complete_tree(backend, name, num_classes, dtype):
    checks.accuracy_of_all_classes(backend, cases.ACTIVATIONS[name], catnat.balanced(num_classes), dtype)


@pytest.mark.parametrize("name", ["natural", "sigmoid"])
@pytest.mark.parametrize(
    "tree",
    ["balanced-3", "balanced-11", "chain-7", "huffman-zipf-50", "balanced-5-uneven", "chain-75", "huffman-zipf-90"],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_class_of_other_trees(backend, name, tree, dtype):
    checks.accuracy_of_all_classes(backend, cases.ACTIVATIONS[name], cases.tree_case(tree).tree, dtype)
