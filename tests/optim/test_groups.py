"""A group: its optimiser, its rate, its schedule."""

import pytest
import torch

from bayesrule.naming import from_spec, to_spec
from bayesrule.optim import AVAILABLE, SCHEDULES, Constant, Group, Plateau, Recipe


@pytest.mark.parametrize("name", AVAILABLE)
def test_every_optimiser_has_a_rate_to_start_from(name):
    group = Group(name, schedule="constant")
    optimizer = group.build([torch.zeros(3, requires_grad=True)])
    assert optimizer.param_groups[0]["lr"] == group.full_rate == group.rate(0.3)


def test_the_rate_follows_the_schedule():
    group = Group(Recipe("sgd"), 0.5, Plateau("nll", patience=0))
    assert group.rate(0.1) == 0.5
    assert group.rate(0.9, [{"nll": 1.0}, {"nll": 1.0}]) == pytest.approx(0.05)


def test_a_group_survives_a_file():
    group = Group(Recipe("sgd", {"momentum": 0.5}), 0.1, Constant())
    options = SCHEDULES | {"group": Group, "recipe": Recipe}
    assert from_spec("group", to_spec(group), options) == group


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": 0.0}, "lr must be positive and finite, not 0.0"),
        ({"optimizer": "sdg"}, "unknown optimizer 'sdg': did you mean 'sgd'"),
        ({"schedule": "cosinus"}, "unknown schedule 'cosinus': did you mean 'cosine'"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        Group(**settings)
