"""What stands beside the methods, on the second device: predictions, scores, priors, curvature, estimators."""

from itertools import pairwise

import numpy as np
import pytest
import second_device
import torch
from networks import classes, generator, mlp
from test_methods import METHODS, every_method
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import bayesrule as br
from bayesrule.estimators import BayesianClassifier, BayesianRegressor
from bayesrule.evaluate import quantile_calibration, reliability, risk_coverage, score
from bayesrule.methods import Plan
from bayesrule.predictions import Binary, Classes, Counts, Reals
from bayesrule.task import Task
from bayesrule.training import belief

CPU = torch.device("cpu")
LOGITS = torch.randn(5, 6, 3, generator=generator())
KINDS = {
    "classes": (Classes(LOGITS), torch.arange(6).remainder(3)),
    "binary": (Binary(LOGITS[..., 0]), torch.arange(6).remainder(2)),
    "reals": (Reals(LOGITS[..., 0], torch.tensor(0.5)), torch.randn(6, generator=generator(1))),
    "counts": (Counts(LOGITS[..., 0]), torch.arange(6)),
}


def on(device, prediction):
    return type(prediction)(*(t.to(device) for t in prediction._tensors()))


def same(found, expected):
    if isinstance(expected, Tensor):
        assert found.device == torch.device(second_device.NAME, 0)
        torch.testing.assert_close(found.cpu(), expected)
    elif isinstance(expected, tuple):
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    elif isinstance(expected, np.ndarray):
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-5)


QUESTIONS = {
    "total": lambda p, y: (p.total, p.aleatoric, p.epistemic, p.point, p.uncertainty),
    "log_prob": lambda p, y: p.log_prob(y),
    "sample": lambda p, y: p.sample(4, torch.Generator(p.total.device).manual_seed(0)),
    "cat": lambda p, y: type(p).cat([p, p]).total,
}
OF_NUMBERS = {
    "quantile": lambda p, y: (p.quantile(0.3), p.quantile(torch.tensor([0.1, 0.9])), p.interval(0.5)),
    "cdf": lambda p, y: (p.cdf(y), p.cdf(0.3)),
}
OF_REALS = {
    "crps": lambda p, y: p.crps(y),
    "rescaled": lambda p, y: p.rescaled(torch.tensor(2.0, dtype=torch.float64), 3.0).mean,
    "calibration": lambda p, y: quantile_calibration(p, y),
}
OF_CLASSES = {
    "prediction_set": lambda p, y: p.prediction_set(0.9),
    "curves": lambda p, y: (reliability(p, y).share, risk_coverage(p, y).risk),
}
ASKED = [
    *((kind, name, q) for kind in KINDS for name, q in QUESTIONS.items()),
    *((kind, name, q) for kind in ("reals", "counts") for name, q in OF_NUMBERS.items()),
    *(("reals", name, q) for name, q in OF_REALS.items()),
    *(("classes", name, q) for name, q in OF_CLASSES.items()),
]


@pytest.mark.parametrize(("kind", "name", "question"), ASKED, ids=[f"{kind}-{name}" for kind, name, _ in ASKED])
def test_predictions_answer_on_their_device(kind, name, question, second):
    prediction, y = KINDS[kind]
    same(question(on(second, prediction), y), question(prediction, y))


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_the_cpu(kind, second):
    prediction, y = KINDS[kind]
    there, here = (score(on(d, prediction), y, on(d, prediction), bootstrap=20) for d in (second, CPU))
    assert there.keys() == here.keys()
    for name in here:
        assert there[name] == pytest.approx(here[name], rel=1e-4)


@pytest.mark.parametrize("kind", ["Gaussian", "Laplace", "ScaleMixture", "GroupLaplace"])
def test_priors_follow_the_model(kind, second):
    def numbers(device):
        model = mlp().to(device)
        prior = getattr(br.priors, kind)().resolve(model)
        weights = {name: p.detach() for name, p in model.named_parameters()}
        found = [prior.log_prob(weights)]
        if hasattr(prior, "sample"):
            drawn = prior.sample(model, torch.Generator(device).manual_seed(0))
            found += drawn.values()
        assert all(t.device == device for t in found)
        return found

    for there, here in zip(numbers(second), numbers(CPU), strict=True):
        torch.testing.assert_close(there.cpu(), here)


@pytest.mark.parametrize("kind", [br.priors.Gaussian, br.priors.Laplace])
def test_scales_given_as_tensors_of_the_cpu_follow_the_model(kind, second):
    scale = {"": 1.0, "0.weight": torch.full((8, 4), 0.5)}
    fits = [br.fit(mlp().to(d), classes(), "bbb", prior=kind(scale), epochs=1) for d in (second, CPU)]
    found, expected = (posterior.predict(classes()[0]).probs for posterior in fits)
    torch.testing.assert_close(found.cpu(), expected)


def test_jacobians_and_example_gradients(second):
    x, y = classes(12)
    found = br.curvature.jacobians(mlp().to(second), x.to(second))
    torch.testing.assert_close(found.cpu(), br.curvature.jacobians(mlp(), x))
    likelihood = br.likelihoods.Categorical()
    found = br.curvature.example_gradients(mlp().to(second), x.to(second), y.to(second), likelihood)
    torch.testing.assert_close(found.cpu(), br.curvature.example_gradients(mlp(), x, y, likelihood))


@pytest.mark.parametrize("structure", ["diagonal", "kronecker", "dense", "lowrank"])
@pytest.mark.parametrize("labels", ["exact", "sampled", "empirical"])
def test_curvature(structure, labels, second):
    x, y = classes(12)
    found, expected = (
        br.curvature.curvature(
            mlp().to(d),
            [(x.to(d), y.to(d))],
            br.likelihoods.Categorical(),
            structure,
            labels=labels,
            generator=torch.Generator(d).manual_seed(0),
        ).matrix.dense()
        for d in (second, CPU)
    )
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-3, atol=1e-4)


def test_relevance_of_examples(second):
    x, y = classes(12)
    there, here = (br.gp.relevance(mlp().to(d), (x, y), method="leverage") for d in (second, CPU))
    torch.testing.assert_close(there.leverage.cpu(), here.leverage, rtol=1e-3, atol=1e-4)
    assert torch.equal(there.order.cpu(), here.order)


def test_variational_modules_of_any_estimator(second):
    x = classes()[0]
    for estimator in ("weight", "local-reparam", "flipout"):
        bnn = br.nn.bayesianize(mlp().to(second), estimator=estimator)
        before = torch.second.get_rng_state()
        assert bnn(x.to(second)).device == second
        assert not torch.equal(torch.second.get_rng_state(), before)


@pytest.mark.parametrize("name", ["map", "vogn", "laplace"])
def test_data_behind_a_loader(name, second):
    x, y = classes()
    loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
    method = METHODS[name][0]
    there, here = (br.fit(mlp().to(d), loader, method, epochs=2).predict(x).probs for d in (second, CPU))
    torch.testing.assert_close(there.cpu(), here, rtol=1e-4, atol=1e-5)


def test_estimators_give_arrays_whatever_the_device_of_their_model(second):
    x, y = classes()
    classifier = BayesianClassifier(model=mlp().to(second), epochs=2).fit(x.numpy(), y.numpy())
    assert isinstance(classifier.predict_proba(x.numpy()), np.ndarray)
    assert isinstance(classifier.predict(x.numpy()), np.ndarray)
    regressor = BayesianRegressor(model=mlp(1).to(second), epochs=2).fit(x.numpy(), x[:, 0].numpy())
    mean, std = regressor.predict(x.numpy(), return_std=True)
    assert isinstance(mean, np.ndarray)
    assert isinstance(std, np.ndarray)


def test_the_range_test_of_learning_rates(second):
    test = br.training.range_test(mlp().to(second), classes(), "map", steps=60)
    assert test.suggestion > 0


# ---- no step waits ---------------------------------------------------------------------------------------------------


class Seen(Exception):
    pass


@every_method
def test_no_step_within_an_epoch_waits(method, second):
    seen = []

    def look(progress):
        seen.append((progress.epoch, progress.epoch_ended, second_device.waits()))
        if progress.step == 23:  # of 24: what comes after the last one is no step
            raise Seen

    whole = getattr(method, "full_batch", False)  # every step is an epoch, at whose end the logs are read
    with pytest.raises(Seen):
        br.fit(mlp().to(second), classes(), method, epochs=24 if whole else 2, batch_size=4, callbacks=[look])
    steps = [(before, now) for before, now in pairwise(seen) if whole or (before[0] == now[0] and not now[1])]
    assert len(steps) == 22 if whole else 2 * 10
    assert [now[2] - before[2] for before, now in steps] == [int(whole)] * len(steps)


def test_the_prior_is_settled_as_on_the_cpu(second):
    x, y = classes(60)
    cpu, device = (Task.create(mlp().to(where), (x, y)) for where in (CPU, second))
    found, expected = (belief.settle(task, Plan(1, 1800, 10), 0) for task in (device, cpu))
    assert found["scale"] == expected["scale"]
    assert found["held_out_nll"] == pytest.approx(expected["held_out_nll"], rel=1e-5)
