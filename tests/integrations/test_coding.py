"""catnat.coding: round trips, sizes, agreement between frameworks, and damage that must be noticed."""

import cases
import jax
import numpy as np
import pytest
import torch

import catnat
import catnat.jax
import catnat.torch
from catnat import coding
from catnat.coding import _file
from catnat.coding._model import Model

pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")


TREES = {
    "balanced": catnat.balanced,
    "huffman": lambda size: catnat.huffman(cases.zipf(size)),
    # Uneven, and classes in no order.
    "random": lambda size: catnat.huffman(np.random.default_rng(0).pareto(1.0, size) + 0.1).with_prior(np.ones(size)),
}


def quantized_bits(tree, values, classes, activation="natural"):
    """The cross-entropy of classes in bits, from the integers and the paths of the tree, one class at a time."""
    integers, total = coding.quantized_branches(values, tree, activation), 0.0
    for i, k in enumerate(classes):
        nodes, bits = tree.path(int(k))
        yes = (integers if integers.ndim == 1 else integers[i])[nodes] / 65536
        total -= np.log2(np.where(bits == 1, yes, 1 - yes)).sum()
    return total


@pytest.mark.parametrize("size", [1, 2, 3, 1000, 20_000])
@pytest.mark.parametrize("kind", TREES)
@pytest.mark.parametrize("activation", ["natural", "sigmoid"])
def test_round_trip_and_size(kind, size, activation):
    """Within 0.1% of the quantized cross-entropy, plus the header and what fills up the last words."""
    tree, rng = TREES[kind](size), np.random.default_rng(0)
    scores = rng.normal(size=tree.num_nodes) / 2
    classes = rng.choice(size, 3000, p=tree.prior)
    data = coding.encode(tree, scores, classes, activation)
    np.testing.assert_array_equal(coding.decode(tree, scores, data, activation), classes)
    bits = quantized_bits(tree, scores, classes, activation)
    assert 0 <= 8 * (len(data) - 48) - bits < 0.001 * bits + 64


@pytest.mark.parametrize("name", cases.TREE_NAMES)
def test_a_row_for_every_class(name):
    tree, rng = cases.tree_case(name).tree, np.random.default_rng(1)
    scores, classes = rng.normal(size=(4, 50, tree.num_nodes)), rng.integers(tree.num_classes, size=(4, 50))
    data = coding.encode(tree, scores, classes)
    np.testing.assert_array_equal(coding.decode(tree, scores, data), classes.ravel())
    flat = scores.reshape(200, tree.num_nodes)
    assert 8 * (len(data) - 48) < 1.001 * quantized_bits(tree, flat, classes.ravel()) + 64


def test_pieces():
    """A stream of pieces, over a boundary of blocks, with other scores in each."""
    tree, rng = catnat.balanced(37), np.random.default_rng(2)
    pieces = [(rng.normal(size=36), rng.integers(37, size=n)) for n in (0, 1, 10_000, 17)]
    encoder = coding.Encoder(tree)
    for scores, classes in pieces:
        encoder.write(scores, classes)
    data = encoder.finish()
    decoder = coding.Decoder(tree, data)
    for scores, classes in pieces:
        np.testing.assert_array_equal(decoder.read(scores, classes.size), classes)
    decoder.finish()
    with pytest.raises(coding.CodingError, match="only 0 of 10018"):
        decoder.read(pieces[0][0], 1)


def test_integers_are_the_probabilities():
    """Of the oracle, to half a unit; never 0 or 2^16."""
    for name in cases.TREE_NAMES:
        case = cases.tree_case(name)
        for activation in (cases.NATURAL, cases.SIGMOID):
            model = case.model(activation)
            scores = model.anywhere(np.random.default_rng(3), (3,))
            found = coding.quantized_branches(scores, case.tree, activation.activation)
            wanted = np.array([np.array(model.yes(row), float) for row in scores]).reshape(scores.shape)
            assert found.dtype == np.uint16
            assert (found >= 1).all()
            assert (np.abs(found - np.clip(wanted * 65536, 1, 65535)) <= 0.5 + 1e-6).all()


def test_frameworks_make_the_same_bytes():
    """The same float32 scores as arrays of three libraries; and others in the last bit, where rounding hides it."""
    tree, rng = catnat.balanced(20_000), np.random.default_rng(4)
    scores, classes = rng.normal(size=tree.num_nodes).astype(np.float32), rng.integers(20_000, size=2000)
    data = coding.encode(tree, scores, classes)
    assert coding.encode(tree, torch.tensor(scores), torch.tensor(classes)) == data
    assert coding.encode(tree, jax.numpy.asarray(scores), jax.numpy.asarray(classes)) == data
    rough = jax.numpy.asarray(scores, jax.numpy.bfloat16)
    assert coding.encode(tree, rough, classes) == coding.encode(tree, np.asarray(rough, np.float32), classes)
    beside = np.nextafter(scores, np.float32(np.inf))
    hidden = coding.quantized_branches(scores, tree) == coding.quantized_branches(beside, tree)
    assert 0.98 < hidden.mean() < 1  # so it is not always hidden
    assert coding.encode(tree, np.where(hidden, beside, scores), classes) == data
    # The remedy: ship the integers, which are the same everywhere.
    integers = coding.quantized_branches(scores, tree)
    assert coding.encode(tree, integers, classes) == data
    np.testing.assert_array_equal(coding.decode(tree, integers, data), classes)


@pytest.mark.parametrize("kind", ["balanced", "random"])
def test_heads(kind):
    """Features and rows of weights: the same bytes for both frameworks' heads, at the price of the head's own loss."""
    tree, rng = TREES[kind](3000), np.random.default_rng(5)
    head = catnat.torch.CatnatHead(8, tree)
    with torch.no_grad():
        head.weight.copy_(torch.tensor(rng.normal(size=(2999, 8)) / 2))
        head.bias.copy_(torch.tensor(rng.normal(size=2999)))
    features = torch.tensor(rng.normal(size=(400, 8)), dtype=torch.float32)
    classes = head.sample(features, generator=torch.Generator().manual_seed(0))
    data = coding.encode(head, features, classes)
    np.testing.assert_array_equal(coding.decode(head, features, data), classes)
    in_jax = catnat.jax.CatnatHead(8, tree, key=jax.random.key(0))
    in_jax.weight, in_jax.bias = jax.numpy.asarray(head.weight.detach().numpy()), jax.numpy.asarray(head.bias.detach())
    assert coding.encode(in_jax, jax.numpy.asarray(features.numpy()), classes.numpy()) == data
    bits = float(head.loss(features, classes).detach()) * 400 / np.log(2)
    assert abs(8 * (len(data) - 48) - bits) < 0.002 * bits + 64
    with torch.no_grad():
        head.weight[7, 3] += 1e-3
    with pytest.raises(coding.CodingError, match="another tree, activation or head"):
        coding.decode(head, features, data)


def test_sums_of_heads_do_not_depend_on_their_order():
    """Integers are added, so that a permutation of the features changes no bit of the data but the fingerprint."""
    tree, rng = catnat.balanced(50), np.random.default_rng(6)
    heads, order = [catnat.torch.CatnatHead(300, tree) for _ in range(2)], rng.permutation(300)
    with torch.no_grad():
        heads[1].weight.copy_(heads[0].weight[:, order])
    features, classes = rng.normal(size=(500, 300)) * 100, rng.integers(50, size=500)
    one, other = (
        coding.encode(head, x, classes) for head, x in zip(heads, (features, features[:, order]), strict=True)
    )
    assert one[44:-4] == other[44:-4]


def test_every_flipped_bit_is_noticed():
    tree, scores = catnat.balanced(11), np.linspace(-1, 1, 10)
    data = coding.encode(tree, scores, np.arange(11))
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(coding.CodingError):
            coding.decode(tree, scores, bytes(damaged))


def test_cut_off_and_foreign_data():
    tree, scores = catnat.balanced(11), np.zeros(10)
    data = coding.encode(tree, scores, np.arange(11))
    for wrong in (data[:-1], data[: len(data) // 2], b"", b"PK\3\4" + data[4:], data + b"\0"):
        with pytest.raises(coding.CodingError):
            coding.decode(tree, scores, wrong)


def test_words_that_end_too_early_are_noticed_where_they_end():
    tree = catnat.balanced(256)
    contents = _file.unpack(coding.encode(tree, np.zeros(255), [3] * 8), 256, Model(tree, "sigmoid").fingerprint())
    with pytest.raises(coding.CodingError, match="end before all the classes"):
        coding.decode(tree, np.zeros(255), _file.pack(contents._replace(size=100_000)))


@pytest.mark.parametrize("other", [catnat.chain(11), catnat.balanced(12), catnat.balanced(11).with_prior(range(1, 12))])
def test_another_tree(other):
    data = coding.encode(catnat.balanced(11), np.zeros(10), np.arange(11))
    with pytest.raises(coding.CodingError, match="another tree"):
        coding.decode(other, np.zeros(other.num_nodes), data)
    with pytest.raises(coding.CodingError, match="another tree, activation"):
        coding.decode(catnat.balanced(11), np.zeros(10), data, "natural")


def test_other_scores_never_give_wrong_classes():
    """Scores that are not the encoder's: an error, unless all integers, and so all classes, are the same."""
    tree, rng = catnat.balanced(64), np.random.default_rng(7)
    scores, classes = rng.normal(size=63), rng.integers(64, size=300)
    data, noticed = coding.encode(tree, scores, classes), 0
    for scale in (1e-9, 1e-4, 1e-2, 1.0):
        for _ in range(20):
            other = scores + scale * rng.normal(size=63)
            try:
                np.testing.assert_array_equal(coding.decode(tree, other, data), classes)
            except coding.CodingError:
                noticed += 1
    assert noticed >= 50


def test_mistakes():
    tree = catnat.balanced(4)
    with pytest.raises(ValueError, match="from 0 to 3"):
        coding.encode(tree, np.zeros(3), [4])
    for classes in ([0.5], ["1"]):
        with pytest.raises(TypeError, match="integers from 0 to 3"):
            coding.encode(tree, np.zeros(3), classes)
    with pytest.raises(ValueError, match="3 integers or scores"):
        coding.encode(tree, np.zeros(4), [1])
    with pytest.raises(ValueError, match="send their number"):
        coding.encode(catnat.balanced(1), np.zeros(0), np.zeros(2**20 + 1, int))
    with pytest.raises(ValueError, match="2 rows for 3 classes"):
        coding.encode(tree, np.zeros((2, 3)), [1, 2, 3])
    with pytest.raises(ValueError, match="NaN"):
        coding.encode(tree, np.full(3, np.nan), [1])
    with pytest.raises(TypeError, match="dtype int64"):
        coding.encode(tree, np.zeros(3, np.int64), [1])
    with pytest.raises(ValueError, match="the integer 0"):
        coding.encode(tree, np.zeros(3, np.uint16), [1])
    with pytest.raises(ValueError, match="between 0 and 1"):
        coding.quantize([1.5])
    with pytest.raises(TypeError, match="CatnatHead is needed"):
        coding.encode(torch.nn.Linear(3, 3), np.zeros(3), [1])
    head = catnat.torch.CatnatHead(2, 4)
    with pytest.raises(ValueError, match="2 features"):
        coding.encode(head, np.zeros(3), [1])
    with pytest.raises(ValueError, match="scale features"):
        coding.encode(head, np.array([1e5, 0.0]), [1])


def test_a_piece_that_was_cut_off_ends_the_stream():
    encoder = coding.Encoder(catnat.balanced(4))
    encoder.write(np.zeros(3), [1, 2])
    with pytest.raises(ValueError, match="from 0 to 3"):  # before anything was written
        encoder.write(np.zeros(3), [4])
    assert coding.decode(catnat.balanced(4), np.zeros(3), encoder.finish()).tolist() == [1, 2]
    scores = np.zeros((20_000, 3))
    scores[-1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        encoder.write(scores, np.zeros(20_000, int))
    for call in (encoder.finish, lambda: encoder.write(np.zeros(3), [1])):
        with pytest.raises(coding.CodingError, match="take a new Encoder"):
            call()


@pytest.mark.parametrize("scores", [1e300, -1e300, 1e308, np.inf])
@pytest.mark.parametrize("activation", ["natural", "sigmoid"])
def test_hostile_scores(scores, activation):
    tree, classes = catnat.balanced(8), np.arange(8)
    data = coding.encode(tree, np.full(7, scores), classes, activation)
    np.testing.assert_array_equal(coding.decode(tree, np.full(7, scores), data, activation), classes)


def test_a_model_that_is_certain_and_wrong():
    """Each class costs nearly 16 bits, of which the range coder takes a little less."""
    tree, scores = catnat.balanced(2), np.array([-100.0])
    data = coding.encode(tree, scores, np.ones(60_000, int), "sigmoid")
    assert (coding.decode(tree, scores, data, "sigmoid") == 1).all()
