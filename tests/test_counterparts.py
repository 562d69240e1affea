"""catnat.torch and catnat.jax are counterparts: the same names, signatures, formulas in docstrings, and numbers."""

import importlib
import inspect
import re

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import catnat.jax
import catnat.torch

TORCH_NAMES_IN_JAX = {"dim": "axis", "generator": "key"}
# What a signature may have beyond its counterpart's, and why.
ONLY_TORCH = {
    "validate_args",  # of torch.distributions: checks by value, which a traced function cannot make
    "device",  # of torch modules; JAX places arrays by other means
    "sparse",  # gradients of the touched rows alone: those of JAX are dense arrays
}
ONLY_JAX = {
    ".CatnatLinear": {"key"},  # JAX has no global generator to initialize from
    ".CatnatHead": {"key"},
    ".estimators.MovingAverage": {"total", "weight"},  # its state: a pytree carries what a module would keep
}


def parameters(function):
    """Name -> (kind, default) in order; a key has no default, because JAX has no global generator."""
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        in_jax = TORCH_NAMES_IN_JAX.get(name, name)
        found[in_jax] = (parameter.kind, inspect.Parameter.empty if in_jax == "key" else parameter.default)
    return found


MODULES = ("", ".estimators", ".geometry", ".targets")


# A layer of PyTorch changes its tree in place; in JAX `catnat.matching_nodes` says where each row goes.
NOT_IN_JAX = (".ActionOrder",)


def names_of(library):
    """All public names of a framework but modules and those above, as they are written after its own name."""
    modules = {where: importlib.import_module(f"catnat.{library}{where}") for where in MODULES}
    names = [f"{where}.{name}" for where, module in modules.items() for name in module.__all__]
    return [name for name in names if name not in (*MODULES, *NOT_IN_JAX)]


def public(library, name):
    where, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(f"catnat.{library}{where}"), attribute)


def test_the_same_names():
    assert names_of("torch") == names_of("jax")


@pytest.mark.parametrize("name", [".Activation", ".natural", ".sigmoid"])
def test_activations_are_the_same_objects(name):
    assert public("torch", name) is public("jax", name) is getattr(catnat, name.removeprefix("."))


@pytest.mark.parametrize("name", names_of("torch"))
def test_the_same_signature(name):
    torch_has, jax_has = (parameters(public(library, name)) for library in ("torch", "jax"))
    torch_has = {key: value for key, value in torch_has.items() if key not in ONLY_TORCH}
    jax_has = {key: value for key, value in jax_has.items() if key not in ONLY_JAX.get(name, ())}
    assert list(torch_has.items()) == list(jax_has.items())


def test_the_exceptions_are_needed():
    torch_has = {key for name in names_of("torch") for key in parameters(public("torch", name))}
    assert torch_has >= ONLY_TORCH
    for name, only in ONLY_JAX.items():
        assert set(parameters(public("jax", name))) >= only


# ---- the same formulas and annotations ----

ANNOTATIONS_IN_JAX = {
    "Tensor": "Array",
    "torch.Generator | None": "PRNGKeyArray",
    "torch.Size": "tuple[int, ...]",
    "torch.dtype | None": "Any",  # there is no one type for what JAX takes as a dtype
    "torch.dtype": "Any",
}
# "name parameter" of annotations that differ beyond that, and why.
DIFFERENT_ANNOTATIONS = (
    r"\.(OneHot|Multi)?Catnat(StraightThrough)? temperature",  # the fields of a pytree may be None
    r"\.(Relaxed)?OneHotCatnat\w*\.(mode|r?sample|log_prob) (value|return)",  # torch's own methods have no shapes
    r"\.cross_entropy scores",  # torch's loss has the classes on axis 1, with any number of axes behind it
    r"\.estimators\.\w+ distribution",  # any torch distribution that lists its classes; JAX has none but ours
)


def with_members(name):
    """A public object of both frameworks, and what both have of its methods and properties."""
    both = [public(library, name) for library in ("torch", "jax")]
    yield name, *both
    for member in vars(both[0]) if inspect.isclass(both[0]) else ():
        if not member.startswith("_") and member in vars(both[1]):
            yield f"{name}.{member}", *(callable_of(vars(owner)[member]) for owner in both)


def callable_of(member):
    """What has the docstring and the signature: the function of a property, of a static or of a cached one."""
    for inner in ("fget", "__func__", "func"):
        member = getattr(member, inner, member)
    return member


def formulas(documented):
    """The ``.. math::`` blocks of a docstring, whatever their line breaks."""
    blocks = re.findall(r"^( *)\.\. math::(.*(?:\n(?:\1 +.*| *))*)", inspect.getdoc(documented) or "", re.MULTILINE)
    return [" ".join(block.split()) for _, block in blocks]


def annotations(function):
    """Parameter -> annotation, in JAX's words; of what cannot be called there are none."""
    if not callable(function):
        return {}
    signature, found = inspect.signature(function), {}
    for name, parameter in signature.parameters.items():
        found[TORCH_NAMES_IN_JAX.get(name, name)] = parameter.annotation
    return {
        name: in_jaxs_words(annotation) for name, annotation in {**found, "return": signature.return_annotation}.items()
    }


def in_jaxs_words(annotation):
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__forward_arg__", "")
    for ours, theirs in ANNOTATIONS_IN_JAX.items():
        text = re.sub(rf"(?<![\w.]){re.escape(ours)}(?!\w)", theirs, text)
    return text


def differences(name):
    """Each "name parameter" whose annotations differ, with both."""
    for member, *both in with_members(name):
        torch_has, jax_has = map(annotations, both)
        for parameter in torch_has.keys() & jax_has.keys():
            if torch_has[parameter] and jax_has[parameter] and torch_has[parameter] != jax_has[parameter]:
                yield f"{member} {parameter}", torch_has[parameter], jax_has[parameter]


def excused(place):
    return [pattern for pattern in DIFFERENT_ANNOTATIONS if re.fullmatch(pattern, place)]


@pytest.mark.parametrize("name", names_of("torch"))
def test_the_same_formulas_and_annotations(name):
    for member, torchs, jaxs in with_members(name):
        assert formulas(torchs) == formulas(jaxs), member
    assert [found for found in differences(name) if not excused(found[0])] == []


def test_the_excuses_are_needed():
    places = [place for name in names_of("torch") for place, *_ in differences(name)]
    assert {pattern for place in places for pattern in excused(place)} == set(DIFFERENT_ANNOTATIONS)


# ---- the same numbers ----

TREES = ("balanced-5-uneven", "balanced-32", "clusters-12", "balanced-100", "chain-75", "huffman-zipf-90")
# Every activation, and every tree.
ROWS = [(TREES[i % len(TREES)], activation) for i, activation in enumerate(cases.ACTIVATIONS)]
pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")

# Functions of a backend, scores, other scores, classes, a tree and an activation.
FUNCTIONS = {
    **{
        name: lambda lib, s, other, classes, *args, name=name: getattr(lib, name)(s, *args)
        for name in ("catnat", "log_catnat", "entropy")
    },
    **{
        name: lambda lib, s, other, classes, *args, name=name: getattr(lib.geometry, name)(s, *args)
        for name in ("reach", "fisher_diagonal")
    },
    "log_prob": lambda lib, s, other, classes, *args: lib.log_prob(s, classes, *args),
    "kl_divergence": lambda lib, s, other, classes, *args: lib.kl_divergence(s, other, *args),
    "fisher_rao_distance": lambda lib, s, other, classes, *args: lib.geometry.fisher_rao_distance(s, other, *args),
    "natural_gradient": lambda lib, s, other, classes, *args: lib.geometry.natural_gradient(s, *args, damping=0.01),
    "kl_step": lambda lib, s, other, classes, *args: lib.geometry.kl_step(s, other, 0.01, *args),
    "scores_from_probs": lambda lib, s, other, classes, *args: lib.scores_from_probs(lib.catnat(s, *args), *args),
}


def agree(one, other):
    """To 1e-12, absolute and relative."""
    assert one.shape == other.shape
    np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def in_torch(function, scores):
    """The value, and the gradient of its sum with weights that tell the entries apart."""
    leaf = torch.tensor(scores, requires_grad=True)
    value = function(leaf)
    if value.requires_grad:
        (value * torch.linspace(-1, 2, value.numel(), dtype=torch.float64).view(value.shape)).sum().backward()
    gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
    return value.detach().numpy(), gradient.numpy()


def in_jax(functions, scores):
    """The same of many functions, compiled as one program."""

    def value_and_gradient(function, leaf):
        value, pull_back = jax.vjp(function, leaf)
        return value, pull_back(jnp.linspace(-1, 2, value.size).reshape(value.shape))[0]

    def everything(leaf):
        return {name: value_and_gradient(function, leaf) for name, function in functions.items()}

    with jax.enable_x64(True):
        return jax.jit(everything)(jnp.asarray(scores))


@pytest.mark.parametrize(("tree", "activation"), ROWS)
def test_values_and_gradients(tree, activation):
    case, row = cases.tree_case(tree), cases.ACTIVATIONS[activation]
    rng, model = np.random.default_rng(0), case.model(row)
    scores, other, classes = model.inside(rng, (4,)), model.inside(rng, (4,)), rng.integers(case.num_classes, size=4)

    def bound(lib, *args):
        return {name: lambda s, f=f: f(lib, s, *args) for name, f in FUNCTIONS.items()}

    functions = bound(catnat.jax, other, classes, case.tree, row.activation)
    if row.name.startswith("own"):  # inverted in NumPy by a callback, which JAX runs outside of `enable_x64`
        del functions["scores_from_probs"]
    found = in_jax(functions, scores)
    native = torch.tensor(other), torch.tensor(classes), case.tree, row.activation
    torchs = bound(catnat.torch, *native)
    for name in functions:
        for one, other in zip(in_torch(torchs[name], scores), found[name], strict=True):
            agree(one, other)


@pytest.mark.parametrize("name", ["scores", "log_prob", "log_prob_of", "sample", "topk", "predict", "distribution"])
def test_heads_have_the_same_methods(name):
    torch_has, jax_has = (parameters(getattr(lib.CatnatHead, name)) for lib in (catnat.torch, catnat.jax))
    jax_has.pop("axis_name", None)  # where torch has other tools for rows on several devices
    assert list(torch_has.items()) == list(jax_has.items())
