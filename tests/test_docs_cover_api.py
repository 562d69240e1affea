"""Every public name has a docstring and a place in the API reference."""

import functools
import inspect
import pathlib
import re

import pytest

import catnat
import catnat.integrations.torch_geometric
import catnat.torch

API = pathlib.Path(__file__).parents[1] / "docs" / "api.md"
DIRECTIVE = re.compile(r"^\.\. auto(?:function|class|exception|data):: (\S+)$", re.MULTILINE)
MODULES = {module.__name__: module for module in (catnat, catnat.torch, catnat.integrations.torch_geometric)}
PUBLIC = [
    f"{module.__name__}.{name}"
    for module in MODULES.values()
    for name in module.__all__
    if not name.startswith("__") and not inspect.ismodule(getattr(module, name))
]


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


def test_reference_lists_exactly_the_public_names():
    listed = DIRECTIVE.findall(API.read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_has_a_docstring(name):
    doc = own_docstring(find(name))
    assert doc.strip(), f"{name} has no docstring"
    first = inspect.cleandoc(doc).splitlines()[0]
    assert first.endswith("."), f"{name}: the first line of the docstring is a sentence, not {first!r}"


@pytest.mark.parametrize("name", [name for name in PUBLIC if inspect.isfunction(find(name))])
def test_function_shows_an_example_or_its_formula(name):
    doc = own_docstring(find(name))
    assert ">>>" in doc or ".. math::" in doc or ":math:" in doc, f"{name} shows neither an example nor a formula"


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


def test_the_checks_can_fail():
    class Bare:
        def method(self):
            return None

        @property
        def attribute(self):
            return None

    assert own_docstring(Bare) == ""
    assert [name for name, member in public_members(Bare) if not own_docstring(member)] == ["method", "attribute"]
