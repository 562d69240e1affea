"""Every public name has a docstring and a place in the API reference."""

import functools
import importlib
import inspect
import pathlib
import pkgutil
import re
import warnings

import pytest

import catnat
import catnat.integrations
import catnat.jax
import catnat.taxonomy
import catnat.torch

DOCS = pathlib.Path(__file__).parents[1] / "docs"
ENTRY = re.compile(r"^   ~(catnat\.\S+)$", re.MULTILINE)  # of an autosummary, which makes a page for it
INTEGRATIONS = [
    f"catnat.integrations.{module.name}"
    for module in pkgutil.iter_modules(catnat.integrations.__path__)
    if not module.name.startswith("_")
]
EXTRAS = ["catnat.sklearn", "catnat.coding"]  # of an extra, but no adapters


def installed(name):
    """The adapter's module, or None if its library is not here."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what libraries say of each other on import
            return importlib.import_module(name)
    except ImportError:
        return None


# Which page describes which modules.
PAGES = {
    "api.md": [
        catnat,
        catnat.taxonomy,
        catnat.torch,
        catnat.torch.geometry,
        catnat.torch.estimators,
        catnat.torch.targets,
    ],
    "api_jax.md": [catnat.jax, catnat.jax.geometry, catnat.jax.estimators, catnat.jax.targets],
    "api_integrations.md": [
        module for module in map(installed, [*INTEGRATIONS, "catnat.sklearn", "catnat.coding"]) if module
    ],
}
MODULES = {module.__name__: module for modules in PAGES.values() for module in modules}


def public_names(module):
    """The names of a module, but for modules and for what it has from the core."""
    names = [name for name in module.__all__ if not name.startswith("__")]
    own = [name for name in names if module is catnat or getattr(module, name) is not getattr(catnat, name, None)]
    return [f"{module.__name__}.{name}" for name in own if not inspect.ismodule(getattr(module, name))]


PUBLIC = [name for module in MODULES.values() for name in public_names(module)]


def find(name):
    module, _, attribute = name.rpartition(".")
    return getattr(MODULES[module], attribute)


def own_docstring(thing):
    """The docstring written for this very thing: neither inherited nor made up by a decorator."""
    if isinstance(thing, property):
        thing = thing.fget
    elif isinstance(thing, functools.cached_property):
        thing = thing.func
    doc = getattr(thing, "__doc__", None) or ""
    generated = inspect.isclass(thing) and doc.startswith(f"{thing.__name__}(")  # what @dataclass writes
    return "" if generated else doc


def public_members(cls):
    """The methods and properties that this class defines itself, under a public name."""
    for name, member in vars(cls).items():
        if isinstance(member, (classmethod, staticmethod)):
            member = member.__func__
        is_member = callable(member) or isinstance(member, (property, functools.cached_property))
        if is_member and not name.startswith("_"):
            yield name, member


def listed_on(page):
    """The names on a page, but for adapters whose library is not here."""
    listed = ENTRY.findall((DOCS / page).read_text(encoding="utf-8"))
    missing = {*INTEGRATIONS, *EXTRAS} - set(MODULES)
    return [name for name in listed if name.rpartition(".")[0] not in missing]


@pytest.mark.parametrize("page", PAGES)
def test_reference_lists_exactly_the_public_names(page):
    assert sorted(listed_on(page)) == sorted(name for module in PAGES[page] for name in public_names(module))


@pytest.mark.parametrize("page", PAGES)
def test_every_list_makes_pages(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    lists = text.count(".. autosummary::\n")
    assert lists == text.count(".. autosummary::\n   :toctree: reference\n   :nosignatures:\n\n   ~catnat."), page
    assert lists > 0


@pytest.mark.parametrize("name", INTEGRATIONS)
def test_every_adapter_has_its_place(name):
    text = (DOCS / "api_integrations.md").read_text(encoding="utf-8")
    assert f"   ~{name}." in text, f"{name} is not in the reference of integrations"


def test_both_frameworks_stand_under_the_same_headings():
    torch, jax = (
        re.findall(r"^##+ (.+)$", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE) for page in list(PAGES)[:2]
    )
    of_both = ("Trees", "Taxonomies", "Activations")
    assert [heading for heading in torch if heading not in of_both] == jax


@pytest.mark.parametrize("name", PUBLIC)
def test_has_a_docstring(name):
    doc = own_docstring(find(name))
    assert doc.strip(), f"{name} has no docstring"
    first = inspect.cleandoc(doc).splitlines()[0]
    assert first.endswith("."), f"{name}: the first line of the docstring is a sentence, not {first!r}"


def shown_by(name):
    """The name whose example shows this one: another of its module, to which the first line ends by referring."""
    first = inspect.cleandoc(own_docstring(find(name))).partition("\n")[0]
    refers = re.search(r"; see :\w+:`(\w+)`\.$", first)
    return f"{name.rpartition('.')[0]}.{refers[1]}" if refers else name


@pytest.mark.parametrize("name", [name for name in PUBLIC if callable(find(name))])
def test_shows_an_example_that_runs(name):
    assert ">>> " in own_docstring(find(shown_by(name))), f"{name} shows no example, nor does {shown_by(name)}"


@pytest.mark.parametrize("name", [name for name in PUBLIC if inspect.isclass(find(name))])
def test_members_have_docstrings(name):
    cls = find(name)
    inherited = {member for base in cls.__mro__[1:] for member in vars(base)}
    bare = [
        member
        for member, value in public_members(cls)
        if not own_docstring(value).strip() and member not in inherited  # an override keeps its base's contract
    ]
    assert not bare, f"{name} has public members without a docstring: {bare}"
