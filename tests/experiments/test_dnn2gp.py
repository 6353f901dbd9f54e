"""The experiments about networks as Gaussian processes, and the relevance of examples."""

import functools
import io
import json
import math
from dataclasses import dataclass, replace

import pytest
import torch
from covering import first
from matplotlib.image import imread

from bayesrule.experiments import EXPERIMENTS, Setting, png
from bayesrule.experiments.principles import dnn2gp_kernels, dnn2gp_regression, dnn2gp_tuning, relevance

NAMES = ("dnn2gp-kernels", "dnn2gp-regression", "dnn2gp-tuning", "relevance")


@pytest.fixture
def short(monkeypatch):
    """Two seeds or splits, and few steps."""
    monkeypatch.setattr(dnn2gp_regression, "SEEDS", {False: 2})
    monkeypatch.setattr(dnn2gp_regression, "EPOCHS", {False: 100})
    monkeypatch.setattr(dnn2gp_kernels, "QUICK", (replace(dnn2gp_kernels.QUICK[0], epochs=3, per_class=4, most=400),))
    monkeypatch.setattr(dnn2gp_kernels, "SEEDS", 2)
    monkeypatch.setattr(dnn2gp_kernels, "PERMUTATIONS", 199)
    monkeypatch.setattr(dnn2gp_tuning, "DATA", {False: ("diabetes", 2, 20)})
    few = tuple(replace(sweep, values=sweep.values[::4]) for sweep in dnn2gp_tuning.QUICK)
    monkeypatch.setattr(dnn2gp_tuning, "QUICK", few)
    monkeypatch.setattr(relevance, "LENGTHS", {False: {"digits": 3}})
    monkeypatch.setattr(relevance, "MOST", 300)
    monkeypatch.setattr(relevance, "SEEDS", {False: 2})


@functools.cache
def answer(name):
    """What an experiment finds, for tests with ``short``."""
    return EXPERIMENTS[name](Setting())


def plain(result):
    return json.dumps(result.data, allow_nan=False)


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_answers_in_full(name, short):
    result = answer(name)
    assert result.claims
    assert all(claim.source and claim.says and claim.measured for claim in result.claims)
    assert all(type(claim.held) is bool for claim in result.claims)
    assert all(result.notes)
    assert imread(io.BytesIO(png(result)), format="png").std() > 0.01


@pytest.mark.parametrize("name", first(NAMES))
def test_an_experiment_repeats(name, short):
    assert plain(EXPERIMENTS[name](Setting())) == plain(answer(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_with_another_seed_answers_otherwise(name, short):
    assert plain(EXPERIMENTS[name](Setting(seed=1))) != plain(answer(name))


@pytest.mark.slow
def test_a_network_knows_the_gap(monkeypatch):
    """At its length but on two draws only: the bands hold the data, and are wide in the gap."""
    monkeypatch.setattr(dnn2gp_regression, "SEEDS", {False: 2})
    monkeypatch.setattr(dnn2gp_regression, "EPOCHS", {False: 1500})
    covers, knows, _ = dnn2gp_regression.run(Setting()).claims
    assert covers.held
    assert knows.held


def test_a_claim_that_fails_says_so(monkeypatch):
    """Far from the mode the mean of the process is not the network."""
    monkeypatch.setattr(dnn2gp_regression, "SEEDS", {False: 2})
    monkeypatch.setattr(dnn2gp_regression, "EPOCHS", {False: 30})
    assert not dnn2gp_regression.run(Setting()).claims[2].held


@pytest.mark.slow
def test_relevant_examples_matter(monkeypatch):
    """Three seeds on all digits, fewer epochs: errors are at the top, and its absence is felt."""
    monkeypatch.setattr(relevance, "LENGTHS", {False: {"digits": 20}})
    monkeypatch.setattr(relevance, "SEEDS", {False: 3})
    result = relevance.run(Setting())
    assert [claim.held for claim in result.claims] == [True, True, True]
    for each in result.data["networks"]:
        most, least = (each["parts"][f"{end} hessian"] for end in ("most", "least"))
        assert most["entropy"] > least["entropy"]
        assert set(each["shown"]["most hessian"]["row"]).isdisjoint(each["shown"]["least hessian"]["row"])


def test_leaving_out_counts_from_the_ends():
    order = torch.tensor([4, 2, 0, 1, 3])
    assert relevance._end(order, "most", 2).tolist() == [4, 2]
    assert relevance._end(order, "least", 2).tolist() == [3, 1]


def test_contrast_finds_classes_and_only_classes():
    """A kernel with blocks of classes stands out from all orders of the labels; noise does not."""
    labels = torch.arange(12) % 3
    blocks = (labels[:, None] == labels).double() * 0.5 + 0.5
    draw = torch.Generator().manual_seed(0)
    found = dnn2gp_kernels.contrast(blocks, labels, draw)
    assert (found["within"], found["between"]) == (1.0, 0.5)
    assert found["chance"] < 0.01  # an order may keep the classes together: 1 in 5775 does
    noise = torch.rand(12, 12, generator=draw, dtype=torch.float64)
    assert dnn2gp_kernels.contrast(noise + noise.T, labels, draw)["chance"] > 0.02


def test_excess_is_of_the_chosen():
    rows = [{"a": 1.0, "b": 5.0}, {"a": 3.0, "b": 4.0}, {"a": 2.0, "b": 1.0}]
    assert dnn2gp_tuning.excess(rows, "b", by="a", sign=1) == 3.0
    assert dnn2gp_tuning.excess(rows, "b", by="b", sign=-1) == 0.0


def test_the_table_is_standardised_by_its_training_part():
    data, (x, y) = dnn2gp_tuning.table("diabetes", 0, None)
    assert data.n + len(y) == 442
    torch.testing.assert_close(data.x.mean(0), torch.zeros(10, dtype=torch.float64), atol=1e-9, rtol=0)
    torch.testing.assert_close(data.y.std(), torch.tensor(1.0, dtype=torch.float64))
    assert float(x.mean(0).abs().max()) > 1e-3  # by the training part, not its own
    other = dnn2gp_tuning.table("diabetes", 1, None)[1][1]
    assert not torch.equal(y, other)


def test_the_likelihood_chooses_the_noise():
    """Of three noises the one of the residuals has the largest marginal likelihood and the best predictions."""
    base = dnn2gp_tuning.TuningQuestion(dnn2gp_tuning.SIGMA, "diabetes", 0, 30.0, 0.7, 5, 1, 200)
    found = {s: dnn2gp_tuning.look(replace(base, sigma=s), None) for s in (0.2, 0.7, 2.5)}
    for metric, sign in (("log_marginal_likelihood", 1), ("test_nll", -1)):
        assert max(found, key=lambda s, m=metric, k=sign: k * found[s][m]) == 0.7


@dataclass(frozen=True)
class Number:
    value: float


ASKED = []


def squared(question, data_dir):
    ASKED.append(question.value)
    return {"square": question.value**2, "where": data_dir}


def test_answers_are_kept_and_asked_once(tmp_path):
    told = []
    setting = Setting(cache=tmp_path, data_dir="here", tell=told.append)
    questions = [Number(2.0), Number(3.0)]
    ASKED.clear()
    found = setting.answers(squared, questions)
    assert found == [{"square": 4.0, "where": "here"}, {"square": 9.0, "where": "here"}]
    assert told == ["1/2 value 2.0", "2/2 value 3.0"]
    assert setting.answers(squared, [*questions, Number(4.0)])[2]["square"] == 16.0
    assert ASKED == [2.0, 3.0, 4.0]
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.slow
def test_answers_side_by_side_are_the_same(short):
    """Two processes; a function that they can import."""
    questions = [dnn2gp_regression.RegressionQuestion(seed, 20) for seed in (0, 1)]
    alone = Setting().answers(dnn2gp_regression.look, questions)
    assert Setting(jobs=2).answers(dnn2gp_regression.look, questions) == alone
    assert all(math.isfinite(each["log_marginal_likelihood"]) for each in alone)
