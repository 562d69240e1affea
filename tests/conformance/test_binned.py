"""BinnedCatnat: a histogram on a tree, against SciPy's, against integrals, and with hostile inputs."""

import functools

import cases
import numpy as np
import oracle
import pytest
from conformance import checks
from conformance.backend import built
from scipy import stats

import catnat

pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")


def ordered_case(num_classes=90, seed=0):
    """A tree whose classes are in order, of no regular shape, and with yes on either side: it is walked by tables."""
    rng, rows = np.random.default_rng(seed), []

    def build(first, last):
        if last - first == 1:
            return first
        middle = int(rng.integers(first + 1, last))
        sides = [build(first, middle), build(middle, last)]
        rows.append(sides[:: int(rng.choice([-1, 1]))])
        return num_classes + len(rows) - 1

    build(0, num_classes)
    tree = catnat.from_children(rows)
    return cases.TreeCase("ordered", tree, oracle.from_ids(tree.child_ids), (1.0,) * num_classes)


ROWS = {**{name: functools.partial(cases.tree_case, name) for name in cases.TREE_NAMES}, "ordered-90": ordered_case}
ONLY_TORCH = {"torch": {"validate_args": False}}


@pytest.fixture(params=ROWS)
def case(request):
    return ROWS[request.param]()


def bins_for(size, tails=False, seed=0):
    rng = np.random.default_rng(seed)
    return catnat.Bins(np.cumsum(rng.uniform(0.1, 2.0, size + 1)) - 0.4 * size, tails)


def build(framework, scores, bins, tree, activation=cases.NATURAL):
    kind = built(activation)
    return framework.lib.BinnedCatnat(framework.native(scores), bins, tree, kind, **ONLY_TORCH.get(framework.name, {}))


def evaluate(framework, function, scores, *arrays):
    """``function`` of native arrays, whose results are NumPy arrays; all of it one program where it is compiled."""
    return numpy_of(framework, one_program(framework, function)(*map(framework.array, (scores, *arrays))))


def one_program(framework, function):
    if framework.name != "jax":
        return function
    import jax  # the rows of torch run where there is no JAX

    return jax.jit(function)


def numpy_of(framework, found):
    if isinstance(found, dict):
        return {name: numpy_of(framework, each) for name, each in found.items()}
    if isinstance(found, tuple | list):
        return [numpy_of(framework, each) for each in found]
    return framework.numpy(found)


def spread(bins, count=61):
    """Numbers below, in, on the edges of, and above all bins."""
    low, high = bins.edges[0], bins.edges[-1]
    return np.sort(np.concatenate([np.linspace(low - 1, high + 1, count), bins.edges]))


# ---- against SciPy's histogram ----


@pytest.mark.parametrize("activation", [cases.NATURAL, cases.SIGMOID], ids=lambda a: a.name)
def test_is_scipys_histogram(framework, case, activation):
    rng, model, bins = np.random.default_rng(1), case.model(activation), bins_for(case.num_classes)
    scores, x, u = model.inside(rng, (2,)), spread(bins), np.linspace(0, 1, 41)

    def facts(scores, x, u):
        made = build(framework, scores, bins, case.tree, activation)
        columns = {name: getattr(made, name)(x[:, None]) for name in ("log_prob", "cdf")}
        between = made.interval(x[:-3, None], x[3:, None])
        more = {"mean": made.mean, "variance": made.variance, "entropy": made.entropy(), "interval": between}
        return {**columns, **more, "icdf": made.icdf(u[:, None])}

    got = evaluate(framework, facts, scores, x, u)
    for row, each in enumerate(scores):
        wanted = stats.rv_histogram((model.probs(each), bins.edges), density=False)
        inside = (x >= bins.edges[0]) & (x < bins.edges[-1])
        checks.close(np.exp(got["log_prob"][inside, row]), wanted.pdf(x[inside]), rtol=1e-9, atol=1e-12)
        checks.close(got["cdf"][:, row], wanted.cdf(x), atol=1e-9)
        checks.close(got["icdf"][:, row], wanted.ppf(u), atol=1e-9)
        checks.close(got["interval"][:, row], wanted.cdf(x[3:]) - wanted.cdf(x[:-3]), atol=1e-9)
        for name, value in (("mean", wanted.mean()), ("variance", wanted.var()), ("entropy", wanted.entropy())):
            checks.close(got[name][row], value, rtol=1e-9, atol=1e-9)
    outside = (x < bins.edges[0]) | (x > bins.edges[-1])
    assert (got["log_prob"][outside] == np.finfo(np.float64).min).all()


@pytest.mark.parametrize("tails", [False, True], ids=["bins", "tails"])
def test_cdf_is_the_inverse_of_icdf(framework, case, tails):
    bins = bins_for(case.num_classes, tails and case.num_classes > 1)
    scores, u = case.model(cases.NATURAL).inside(np.random.default_rng(2), (3,)), np.linspace(0.001, 0.999, 201)

    def there_and_back(scores, u):
        made = build(framework, scores, bins, case.tree)
        x = made.icdf(u[:, None])
        return x, made.cdf(x), made.icdf(made.cdf(x))

    x, found, again = evaluate(framework, there_and_back, scores, u)
    checks.close(found, np.tile(u[:, None], 3), atol=1e-9)
    assert (np.diff(x, axis=0) > 0).all()
    checks.close(again, x, rtol=1e-6, atol=1e-6)  # as well as the density allows


@pytest.mark.parametrize("edges", [(0.0, 0.72, 1.4), (365.0, 365.2, 365.3)])
def test_no_draw_lies_beyond_its_bin(framework, edges):
    """In float32, where an edge plus a width is not always the next edge."""
    made = framework.lib.BinnedCatnat(framework.array(np.zeros(1, np.float32)), edges)
    u = framework.array(np.append(np.linspace(0, 1, 1001), 1 - 2.0**-24 * np.arange(1, 9)).astype(np.float32))
    found = framework.numpy(made.icdf(u))
    assert found.min() == np.float32(edges[0])
    assert found.max() == np.float32(edges[-1])
    assert np.isfinite(framework.numpy(made.log_prob(made.icdf(u)))).all()


# ---- against integrals ----


def density_of(bins, probs):
    """The density and the cdf as the definition says, one number at a time."""
    first, last, tails = 0, bins.num_bins - 1, bins.tails
    sums = np.concatenate([[0.0], np.cumsum(probs)])

    def both(x):
        k = int(np.clip(np.searchsorted(bins.edges, x, side="right") - 1, first, last))
        low, high, width = bins.edges[k], bins.edges[k + 1], bins.widths[k]
        if tails and k == first:
            tail = np.exp(-(high - x) / width)
            return probs[k] * tail / width, probs[k] * tail
        if tails and k == last:
            tail = np.exp(-(x - low) / width)
            return probs[k] * tail / width, 1 - probs[k] * tail
        if not bins.edges[0] <= x <= bins.edges[-1]:
            return 0.0, float(x > bins.edges[-1])
        return probs[k] / width, sums[k] + probs[k] * (x - low) / width

    return lambda x: np.array([both(each)[0] for each in x]), lambda x: np.array([both(each)[1] for each in x])


def integral(function, breaks):
    """By Gauss's rule between breaks: exact for what is a polynomial there, and close for exponentials."""
    nodes, weights = np.polynomial.legendre.leggauss(6)
    halves, middles = np.diff(breaks) / 2, (breaks[1:] + breaks[:-1]) / 2
    return sum(
        half * (weights * function(middle + half * nodes)).sum() for half, middle in zip(halves, middles, strict=True)
    )


def breaks_of(bins, *more):
    """Edges, and where there are tails, steps outwards until nothing is left."""
    low, high = bins.edges[0], bins.edges[-1]
    if bins.tails:
        out = np.arange(1, 90) / 2
        more = (*more, *(bins.edges[1] - out * bins.widths[0]), *(bins.edges[-2] + out * bins.widths[-1]))
    return np.unique([*bins.edges, low - 2, high + 2, *more])


SOME = ("balanced-2", "balanced-5-uneven", "chain-7", "clusters-12", "balanced-100", "ordered-90")


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("tails", [False, True], ids=["bins", "tails"])
def test_integrals(framework, name, tails):
    """CRPS, mean, variance, entropy, interval and KL by their definitions."""
    case, rng = ROWS[name](), np.random.default_rng(3)
    model, bins = case.model(cases.NATURAL), bins_for(case.num_classes, tails)
    scores, other = model.inside(rng), model.inside(rng)
    y = rng.uniform(bins.edges[0] - 1.5, bins.edges[-1] + 1.5, 6)

    def facts(scores, y, other):
        made = build(framework, scores, bins, case.tree)
        kl = framework.kl(made, build(framework, other, bins, case.tree))
        return made.crps(y), made.mean, made.variance, made.entropy(), kl, made.interval(y[:3], y[3:]), made.cdf(y)

    crps, mean, variance, entropy, kl, between, cdf_at = evaluate(framework, facts, scores, y, other)
    density, cdf = density_of(bins, model.probs(scores))
    other_density, _ = density_of(bins, model.probs(other))
    wanted = [integral(lambda x, at=at: (cdf(x) - (x >= at)) ** 2, breaks_of(bins, at)) for at in y]
    checks.close(crps, wanted, rtol=1e-7, atol=1e-9)
    checks.close(cdf_at, cdf(y), atol=1e-12)
    breaks = breaks_of(bins)
    checks.close(mean, integral(lambda x: x * density(x), breaks), rtol=1e-8, atol=1e-8)
    checks.close(variance, integral(lambda x: (x - mean) ** 2 * density(x), breaks), rtol=1e-7)
    xlogy = lambda x, y: x * np.log(np.where(x > 0, y, 1))  # noqa: E731
    checks.close(entropy, -integral(lambda x: xlogy(density(x), density(x)), breaks), rtol=1e-7, atol=1e-8)
    ratio = lambda x: density(x) / np.where(density(x) > 0, other_density(x), 1)  # noqa: E731
    checks.close(kl, integral(lambda x: xlogy(density(x), ratio(x)), breaks), rtol=1e-7, atol=1e-8)
    pairs = zip(y[:3], y[3:], strict=True)
    checks.close(between, [max(0.0, float(cdf([high])[0] - cdf([low])[0])) for low, high in pairs], atol=1e-12)


# ---- gradients ----

FACTS = {
    "log_prob": lambda made, x, u: made.log_prob(x),
    "cdf": lambda made, x, u: made.cdf(x),
    "icdf": lambda made, x, u: made.icdf(u),
    "interval": lambda made, x, u: made.interval(x, x + 0.7),
    "crps": lambda made, x, u: made.crps(x),
    "mean": lambda made, x, u: made.mean,
    "variance": lambda made, x, u: made.variance,
    "entropy": lambda made, x, u: made.entropy(),
}


@pytest.mark.expensive_compile
@pytest.mark.parametrize("name", ["balanced-5-uneven", "balanced-100", "ordered-90"])
@pytest.mark.parametrize("tails", [False, True], ids=["bins", "tails"])
def test_gradients(framework, name, tails):
    """In the scores and in the value, by central differences."""
    case, rng = ROWS[name](), np.random.default_rng(4)
    bins, scores = bins_for(case.num_classes, tails), case.model(cases.NATURAL).inside(rng, margin=0.4)
    # Well inside of bins, where nothing has a kink.
    at = rng.choice(case.num_classes - 1, 4, replace=False) + 1
    x, u = bins.edges[at - 1] + 0.37 * bins.widths[at - 1], rng.uniform(0.05, 0.95, 4)
    direction, step = rng.normal(size=scores.shape), 1e-6

    def all_facts(scores, x, u):
        made = build(framework, scores, bins, case.tree)
        return framework.numpy_like.stack([fact(made, x, u).sum() for fact in FACTS.values()])

    def along(t):
        moved = (scores + t * direction, x + t, u + t / 10)
        return np.asarray(evaluate(framework, all_facts, *moved))

    def line(t):
        native = map(framework.array, (scores, direction, x, u))
        start, way, x_start, u_start = native
        return all_facts(start + t * way, x_start + t, u_start + t / 10)

    got = framework.jacobian(one_program(framework, line), np.array(0.0))
    checks.close(got, (along(step) - along(-step)) / (2 * step), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["balanced-5-uneven", "ordered-90"])
def test_gradient_through_draws(framework, name):
    """The gradient of a draw is -dF/ds over the density: implicit reparameterization."""
    case, bins = ROWS[name](), bins_for(ROWS[name]().num_classes, tails=True)
    scores = case.model(cases.NATURAL).inside(np.random.default_rng(5))
    draw = lambda s: build(framework, s, bins, case.tree).rsample((7,), **framework.randomness(0))  # noqa: E731
    drawn = framework.numpy(draw(framework.array(scores)))
    got = framework.jacobian(draw, scores)
    cdf = framework.jacobian(lambda s: build(framework, s, bins, case.tree).cdf(framework.array(drawn)), scores)
    density = np.exp(framework.numpy(build(framework, scores, bins, case.tree).log_prob(framework.array(drawn))))
    checks.close(got, -cdf / density[:, None], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("method", ["sample", "rsample"])
@pytest.mark.parametrize("name", ["balanced-5-uneven", "clusters-12", "ordered-90"])
def test_draws_have_the_distribution(framework, name, method):
    """Kolmogorov and Smirnov's test of 20,000 draws; false alarm 1e-6."""
    case, bins = ROWS[name](), bins_for(ROWS[name]().num_classes, tails=True)
    scores = case.model(cases.NATURAL).inside(np.random.default_rng(6))
    made = build(framework, scores, bins, case.tree)
    drawn = framework.numpy(getattr(made, method)((20_000,), **framework.randomness(1)))
    cdf = lambda x: framework.numpy(made.cdf(framework.array(x)))  # noqa: E731
    assert stats.kstest(drawn, cdf).pvalue > checks.FALSE_ALARM


def test_shapes(framework):
    """Sample axes before the batch, and values that the batch is broadcast against."""
    made = build(framework, np.zeros((2, 3, 99)), bins_for(100), catnat.balanced(100))
    number = lambda shape: framework.array(np.full(shape, 0.3))  # noqa: E731
    wanted = {
        (5, 2, 3): lambda: made.sample((5,), **framework.randomness(0)),
        (5, 4, 2, 3): lambda: made.rsample((5, 4), **framework.randomness(0)),
        (7, 2, 3): lambda: made.icdf(number((7, 1, 1))),
        (4, 2, 3): lambda: made.expand((4, 2, 3)).mean,
        (2, 3): lambda: made.mean,
    }
    for shape, call in wanted.items():
        assert framework.shape_of(call) == shape
    for method in ("log_prob", "cdf", "crps"):
        for shape, result in (((), (2, 3)), ((3,), (2, 3)), ((2, 1), (2, 3)), ((7, 2, 3), (7, 2, 3))):
            assert framework.shape_of(lambda m=method, s=shape: getattr(made, m)(number(s))) == result
    assert tuple(made.batch_shape) == (2, 3)


# ---- coarser histograms ----


@pytest.mark.parametrize("name", ["balanced-100", "balanced-5-uneven", "chain-7", "ordered-90"])
@pytest.mark.parametrize("activation", [cases.NATURAL, cases.SIGMOID], ids=lambda a: a.name)
def test_coarser(framework, name, activation):
    """Cut at any level, the cdf stays what it was at the edges that are left."""
    case = ROWS[name]()
    bins, scores = bins_for(case.num_classes), case.model(activation).inside(np.random.default_rng(7), (2,))
    made = build(framework, scores, bins, case.tree, activation)
    for level in (0, 2, case.tree.depth):
        coarse = made.coarsen(level)
        assert coarse.bins.num_bins <= 2**level
        edges = framework.array(coarse.bins.edges[:, None])
        checks.close(framework.numpy(coarse.cdf(edges)), framework.numpy(made.cdf(edges)), atol=1e-12)
    assert coarse.bins == bins


# ---- hostile inputs ----


@pytest.mark.expensive_compile
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [7, 90])
@pytest.mark.parametrize("activation", [cases.NATURAL, cases.SIGMOID], ids=lambda a: a.name)
@pytest.mark.parametrize("tails", [False, True], ids=["bins", "tails"])
def test_values_and_gradients_are_finite(framework, dtype, size, activation, tails):
    limits, rng, bins = np.finfo(dtype), np.random.default_rng(8), bins_for(size, tails)
    scores = rng.normal(size=(5, size - 1)) * np.array([1.0, 30.0, 1e4, 1e30, 0.0])[:, None]
    scores[4] = float(limits.max) * rng.choice([-1, 1], size - 1)
    ends = [float(limits.max), float(limits.min), float(limits.tiny), 0.0, -1e10, 1e10]
    x = np.array([*spread(bins, 13), *ends])[:, None]
    u = np.array([0.0, 1.0, float(limits.tiny), float(limits.eps), 1 - float(limits.eps), 0.5])[:, None]
    inputs = [each.astype(dtype) for each in (scores, x, u)]

    def facts(scores, x, u):
        made = build(framework, scores, bins, catnat.balanced(size), activation)
        return framework.numpy_like.concatenate([fact(made, x, u).reshape(-1) for fact in FACTS.values()])

    for place, each in enumerate(inputs):
        others = [framework.array(other) for other in inputs]
        function = lambda it, place=place, others=others: facts(*others[:place], it, *others[place + 1 :])  # noqa: E731
        value, gradient = framework.value_and_gradient(function, each)
        assert value.dtype == dtype
        assert np.isfinite(value).all()
        assert np.isfinite(gradient).all()


def test_infinite_values_and_nan(framework):
    x = np.array([-np.inf, np.inf, np.nan])
    for tails in (False, True):
        made = build(framework, np.zeros(6), bins_for(7, tails), catnat.balanced(7))
        checks.close(framework.numpy(made.cdf(framework.array(x))), [0.0, 1.0, np.nan])
        log_prob = framework.numpy(made.log_prob(framework.array(x)))
        assert (log_prob[:2] <= -1e17).all()
        assert np.isfinite(log_prob[:2]).all()
        assert np.isnan(log_prob[2])
        assert np.isnan(framework.numpy(made.icdf(framework.array(x[2:])))).all()


def test_bins_of_probability_zero(framework):
    """A quantile lies where there is mass, also at 0 and at 1; gaps are jumped over."""
    for size in (8, 128):
        scores = np.zeros(size - 1)
        scores[0], scores[2] = 10.0, -10.0  # all mass in the third quarter
        bins = catnat.Bins(np.arange(size + 1.0))
        made = build(framework, scores, bins, catnat.balanced(size))
        found = framework.numpy(made.icdf(framework.array(np.array([0.0, 0.5, 1.0]))))
        checks.close(found, [size / 2, size * 5 / 8, size * 3 / 4], atol=1e-9)


@pytest.mark.expensive_compile
def test_very_many_bins(framework):
    size = 100_000
    bins = catnat.Bins(np.linspace(-1, 1, size + 1))
    made = build(framework, np.zeros(size - 1, np.float32), bins, catnat.balanced(size))
    x = framework.array(np.array([-1.0, -0.3, 0.25, 1.0], np.float32))
    checks.close(framework.numpy(made.cdf(x)), [0, 0.35, 0.625, 1], atol=3e-6)
    checks.close(framework.numpy(made.icdf(made.cdf(x))), framework.numpy(x), atol=1e-5)
    checks.close(framework.numpy(made.log_prob(x)), np.full(4, np.log(0.5)), atol=1e-5)
    assert abs(float(made.mean)) < 1e-5
    checks.close(float(made.crps(framework.array(np.array(0.0, np.float32)))), 1 / 6, rtol=1e-4)


def test_mistakes(framework):
    build = framework.lib.BinnedCatnat
    scores, edges = framework.array(np.zeros(3)), [0.0, 1.0, 2.0, 3.0, 4.0]
    with pytest.raises(ValueError, match="5 classes has 4 nodes"):
        build(scores, [*edges, 5.0])
    with pytest.raises(ValueError, match=r"`tree` .*4 bins"):
        build(scores, edges, catnat.balanced(5))
    with pytest.raises(ValueError, match="not finite"):
        build(scores, [*edges[:-1], np.inf])
    with pytest.raises(TypeError, match="scores_from_logits"):
        build(logits=scores, bins=edges)
    made = build(scores, edges)
    with pytest.raises(TypeError, match="`value` is a float"):
        made.cdf(0.5)
    with pytest.raises(ValueError, match="the same edges"):
        framework.kl(made, build(scores, catnat.Bins(edges, tails=True)))


def test_numbers_without_a_meaning_are_refused(framework):
    """Where they are validated, and in JAX where they are known."""
    array, options = framework.array, {"torch": {"validate_args": True}}.get(framework.name, {})
    made = framework.lib.BinnedCatnat(array(np.zeros((3, 3))), [0.0, 1.0, 2.0, 3.0, 4.0], **options)
    for wrong in (50.0, -0.1, np.inf):
        with pytest.raises(ValueError, match=f"`value` holds {wrong}, .*from 0 to 1"):
            made.icdf(array(np.array([[0.5], [wrong]])))
    with pytest.raises(ValueError, match=r"`low` is 3\.0 where `high` is 1\.0"):
        made.interval(array(np.array([0.0, 3.0, 0.0])), array(np.array(1.0)))
    for call in (made.icdf, made.cdf, made.log_prob, made.crps):
        with pytest.raises(ValueError, match=r"shape \(5,\).*batch shape \(3,\).*reshape\(\(5, 1\)\)"):
            call(array(np.full(5, 0.5)))
    quantiles = np.array([0.25, 0.5, 0.75])
    checks.close(framework.numpy(made.icdf(array(quantiles))), 4 * quantiles)  # one each, as torch.distributions has it
    checks.close(framework.numpy(made.icdf(array(quantiles[:, None]))), np.tile(4 * quantiles[:, None], 3))


@pytest.mark.parametrize("use", ["hard", "two_hot", "hl_gauss"])
def test_targets_that_are_nan_are_refused(framework, use):
    value = framework.array(np.array([0.5, np.nan]))
    with pytest.raises(ValueError, match="holds NaN, which lies in no bin"):
        getattr(framework.lib.targets, use)(value, [0.0, 1.0, 2.0], *[0.75] * (use == "hl_gauss"))


@pytest.mark.parametrize("use", ["hard", "two_hot", "hl_gauss", "cdf"])
def test_bins_that_a_dtype_cannot_tell_apart(framework, use):
    """Seconds since 1970 in float32, whose next number is 128 seconds away: in float64 they are fine."""
    bins, targets = catnat.Bins(1.7e9 + np.arange(6.0)), framework.lib.targets

    def found(dtype):
        value = framework.array(np.array([1.7e9 + 2.5], dtype))
        if use == "cdf":
            return framework.lib.BinnedCatnat(framework.array(np.zeros((1, 4), dtype)), bins).cdf(value)
        return getattr(targets, use)(value, bins, *[0.75] * (use == "hl_gauss"))

    with pytest.raises(ValueError, match="float32 cannot tell"):
        found(np.float32)
    assert np.isfinite(framework.numpy(found(np.float64))).all()


# ---- targets ----


@pytest.mark.parametrize("tails", [False, True], ids=["bins", "tails"])
def test_targets(framework, tails):
    targets, bins = framework.lib.targets, bins_for(12, tails)
    y = np.random.default_rng(9).uniform(bins.edges[0] - 2, bins.edges[-1] + 2, (4, 5))
    native = framework.array(y)
    found = framework.numpy(targets.hard(native, bins))
    np.testing.assert_array_equal(found, np.clip(np.digitize(y, bins.edges) - 1, 0, 11))

    found = framework.numpy(targets.hl_gauss(native, bins, 0.8))
    centred = y if tails else np.clip(y, bins.edges[0], bins.edges[-1])
    edges = np.array([-np.inf, *bins.edges[1:-1], np.inf]) if tails else bins.edges
    masses = np.diff(stats.norm.cdf(edges, centred[..., None], 0.8))
    checks.close(found, masses / masses.sum(-1, keepdims=True), atol=1e-12)

    found = framework.numpy(targets.two_hot(native, bins))
    checks.close(found.sum(-1), np.ones((4, 5)), atol=1e-12)
    checks.close(found @ bins.means, np.clip(y, bins.means[0], bins.means[-1]), atol=1e-10)
    assert ((found > 0).sum(-1) <= 2).all()


def test_hostile_targets(framework):
    targets, bins = framework.lib.targets, bins_for(6)
    y = framework.array(np.array([-3e38, 3e38, 0.0], np.float32))
    for sigma in (1e-300, 1e-30, 1.0, 1e30, np.float64(1.0), np.array(1.0)):
        found = framework.numpy(targets.hl_gauss(y, bins, sigma))
        assert found.dtype == np.float32
        assert np.isfinite(found).all()
        checks.close(found.sum(-1), np.ones(3), atol=1e-5)
    assert np.isfinite(framework.numpy(targets.two_hot(y, bins))).all()
    at_an_edge = targets.hl_gauss(framework.array(np.ones(1, np.float32)), [0.0, 1.0, 2.0], 1e-300)
    checks.close(framework.numpy(at_an_edge), [[0.5, 0.5]])
    with pytest.raises(ValueError, match="`sigma` is 0"):
        targets.hl_gauss(y, bins, 0.0)
    with pytest.raises(TypeError, match="floating-point"):
        targets.hard(framework.array(np.array([1, 2])), bins)
    one = targets.two_hot(framework.array(np.array([0.3])), [0.0, 1.0])
    checks.close(framework.numpy(one), [[1.0]])
