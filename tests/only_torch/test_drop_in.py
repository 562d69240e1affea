"""One line changed: ``CatnatLinear`` where ``nn.Linear`` stood, in three models, and nothing else.

Whatever takes logits (losses, metrics, draws) says of the model's output what ``.loss`` and ``.distribution`` say.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from only_torch import rows
from torch import Tensor, nn
from torch.distributions import Categorical, kl_divergence
from torch.nn import functional as F

import catnat
import catnat.torch as ct

LastLayer = Callable[[int, int], nn.Module]


def convnet(last: LastLayer) -> nn.Sequential:
    """A small network for MNIST."""
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.Flatten()),
        last(16 * 6 * 6, 10),
    )


class Mean(nn.Module):
    def forward(self, tokens: Tensor) -> Tensor:
        return tokens.mean(1)


def transformer(last: LastLayer) -> nn.Sequential:
    """A classification head on a transformer's encoder."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(nn.Embedding(50, 16), encoder, Mean(), last(16, 100))


def actor(last: LastLayer) -> nn.Sequential:
    """The policy network of Stable-Baselines3."""
    return nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), last(64, 18))


def images(count: int) -> tuple[Tensor, Tensor]:
    """Noise with a bright column for every class."""
    generator = rows.seeded(0)
    labels = torch.randint(10, (count,), generator=generator)
    noise = torch.rand(count, 1, 28, 28, generator=generator).double()
    return noise + (labels.view(-1, 1, 1, 1) == torch.arange(28) // 3), labels


def tokens(count: int) -> tuple[Tensor, Tensor]:
    generator = rows.seeded(1)
    return torch.randint(50, (count, 12), generator=generator), torch.randint(100, (count,), generator=generator)


def observations(count: int) -> tuple[Tensor, Tensor]:
    generator = rows.seeded(2)
    return torch.randn(count, 8, generator=generator).double(), torch.randint(18, (count,), generator=generator)


MODELS = {"convnet": (convnet, images), "transformer": (transformer, tokens), "actor": (actor, observations)}
LAYERS: dict[str, LastLayer] = {
    "sigmoid": ct.CatnatLinear,
    "natural": lambda features, classes: ct.CatnatLinear(features, classes, "natural"),
    "huffman": lambda features, classes: ct.CatnatLinear(features, catnat.huffman(np.arange(1.0, classes + 1))),
}


@pytest.fixture(params=MODELS)
def name(request):
    return request.param


@pytest.fixture(params=LAYERS)
def parts(request, name):
    """A model, its last layer, what that takes, and the targets."""
    build, data = MODELS[name]
    torch.manual_seed(0)
    model = build(LAYERS[request.param]).double()
    x, y = data(64)
    return model, x, y, model[:-1](x).detach()


def close(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"reduction": "sum"},
        {"reduction": "none"},
        {"label_smoothing": 0.1},
        {"ignore_index": 3},
        {"weighted": True},
    ],
    ids=str,
)
def test_losses(parts, options):
    """Values, and gradients of every parameter."""
    model, x, y, _ = parts
    given = {key: value for key, value in options.items() if key != "weighted"}
    if "weighted" in options:
        given["weight"] = torch.linspace(0.5, 2, model[-1].out_features, dtype=torch.float64)
    losses = [F.cross_entropy(model(x), y, **given), model[-1].loss(model[:-1](x), y, **given)]
    close(*losses)
    gradients = [torch.autograd.grad(loss.sum(), list(model.parameters())) for loss in losses]
    for pair in zip(*gradients, strict=True):
        close(*pair)


def test_other_losses(parts):
    """Distillation, and the losses of log-probabilities."""
    model, x, y, hidden = parts
    output, dist = model(x), model[-1].distribution(hidden)
    close(F.nll_loss(output, y), model[-1].loss(hidden, y))
    close(torch.log_softmax(output, -1), output)
    probs = torch.softmax(torch.randn(output.shape, dtype=torch.float64, generator=rows.seeded(3)), -1)
    close(F.cross_entropy(output, probs), model[-1].loss(hidden, probs))
    close(F.kl_div(output, probs, reduction="none").sum(-1), kl_divergence(Categorical(probs=probs), dist))


def test_metrics(parts):
    model, x, _, hidden = parts
    output, dist = model(x), model[-1].distribution(hidden)
    assert torch.equal(output.argmax(-1), dist.mode)
    assert torch.equal(output.topk(5).indices, dist.probs.topk(5).indices)
    close(output.softmax(-1), dist.probs)


def test_distributions_of_torch(parts):
    """As a policy reads them: log-probabilities, entropies, draws with the same seed."""
    model, x, _, hidden = parts
    theirs, ours = Categorical(logits=model(x)), model[-1].distribution(hidden)
    action = theirs.sample()
    for of in (lambda dist: dist.log_prob(action), lambda dist: dist.entropy(), lambda dist: dist.probs):
        close(of(theirs), of(ours))
    close(kl_divergence(theirs, ours), torch.zeros(64, dtype=torch.float64))
    drawn = []
    for dist in (theirs, Categorical(logits=ours.logits)):
        torch.manual_seed(5)
        drawn.append(dist.sample((100,)))
    assert torch.equal(*drawn)
    rows.chi_square(ours.sample((20_000,), generator=rows.seeded(4))[:, 0], theirs.probs[0].detach())


@pytest.mark.parametrize("hard", [False, True])
def test_gumbel_softmax(parts, hard):
    model, x, _, hidden = parts
    ours, drawn = model[-1].distribution(hidden), []
    for logits in (model(x), ours.logits):
        torch.manual_seed(6)
        drawn.append(F.gumbel_softmax(logits, 0.7, hard=hard))
    close(*drawn)


def test_it_learns(name):
    """With the usual loop, as ``nn.Linear`` does."""
    build, data = MODELS[name]
    x, y = data(64)
    left = []
    for last in (nn.Linear, ct.CatnatLinear):
        torch.manual_seed(0)
        model = build(last).double()
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        losses = []
        for _ in range(60):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        left.append(losses[-1] / losses[0])
    assert left[1] < max(0.5, 1.2 * left[0])
