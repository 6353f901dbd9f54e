"""A posterior is a prior: sequential Bayes through ``fit(prior=posterior)``, for every pair of methods."""

import dataclasses

import pytest
import torch
from covering import covering
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import classes, mlp
from test_methods import METHODS
from torch import nn

import bayesrule as br
from bayesrule.methods import IVON, MAP, SWAG, VOGN, Ensemble, Laplace
from bayesrule.posteriors import Gaussian

DOUBLE = torch.float64
GIVE = {name: method for name, (method, kind) in METHODS.items() if issubclass(kind, Gaussian)}
TAKE = {name: method for name, (method, _) in METHODS.items() if name != "mle"}
"""All but maximum likelihood, which has no prior; an ensemble takes it for each member, from fresh starts."""
EACH_STRUCTURE = ("swag", "laplace", "laplace, kronecker", "laplace, few directions", "ivon")
"""One method for each structure of a precision: priors of every method with every change, the others of some."""


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


@pytest.fixture(scope="module")
def pasts():
    """A posterior of every method that gives a Gaussian, on a few examples."""
    return {name: br.fit(mlp(), classes(40), method, epochs=2, batch_size=20) for name, method in GIVE.items()}


@pytest.mark.parametrize(("give", "take"), covering(GIVE, TAKE, whole=EACH_STRUCTURE))
def test_every_gaussian_is_a_prior_for_every_method(pasts, give, take, tmp_path):
    past = pasts[give]
    x, y = classes(24, seed=1)
    posterior = br.fit(mlp(seed=5), (x, y), TAKE[take], prior=past, epochs=1, batch_size=12)
    assert (posterior.predict(x).probs.sum(1) - 1).abs().max() < 1e-5
    posterior.save(tmp_path / "p")
    again = br.load(tmp_path / "p", mlp(seed=9))
    assert torch.equal(again.predict(x).probs, posterior.predict(x).probs)


def regression(outputs, n=40):
    x = normal(0, n, 3)
    return x, x @ normal(1, 3, outputs) + 0.4 * normal(2, n, outputs)


def exact(x, y, scales=(0.7, 1.5), noise=0.4):
    """Mean and precision of weight and bias, [4, outputs] and [4, 4]."""
    design = torch.cat([x, torch.ones(len(x), 1, dtype=DOUBLE)], 1)
    prior = torch.tensor([scales[0]] * 3 + [scales[1]], dtype=DOUBLE) ** -2
    precision = design.T @ design / noise**2 + prior.diag()
    return torch.linalg.solve(precision, design.T @ y / noise**2), precision


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("structure", ["dense", "kronecker"])
@pytest.mark.parametrize("pieces", [1, 2, 5, 20])
@settings(max_examples=max(2, settings().max_examples // 20))
@given(seed=st.integers(0, 1000))
def test_one_piece_after_another_is_all_at_once(structure, outputs, pieces, seed):
    """Linear-Gaussian data in pieces of any size and order: the joint posterior to 1e-8."""
    x, y = regression(outputs)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    model = nn.Linear(3, outputs).double()
    method = Laplace("all", structure, tune="nothing", newton=1)
    start = {"prior": br.priors.Gaussian({"weight": 0.7, "bias": 1.5}), "likelihood": br.likelihoods.Gaussian(0.4)}
    posterior = None
    for index in order.tensor_split(pieces):
        about = start if posterior is None else {"prior": posterior}
        posterior = br.fit(model, (x[index], y[index].squeeze(1)), method, epochs=0, **about)
    mean, precision = exact(x, y)
    torch.testing.assert_close(posterior.mean["weight"], mean[:3].T, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(posterior.mean["bias"], mean[3], rtol=1e-8, atol=1e-8)
    index = torch.arange(4 * outputs).view(outputs, 4)
    place = torch.cat([index[:, :3].flatten(), index[:, 3]])
    wanted = torch.block_diag(*[precision] * outputs)[place][:, place]
    torch.testing.assert_close(posterior.precision.dense(), wanted, rtol=1e-8, atol=1e-8)


def test_what_is_taken_over_from_the_past():
    """Means, units and noise of the first fit, whatever the second data are like; nothing is held out or tuned."""
    x = 100 + 20 * normal(0, 300, 2)
    y = 1000 + 3 * x[:, 0] + 5 * normal(1, 300)
    model = br.models.mlp(2, 1, hidden=(8,)).double()
    past = br.fit(model, br.data.standardize((x[:200], y[:200])), Laplace("all"), epochs=20)
    after = br.fit(model, (x[200:] + 50, y[200:] + 150), Laplace("all"), prior=past, epochs=5)
    assert torch.equal(after.likelihood.noise, past.likelihood.noise)
    assert after.context.scaling.state()["inputs"]["loc"] is past.context.scaling.state()["inputs"]["loc"]
    assert after.info["n"] == 100
    assert after.info["prior"] == {"name": "structured", "fields": {}}
    still = br.fit(model, (x[200:], y[200:]), MAP(lr=1e-12), prior=past, epochs=1)
    assert all(torch.allclose(still.states[0][k], m, atol=1e-9) for k, m in past.mean.items())
    assert br.fit(model, (x[200:], y[200:]), Laplace("all"), prior=past, epochs=1).info["n"] == 100


def test_a_past_across_layers_has_no_factor_for_each():
    past = br.fit(mlp(), classes(60), Laplace("all", tune="nothing"), epochs=1)
    with pytest.raises(ValueError, match="which must share one factor: take precision='one'"):
        br.fit(mlp(), classes(60), Laplace("all", tune="evidence", precision="layer"), prior=past, epochs=1)


def test_the_evidence_rescales_the_past_only_if_asked():
    x, y = classes(60)
    past = br.fit(mlp(), (x, y), Laplace("all", tune="nothing"), epochs=5)
    kept = br.fit(mlp(), (x, y), Laplace("all"), prior=past, epochs=2)
    asked = br.fit(mlp(), (x, y), Laplace("all", tune="evidence"), prior=past, epochs=2)
    neutral = br.fit(mlp(), (x, y), Laplace("all", tune="nothing"), prior=past, epochs=2)
    assert torch.equal(kept.precision.matrix, neutral.precision.matrix)
    assert not torch.allclose(asked.precision.matrix, neutral.precision.matrix, rtol=1e-2)
    assert asked.info["diagnostics"]["log_evidence"] > neutral.info["diagnostics"]["log_evidence"]


def test_a_subset_is_the_prior_of_the_subset_and_the_old_prior_that_of_the_rest(tmp_path):
    past = br.fit(mlp(), classes(60), Laplace("last-layer", tune="nothing"), prior=br.priors.Gaussian(0.5), epochs=5)
    past.save(tmp_path / "past")
    prior = br.load(tmp_path / "past", mlp(seed=3)).as_prior().resolve(mlp())
    model = past.at_mean()
    means, precision = prior.gaussian(dict(model.named_parameters()))
    assert torch.equal(means["0.weight"], torch.zeros(8, 4, dtype=DOUBLE))
    assert torch.equal(means["2.weight"], past.mean["2.weight"].double())
    rest = model[0].weight.numel() + model[0].bias.numel()
    assert torch.equal(precision.diagonal[:rest], torch.full((rest,), 4.0, dtype=DOUBLE))
    assert torch.equal(precision.part(rest, precision.size).dense(), past.precision.dense())
    after = br.fit(mlp(), classes(60, seed=1), Laplace("last-layer", newton=1), prior=past, epochs=2)
    assert (after.precision.diagonal >= past.precision.diagonal).all()


@pytest.mark.parametrize("method", [MAP(), SWAG(rank=3, snapshots=4), IVON(), VOGN(), Laplace("all", "kronecker")])
def test_a_fit_from_the_past_resumes_to_the_bit(method, tmp_path):
    """The directory holds all that the past has taught."""
    x, y = classes(40)
    past = br.fit(mlp(), br.data.standardize((5 * x + 3, y)), Laplace("all", "kronecker"), epochs=3)
    run = {"prior": past, "epochs": 3, "batch_size": 20}

    def kill(progress):
        if progress.step == 4:
            raise KeyboardInterrupt

    whole = br.fit(mlp(), (5 * x + 3, y), method, **run)
    folder = br.training.Folder(tmp_path / "run", interval=0.0)
    with pytest.raises(KeyboardInterrupt):
        br.fit(mlp(), (5 * x + 3, y), method, callbacks=[kill], out=folder, **run)
    again = br.resume(tmp_path / "run", mlp(), (5 * x + 3, y))
    assert torch.equal(again.predict(5 * x + 3).probs, whole.predict(5 * x + 3).probs)
    done = br.resume(tmp_path / "run", mlp(), (5 * x + 3, y))
    assert torch.equal(done.predict(5 * x + 3).probs, whole.predict(5 * x + 3).probs)


@pytest.mark.parametrize(
    ("past", "model", "options", "match"),
    [
        (MAP(), mlp(), {}, "prior must be a Gaussian posterior.*not one of kind 'particles'"),
        (Ensemble(2), mlp(), {}, "not one of kind 'mixture'"),
        (IVON(), mlp(4), {}, r"does not fit the model: '2.bias' is \[3\] float32 in the posterior and \[4\]"),
        (IVON(), mlp(), {"likelihood": "categorical"}, "likelihood comes with the posterior"),
        (IVON(), mlp(), {"method": "mle"}, "mle has no prior.*take method 'map'"),
    ],
)
def test_what_a_past_refuses(past, model, options, match):
    posterior = br.fit(mlp(), classes(40), past, epochs=1, batch_size=20)
    with pytest.raises(ValueError, match=match):
        br.fit(model, classes(40), **{"method": "map", "prior": posterior, "epochs": 1} | options)


def test_data_that_do_not_fit_the_past_are_refused():
    past = br.fit(mlp(), classes(40), IVON(), epochs=1)
    with pytest.raises(ValueError, match="cannot take the inputs"):
        br.fit(mlp(), (torch.zeros(9, 7), torch.zeros(9, dtype=torch.long)), "map", prior=past, epochs=1)
    with pytest.raises(TypeError, match="labels must be integers"):
        br.fit(mlp(), (torch.zeros(9, 4), torch.zeros(9)), "map", prior=past, epochs=1)


def test_frozen_weights_must_be_those_of_the_past():
    model = nn.Sequential(nn.Linear(4, 8).requires_grad_(False), nn.Tanh(), nn.Linear(8, 3))
    past = br.fit(model, classes(40), IVON(), epochs=1)
    br.fit(model, classes(40), IVON(), prior=past, epochs=1)
    other = nn.Sequential(nn.Linear(4, 8).requires_grad_(False), nn.Tanh(), nn.Linear(8, 3))
    with pytest.raises(ValueError, match="frozen parameters are not those of the posterior"):
        br.fit(other, classes(40), IVON(), prior=past, epochs=1)


def test_tuning_for_predictions_is_no_part_of_the_next_prior(tmp_path):
    """Held-out data make the default Laplace of a classifier surer than the data have taught; the next fit learns."""
    x, y = br.data.moons(n=400, seed=0)
    torch.manual_seed(0)
    model = br.models.mlp(2, 2, hidden=(16,))
    tuned = br.fit(
        model,
        (x[:200], y[:200]),
        Laplace("all", "kronecker"),
        epochs=40,
        prior=br.priors.Gaussian(1.0),
        val=(x[200:], y[200:]),
    )
    assert tuned.spread < 1
    tuned.save(tmp_path / "p")
    precision = br.load(tmp_path / "p", model).as_prior().precision
    assert precision.diagonal.min() < 1.5  # N(0, 1) and the curvature of the data
    after = br.fit(model, (x[200:], y[200:]), Laplace("all", "kronecker"), prior=tuned, epochs=40)
    assert after.predict(x).log_prob(y).mean() > tuned.predict(x).log_prob(y).mean() + 0.01


@pytest.mark.parametrize("method", [IVON(), VOGN()], ids=lambda m: m.name)
def test_natural_gradients_hold_still_under_a_stiff_prior(method):
    """Of many examples, for a few: lr·δ is far above one."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1000, 2, generator=generator)
    y = (x[:, 0] * x[:, 1] > 0).long()
    model = br.models.mlp(2, 2, hidden=(16,))
    past = br.fit(model, (x[:980], y[:980]), IVON(), epochs=5)
    after = br.fit(model, (x[980:], y[980:]), method, prior=past, epochs=20)
    moved = max(float((after.mean[k] - m).abs().max()) for k, m in past.mean.items())
    assert moved < 0.5


@pytest.mark.parametrize("tune", ["held-out", "evidence"])
@pytest.mark.parametrize("structure", ["kronecker", "dense"])
def test_tuning_a_past_when_asked(structure, tune):
    x, y = classes(120)
    past = br.fit(mlp(), (x, y), Laplace("all", structure, tune="nothing"), epochs=2)
    after = br.fit(mlp(), (x, y), Laplace("all", structure, tune=tune), prior=past, epochs=2)
    assert after.info["diagnostics"]["prior_scale"]


def test_tuning_while_training_leaves_the_past_alone_unasked():
    x, y = classes(60)
    past = br.fit(mlp(), (x, y), Laplace("all", "diagonal", tune="nothing"), epochs=2)
    after = br.fit(mlp(), (x, y), Laplace("all", "diagonal", tune_every=1), prior=past, epochs=3)
    assert (after.precision.diagonal >= past.precision.diagonal - 1e-9).all()


def test_the_model_decides_all_that_is_no_weight():
    past = br.fit(mlp(), classes(40), IVON(), epochs=1)
    other = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    after = br.fit(other, classes(40), MAP(lr=1e-12), prior=past, epochs=1)
    assert isinstance(after.model[1], nn.ReLU)
    frozen = mlp()
    frozen[0].requires_grad_(False)
    with pytest.raises(ValueError, match=r"'0\.bias' is learnt in the posterior and frozen in the model"):
        br.fit(frozen, classes(40), "map", prior=past, epochs=1)


@pytest.mark.parametrize("newton", [0, 1])
def test_newton_steps_never_raise_the_loss(newton):
    x, y = classes(60)
    method = Laplace("all", tune="nothing", newton=newton)
    posterior = br.fit(mlp(), (x, y), method, prior=br.priors.Gaussian(1.0), epochs=3)
    without = br.fit(mlp(), (x, y), dataclasses.replace(method, newton=0), prior=br.priors.Gaussian(1.0), epochs=3)

    def loss(found):
        model = found.at_mean()
        prior = br.priors.Gaussian(1.0).resolve(model)
        nll = -br.likelihoods.Categorical().log_prob(model(x), y).sum()
        return float((nll - prior.log_prob(dict(model.named_parameters()))).detach())

    assert loss(posterior) < loss(without) if newton else loss(posterior) == loss(without)
