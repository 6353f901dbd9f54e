"""How near predictions are to those of a reference."""

import math

import pytest
import torch

import bayesrule as br
from bayesrule.predictions import Binary, Classes, Reals


class Known:
    """What predicts the same whatever it is asked."""

    def __init__(self, prediction):
        self.prediction = prediction

    def predict(self, x, samples, seed):
        return self.prediction


def agreement(ours, theirs, **settings):
    return br.evaluate.agreement(Known(ours), Known(theirs), None, **settings)


def classes(*rows):
    return Classes(torch.tensor(rows, dtype=torch.float64).log()[None])


def test_classes_by_hand():
    ours = classes([0.7, 0.2, 0.1], [0.1, 0.8, 0.1])
    theirs = classes([0.6, 0.3, 0.1], [0.6, 0.3, 0.1])
    found = agreement(ours, theirs)
    assert found["agreement"] == 0.5
    assert found["total_variation"] == pytest.approx((0.1 + 0.5) / 2)
    assert agreement(ours, ours, bootstrap=0)["total_variation"] == 0
    low, high = found.interval("total_variation")
    assert low == pytest.approx(0.1)
    assert high == pytest.approx(0.5)


def test_yes_and_no_are_two_classes():
    ours, theirs = (Binary(torch.tensor([[logit, 0.5]])) for logit in (0.0, 2.0))
    expected = (1 / (1 + math.exp(-2.0)) - 0.5) / 2
    assert agreement(ours, theirs, bootstrap=0)["total_variation"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("shift", "scale"), [(0.0, 1.0), (2.0, 1.0), (0.0, 3.0), (1.5, 0.4)])
def test_the_wasserstein_distance_of_two_normals(shift, scale):
    """W₂² = (μ − μ′)² + (σ − σ′)²."""
    ours = Reals(torch.zeros(1, 5, dtype=torch.float64), torch.ones((), dtype=torch.float64))
    theirs = Reals(torch.full((1, 5), shift, dtype=torch.float64), torch.tensor(scale, dtype=torch.float64))
    found = agreement(ours, theirs, bootstrap=0)["wasserstein"]
    assert found == pytest.approx(math.hypot(shift, 1 - scale), rel=0.01, abs=1e-9)  # tails beyond 1/400 are cut


def test_a_particle_posterior_from_a_file_is_a_reference(tmp_path):
    x, y = br.data.moons(seed=0)
    model = br.models.mlp(2, 2, (8,))
    reference = br.fit(model, (x, y), "ensemble", epochs=5)
    reference.save(tmp_path / "reference.safetensors")
    loaded = br.load(tmp_path / "reference.safetensors", model)
    same = br.evaluate.agreement(reference, loaded, x, bootstrap=0)
    assert (same["agreement"], same["total_variation"]) == (1, 0)
    other = br.evaluate.agreement(br.fit(model, (x, y), "map", epochs=1), loaded, x)
    assert other["total_variation"] > 0


def test_predictions_of_another_kind_are_refused():
    reals = Reals(torch.zeros(1, 2), torch.ones(()))
    with pytest.raises(ValueError, match="reference must predict the same targets as the posterior, Reals, not Class"):
        agreement(reals, classes([0.5, 0.5], [0.5, 0.5]))
    with pytest.raises(ValueError, match="reference must predict"):
        agreement(reals, Reals(torch.zeros(1, 3), torch.ones(())))
    with pytest.raises(ValueError, match="reference must know 2 classes, as the posterior does, not 3"):
        agreement(classes([0.5, 0.5]), classes([0.5, 0.3, 0.2]))
