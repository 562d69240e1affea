"""An order that is found while a policy acts."""

import copy

import pytest
import torch

import catnat
from catnat.torch import ActionOrder, CatnatHead, CatnatLinear

ACTIONS, FEATURES = 24, 6


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


TRUE = torch.nn.functional.normalize(torch.randn(ACTIONS, FEATURES, generator=generator(5)))


def play(layer, order, steps, *, optimizer, seed=1, batch=64):
    """REINFORCE in a world where an action's reward is the product of the observation and the action's own vector."""
    changed, random = [], generator(seed)
    for _ in range(steps):
        x = torch.randn(batch, FEATURES, generator=random)
        policy = layer.distribution(x)
        action = torch.multinomial(policy.probs.detach(), 1, generator=random).squeeze(1)
        reward = (x * TRUE[action]).sum(1)
        advantage = reward - reward.mean()
        optimizer.zero_grad()
        (-advantage * policy.log_prob(action)).mean().backward()
        optimizer.step()
        changed.append(order.update(x, action, advantage))
    return changed


def policy(kind=CatnatLinear, **options):
    torch.manual_seed(3)
    layer = kind(FEATURES, ACTIONS, **options)
    return layer, torch.optim.Adam(layer.parameters(), lr=0.01)


@pytest.mark.parametrize("kind", [CatnatLinear, CatnatHead])
def test_the_layer_takes_the_tree_of_the_models(kind):
    layer, optimizer = policy(kind)
    order = ActionOrder(layer, optimizer=optimizer, at=(20,))
    changed = play(layer, order, 20, optimizer=optimizer)
    assert changed == [False] * 19 + [True]
    assert layer.tree == order.models.tree()
    assert layer.tree != catnat.balanced(ACTIONS)


def test_an_order_keeps_what_the_policy_does():
    layer, optimizer = policy()
    x = torch.randn(200, FEATURES, generator=generator(9))
    order = ActionOrder(layer, optimizer=optimizer, at=(10,))
    play(layer, order, 9, optimizer=optimizer)
    before = layer(x).detach()
    action = torch.zeros(64, dtype=torch.int64)
    assert order.update(torch.randn(64, FEATURES, generator=generator(4)), action, torch.ones(64))
    after = layer(x).detach()
    assert float((before.exp() * (before - after)).sum(1).mean()) < 0.03


def test_an_order_that_changes_the_policy_too_much_leaves_everything_as_it_was():
    layer, optimizer = policy()
    order = ActionOrder(layer, optimizer=optimizer, at=(30,), most_change=1e-9)
    play(layer, order, 29, optimizer=optimizer)
    before, state = copy.deepcopy(layer.state_dict()), copy.deepcopy(optimizer.state_dict()["state"])
    x = torch.randn(64, FEATURES, generator=generator(4))
    assert not order.update(x, torch.zeros(64, dtype=torch.int64), torch.ones(64))
    for name, value in layer.state_dict().items():
        assert torch.equal(value, before[name]), name
    for key, entries in optimizer.state_dict()["state"].items():
        assert all(torch.equal(value, state[key][name]) for name, value in entries.items())


def test_after_the_last_order_nothing_is_collected_any_more():
    layer, optimizer = policy()
    order = ActionOrder(layer, optimizer=optimizer, at=(2,))
    play(layer, order, 2, optimizer=optimizer)
    sums = order.models.sums.copy()
    assert not any(play(layer, order, 3, optimizer=optimizer))
    assert (order.models.sums == sums).all()
    assert not order.state_dict()["observations"]


def test_an_interrupted_run_goes_on_with_the_same_order(tmp_path):
    layer, optimizer = policy()
    order = ActionOrder(layer, optimizer=optimizer, at=(5, 15))
    play(layer, order, 10, optimizer=optimizer)
    saved = copy.deepcopy((layer.state_dict(), optimizer.state_dict(), order.state_dict()))
    play(layer, order, 10, optimizer=optimizer, seed=2)

    torch.save(saved, tmp_path / "run.pt")
    saved = torch.load(tmp_path / "run.pt")  # only tensors and plain values
    resumed = CatnatLinear.from_state_dict(saved[0])
    again = torch.optim.Adam(resumed.parameters(), lr=0.01)
    again.load_state_dict(saved[1])
    order_again = ActionOrder(resumed, optimizer=again, at=(5, 15))
    order_again.load_state_dict(saved[2])
    play(resumed, order_again, 10, optimizer=again, seed=2)
    assert resumed.tree == layer.tree
    assert torch.equal(resumed.weight, layer.weight)


def test_wide_observations_are_projected_and_encoders_are_used():
    torch.manual_seed(0)
    body = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(100, FEATURES))
    layer = CatnatLinear(FEATURES, ACTIONS)
    order = ActionOrder(layer, body, at=(1,), num_features=7)
    x = torch.randn(64, 4, 25, generator=generator())
    assert order.update(x, layer.distribution(body(x)).sample(), torch.randn(64, generator=generator(1)))
    assert order.models.sums.shape == (ACTIONS, 7)


def test_wrong_arguments_raise_with_the_remedy():
    layer, _ = policy()
    with pytest.raises(TypeError, match="the last layer of the policy, not the policy"):
        ActionOrder(torch.nn.Linear(2, 3))
    with pytest.raises(ValueError, match="at least 10"):
        ActionOrder(layer, remembered=3)
    with pytest.raises(ValueError, match=r"the actions are 0 \.\. 23"):
        ActionOrder(layer).update(torch.zeros(1, FEATURES), torch.tensor([ACTIONS]), torch.zeros(1))
    with pytest.raises(ValueError, match="pass the network before the layer as `encoder`"):
        ActionOrder(layer).update(torch.zeros(1, FEATURES + 1), torch.tensor([0]), torch.zeros(1))
    with pytest.raises(ValueError, match="only a bias can compensate"):
        ActionOrder(CatnatLinear(2, catnat.huffman([1, 2, 3]), bias=False))
