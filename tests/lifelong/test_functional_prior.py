"""A prior over functions: its density, and where it is a prior over weights."""

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.priors import Flat, Functional, Gaussian


def linear(inputs=3):
    torch.manual_seed(0)
    return nn.Linear(inputs, 1, bias=False).double()


def test_of_a_linear_model_at_as_many_points_as_weights_it_is_the_density_of_the_weights():
    """f = Xw, K = XΣXᵀ with X square: dᵀK⁻¹d = (w − w₀)ᵀΣ⁻¹(w − w₀), exactly."""
    model = linear()
    x = torch.randn(3, 3, dtype=torch.float64)
    variances = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    precision = torch.linalg.inv((x * variances) @ x.T)
    start = model.weight.detach().clone()
    prior = Functional("gaussian", [x], [x @ start.T], [precision[None]], Flat()).resolve(model)
    for seed in range(3):
        w = torch.randn(1, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        away = (w - start)[0]
        torch.testing.assert_close(prior.log_prob({"weight": w}), -0.5 * (away**2 / variances).sum())


def test_its_gradient_is_that_of_differences_of_probabilities():
    torch.manual_seed(0)
    model = nn.Linear(2, 3).double()
    x = torch.randn(4, 2, dtype=torch.float64)
    means = torch.rand(4, 3, dtype=torch.float64).softmax(1)
    root = torch.randn(3, 4, 4, dtype=torch.float64)
    prior = Functional("categorical", [x], [means], [root @ root.mT], Gaussian(1.0)).resolve(model)
    weights = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    assert torch.autograd.gradcheck(
        lambda w, b: prior.log_prob({"weight": w, "bias": b}), (weights["weight"], weights["bias"])
    )


def test_sets_add_up():
    model = linear(1)
    x, zero, one = torch.ones(1, 1).double(), torch.zeros(1, 1).double(), torch.ones(1, 1, 1).double()
    both = Functional("gaussian", [x, 2 * x], [zero, zero], [one, 3 * one], Flat()).resolve(model)
    assert both.log_prob({"weight": torch.ones(1, 1).double()}) == -0.5 * (1 + 3 * 4)
    assert both.tempered(2.0).log_prob({"weight": torch.ones(1, 1).double()}) == -0.25 * (1 + 3 * 4)


def test_a_fit_under_it_is_saved_and_resumed_to_the_bit(tmp_path):
    x, y = br.data.moons(n=64, seed=0)
    model = br.models.mlp(2, 2, hidden=(4,))
    prior = Functional(
        "categorical", [x[:8]], [torch.full((8, 2), 0.5)], [torch.eye(8).expand(2, 8, 8).clone()], Flat()
    )

    def cut(progress):
        if progress.step == 5:
            raise KeyboardInterrupt

    from bayesrule.training.folder import Folder

    whole = br.fit(model, (x, y), "map", prior=prior, epochs=4, seed=3, likelihood="categorical")
    with pytest.raises(KeyboardInterrupt):
        br.fit(
            model,
            (x, y),
            "map",
            prior=prior,
            epochs=4,
            seed=3,
            likelihood="categorical",
            out=Folder(tmp_path, interval=0),
            callbacks=[cut],
        )
    resumed = br.resume(tmp_path, model, (x, y))
    assert torch.equal(resumed.predict(x).probs, whole.predict(x).probs)


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match="points, means and precisions must be of as many sets, got 1, 0 and 0"):
        Functional("gaussian", [torch.ones(1, 1)], [], [], Flat())
    with pytest.raises(ValueError, match=r"2 points must have means \[2, C\]"):
        Functional("gaussian", [torch.ones(2, 1)], [torch.ones(2, 3)], [torch.eye(2)[None]], Flat())
