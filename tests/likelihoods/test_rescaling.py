"""Vector and isotonic maps of logits, and the scale of told noise: what they do, and how they are settled."""

import pytest
import torch
from torch.autograd.functional import hessian

import bayesrule as br
from bayesrule.curvature.roots import root
from bayesrule.likelihoods import AVAILABLE, Bernoulli, Categorical, Heteroscedastic
from bayesrule.likelihoods.categorical import isotonic
from bayesrule.naming import from_spec, to_spec
from bayesrule.posteriors import calibrate, predict_normal, recalibrated

F = torch.tensor([[3.0, -1.3, 0.5], [0.1, 2.2, -4.0]], dtype=torch.float64)
Y = torch.tensor([0, 2])
VECTOR = torch.tensor([[0.5, 2.0, 1.2], [0.3, -0.2, 0.0]], dtype=torch.float64)
SLOPES = torch.tensor([0.5, 2.0, 0.7, 1.5, 1.0], dtype=torch.float64)
MAPS = [Categorical(vector=VECTOR), Categorical(isotonic=SLOPES)]
ANSWERS = [Bernoulli(vector=VECTOR[:, :1]), Bernoulli(isotonic=SLOPES)]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("likelihood", MAPS)
def test_classes_by_hand(likelihood):
    if likelihood.vector is not None:
        wanted = F * VECTOR[0] + VECTOR[1]
    else:
        wanted = -isotonic(F.amax(1, keepdim=True) - F, SLOPES)
    assert torch.allclose(likelihood.mean(F), wanted.softmax(1))
    assert torch.allclose(likelihood.log_prob(F, Y), wanted.log_softmax(1).gather(1, Y[:, None])[:, 0])
    assert torch.allclose(likelihood.predict(F[None]).probs, wanted.softmax(1))
    pixels = F[:, :, None, None].expand(2, 3, 2, 2)
    assert torch.allclose(likelihood.mean(pixels)[:, :, 1, 1], wanted.softmax(1))
    assert torch.allclose(likelihood.predict(pixels[None]).probs[:, :, 0, 1], wanted.softmax(1))


def test_an_isotonic_map_keeps_the_order_and_goes_through_its_knots():
    gaps = torch.linspace(0, 20, 200, dtype=torch.float64)
    found = isotonic(gaps, SLOPES)
    assert bool((found.diff() > 0).all())
    assert isotonic(torch.tensor([0.0, 1.0, 2.0, 4.0, 8.0, 9.0]), SLOPES).tolist() == pytest.approx(
        [0, 0.5, 2.5, 3.9, 9.9, 10.9]
    )
    assert torch.allclose(isotonic(gaps, torch.full((5,), 0.4, dtype=torch.float64)), 0.4 * gaps)  # one slope: 1/T


@pytest.mark.parametrize("likelihood", [*MAPS, *ANSWERS])
def test_hessians_are_those_of_autograd(likelihood):
    classes = isinstance(likelihood, Categorical)
    f = F if classes else F[:, 0]
    y = Y if classes else torch.tensor([0.0, 1.0], dtype=torch.float64)
    for row in range(2):
        one = f[row : row + 1]
        wanted = hessian(lambda at, row=row: -likelihood.log_prob(at, y[row : row + 1]).sum(), one)
        width = one.numel()
        assert torch.allclose(likelihood.hessian(one).reshape(width, width), wanted.reshape(width, width), atol=1e-9)
    s = root(likelihood, f)
    assert torch.allclose((s @ s.mT).reshape(likelihood.hessian(f).shape), likelihood.hessian(f), atol=1e-9)


@pytest.mark.parametrize("likelihood", ANSWERS)
def test_yes_or_no_is_a_case_of_two_classes(likelihood):
    f = torch.tensor([-3.0, 0.4, 6.0], dtype=torch.float64)
    wanted = f * VECTOR[0, 0] + VECTOR[1, 0]
    if likelihood.isotonic is not None:
        both = torch.stack([torch.zeros_like(f), f], 1)
        logits = Categorical(isotonic=SLOPES).logits(both)
        wanted = logits[:, 1] - logits[:, 0]
    assert torch.allclose(likelihood.mean(f), wanted.sigmoid())


@pytest.mark.parametrize("likelihood", [*MAPS, *ANSWERS])
def test_normal_logits_are_mapped_with_their_covariance(likelihood):
    f = F if isinstance(likelihood, Categorical) else F[:, :1]
    width = f.shape[1]
    covariance = (0.5 * torch.eye(width) + 0.2).double().expand(2, width, width)
    found = predict_normal(likelihood, f, covariance, 4000, generator())
    draws = torch.distributions.MultivariateNormal(f, covariance).sample((40_000,))
    wanted = likelihood.predict(draws).probs
    assert torch.allclose(found.probs, wanted, atol=0.02)


@pytest.mark.parametrize("likelihood", [*MAPS, *ANSWERS, Heteroscedastic(scale=torch.tensor(1.7))])
def test_unknowns_files_and_training(likelihood):
    again = likelihood.with_unknowns(likelihood.unknowns())
    f = F[:, :2]
    if likelihood.name == "heteroscedastic":
        assert torch.allclose(again.log_prob(f, f[:, 0] + 1), likelihood.log_prob(f, f[:, 0] + 1))
    else:
        assert torch.allclose(again.mean(F), likelihood.mean(F))
    read = from_spec("likelihood", to_spec(likelihood), AVAILABLE)
    read.verify()
    assert {k: v.tolist() for k, v in read.unknowns().items()} == {
        k: v.tolist() for k, v in likelihood.unknowns().items()
    }
    for open_again in (likelihood.kept(), likelihood.uncalibrated(), likelihood.matched(F, Y)):
        assert open_again.unknowns() == {}


def test_a_scale_of_told_noise():
    f, y = torch.tensor([[1.0, 0.4], [2.0, -1.0]], dtype=torch.float64), torch.tensor([0.5, 2.5], dtype=torch.float64)
    scaled = Heteroscedastic(scale=torch.tensor(2.0, dtype=torch.float64))
    wanted = torch.distributions.Normal(f[:, 0], 2 * (Heteroscedastic()._split(f)[1] / 2).exp()).log_prob(y)
    assert torch.allclose(scaled.log_prob(f, y), wanted)
    assert torch.allclose(scaled.predict(f[None]).log_prob(y), wanted)
    plain = Heteroscedastic().hessian(f)
    assert torch.allclose(scaled.hessian(f)[:, 0, 0], plain[:, 0, 0] / 4)
    assert torch.allclose(scaled.hessian(f)[:, 1, 1], plain[:, 1, 1])


def test_each_is_found_where_it_is_the_truth():
    f = 3 * torch.randn(4000, 3, generator=generator(), dtype=torch.float64)
    for truth in MAPS:
        y = truth.sample(f, generator(1))
        chosen = "vector" if truth.vector is not None else "isotonic"
        found, told = calibrate(
            Categorical(), lambda likelihood, y=y: likelihood.log_prob(f, y), ("temperature", "vector", "isotonic"), 3
        )
        assert told["chosen"] == chosen
        assert set(told["tried"]) == {"temperature", "vector", "isotonic"}
        gained = (found.log_prob(f, y) - Categorical().log_prob(f, y)).mean()
        best = (truth.log_prob(f, y) - Categorical().log_prob(f, y)).mean()
        assert float(gained) > 0.9 * float(best)  # of 4000 examples six unknowns are told well


def test_nothing_is_changed_where_nothing_is_wrong():
    wrong = 0
    for seed in range(20):
        f = 2 * torch.randn(200, 3, generator=generator(seed), dtype=torch.float64)
        y = Categorical().sample(f, generator(100 + seed))
        _, told = calibrate(Categorical(), lambda likelihood, f=f, y=y: likelihood.log_prob(f, y), MAPS_OF_ALL, 3)
        wrong += told["chosen"] is not None
    assert wrong <= 4  # gains of 20·3 to 1 by chance: at most one in 60 each is promised, and four of 20 one in 2000


MAPS_OF_ALL = ("temperature", "vector", "isotonic")


def test_posteriors_take_what_is_asked_for():
    x, y = br.data.moons(n=400, seed=0)
    sure = br.fit(br.models.mlp(2, 2, hidden=(32,)), (x[:60], y[:60]), "mle", epochs=60, val=0)
    wrong = torch.rand(200, generator=generator()) < 0.25  # labels that training has not seen the like of
    held = x[200:], torch.where(wrong, 1 - y[200:], y[200:])
    for kinds in ("isotonic", "vector", "all"):
        found = recalibrated(sure, held, kinds=kinds)
        assert found.info["calibration"]["chosen"] is not None
        assert br.evaluate(found, held, bootstrap=0)["nll"] < br.evaluate(sure, held, bootstrap=0)["nll"]
    assert recalibrated(sure, held, kinds="scale") is sure
    with pytest.raises(ValueError, match="unknown kind of recalibration 'isotone': did you mean 'isotonic'"):
        recalibrated(sure, held, kinds="isotone")


def test_a_network_that_tells_too_little_noise_is_scaled(tmp_path):
    x = torch.linspace(-1, 1, 400)[:, None]
    y = x[:, 0] + 0.5 * torch.randn(400, generator=generator())
    model = br.models.mlp(1, 2, hidden=(32,))
    fitted = br.fit(model, (x[::8], y[::8]), "mle", likelihood="heteroscedastic", epochs=400, val=0)
    held = x[1::2], y[1::2]
    found = recalibrated(fitted, held, kinds="scale")
    assert found.likelihood.scale > 1
    found.save(tmp_path / "scaled")
    again = br.load(tmp_path / "scaled", model)
    assert torch.equal(again.predict(x).std, found.predict(x).std)
    assert br.evaluate(found, held, bootstrap=0)["nll"] < br.evaluate(fitted, held, bootstrap=0)["nll"]


@pytest.mark.parametrize(
    ("likelihood", "message"),
    [
        (Categorical(vector=torch.ones(3)), "vector must be scales from"),
        (Categorical(vector=-torch.ones(2, 3)), "vector must be scales from"),
        (Categorical(isotonic=torch.ones(4)), "isotonic must be 5 slopes from"),
        (Heteroscedastic(scale=torch.tensor(-1.0)), "scale must be one positive number"),
    ],
)
def test_what_no_fit_can_have_settled(likelihood, message):
    with pytest.raises(ValueError, match=message):
        likelihood.verify()


def test_errors():
    with pytest.raises(ValueError, match="only one of temperature, vector, isotonic"):
        Categorical(temperature=torch.tensor(2.0), vector=VECTOR)
    with pytest.raises(ValueError, match="values must be of"):
        MAPS[0].with_unknowns({})
    with pytest.raises(ValueError, match="values must be of"):
        Heteroscedastic(scale=torch.tensor(1.0)).with_unknowns({})
