"""One conformance table for all methods: adding a method is adding a row."""

import copy
import dataclasses
import functools

import pytest
import torch
from covering import chosen, covering, first
from networks import classes, generator, mlp, zoo
from torch import nn

import bayesrule as br
from bayesrule import files, modules
from bayesrule.methods import (
    BBB,
    HMC,
    IVON,
    LMC,
    MALA,
    MAP,
    MCLMC,
    MLE,
    OGN,
    SGHMC,
    SGLD,
    SWAG,
    VOGN,
    VON,
    Auto,
    DropoutEnsemble,
    Ensemble,
    Laplace,
    MCDropout,
    Noise,
    Plan,
    Vadam,
)
from bayesrule.optim import Group, Plateau, Recipe
from bayesrule.posteriors import Dropout, Gaussian, Linearised, Mixture, Particles

METHODS = {
    "auto": (Auto(scales=(1.0, 2.0), folds=2, networks=6), Particles),
    "mle": (MLE(), Particles),
    "map": (MAP(), Particles),
    "mc-dropout": (MCDropout(), Dropout),
    "ensemble": (Ensemble(members=2), Mixture),
    "dropout-ensemble": (DropoutEnsemble(members=2), Mixture),
    "swag": (SWAG(rank=3, snapshots=4), Gaussian),
    "laplace": (Laplace(), Linearised),
    "laplace, kronecker": (Laplace("all", "kronecker", precision="parameter"), Linearised),
    "laplace, weights": (Laplace("all", "diagonal", labels="sampled", predictive="weights"), Gaussian),
    "laplace, few directions": (Laplace("all", "lowrank", tune="nothing"), Linearised),
    "laplace, while training": (Laplace("all", "kronecker", tune_every=1, precision="layer"), Linearised),
    "bbb": (BBB(), Gaussian),
    "bbb, local": (BBB(estimator="local-reparam"), Gaussian),
    "bbb, by turns": (
        BBB(
            lr=0.15,
            gradient="path",
            alternate=1,
            optimizer=Recipe("sgd", {"momentum": 0.5}),
            deviations=Group(schedule=Plateau("penalty")),
        ),
        Gaussian,
    ),
    "ivon": (IVON(), Gaussian),
    "ivon, two draws": (IVON(samples=2, tempering=0.5, damping=0.01, clip_radius=1.0), Gaussian),
    "vogn": (VOGN(), Gaussian),
    "ogn": (OGN(), Gaussian),
    "von": (VON(), Gaussian),
    "vadam": (Vadam(), Gaussian),
    "multi-swag": (Ensemble(2, SWAG(rank=3, snapshots=4)), Mixture),
    "hmc": (HMC(chains=2, draws=4, warm_up=4, training=4, leaps=8), Particles),
    "mala": (MALA(chains=2, draws=4, warm_up=4, training=4), Particles),
    "lmc": (LMC(chains=2, draws=4, warm_up=4, training=4), Particles),
    "mclmc": (MCLMC(chains=2, draws=4, warm_up=4, training=4), Particles),
    "sgld": (SGLD(chains=2, draws=6, warm_up=2, thin=1, training=8, lr=0.05, cycles=2, precondition=True), Particles),
    "sghmc": (SGHMC(chains=2, draws=6, warm_up=2, thin=1, training=8, lr=0.05, precondition=True), Particles),
    "sghmc, there and back": (
        SGHMC(chains=2, draws=6, thin=1, warm_start="none", sampling_lr=0.05, symmetric=True),
        Particles,
    ),
}
every_method = pytest.mark.parametrize("method", [m for m, _ in METHODS.values()], ids=list(METHODS))
every_row = pytest.mark.parametrize("name", METHODS)

# Rows whose code depends on the layers of a module (masks, statistics of a BatchNorm, gradients of each example,
# curvature, noise of activations), and on the likelihood (its noise, its curvature): these meet every one with every
# change, the other rows some of them.
BY_LAYER = ("mc-dropout", "swag", "laplace, kronecker", "bbb, local", "ivon", "vogn")
BY_LIKELIHOOD = ("map", "laplace", "laplace, kronecker", "ivon", "vogn")
# One row for each kind of learner: enough where the code that is tested is not that of the method.
EACH_LEARNER = ("map", "mc-dropout", "ensemble", "swag", "laplace", "bbb, local", "ivon", "vogn")
# Whose steps see all data, or choose their batches themselves: a loader cannot give them.
OF_ALL_DATA = ("hmc", "mala", "lmc", "mclmc", "sghmc, there and back")
# Each example of a recurrent layer is a pass of its own, and evidence by parameter takes many passes.
LONG = (("laplace, kronecker", "recurrent"),)


def fit(method, model=None, train=None, **settings):
    return br.fit(model or mlp(), train or classes(), method, **{"epochs": 3, "batch_size": 16} | settings)


@functools.cache
def fitted(name):
    """The posterior of a row on the plain module and data: every fit of it is the same, so it is made once."""
    return fit(METHODS[name][0])


@functools.cache
def fitted_on(name, kind):
    """The same on a module of the zoo."""
    model, data = zoo()[kind]
    return fit(METHODS[name][0], model, data, batch_size=8)


def test_every_available_method_has_a_row():
    assert {method.name for method, _ in METHODS.values()} == br.methods.available()


@every_row
def test_kind_of_posterior(name):
    assert type(fitted(name)) is METHODS[name][1]


@every_row
def test_another_seed_another_posterior(name):
    x = classes(seed=1)[0]
    assert not torch.equal(fit(METHODS[name][0], seed=1).predict(x).probs, fitted(name).predict(x).probs)


@every_row
def test_the_same_seed_gives_the_same_posterior_and_nothing_of_the_users_is_changed(name):
    model, (x, y) = mlp(), classes()
    wanted = fitted(name).predict(x).probs
    before = copy.deepcopy(model.state_dict()), x.clone(), y.clone(), torch.get_rng_state()
    posterior = fit(METHODS[name][0], model, (x, y))
    assert torch.equal(posterior.predict(x).probs, wanted)
    assert all(torch.equal(w, before[0][name]) for name, w in model.state_dict().items())
    assert all(p.requires_grad for p in model.parameters())
    assert torch.equal(x, before[1])
    assert torch.equal(y, before[2])
    assert torch.equal(torch.get_rng_state(), before[3])
    assert model.training


@every_method
@pytest.mark.parametrize("cut", first([4, 1, 8]))
def test_state_goes_through_a_file_at_any_step(method, cut, tmp_path):
    task = br.Task.create(mlp(), classes())
    plan = Plan(epochs=3, steps_per_epoch=3, batch_size=16)
    batches = [b for epoch in range(3) for b in task.batches(16, epoch)]

    noise = Noise.on(task.device)

    def run(learner, first):
        for step, batch in enumerate(batches[first:], first):
            noise.seed(shared=100 + step, own=step)
            learner.step(batch)
        noise.seed(shared=0, own=0)
        return learner.conclude(None).state()

    noise.seed(shared=0, own=0)
    whole = run(method.start(task, plan, noise), 0)
    noise.seed(shared=0, own=0)
    learner = method.start(task, plan, noise)
    for step, batch in enumerate(batches[:cut]):
        noise.seed(shared=100 + step, own=step)
        learner.step(batch)
    files.save(tmp_path / "state", learner.state_dict(), "state")
    noise.seed(shared=99, own=99)
    fresh = method.start(task, plan, noise)
    fresh.load_state_dict(files.load(tmp_path / "state", "state"))
    assert equal(run(fresh, cut), whole)


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    return all(map(equal, a, b)) if isinstance(a, list | tuple) else a == b


@every_method
@pytest.mark.parametrize("dtype", first([torch.float64, torch.float32]))
def test_dtype_is_the_models(method, dtype):
    x, y = classes()
    prediction = fit(method, mlp().to(dtype), (x.double(), y)).predict(x)
    assert prediction.probs.dtype == dtype


@pytest.mark.filterwarnings("ignore:layer .* cannot be vectorised")  # VOGN and a recurrent layer with dropout
@pytest.mark.parametrize(("name", "kind"), covering(METHODS, zoo(), whole=BY_LAYER, long=LONG))
def test_any_module(name, kind, tmp_path):
    x, y = zoo()[kind][1]
    posterior = fitted_on(name, kind)
    prediction = posterior.predict(x, samples=4)
    assert prediction.label.shape == y.shape
    assert (prediction.probs.sum(1) - 1).abs().max() < 1e-5
    posterior.save(tmp_path / "p.safetensors")
    with torch.random.fork_rng(devices=[]):
        other = zoo()[kind][0]
        for p in modules.parameters(other).values():
            nn.init.normal_(p)  # of the module that a file is loaded onto only frozen weights matter
    again = br.load(tmp_path / "p.safetensors", other).predict(x, samples=4)
    assert torch.equal(again.probs, prediction.probs)


@every_row
def test_frozen_parameters_stay(name):
    kind = "shared, unused and frozen"
    model, posterior = zoo()[kind][0], fitted_on(name, kind)
    for part in (posterior, *getattr(posterior, "components", [])):
        assert torch.equal(part.model.frozen.weight, model.frozen.weight)
        assert part.model.frozen.weight.data_ptr() == posterior.model.frozen.weight.data_ptr()
    assert "frozen" not in str(names(posterior.state()))


def names(node):
    """All keys of a tree."""
    if isinstance(node, dict):
        return [*node, *(names(child) for child in node.values())]
    return [names(child) for child in node] if isinstance(node, list) else []


TARGETS = {
    "classes": ("categorical", 3, torch.randint(3, (48,), generator=generator())),
    "yes or no": ("bernoulli", 1, torch.randint(2, (48,), generator=generator())),
    "three answers": ("bernoulli", 3, torch.randint(2, (48, 3), generator=generator())),
    "one real": ("gaussian", 1, torch.randn(48, generator=generator())),
    "reals": ("gaussian", 2, torch.randn(48, 2, generator=generator())),
    "noise from the network": ("heteroscedastic", 2, torch.randn(48, generator=generator())),
    "one positive": ("log-normal", 1, torch.randn(48, generator=generator()).exp()),
    "positives": ("log-normal", 2, torch.randn(48, 2, generator=generator()).exp()),
    "one real with tails": ("student", 1, torch.randn(48, generator=generator())),
    "reals with tails": ("student", 2, torch.randn(48, 2, generator=generator())),
    "counts": ("poisson", 1, torch.randint(9, (48,), generator=generator())),
    "dispersed counts": ("negative-binomial", 1, torch.randint(9, (48,), generator=generator())),
}


@pytest.mark.parametrize(("name", "target"), covering(METHODS, TARGETS, whole=BY_LIKELIHOOD))
def test_any_likelihood(name, target, tmp_path):
    x, (likelihood, outputs, y) = classes()[0], TARGETS[target]
    posterior = fit(METHODS[name][0], mlp(outputs), (x, y), likelihood=likelihood)
    prediction = posterior.predict(x)
    assert prediction.point.shape == y.shape
    assert prediction.log_prob(y).isfinite().all()
    posterior.save(tmp_path / "p")
    again = br.load(tmp_path / "p", mlp(outputs, seed=1))
    assert torch.equal(again.predict(x).log_prob(y), prediction.log_prob(y))


class Pairs(torch.utils.data.Dataset):
    """A dataset of the user's own."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


FORMS = {
    "arrays": lambda x, y: (x.numpy(), y.numpy()),
    "lists": lambda x, y: (x.tolist(), y.tolist()),
    "tensor dataset": torch.utils.data.TensorDataset,
    "own dataset": Pairs,
}


@pytest.mark.parametrize(("name", "form"), covering(METHODS, FORMS, whole=("map", "laplace")))
def test_data_in_any_form(name, form):
    x, y = classes()
    found = fit(METHODS[name][0], train=FORMS[form](x, y)).predict(x).probs
    torch.testing.assert_close(found, fitted(name).predict(x).probs)


@pytest.mark.parametrize("name", chosen(METHODS, now=[*EACH_LEARNER, "hmc", "sgld"]))
def test_data_behind_a_loader_give_the_same_again(name):
    method, (x, y) = METHODS[name][0], classes()
    if name in OF_ALL_DATA:
        with pytest.raises(ValueError, match=r"takes all data in one step|need every example by its number"):
            fit(method, train=torch.utils.data.DataLoader(Pairs(x, y), batch_size=16))
        return
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16, shuffle=True)
    assert torch.equal(fit(method, train=loader).predict(x).probs, fit(method, train=loader).predict(x).probs)


@every_method
def test_a_fit_learns(method):
    x, y = classes(400)
    test, truth = classes(400, seed=1)
    posterior = br.fit(mlp(), (x, y), method, epochs=12, batch_size=32, prior=br.priors.Gaussian(1.0))
    assert (posterior.predict(test).label == truth).float().mean() > 0.9


NATURAL = [IVON(), VOGN(), OGN(), VON(), Vadam()]


@pytest.mark.parametrize("method", NATURAL, ids=lambda m: m.name)
def test_natural_gradients_need_a_gaussian_prior(method):
    with pytest.raises(ValueError, match="the prior must be Gaussian here, not 'laplace'"):
        fit(method, prior=br.priors.Laplace(1.0))


@pytest.mark.parametrize("method", NATURAL, ids=lambda m: m.name)
def test_a_prior_for_each_weight_is_the_same_as_one_for_all(method):
    """Scales that differ by a billionth are one for each weight, and change as much."""
    model = mlp().double()
    uneven = {k: 0.3 + 1e-9 * torch.rand_like(p) for k, p in model.named_parameters()}
    x, y = classes()
    wanted = fit(method, model, (x.double(), y), prior=br.priors.Gaussian(0.3, mean=0.1)).predict(x).probs
    found = fit(method, model, (x.double(), y), prior=br.priors.Gaussian(uneven, mean=0.1)).predict(x).probs
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", NATURAL, ids=lambda m: m.name)
def test_without_steps_of_the_curvature_its_deviation_is_the_first_one(method):
    """h₀ is such that σ is ``initial_std``, under a prior that is far wider, at any temperature."""
    still = dataclasses.replace(method, lr=1e-12, betas=(0.9, 1 - 1e-12), initial_std=0.03)
    for temperature in (1.0, 0.1):
        std = fit(still, temperature=temperature, prior=br.priors.Gaussian(10.0)).std["0.weight"]
        assert torch.allclose(std, torch.full_like(std, 0.03), rtol=1e-3)


@pytest.mark.parametrize(
    ("name", "value"),
    [("samples", 0), ("samples", 1.5), ("tempering", 1.5), ("initial_std", 0.0), ("lr", -1.0), ("betas", (0.9, 1.0))],
)
def test_bad_settings_of_natural_methods_are_named(name, value):
    with pytest.raises(ValueError, match=name):
        IVON(**{name: value})
