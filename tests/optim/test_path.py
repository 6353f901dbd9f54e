"""SWAG in a loop of one's own: the moments of the weights that were collected."""

import copy

import pytest
import torch
from torch import nn

from bayesrule import modules
from bayesrule.optim import Path


def collected(model, count=6, rank=4):
    """A path of drawn weights, and those weights."""
    generator, path, seen = torch.Generator().manual_seed(0), Path(model.named_parameters(), rank), []
    for _ in range(count):
        with torch.no_grad():
            for p in modules.parameters(model).values():
                p.normal_(generator=generator)
        path.collect()
        seen.append(modules.flatten(modules.parameters(model)).detach().clone())
    return path, torch.stack(seen)


def test_mean_and_variances_are_those_of_the_weights():
    model = nn.Linear(3, 2)
    path, seen = collected(model)
    posterior = path.to_posterior(model, "categorical")
    torch.testing.assert_close(modules.flatten(posterior.mean), seen.mean(0))
    running = torch.stack([seen[: k + 1].mean(0) for k in range(len(seen))])
    last = (seen - running)[-4:]
    wanted = 0.5 * seen.var(0, correction=0) + 0.5 * last.square().sum(0) / 3
    torch.testing.assert_close(posterior.precision.variances, wanted)
    assert torch.equal(modules.flatten(modules.parameters(model)), seen[-1])  # the user's weights stay


def test_what_is_frozen_is_not_collected_and_shared():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    path, seen = collected(model)
    posterior = path.to_posterior(model, "categorical")
    assert list(posterior.mean) == ["1.weight", "1.bias"]
    assert seen.shape[1] == 10
    assert posterior.context.model[0].weight is model[0].weight


@pytest.mark.parametrize("at", [2, 5])  # before there are as many deviations as are kept, and after
def test_a_path_goes_on_from_its_state(at):
    model = nn.Linear(3, 2)
    whole, seen = collected(model)
    path = Path(model.named_parameters(), rank=4)
    for step, weights in enumerate(seen):
        if step == at:
            state = copy.deepcopy(path.state_dict())
            path = Path(model.named_parameters(), rank=4)
            path.load_state_dict(state)
        with torch.no_grad():
            nn.utils.vector_to_parameters(weights, model.parameters())
        path.collect()
    found, wanted = (each.to_posterior(model, "categorical").precision for each in (path, whole))
    assert torch.equal(found.values, wanted.values)
    assert torch.equal(found.factor, wanted.factor)


def test_what_cannot_be_is_said():
    model = nn.Linear(3, 2)
    with pytest.raises(ValueError, match="rank must be a whole number of at least 2, not 1"):
        Path(model.named_parameters(), rank=1)
    with pytest.raises(ValueError, match="params must have a parameter that is trained"):
        Path(nn.Linear(3, 2).requires_grad_(False).named_parameters())
    path, _ = collected(model, count=1)
    with pytest.raises(ValueError, match="needs 2 weights or more, but 1 were collected"):
        path.to_posterior(model, "categorical")
    with pytest.raises(ValueError, match="the state is of a path of rank 4, not 5"):
        Path(model.named_parameters(), rank=5).load_state_dict(path.state_dict())
    path.collect()
    with pytest.raises(ValueError, match=r"'0\.bias' is in one of the two only: give Path model\.named_parameters"):
        path.to_posterior(nn.Sequential(nn.Linear(3, 2)), "categorical")
    normed = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    path, _ = collected(normed)
    with pytest.raises(ValueError, match="model must have no BatchNorm"):
        path.to_posterior(normed, "categorical")
