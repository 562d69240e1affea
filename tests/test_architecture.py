"""Who may import whom, and what an import may load. ARCHITECTURE.md draws the rules."""

import ast
import importlib
import os
import pathlib
import pkgutil
import subprocess
import sys

import pytest

import catnat

ROOT = pathlib.Path(__file__).parents[1]
BLOCK = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {name!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
"""


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)


def loaded_by(statement):
    """The top-level packages in memory after ``statement`` in a fresh interpreter."""
    done = python(f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})")
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def public_modules():
    yield "catnat"
    for module in pkgutil.walk_packages(catnat.__path__, "catnat."):
        if not any(part.startswith("_") for part in module.name.split(".")):
            yield module.name


FOREIGN = {"torch", "jax", "jaxlib", "scipy", "matplotlib", "sklearn", "optax", "flax", "pandas", "networkx"}
LOADED = [
    ("import catnat", set()),
    ("import catnat; t = catnat.huffman([3, 2, 1]); t.reach(); t.path(0); hash(t); repr(t)", set()),
    ("import catnat.taxonomy as t; t.back_off(t.Taxonomy({'a': None}), [[1.0]])", set()),
    ("import catnat.torch", {"torch"}),
    ("import catnat.jax", {"jax", "jaxlib", "scipy"}),
    ("from catnat.sklearn import TreeClassifier", {"sklearn", "scipy", "pandas"}),
]


@pytest.mark.parametrize(("statement", "needed"), LOADED)
def test_an_import_loads_nothing_else(statement, needed):
    assert loaded_by(statement) & FOREIGN <= needed


def test_neither_import_nor_first_call_loads_torchs_compiler():
    """It takes 1.5 s, as long as PyTorch itself; who compiles something loads it."""
    calls = """
import sys, torch, catnat.torch as ct
ct.CatnatHead(4, 5, device="meta")
ct.CatnatLinear(4, 5).loss(torch.zeros(2, 4), torch.tensor([0, 4])).backward()
assert "torch._dynamo" not in sys.modules
"""
    done = python(calls)
    assert done.returncode == 0, done.stderr


def test_classifiers_on_trees_need_no_torch():
    done = python(
        BLOCK.format(name="torch") + "import catnat.sklearn as cs; cs.TreeClassifier().fit([[0.0], [1.0]], [0, 1])"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("missing", "statement", "extra"),
    [
        ("torch", "import catnat.torch", "torch"),
        ("jax", "import catnat.jax", "jax"),
        ("sklearn", "import catnat.sklearn", "sklearn"),
        ("constriction", "import catnat.coding", "coding"),
        ("matplotlib", "import catnat; catnat.balanced(3).plot()", "plot"),
    ],
)
def test_a_missing_library_says_which_extra_to_install(missing, statement, extra):
    done = python(BLOCK.format(name=missing) + statement)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(("ImportError", "ModuleNotFoundError")), done.stderr
    assert f"catnat[{extra}]" in last, done.stderr


@pytest.mark.parametrize("name", list(public_modules()))
def test_public_module_lists_its_names(name):
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        pytest.skip(f"needs a library that is not here: {error}")
    if not hasattr(module, "__all__"):  # a module of a room: its names without an underscore are public
        return
    assert len(set(module.__all__)) == len(module.__all__)
    missing = [attribute for attribute in module.__all__ if not hasattr(module, attribute)]
    assert not missing


# ---- the import rules, checked in the sources ----


def test_import_rules_hold():
    """As the gate checks them; tests/mutants breaks each of them on purpose."""
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 kept, 0 broken" in done.stdout


# Above the backends: rooms on public names alone.
ROOMS = ("integrations", "sklearn", "coding")


def private_imports(path, text):
    """What a file imports of ours by a name with an underscore, and not from its own room."""
    own = f"catnat.{path.parts[0]}"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            ours = name.startswith("catnat.") and not name.startswith(f"{own}.")
            if ours and any(part.startswith("_") for part in name.split(".")):
                yield f"{path}:{node.lineno}: {name}"


def test_rooms_import_public_names_alone():
    package = ROOT / "src" / "catnat"
    files = [file for room in ROOMS for file in (package / room).rglob("*.py")]
    assert len(files) > 20
    found = [line for file in files for line in private_imports(file.relative_to(package), file.read_text())]
    assert found == []


@pytest.mark.parametrize(
    "line", ["from catnat import _checks", "import catnat.torch._plan", "from catnat.torch.heads import _safetensors"]
)
def test_a_private_import_is_found(line):
    assert list(private_imports(pathlib.Path("integrations/pyro.py"), line))
    assert not list(private_imports(pathlib.Path("integrations/pyro.py"), "from catnat.integrations._masks import a"))


def private_names(tree):
    """Names with an underscore that a module defines: functions, classes, attributes."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def foreign_private_names(sources):
    """Where a module reads an attribute with an underscore that only another module of ours defines."""
    trees = {path: ast.parse(text) for path, text in sources.items()}
    defined = {
        path: {name for name in private_names(tree) if name.startswith("_") and not name.endswith("__")}
        for path, tree in trees.items()
    }
    ours = set().union(*defined.values()) - NOT_OURS
    return [
        f"{path}:{node.lineno}: {ast.unparse(node)}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
        and node.attr in ours - defined[path]
    ]


NOT_OURS = {"_num_events", "_categorical", "_param", "_replace"}  # of torch's distributions, and of named tuples


def test_no_private_name_is_read_from_another_module():
    sources = {str(path): path.read_text() for path in (ROOT / "src").rglob("*.py")}
    assert foreign_private_names(sources) == []
    sources["breach"] = "import catnat\ncatnat.balanced(3)._masses(None)"
    assert foreign_private_names(sources) == ["breach:2: catnat.balanced(3)._masses"]
