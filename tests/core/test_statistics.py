"""Class means against plain loops; merged, reordered, resumed; random vectors against what makes them useful."""

import fractions
import itertools
import operator
import pickle
import types

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from scipy import sparse

import catnat
from catnat.trees import statistics


def collected(features, targets, num_classes, sizes=()):
    """The statistics of all examples, in batches of these sizes and the rest."""
    means = catnat.ClassMeans(num_classes, features.shape[1])
    cuts = [0, *np.cumsum(sizes, dtype=int).tolist(), len(targets)]
    for start, stop in itertools.pairwise(cuts):
        means.update(features[start:stop], targets[start:stop])
    return means


@st.composite
def examples(draw):
    """Integer features, whose sums are exact, targets, and the number of classes."""
    count, width, classes = draw(st.integers(1, 30)), draw(st.integers(1, 5)), draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return rng.integers(-1000, 1000, (count, width)).astype(float), rng.integers(classes, size=count), classes


def same(one, other):
    np.testing.assert_array_equal(one.sums, other.sums)
    np.testing.assert_array_equal(one.counts, other.counts)


# ---- sums ----


@hypothesis.given(examples(), st.sampled_from([1, 3, 1 << 15]))
def test_sums_are_those_of_a_loop(data, numbers):
    features, targets, classes = data
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "_NUMBERS", numbers)
        means = collected(features, targets, classes)
        found = means.class_means(shrinkage=2)
    overall = [fractions.Fraction(int(sum(column))) / len(targets) for column in features.T]
    for k in range(classes):
        rows = [row for row, target in zip(features, targets, strict=True) if target == k]
        assert means.counts[k] == len(rows)
        for j, mean in enumerate(overall):
            total = sum(fractions.Fraction(int(row[j])) for row in rows)
            assert means.sums[k, j] == total
            wanted = float((total - len(rows) * mean) / (len(rows) + 2))
            assert found[k, j] == pytest.approx(wanted, rel=1e-6, abs=1e-9)


@hypothesis.given(examples(), st.data())
def test_neither_order_nor_batches_nor_shards_matter(data, draw):
    features, targets, classes = data
    whole = collected(features, targets, classes)
    order = np.array(draw.draw(st.permutations(range(len(targets)))))
    cut = draw.draw(st.integers(0, len(targets)))
    features, targets = features[order], targets[order]
    same(collected(features, targets, classes, [cut]), whole)
    parts = [collected(features[part], targets[part], classes) for part in (slice(cut), slice(cut, None))]
    same(parts[0] + parts[1], whole)
    same(sum(parts, start=catnat.ClassMeans(classes, features.shape[1])), whole)
    parts[1].merge(parts[0])
    same(parts[1], whole)
    assert parts[0].counts.sum() == cut  # merging has left it alone


def test_order_changes_no_more_than_the_last_digits():
    rng = np.random.default_rng(0)
    features, targets = rng.standard_normal((20000, 3)).astype(np.float32) + 1e4, rng.integers(5, size=20000)
    forth, back = (collected(features[::step], targets[::step], 5) for step in (1, -1))
    np.testing.assert_allclose(forth.sums, back.sums, rtol=1e-12)
    exact = np.array([features[targets == k].astype(np.longdouble).mean(0) for k in range(5)])
    exact -= features.astype(np.longdouble).mean(0)
    np.testing.assert_allclose(forth.class_means(0), exact, atol=1e-8)


# ---- what may be passed ----

FEATURES, TARGETS = np.array([[1.0, 2.0], [3.0, 4.0], [-5.0, 0.0]]), np.array([1, 0, 1])


@pytest.mark.parametrize(
    ("features", "targets"),
    [
        (FEATURES.tolist(), TARGETS.tolist()),
        (FEATURES.astype(np.int8), TARGETS.astype(np.uint8)),
        (np.asfortranarray(FEATURES.astype(np.float16)), TARGETS.astype(np.int16)),
        (FEATURES.reshape(3, 1, 2, 1), TARGETS),
        (FEATURES.reshape(3, 1, 2), TARGETS.reshape(3, 1)),
        (sparse.csr_matrix(FEATURES), TARGETS),
        (sparse.coo_array(FEATURES), TARGETS),
        (np.r_[FEATURES, [[np.nan, 7.0]]], np.r_[TARGETS, -100]),
        (sparse.csc_matrix(np.r_[FEATURES, [[8.0, 7.0]]]), np.r_[TARGETS, -100]),
    ],
)
def test_arrays_of_all_kinds(features, targets):
    means = catnat.ClassMeans(3, 2)
    means.update(features, targets)
    assert means.sums.tolist() == [[3, 4], [-4, 2], [0, 0]]
    assert means.counts.tolist() == [1, 2, 0]


def test_tensors_of_pytorch():
    torch = pytest.importorskip("torch")
    for features, targets in (
        (torch.tensor(FEATURES, requires_grad=True), torch.tensor(TARGETS)),
        (torch.tensor(FEATURES, dtype=torch.bfloat16), torch.tensor(TARGETS, dtype=torch.int32)),
        (torch.tensor(FEATURES, dtype=torch.float16).reshape(3, 1, 2), torch.tensor(TARGETS)),
    ):
        same(catnat.ClassMeans.from_batches(2, [(features, targets)]), collected(FEATURES, TARGETS, 2))


def test_arrays_of_jax():
    jnp = pytest.importorskip("jax.numpy")
    for dtype in (jnp.float32, jnp.bfloat16):
        batches = [(jnp.asarray(FEATURES, dtype), jnp.asarray(TARGETS))]
        same(catnat.ClassMeans.from_batches(2, batches), collected(FEATURES, TARGETS, 2))


def test_no_examples_are_no_error():
    means = catnat.ClassMeans(3, 2)
    means.update(np.zeros((0, 2)), np.zeros(0, int))
    means.update(np.zeros((2, 2)), [-1, -1], ignore_index=-1)
    assert not means.counts.any()
    with pytest.raises(ValueError, match="no examples yet"):
        means.tree()


@pytest.mark.parametrize(
    ("features", "targets", "why"),
    [
        ([[0.0, 1.0]], [3], "`targets` holds 3"),
        ([[0.0, 1.0]], [-1], "`targets` holds -1"),
        ([[0.0, 1.0]], [0.0], "`targets` has dtype float64"),
        ([[0.0, 1.0]], [True], "`targets` has dtype bool"),
        ([[0.0, 1.0, 2.0]], [0], "`features` has shape"),
        ([[0.0, 1.0]], [0, 1], "`features` has shape"),
        ([[0.0], [1.0]], [0], "`features` has shape"),
        (sparse.csr_matrix([[0.0, 1.0, 2.0]]), [0], "`features` has shape"),
        ([[1.0, 1.0], [0.0, np.nan]], [0, 1], "`features` holds NaN"),
        ([[1.0, 1.0], [0.0, -np.inf]], [0, 1], "`features` holds NaN"),
        ([[1.0, 1.0], [0.0, 1e38]], [0, 1], "`features` holds NaN"),
        (sparse.csr_matrix([[0.0, np.nan]]), [0], "`features` holds NaN"),
    ],
)
def test_what_cannot_be_added_is_refused_whole(features, targets, why):
    means = catnat.ClassMeans(3, 2)
    with pytest.raises((ValueError, TypeError), match=why):
        means.update(features, targets)
    assert not means.sums.any()
    assert not means.counts.any()


def test_sizes_are_checked():
    for arguments in ((0, 1), (3, 0)):
        with pytest.raises(ValueError, match="at least 1"):
            catnat.ClassMeans(*arguments)
    with pytest.raises(ValueError, match="only statistics of the same classes and features"):
        catnat.ClassMeans(3, 2).merge(catnat.ClassMeans(3, 1))
    with pytest.raises(TypeError, match="unsupported operand"):
        operator.add(catnat.ClassMeans(3, 2), 1)
    with pytest.raises(ValueError, match="`shrinkage` is -1"):
        collected(FEATURES, TARGETS, 2).class_means(-1)


# ---- loaders and tables ----


def test_batches_of_a_loader(capsys):
    rng = np.random.default_rng(0)
    images, targets = rng.standard_normal((10, 2, 3)), rng.integers(4, size=10)
    batches = [(images[:7], targets[:7]), [images[7:], targets[7:]]]
    means = catnat.ClassMeans.from_batches(4, batches, progress=True)
    assert "2.00/2.00" in capsys.readouterr().err
    same(means, collected(images.reshape(10, 6), targets, 4, [7]))
    halves = catnat.ClassMeans.from_batches(4, iter(batches), lambda inputs: inputs[:, 0] / 2)
    same(halves, collected(images[:, 0] / 2, targets, 4, [7]))
    with pytest.raises(ValueError, match="`batches` is empty"):
        catnat.ClassMeans.from_batches(4, [])
    same(catnat.ClassMeans.from_batches(4, [], num_features=6) + means, means)


@pytest.mark.parametrize(
    ("batch", "why"),
    [
        (([[1, 2]], [[1, 1]], [0]), "a tuple of another form"),  # the second may be a mask of tokens
        ({"image": [[1.0]], "label": [0]}, "a dict with the keys 'image', 'label'"),
        (7, "a int of another form"),
    ],
)
def test_batches_that_are_no_pairs_are_refused(batch, why):
    with pytest.raises(TypeError, match=why):
        catnat.ClassMeans.from_batches(2, [batch])


def test_a_frame_of_pandas():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "size": [1.0, 3.0, np.nan, 5.0],
            "colour": ["red", None, "blue", "red"],
            "constant": [2, 2, 2, 2],
            "label": [0, 1, 1, 0],
            "new": pandas.Categorical(["yes", "no", "no", "yes"]),
        }
    )
    means = catnat.ClassMeans.from_frame(frame, "label", size=8)
    assert means.sums.shape == (2, 1 + 8 + 1 + 8)
    numbers = (np.array([1, 3, 5]) - 3) / np.std([1, 3, 5])
    np.testing.assert_allclose(means.sums[:, 0], [numbers[0] + numbers[2], numbers[1]], atol=1e-7)
    np.testing.assert_array_equal(
        np.abs(means.sums[:, 1:9]), np.array([[2], [1]]) * np.ones(8)
    )  # a missing name is none
    np.testing.assert_array_equal(means.sums[:, 9], 0)
    assert (means.sums[0, 10:] != means.sums[1, 10:]).any()
    shuffled = catnat.ClassMeans.from_frame(frame.iloc[::-1], "label", 5, size=8)
    np.testing.assert_allclose(shuffled.sums[:2], means.sums, atol=1e-6)
    assert shuffled.num_classes == 5
    same(catnat.ClassMeans.from_frame(frame.convert_dtypes().astype({"label": int}), "label", size=8), means)
    for labels in (["a", "b", "b", "a"], [0, None, 1, 1]):
        with pytest.raises(TypeError, match=r"pandas\.factorize\(frame\['label'\]\)"):
            catnat.ClassMeans.from_frame(frame.assign(label=labels), "label")
    for columns, target in ((["size", "label"], "lable"), (["label"], "label")):
        with pytest.raises(ValueError, match="column"):
            catnat.ClassMeans.from_frame(frame[columns], target)


def test_columns_of_a_frame_with_one_name_or_with_integer_categories():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame([[1.0, 5.0, 0], [2.0, 3.0, 1]], columns=["a", "a", "label"])
    assert catnat.ClassMeans.from_frame(frame, "label").num_features == 2
    with pytest.raises(ValueError, match="several columns named 'a'"):
        catnat.ClassMeans.from_frame(frame, "a")
    zips = pandas.DataFrame({"zip": pandas.Categorical([8001, 9000]), "label": [0, 1]})
    assert catnat.ClassMeans.from_frame(zips, "label", size=8).num_features == 8


# ---- what they say ----


def test_rare_classes_are_drawn_towards_the_overall_mean():
    means = catnat.ClassMeans(4, 1)
    means.update(np.r_[np.full(8, 3.0), -3.0, -23.0][:, None], [0] * 8 + [1, 2])
    assert means.class_means(2)[:, 0].tolist() == pytest.approx([8 / 10 * 3.2, 1 / 3 * -2.8, 1 / 3 * -22.8, 0])
    assert means.class_means(0)[:, 0].tolist() == pytest.approx([3.2, -2.8, -22.8, 0])


def test_the_tree_is_that_of_the_means_and_counts_are_its_prior():
    rng = np.random.default_rng(0)
    targets = rng.integers(31, size=4000)  # class 31 is never seen
    means = collected(rng.standard_normal((4000, 6)), targets, 32)
    counts = np.bincount(targets, minlength=32).astype(float)
    counts[31] = 0.5
    assert means.tree() == catnat.from_embeddings(means.class_means(), counts)
    assert means.tree(7.0, prior=False, seed=3) == catnat.from_embeddings(means.class_means(7.0), seed=3)
    np.testing.assert_allclose(means.tree().prior, counts / counts.sum(), rtol=1e-12)


# ---- files ----


@pytest.mark.parametrize("way", ["file", "state", "pickle"])
def test_statistics_continue_where_they_were(way, tmp_path):
    rng = np.random.default_rng(0)
    features, targets = rng.standard_normal((50, 3)), rng.integers(4, size=50)
    whole, means = collected(features, targets, 4, [20]), collected(features[:20], targets[:20], 4)
    if way == "file":
        means.save(tmp_path / "means")
        means = catnat.ClassMeans.load(tmp_path / "means")
    elif way == "state":
        state = types.MappingProxyType(means.state_dict())
        means = catnat.ClassMeans(4, 3)
        means.load_state_dict(state)
    else:
        means = pickle.loads(pickle.dumps(means))
    means.update(features[20:], targets[20:])
    same(means, whole)


def test_arrays_that_others_share_are_not_changed():
    """Ray's store gives read-only arrays, which ``np.add.at`` would write to."""
    means = collected(FEATURES, TARGETS, 2)
    sums, before = means.sums, means.sums.copy()
    sums.setflags(write=False)
    means.update(FEATURES, TARGETS)
    np.testing.assert_array_equal(sums, before)
    np.testing.assert_array_equal(means.sums, 2 * before)
    other = collected(FEATURES, TARGETS, 2)
    other.sums.setflags(write=False)
    other.merge(means)
    np.testing.assert_array_equal(other.sums, 3 * before)


def test_a_state_is_copied_and_checked():
    means, other = collected(FEATURES, TARGETS, 2), catnat.ClassMeans(2, 2)
    other.load_state_dict(means.state_dict())
    other.update(FEATURES, TARGETS)
    same(means, collected(FEATURES, TARGETS, 2))
    with pytest.raises(ValueError, match="The checkpoint's sums have shape"):
        catnat.ClassMeans(3, 2).load_state_dict(means.state_dict())


# ---- fixed random vectors ----


def test_random_vectors_are_signs_that_depend_on_token_and_seed_alone():
    tokens = np.array([[5, 7, -1], [7, 2**62, 5]])
    vectors = catnat.random_features(tokens, 100)
    assert vectors.shape == (2, 3, 100)
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors[0, 0], vectors[1, 2])
    np.testing.assert_array_equal(vectors[0, 1], vectors[1, 0])
    np.testing.assert_array_equal(vectors[0, 2], 0)
    np.testing.assert_array_equal(np.abs(vectors[1]), 1)
    np.testing.assert_array_equal(catnat.random_features(np.int32(7), 40), vectors[0, 1, :40])
    for seed in (1, -1):
        assert (catnat.random_features(tokens, 100, seed)[1] != vectors[1]).any(axis=1).all()


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_random_vectors_are_nearly_orthogonal(seed):
    """As independent signs are: products of n of them have variance n; no tokens, columns or seeds agree too often."""
    size = 192
    vectors = catnat.random_features(np.arange(2000), size, seed).astype(np.float64)
    products = (vectors @ vectors.T)[np.triu_indices(2000, 1)]
    assert abs(products.mean()) < 5 * np.sqrt(size / len(products))
    assert products.var() == pytest.approx(size, rel=0.01)
    assert np.abs(products).max() < 7 * np.sqrt(size)
    columns = (vectors.T @ vectors)[np.triu_indices(size, 1)]
    assert np.abs(columns).max() < 6 * np.sqrt(2000)
    assert np.abs(vectors.sum(0)).max() < 6 * np.sqrt(2000)
    other = catnat.random_features(np.arange(2000), size, seed + 1)
    assert abs((vectors * other).mean()) < 6 / np.sqrt(vectors.size)


def test_random_vectors_are_the_same_everywhere():
    """SplitMix64 with Python's own integers."""

    def mix(word):
        word = (word + 0x9E3779B97F4A7C15) % 2**64
        word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
        return word ^ (word >> 31)

    for token, seed in ((0, 0), (1, 0), (10**15, 3)):
        words = [mix((mix((token + mix(seed)) % 2**64) + j) % 2**64).to_bytes(8, "little") for j in range(2)]
        bits = [byte >> (7 - j) & 1 for byte in b"".join(words) for j in range(8)]
        assert catnat.random_features(token, 100, seed).tolist() == [2 * bit - 1 for bit in bits[:100]]


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix, sparse.coo_array])
def test_a_projection_adds_up_the_vectors_of_columns(kind):
    values = np.random.default_rng(0).poisson(0.5, (6, 9)).astype(float)
    vectors = catnat.random_features(np.arange(9), 5, seed=2)
    wanted = [sum(values[i, j] * vectors[j] for j in range(9)) for i in range(6)]
    np.testing.assert_allclose(catnat.random_projection(kind(values), 5, seed=2), wanted, atol=1e-5)


def test_random_vectors_refuse_what_are_no_tokens():
    with pytest.raises(TypeError, match="integers are needed; numbers go to random_projection"):
        catnat.random_features([0.5])
    with pytest.raises(ValueError, match="`size` is 0"):
        catnat.random_features([1], 0)
    with pytest.raises(ValueError, match=r"\(n, columns\)"):
        catnat.random_projection([1.0])


def test_an_order_from_tokens_finds_classes_with_the_same_neighbours():
    """Sentences in one of two languages, of words at random: words of one language share the tree's first branch."""
    rng = np.random.default_rng(0)
    text = (rng.integers(0, 20, (400, 30)) + 20 * rng.integers(0, 2, (400, 1))).ravel()
    means = catnat.ClassMeans(40, 64)
    means.update(catnat.random_features(np.stack([text[1:-1], text[:-2]], 1), 32), text[2:])
    tree = means.tree(prior=False)
    first = [int(tree.path(k)[1][0]) for k in range(40)]
    assert len(set(first[:20])) == len(set(first[20:])) == 1
    assert first[0] != first[20]
