"""Ordinary mistakes with the adapters: each is an error, and its text names the way out.

What catnat itself checks, ``tests/test_misuse.py`` states: here is what an adapter checks, or must pass on.
"""

from __future__ import annotations

import functools
import importlib
import io
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import catnat
import catnat.torch as ct

# What was done, with the adapter's module; the error, and what its text must say.
Row = tuple[str, Callable[[Any], Any], type[Exception], str]

# The library behind an adapter, where it is not that of the same name.
LIBRARIES = {"checkpoints": "torch", "torch_geometric": "torch"}


def module(name: str) -> Any:
    return importlib.import_module(name)


# ---- Stable-Baselines3 ----


def space(name, *arguments, **options):
    return getattr(module("gymnasium").spaces, name)(*arguments, **options)


def policy(m, *actions, seen=None, **options):
    """A policy for a space of actions, given by name and arguments, or for four of them."""
    seen = space("Box", -1, 1, (3,)) if seen is None else seen
    return m.CatnatPolicy(seen, space(*(actions or ("Discrete", 4))), lambda _: 1e-3, **options)


def agent(policy, algorithm, library="stable_baselines3"):
    env = module("stable_baselines3.common.envs").IdentityEnv(dim=4)
    return getattr(module(library), algorithm)(policy, env, device="cpu")


def diverged(m):
    return m.CatnatDistribution(4).proba_distribution(torch.full((2, 3), math.nan))


SB3: list[Row] = [
    ("a policy for DQN", lambda m: agent(m.CatnatPolicy, "DQN"), AttributeError, "`q_net`, which DQN reads.* PPO, A2C"),
    ("for QRDQN", lambda m: agent(m.CatnatPolicy, "QRDQN", "sb3_contrib"), AttributeError, "`quantile_net`.* PPO"),
    ("for RecurrentPPO", lambda m: agent(m.CatnatPolicy, "RecurrentPPO", "sb3_contrib"), AttributeError, "lstm_actor"),
    ("for ARS, without gradients", lambda m: agent(m.CatnatPolicy, "ARS", "sb3_contrib"), TypeError, "with PPO, A2C"),
    ("continuous actions", lambda m: policy(m, "Box", -1, 1, (2,)), ValueError, r"is Box.*spaces\.Discrete"),
    ("yes/no actions", lambda m: policy(m, "MultiBinary", 3), ValueError, r"MultiDiscrete\(\[2\] \* n\)"),
    ("a table of actions", lambda m: policy(m, "MultiDiscrete", [[2, 3], [4, 5]]), ValueError, "with one axis"),
    ("actions numbered from 1", lambda m: policy(m, "Discrete", 4, None, 1), ValueError, "without `start`"),
    ("a dictionary", lambda m: policy(m, seen=space("Dict", a=space("Discrete", 2))), ValueError, "MultiInputPolicy"),
    ("a tree of another size", lambda m: policy(m, tree=5), ValueError, "over 5 classes, but there are 4 actions"),
    ("a list as the tree", lambda m: policy(m, tree=[4]), TypeError, r"`tree` is \[4\].*catnat\.balanced\(4\)"),
    ("one tree for two variables", lambda m: policy(m, "MultiDiscrete", [3, 2], tree=6), TypeError, "`trees` is 6"),
    ("too few trees", lambda m: policy(m, "MultiDiscrete", [3, 2], tree=[3]), ValueError, r"but there are \(3, 2\)"),
    ("the tree's activation under SB3's name", lambda m: policy(m, activation_fn="natural"), TypeError, "`activation`"),
    ("the hidden layers' under ours", lambda m: policy(m, activation=nn.Tanh), TypeError, "`activation`.*'sigmoid'"),
    ("a policy that has diverged", diverged, ValueError, "learning rate that is too large"),
]

# ---- sb3-contrib ----


def masked(m, masks):
    return m.MaskableCatnatDistribution(4).proba_distribution(torch.zeros(1, 3)).apply_masking(masks)


CONTRIB: list[Row] = [
    ("for PPO", lambda m: agent(m.MaskableCatnatPolicy, "PPO"), TypeError, r"use MaskablePPO\(.*3\.CatnatPolicy"),
    ("indices as a mask", lambda m: masked(m, [0, 2, 3, 1]), ValueError, "`masks` holds 2, .* True or 1"),
    ("a mask to add to logits", lambda m: masked(m, [0, -np.inf, 0, 0]), ValueError, "masks == 0"),
    ("a mask with NaN", lambda m: masked(m, [np.nan, 1, 1, 0]), ValueError, "holds nan"),
    ("a mask of nodes", lambda m: masked(m, [1, 0, 1]), ValueError, "not over the K - 1 nodes"),
    ("no valid action", lambda m: masked(m, [False] * 4), ValueError, "at least one"),
]

# ---- TorchRL ----


def acted(m, network, spec, *, mask=None, **options):
    """An action of an actor for a spec, given by name and arguments; with a mask for five observations, if any."""
    step = {"observation": torch.zeros(5, 8)} | ({} if mask is None else {"mask": torch.as_tensor(mask)})
    if mask is not None:
        options["mask_key"] = "mask"
    name, *arguments = spec
    actor = m.catnat_actor(network, getattr(module("torchrl.data"), name)(*arguments), **options)
    return actor(module("tensordict").TensorDict(step, [5]))


FOUR, TWO = ("Categorical", 4), ("MultiCategorical", [3, 2])
UNEQUAL = torch.tensor([[3, 4], [5, 6]])
three_scores = nn.Linear(8, 3)
nans = nn.Sequential(three_scores, nn.Threshold(math.inf, math.nan))
on_chain = nn.Sequential(nn.Tanh(), ct.CatnatLinear(8, catnat.chain(4)))
four = functools.partial(acted, network=three_scores, spec=FOUR)
RL: list[Row] = [
    ("one score per action", lambda m: acted(m, nn.Linear(8, 4), FOUR), ValueError, "make the last layer 3 wide"),
    ("a tree of another size", lambda m: four(m, tree=catnat.chain(5)), ValueError, r"catnat\.balanced\(4\)"),
    ("a layer for others", lambda m: acted(m, ct.CatnatLinear(8, 5), FOUR), ValueError, r"CatnatLinear\(.*, 4\)"),
    ("another tree", lambda m: acted(m, on_chain, FOUR, tree=4), ValueError, "Leave `tree` out"),
    ("another activation", lambda m: acted(m, on_chain, FOUR, activation="natural"), ValueError, "Leave `activation`"),
    ("indices as a mask", lambda m: four(m, mask=[[0, 2, 3, -1]] * 5), ValueError, "holds 2, .* True or 1"),
    ("a mask of another batch", lambda m: four(m, mask=np.ones((5, 1, 4), bool)), ValueError, "a row of the mask for"),
    ("no valid action", lambda m: four(m, mask=[[1, 1, 0, 0]] * 4 + [[0] * 4]), ValueError, "at least one"),
    ("a key without a mask", lambda m: four(m, mask_key="valid"), KeyError, "'valid': correct `mask_key`"),
    ("a network that has diverged", lambda m: acted(m, nans, FOUR), ValueError, "learning rate that is too large"),
    ("yes/no actions", lambda m: acted(m, three_scores, ("Binary", 4)), TypeError, "MultiCategorical is needed"),
    ("one-hot", lambda m: acted(m, three_scores, ("MultiOneHot", [2, 3])), TypeError, "categorical_action_encoding"),
    ("continuous actions", lambda m: acted(m, three_scores, ("Unbounded", 3)), TypeError, "Categorical, OneHot or"),
    ("one tree for two", lambda m: acted(m, three_scores, TWO, tree=5), ValueError, r'distribution_kwargs=\{"trees"'),
    (
        "other trees",
        lambda m: acted(m, three_scores, TWO, distribution_kwargs={"trees": [4, 1]}),
        ValueError,
        "one leaf each",
    ),
    (
        "unequal rows",
        lambda m: acted(m, three_scores, ("MultiCategorical", UNEQUAL)),
        ValueError,
        r"\[\[3, 4\], \[5, 6\]\]",
    ),
]

# ---- Pyro, NumPyro and optax ----


def drawn_through(m, width):
    dist = module("pyro.distributions")
    base = dist.Normal(0, 1).expand([width]).to_event(1)
    return dist.TransformedDistribution(base, m.CatnatTransform(4)).sample()


def zeros(*shape):
    return module("jax.numpy").zeros(shape)


def divergence(m, classes):
    dist = module("numpyro.distributions")
    return dist.kl_divergence(m.Catnat(zeros(6)), dist.Categorical(logits=zeros(classes)))


def rescaled(m, scores, gradient):
    optimizer = m.scale_by_fisher()
    return optimizer.update(gradient, optimizer.init(gradient), scores)


PYRO: list[Row] = [
    ("probabilities", lambda m: m.Catnat(probs=torch.ones(4)), TypeError, "scores_from_probs"),
    ("both", lambda m: m.Catnat(torch.zeros(3), logits=torch.zeros(4)), TypeError, "not both"),
    ("a base with one score per class", lambda m: drawn_through(m, 4), ValueError, "make the last layer 3 wide"),
]
NUMPYRO: list[Row] = [
    ("probabilities", lambda m: m.Catnat(probs=zeros(4)), TypeError, "scores_from_probs"),
    ("NaN", lambda m: m.Catnat(zeros(3) * math.nan, validate_args=True), ValueError, "invalid scores"),
    ("a divergence from other classes", lambda m: divergence(m, 3), ValueError, "7 and 3 classes"),
]
OPTAX: list[Row] = [
    ("damping as the tree", lambda m: m.scale_by_fisher(1e-3), TypeError, r"catnat\.Tree or the number"),
    ("negative damping", lambda m: m.scale_by_fisher(damping=-1.0), ValueError, "`damping`.*at least 0"),
    ("other gradients", lambda m: rescaled(m, zeros(3), zeros(2, 3)), ValueError, "that the gradients were taken of"),
    ("no parameters", lambda m: rescaled(m, None, zeros(3)), ValueError, r"`params` is None.*, state, scores\)"),
]

# ---- flax and equinox ----


def nnx_layer(m, **changes):
    rngs = module("flax").nnx.Rngs
    return m.CatnatLinear(**{"in_features": 6, "classes": 10, "rngs": rngs(0), **changes})


def split(layer):
    nnx = module("flax").nnx
    return nnx.split(layer, nnx.Param)


def equinox_file(model, ours=None):
    file = io.BytesIO()
    (ours or module("equinox")).tree_serialise_leaves(file, model)
    file.seek(0)
    return file


def plain_layer():
    return module("catnat.jax").CatnatLinear(3, 4, key=module("jax").random.key(0))


def read(m, file):
    return m.tree_deserialise_leaves(file, plain_layer())


FLAX: list[Row] = [
    ("no rngs", lambda m: m.CatnatLinear(6, 10), TypeError, r"`rngs` is missing.*rngs=nnx.Rngs\(0\)"),
    ("catnat's name for a bias", lambda m: nnx_layer(m, bias=False), TypeError, "use_bias"),
    ("a key", lambda m: nnx_layer(m, key=0), TypeError, r"rngs=nnx.Rngs\(params=key\)"),
    ("a number for rngs", lambda m: nnx_layer(m, rngs=0), TypeError, r"`rngs` is 0, .*rngs=nnx.Rngs\(0\)"),
    ("a filter without the fingerprint", lambda m: split(nnx_layer(m)), ValueError, r"(?s)fingerprint.*Use `\.\.\.`"),
]
EQUINOX: list[Row] = [
    (
        "another number of layers",
        lambda m: read(m, equinox_file([plain_layer()] * 2, m)),
        ValueError,
        "2 layers of catnat, but `like` has 1",
    ),
    (
        "a file of equinox's own",
        lambda m: read(m, equinox_file(plain_layer())),
        ValueError,
        r"Read it with eqx\.tree_deserialise_leaves",
    ),
    ("an empty file", lambda m: read(m, io.BytesIO()), ValueError, "does not begin with the names"),
    ("another file", lambda m: read(m, io.BytesIO(b"no weights at all")), ValueError, "does not begin with the names"),
]

# ---- PyTorch Geometric ----

PAIRS = torch.tensor([[0, 1, 2, 0], [1, 2, 0, 2]])


def edges(m, pairs=PAIRS, scores=None):
    return m.EdgeDistribution(torch.zeros(pairs.shape[-1]) if scores is None else scores, pairs, 3)


def divergence_of_edges(m, p, q):
    return torch.distributions.kl_divergence(edges(m, p), edges(m, q))


TWICE, BOTH_WAYS, LOOP = (torch.tensor(pairs) for pairs in ([[0, 0], [1, 1]], [[0, 1], [1, 0]], [[0, 2], [1, 2]]))
PYG: list[Row] = [
    ("a list of pairs", lambda m: m.EdgeSampler(3, [[0, 1], [1, 2]]), TypeError, "`candidates` is a list"),
    ("pairs as rows", lambda m: m.EdgeSampler(3, PAIRS.t()), ValueError, r"\(4, 2\).*candidates\.t\(\)"),
    ("float pairs", lambda m: m.EdgeSampler(3, PAIRS.float()), ValueError, "float32.*integers"),
    ("a matrix of pairs", lambda m: m.EdgeSampler(3, torch.ones(3, 3).bool()), ValueError, r"nonzero\(\)\.t\(\)"),
    ("a node too many", lambda m: m.EdgeSampler(2, PAIRS), ValueError, r"holds 2, but 2 nodes are numbered 0 \.\. 1"),
    ("a negative node", lambda m: m.EdgeSampler(3, -PAIRS), ValueError, "holds -1"),
    ("a pair twice", lambda m: m.EdgeSampler(3, TWICE), ValueError, r"\(0, 1\) more than once"),
    ("both ways", lambda m: m.EdgeSampler(3, BOTH_WAYS, undirected=True), ValueError, r"\(0, 1\).*keep one direction"),
    ("a self loop", lambda m: m.EdgeSampler(3, LOOP, undirected=True), ValueError, "joins node 2 to itself"),
    ("no nodes", lambda m: m.EdgeSampler(0), ValueError, "`num_nodes` is 0"),
    ("a float of nodes", lambda m: m.all_pairs(3.0), TypeError, "`num_nodes` is 3.0"),
    ("no graphs", lambda m: m.EdgeSampler(3)(0), ValueError, "`num_graphs` is 0"),
    ("features for the sampler", lambda m: m.EdgeSampler(3)(torch.zeros(3)), TypeError, r"conv\(graphs\.stack\(x\)"),
    ("edges of another kind", lambda m: m.EdgeSampler(3)(keep="some"), ValueError, "`keep` is 'some'"),
    ("a list of scores", lambda m: edges(m, scores=[0.0]), TypeError, "`scores` is a list"),
    ("integers as scores", lambda m: edges(m, scores=torch.zeros(4).long()), TypeError, "one score per candidate"),
    ("too few scores", lambda m: edges(m, scores=torch.zeros(3)), ValueError, "3 entries.*there are 4 candidates"),
    ("logits as probabilities", lambda m: m.edge_scores(torch.tensor([1.5])), ValueError, "scores_from_logits"),
    ("too few values", lambda m: edges(m).log_prob(torch.zeros(3)), ValueError, r"\(3,\).*\(\.\.\., 4\)"),
    ("half an edge", lambda m: edges(m).log_prob(torch.full((4,), 0.5)), ValueError, "support"),
    ("weights as draws", lambda m: edges(m).graphs(torch.tensor([0, 1, 0.5, 0])), ValueError, "0 or 1 is needed"),
    ("features of others", lambda m: edges(m).draw(2).stack(torch.zeros(4, 3, 8)), ValueError, r"\(2, 3, F\)"),
    ("features of a part", lambda m: edges(m).draw(2).unstack(torch.zeros(5, 8)), ValueError, r"graphs\.stack\(x\)"),
    ("another order", lambda m: divergence_of_edges(m, PAIRS, PAIRS.flip(1)), ValueError, "the same `candidates`"),
    ("a divergence of others", lambda m: divergence_of_edges(m, PAIRS, LOOP), ValueError, "the same `candidates`"),
    *(
        (f"edges that start at {p}", lambda m, p=p: m.EdgeSampler(3, initial_probs=p), ValueError, "strictly between")
        for p in (0.0, 1e-30, math.nan, (2.0, 3.0))
    ),
    ("three numbers", lambda m: m.EdgeSampler(3, initial_probs=(0.1, 0.2, 0.3)), ValueError, "of the 6"),
]

# ---- checkpoints ----


def converted(m, linear=None, inputs=None, *args, **options):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(100, 8, generator=generator) if inputs is None else inputs
    return m.from_softmax(nn.Linear(8, 4) if linear is None else linear, inputs, *args, **options)


CHECKPOINTS: list[Row] = [
    ("a layer on a tree", lambda m: converted(m, ct.CatnatLinear(8, 4)), TypeError, "nothing to convert"),
    ("a whole model", lambda m: converted(m, nn.Sequential(nn.Linear(8, 4))), TypeError, r"last torch\.nn\.Linear"),
    ("one output", lambda m: converted(m, nn.Linear(8, 1)), ValueError, "1 outputs"),
    ("weights alone", lambda m: m.from_softmax(nn.Linear(8, 4), None), TypeError, "run the model on some data"),
    ("inputs of the model", lambda m: converted(m, None, torch.zeros(100, 28)), ValueError, "goes into this layer"),
    ("few inputs", lambda m: converted(m, None, torch.zeros(9, 8)), ValueError, "9 rows, of which 2 are held out"),
    ("one input", lambda m: converted(m, None, torch.ones(1, 8).expand(100, 8)), ValueError, "of different data"),
    ("infinite inputs", lambda m: converted(m, None, torch.full((100, 8), torch.inf)), ValueError, "finite features"),
    ("a tree over the nodes", lambda m: converted(m, None, None, 3), ValueError, "the tree has 3 classes"),
    ("an activation as the tree", lambda m: converted(m, None, None, "sigmoid"), TypeError, r"catnat\.balanced\(4\)"),
    ("too few labels", lambda m: converted(m, labels=torch.zeros(99).long()), ValueError, r"`labels`.*\(100,\)"),
    ("float labels", lambda m: converted(m, labels=torch.zeros(100)), ValueError, "`labels` must be an integer tensor"),
    ("half a step", lambda m: converted(m, steps=1.5), ValueError, "`steps` is 1.5"),
]

ROWS = {
    "stable_baselines3": SB3,
    "sb3_contrib": CONTRIB,
    "torchrl": RL,
    "pyro": PYRO,
    "numpyro": NUMPYRO,
    "optax": OPTAX,
    "flax": FLAX,
    "equinox": EQUINOX,
    "torch_geometric": PYG,
    "checkpoints": CHECKPOINTS,
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of the libraries, on their way there
@pytest.mark.parametrize(
    ("adapter", "call", "error", "text"),
    [pytest.param(adapter, *row[1:], id=f"{adapter}: {row[0]}") for adapter, rows in ROWS.items() for row in rows],
)
def test_mistake_is_an_error_that_names_the_fix(adapter, call, error, text, monkeypatch):
    pytest.importorskip(LIBRARIES.get(adapter, adapter))
    # Importing torchrl.modules turns torch's validation off: so it is for its users, whatever other rows have imported.
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", adapter != "torchrl")
    used = module(f"catnat.integrations.{adapter}")
    with pytest.raises(error, match=text):
        call(used)


def test_without_its_library_an_adapter_says_which_extra_to_install():
    """All but that for PyTorch Geometric, which imports nothing of it."""
    libraries = ["stable_baselines3", "sb3_contrib", "torchrl", "pyro", "numpyro", "optax", "flax", "equinox"]
    code = """
import importlib, sys
sys.modules["torch_geometric"] = None
import catnat.integrations.torch_geometric
for name in sys.argv[1:]:
    sys.modules[name] = None
    try:
        importlib.import_module(f"catnat.integrations.{name}")
    except ImportError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code, *libraries], capture_output=True, text=True, check=True)
    extras = ["sb3", "sb3", *libraries[2:]]
    assert [line.partition('"catnat')[2] for line in done.stdout.splitlines()] == [f'[{name}]".' for name in extras]
