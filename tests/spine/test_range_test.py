"""The range test against a problem whose learning rates are known."""

import pytest
import torch
from networks import classes, mlp
from torch import nn

import bayesrule as br
from bayesrule.methods import BBB, MAP
from bayesrule.methods.point import PointLearner
from bayesrule.optim import Group
from bayesrule.training import range_test


def bowl(n=64):
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(0))
    return x, x @ torch.ones(4) + torch.randn(n, generator=torch.Generator().manual_seed(1))


class SGD(MAP):
    """Gradient descent without momentum."""

    def start(self, task, plan, noise):
        return PointLearner(task, plan, Group(br.optim.Recipe("sgd", {"momentum": 0.0}), self.lr))


def test_gradient_descent_breaks_where_theory_says():
    """On a quadratic of curvature h gradient descent diverges beyond 2/h: the suggestion lies below, the end above."""
    x, y = bowl()
    h = torch.linalg.eigvalsh(x.T @ x / len(x)).max().item()  # of the mean −log p(y|f) with noise 1
    test = range_test(
        nn.Linear(4, 1, bias=False), (x, y), SGD(), br.likelihoods.Gaussian(1.0), "flat", batch_size=8, high=100.0
    )
    assert test.suggestion < 2 / h
    assert test.low <= test.suggestion <= test.high
    assert 0.2 * 2 / h < test.lr[-1] < 10 * 2 / h  # small batches have other curvatures, some of them larger


@pytest.mark.parametrize("method", ["map", "mle", "bbb", BBB(optimizer="sgd")])
def test_the_suggestion_learns(method):
    test = range_test(mlp(), classes(400), method)
    assert 1e-5 < test.suggestion < 10
    assert min(test.loss) < test.loss[0]
    assert test == range_test(mlp(), classes(400), method)


def test_a_picture(tmp_path):
    range_test(mlp(), classes(400), "map").save(tmp_path / "range.png")
    assert (tmp_path / "range.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"low": 0.0}, "0 < low < high, not 0.0"),
        ({"low": 2.0, "high": 1.0}, "not 2.0 and 1.0"),
        ({"steps": 3}, "steps must be at least 20, not 3"),
        ({"method": "swag"}, "must go by gradients.*not swag"),
        ({"method": BBB(optimizer="sgd"), "low": 1e4, "high": 1e9}, "broke after .* take a smaller low"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        range_test(mlp(), classes(400), **settings)
