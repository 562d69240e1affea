"""Sphinx configuration. The gate builds with ``-W``: a warning is an error."""

import abc
import contextlib
import importlib.util
import io
import os
import re
from pathlib import Path

import catnat_experiments.cli as experiments
from catnat_experiments.report.page import PRELIMINARY
from catnat_experiments.tasks.identifiers import compress
from docutils import nodes
from sphinx.util import logging

import catnat
import catnat.torch as ct

os.environ["FLAX_DOC_BUILD"] = "1"  # asks flax to show the arguments of its modules, which a metaclass hides

HERE = Path(__file__).parent

project = "catnat"
author = "The catnat contributors"
copyright = f"2026, {author}"
version = release = catnat.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "matplotlib.sphinxext.plot_directive",
    "myst_parser",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
# The results of experiments are included in other pages.
exclude_patterns = ["_build", "gallery/*.ipynb", "gallery/*.md5", "README.md", "results/**"]
html_theme = "furo"
html_title = f"catnat {release}"

# Pages need no network. MathJax comes from a wheel, as the one file that draws formulas as SVG and so needs no fonts.
mathjax_wheel = Path(importlib.util.find_spec("sphinx-mathjax-offline").origin).parent
mathjax_path = "tex-svg-full.js"
html_static_path = ["_static", str(mathjax_wheel / "static/mathjax" / mathjax_path)]
html_css_files = ["site.css"]
html_search_scorer = str(HERE / "_static/scorer.js")

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "attrs_inline"]
myst_heading_anchors = 3

# Public names are listed in api*.md (tests/test_docs_cover_api.py checks that none is missing), and each has a page.
templates_path = ["_templates"]
# Some file systems take Catnat and catnat for one name.
autosummary_filename_map = {
    f"catnat.{framework}.Catnat": f"catnat.{framework}.Catnat-class" for framework in ("torch", "jax")
}
SKLEARN = (
    ":inherited-members: BaseEstimator, ClassifierMixin",
    ":exclude-members: get_metadata_routing, set_fit_request, set_partial_fit_request, set_score_request",
)
autosummary_context = {
    "class_options": {
        **dict.fromkeys(
            ("catnat.Tree", "catnat.Taxonomy", "catnat.Forest", "catnat.Activation"), (":no-show-inheritance:",)
        ),
        **dict.fromkeys(
            (
                "catnat.torch.CatnatHead",
                "catnat.torch.parallel.ParallelCatnatHead",
                "catnat.integrations.torchrec.ShardedCatnatHead",
            ),
            (":inherited-members: Module",),
        ),
        "catnat.torch.Catnat": (":inherited-members: Categorical",),
        "catnat.torch.MultiCatnat": (":inherited-members: Distribution",),
        **dict.fromkeys(("catnat.jax.Catnat", "catnat.jax.MultiCatnat"), (":inherited-members:",)),
        "catnat.sklearn.TreeClassifier": SKLEARN,
        "catnat.integrations.numpyro.CatnatTransform": (":exclude-members: tree_flatten",),
    }
}
autodoc_member_order = "bysource"
# Not in the gate's environment; see the stage `torchrec` of .ci/run.
autodoc_mock_imports = [name for name in ("torchrec", "fbgemm_gpu") if importlib.util.find_spec(name) is None]
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_type_aliases = {name: name for name in ("ArrayLike", "Ints", "Floats", "NDArray")}  # not their definitions
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
napoleon_google_docstring = True
napoleon_numpy_docstring = False

# Every reference to one of our own names must resolve. Names of other libraries do not: there is no network in the
# build, so no intersphinx inventory to look them up in.
nitpicky = True
nitpick_ignore_regex = [
    (r"py:func", r"catnat"),  # in a list of names, where a docstring's first line stands outside of its module
    (r"py:.*", r"(?!catnat(\.|$)).*"),
    (
        r"py:class",
        r"catnat\.jax\.(distributions|estimators)\.[A-Z]\w+|catnat\.activations\.(Band|TreeWithPrior)"
        r"|catnat\.coding\._model\.Head|catnat\.trees\.forest\.Group|catnat\.taxonomy\.lineage\.Lineage",
    ),  # protocols, bases and constants in signatures: the pages say what
]

plot_html_show_formats = False
plot_html_show_source_link = False
plot_formats = [("png", 150)]
plot_rcparams = {"savefig.transparent": True}  # site.css inverts plots on dark pages
plot_apply_rcparams = True

sphinx_gallery_conf = {
    "parallel": 2,
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",  # run every example, whatever it is called
    "ignore_pattern": r"(^|/)_",
    "abort_on_example_error": True,
    "only_warn_on_example_error": False,
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 1000,
    "write_computation_times": False,  # that page would fetch scripts from other hosts
    "within_subsection_order": "FileNameSortKey",
    "reset_modules": ("matplotlib", "seaborn", "catnat_experiments.report.plots.style_of_gallery"),
}


def show_public_bases(app, name, obj, options, bases):
    """Put a private base's own bases in its place: a reader can look those up."""

    def public(base):
        private = base.__module__.startswith("catnat.") and base.__name__ not in ct.__all__
        return [ancestor for parent in base.__bases__ for ancestor in public(parent)] if private else [base]

    shown = dict.fromkeys(ancestor for base in list(bases) for ancestor in public(base))
    bases[:] = [base for base in shown if base not in (object, abc.ABC)] or [object]


def name_aliases(app, what, name, obj, options, signature, returns):
    """Show aliases and ``self`` by their names; in an adapter, say whose they are; hide private arguments."""

    def plain(text):
        text = text and re.sub(r"^\(self, ", "(", text)  # as flax hands its classes' signatures over
        text = text and re.sub(r"TypeAliasForwardRef\('(\w+)'\)|(?:\w+\.)*_(Self)\b", r"\1\2", text)
        if text and name.startswith("catnat.integrations."):  # a constructor of catnat.torch, inherited
            text = re.sub(r"(?<![\w.])Activation\b", "catnat.Activation", text)
        return text

    if what == "class" and re.search(r"\b_[a-z]", signature or ""):  # made by functions, not by its constructor
        signature = ""
    return plain(signature), plain(returns)


def keep_colons(app, what, name, obj, options, lines):
    """Stop napoleon from reading "type: description" into an attribute's first sentence: it sees a comment first."""
    if what in ("attribute", "data", "property"):
        lines[:0] = ["..", ""]


PAGES = (  # experiment, preset: whose report is in results/<experiment>-<preset>
    ("gsl", "paper"),
    ("world", "decay"),
    ("identifiers", "evidence"),
    ("identifiers", "order"),
    ("identifiers", "order-pass"),
    ("identifiers", "purchases"),
    ("vae", "one-cell"),
    ("vae", "recipe"),
    ("vae", "ablation"),
    ("vae_reinforce", "one-cell"),
    ("minatar", "evidence"),
    ("atari", "games"),
    ("defaults", "evidence"),
    ("defaults", "order"),
    ("classifiers", "evidence"),
    ("classifiers", "icd10-3"),
    ("classifiers", "baskets"),
    ("binned", "evidence"),
)
UNFINISHED = {("identifiers", "order"), ("identifiers", "order-pass")}  # the page says how many seeds have run
OVERVIEWS = (("vae", "adam"), ("vae", "short"), ("vae", "sgd"))  # of one run a cell, and not all have run


def paths_of(name, preset):
    """Where the records of a preset are, and where to write what is made of them."""
    return {"results": HERE.parent / "experiments/results" / name, "output": HERE / "results" / f"{name}-{preset}"}


def write_results(app):
    """The tables and plots of the experiments, from the committed records, by the commands that every reader has."""
    if not app.config.with_results:
        return
    with contextlib.redirect_stdout(io.StringIO()):
        for name, preset in OVERVIEWS:
            experiments.report_command(name, preset, **paths_of(name, preset), summary=True)
            experiments.figures(name, preset, **paths_of(name, preset))
        for name, preset in PAGES:
            paths = paths_of(name, preset)
            experiments.report_command(name, preset, **paths)
            is_preliminary = PRELIMINARY in (paths["output"] / "README.md").read_text()
            if is_preliminary and (name, preset) not in UNFINISHED:
                logging.getLogger(__name__).warning("runs of the preset %s of %s are missing", preset, name)
            if experiments.load(name).figures:
                experiments.figures(name, preset, **paths)
        compress.report(HERE.parent / "experiments/results/compression", HERE / "results/compression")
        reports = [f"{name}:{preset}" for name, preset in PAGES]
        experiments.verdicts_command(reports, HERE.parent / "experiments/results", HERE / "results/verdicts.md")


MANY_ROWS = 12


def fold_long_tables(app, doctree):
    """Fold long tables that a command has written: a page says in its text what they show."""
    for table in list(doctree.findall(nodes.table)):
        rows = len(table.next_node(nodes.tbody).children)
        if rows > MANY_ROWS and "results" in Path(table.source or "").parts:
            opening = f'<details class="long-table"><summary>The table, {rows} rows</summary>'
            place = table.parent.index(table)
            table.parent.insert(place, nodes.raw("", opening, format="html"))
            table.parent.insert(place + 2, nodes.raw("", "</details>", format="html"))


def setup(app):
    app.add_config_value("with_results", True, "env", bool)  # -D with_results=0: keep those of the last build
    app.connect("builder-inited", write_results)
    app.connect("doctree-read", fold_long_tables)
    app.connect("autodoc-process-bases", show_public_bases)
    app.connect("autodoc-process-signature", name_aliases)
    app.connect("autodoc-process-docstring", keep_colons, priority=100)  # before napoleon
