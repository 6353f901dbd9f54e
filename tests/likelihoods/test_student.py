"""Noise with tails: what is learnt of it, and whole fits."""

import math

import pytest
import torch
from covering import first
from scipy import stats
from torch.func import vmap

import bayesrule as br
from bayesrule.likelihoods import AVAILABLE, Student
from bayesrule.naming import from_spec, to_spec
from bayesrule.predictions import TailedReals

Y = torch.tensor([[1.0, 10.0], [-1.0, 30.0], [1.0, 10.0], [-1.0, 30.0]], dtype=torch.float64)


def test_starts_with_the_variance_of_the_residuals():
    outputs = torch.zeros(4, 2, dtype=torch.float64)
    matched = Student().matched(outputs, Y)
    assert matched.freedom.tolist() == [6.0, 6.0]
    assert torch.allclose(matched.predict(outputs[None]).aleatoric, Y.square().mean(0).expand(4, 2))
    given = Student(torch.tensor(0.5), torch.tensor(3.0)).matched(outputs, Y)
    assert given.noise.tolist() == [0.5, 0.5]
    assert given.freedom.tolist() == [3.0, 3.0]


def test_known_numbers_stay_and_the_others_are_learnt():
    outputs = torch.zeros(4, 2, dtype=torch.float64)
    assert Student(0.5, 3.0).matched(outputs, Y).unknowns() == {}
    assert list(Student(0.5).matched(outputs, Y).unknowns()) == ["freedom_logit"]
    tails = Student(freedom=3.0).matched(outputs, Y)
    assert list(tails.unknowns()) == ["log_noise"]
    assert torch.allclose(tails.predict(outputs[None]).aleatoric, Y.square().mean(0).expand(4, 2))
    learnt = Student().matched(outputs, Y)
    assert learnt.kept().unknowns() == {}
    assert learnt.kept().matched(outputs, 2 * Y).noise is learnt.noise


@pytest.mark.parametrize("move", [-1e4, -3.0, 0.0, 3.0, 1e4])
def test_unknowns_go_in_and_out_and_stay_within_bounds(move):
    learnt = Student().matched(torch.zeros(4, 2), Y)
    values = {name: u + move for name, u in learnt.unknowns().items() if name != "log_noise"}
    moved = learnt.with_unknowns(learnt.unknowns() | values)
    assert (moved.freedom >= 2.0999).all()
    assert (moved.freedom <= 100).all()
    again = moved.with_unknowns(moved.unknowns())
    assert torch.allclose(again.noise, moved.noise)
    assert torch.allclose(again.freedom, moved.freedom, atol=0.02)
    assert all(u.isfinite().all() for u in moved.unknowns().values())


def test_all_of_it_is_saved_and_pooled():
    learnt = Student().matched(torch.zeros(4, 2), Y)
    again = from_spec("likelihood", to_spec(learnt), AVAILABLE)
    again.verify()
    assert torch.equal(again.noise, learnt.noise)
    assert torch.equal(again.freedom, learnt.freedom)
    assert sorted(again.unknowns()) == ["freedom_logit", "log_noise"]
    both = Student.pooled(
        [Student(torch.tensor(1.0), torch.tensor(3.0)), Student(torch.tensor(7.0), torch.tensor(6.0))]
    )
    assert both.noise.item() == pytest.approx(5.0)
    assert both.freedom.item() == pytest.approx(4.0)
    assert Student.pooled([Student(0.5, 3.0)] * 2).freedom == 3.0


def test_many_networks_at_once_give_what_each_gives_alone():
    outputs = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(0))
    likelihood = Student().matched(outputs[0], Y)
    y = likelihood.check(outputs[0], Y)
    several = {name: torch.stack([u, u + 1, u - 1]) for name, u in likelihood.unknowns().items()}

    def log_prob(f, unknowns):
        return likelihood.with_unknowns(unknowns).log_prob(f, y)

    alone = [log_prob(outputs[k], {name: u[k] for name, u in several.items()}) for k in range(3)]
    assert torch.allclose(vmap(log_prob)(outputs, several), torch.stack(alone))


def test_errors_say_what_to_do():
    outputs = torch.zeros(4, 2)
    cases = [
        (lambda: Student(0.0), "noise must be a positive standard deviation: got 0"),
        (lambda: Student(1.0, 2.0), "freedom must be finite degrees above 2, .*: got 2; None learns it"),
        (lambda: Student().unknowns(), "noise or freedom is None"),
        (lambda: Student(1.0).log_prob(outputs, outputs), r"noise or freedom is None: .*matched\(outputs, y\)"),
        (lambda: Student(1.0).verify(), "freedom is None"),
        (lambda: Student(1.0, torch.tensor(math.nan)).verify(), "freedom must be finite degrees above 2: got nan"),
        (lambda: Student(1.0, 3.0).with_unknowns({"log_noise": outputs}), r"values must be of \[\] for"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(TypeError, match=r"freedom must be a number, a tensor or None: got '3'; pass float\(freedom\)"):
        Student(freedom="3")


def generated(seed, n):
    """A line with t noise of three degrees of freedom."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, generator=g)
    u, v = torch.rand(2, n, generator=g)
    t = (3 * ((1 - u) ** (-2 / 3) - 1)).sqrt() * (2 * math.pi * v).cos()
    return x, 20 + 5 * x[:, 0] - 3 * x[:, 1] + 2 * t


# Methods that settle noise and freedom on all data; a point estimate has a fifth of them for it, and few far off.
@pytest.mark.parametrize("method", first(["laplace", "auto"]))
def test_as_good_as_the_truth_where_the_noise_has_tails(method, tmp_path):
    (x, y), (new, truth) = generated(7, 400), generated(8, 500)
    model = br.models.tabular(2, 1, hidden=(16,))
    data = br.data.standardize((x, y))
    posterior = br.fit(model, data, method, "student", epochs=60, seed=0)
    prediction = posterior.predict(new)
    assert isinstance(prediction, TailedReals)
    scores = br.evaluate(posterior, (new, truth), bootstrap=0)
    best = -stats.t.logpdf(truth, 3, 20 + 5 * new[:, 0] - 3 * new[:, 1], 2).mean()
    normal = br.evaluate(br.fit(model, data, method, "gaussian", epochs=60, seed=0), (new, truth), bootstrap=0)
    assert scores["nll"] < best + 0.1
    assert scores["nll"] < normal["nll"]
    assert abs(scores["coverage_90"] - 0.9) < 0.08  # 500 examples: six standard deviations
    posterior.save(tmp_path / "p.safetensors")
    again = br.load(tmp_path / "p.safetensors", model)
    assert torch.equal(again.predict(new[:9]).log_prob(truth[:9]), posterior.predict(new[:9]).log_prob(truth[:9]))
