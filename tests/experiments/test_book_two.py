"""The experiments after Book (2020), sections 3.3, 5.3 and 5.4: optimisers, landscapes, groups and schedules."""

import functools
import io
import json
import math

import numpy as np
import pytest
from covering import first
from matplotlib.image import imread

from bayesrule.experiments import EXPERIMENTS, Setting, about, book, png, trials
from bayesrule.experiments.book import (
    adam_landscape,
    group_plateau,
    groups,
    landscapes,
    lr_schedules,
    optimizers,
    sgd_landscape,
)
from bayesrule.experiments.book.landscapes import Landscape
from bayesrule.experiments.trials import Outcome
from bayesrule.optim import Constant, Cosine

NAMES = ("adam-landscape", "group-plateau", "lr-schedules", "mean-and-sigma-groups", "optimizers", "sgd-landscape")


@pytest.fixture
def short(monkeypatch):
    """Few draws, seeds and steps."""
    monkeypatch.setattr(trials, "SAMPLES", 4)
    monkeypatch.setattr(landscapes, "ROUNDS", 50)
    for module in (sgd_landscape, adam_landscape):
        monkeypatch.setattr(module, "EPOCHS", {"digits": 1})
        monkeypatch.setattr(module, "DRAWS", {"digits": 8})
    monkeypatch.setattr(adam_landscape, "SEEDS", {"digits": 2})
    monkeypatch.setattr(optimizers, "EPOCHS", {"digits": 1})
    monkeypatch.setattr(optimizers, "DRAWS", 2)
    monkeypatch.setattr(groups, "EPOCHS", {"digits": {"turns": 4, "search": 1, "ratio": 1}})
    monkeypatch.setattr(groups, "DRAWS", {"digits": 4})
    monkeypatch.setattr(groups, "SEEDS", 2)
    monkeypatch.setattr(groups, "TOSSES", 50)
    monkeypatch.setattr(group_plateau, "EPOCHS", {False: {"digits": 2}})
    monkeypatch.setattr(lr_schedules, "EPOCHS", {False: 2})
    for module in (group_plateau, lr_schedules):
        monkeypatch.setattr(module, "SEEDS", {False: 2})
    monkeypatch.setattr(lr_schedules, "LINE_RUNS", 2)
    monkeypatch.setattr(lr_schedules, "RANGE_STEPS", 30)


@functools.cache
def answer(name):
    """What an experiment finds, for tests with ``short``."""
    return EXPERIMENTS[name](Setting())


def plain(result):
    return json.dumps(result.data, allow_nan=False)


def trial(accuracy=0.5, loss=1.0, failed=None, history=(), what="x"):
    return Outcome(what, "digits", 0, accuracy, 1.0, 0.1, loss, loss / 2, list(history), failed)


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_answers_in_full(name, short):
    result = answer(name)
    picture = imread(io.BytesIO(png(result)), format="png")
    assert result.claims
    assert all(claim.source and claim.says and claim.measured for claim in result.claims)
    assert {claim.held for claim in result.claims} <= {True, False, None}
    assert all(result.notes)
    assert picture.std() > 0.01
    assert about(name)


@pytest.mark.parametrize("name", first(NAMES))
def test_an_experiment_repeats(name, short):
    assert plain(EXPERIMENTS[name](Setting())) == plain(answer(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_with_another_seed_answers_otherwise(name, short):
    assert plain(EXPERIMENTS[name](Setting(seed=1))) != plain(answer(name))


@pytest.mark.parametrize("experiment", [sgd_landscape, adam_landscape, optimizers, groups, group_plateau, lr_schedules])
def test_the_full_setting_knows_its_data(experiment, monkeypatch, unpainted):
    """The full setting asks for trainings on the document's data, for no more than 330 epochs in all.

    But for plateaus, which do not come in fewer than 675.
    """
    asked = []

    def run(jobs, setting):
        asked.extend(jobs)
        history = [{"nll": 1.0, "penalty": 1.0, "loss": 2.0}] * max(job.epochs for job in jobs)
        return [Outcome(j.what, j.data, j.seed, 0.5 + 0.001 * i, 1, 0, 1, 1, history) for i, j in enumerate(jobs)]

    monkeypatch.setattr(trials, "run", run)
    monkeypatch.setattr(landscapes, "ROUNDS", 50)
    monkeypatch.setattr(groups, "TOSSES", 50)
    monkeypatch.setattr(lr_schedules, "_test", lambda data, setting: lr_schedules.RangeTest((1,), (1,), 1, 1, 1))
    result = experiment.run(Setting(full=True))
    assert {job.data for job in asked} in ({"mnist", "cifar10"}, {"cifar10"})
    assert sum(job.epochs for job in asked) <= (675 if experiment is group_plateau else 330)
    assert plain(result)
    assert png(result)


def test_trainings_that_all_break_off_are_an_answer_too(short, monkeypatch):
    monkeypatch.setattr(sgd_landscape, "HIGHEST", {"digits": 1e9})
    result = sgd_landscape.run(Setting())
    (landscape,) = result.data["landscapes"]
    assert set(landscape["loss"]) == {None}
    assert all(landscape["failed"])
    assert not result.claims[0].held
    assert png(result)
    assert plain(result)


def test_ranks_and_their_correlation_are_scipys():
    stats = pytest.importorskip("scipy.stats")
    random = np.random.default_rng(0)
    x, y = random.integers(0, 9, 40), random.normal(size=40)
    assert landscapes.ranks(x).tolist() == stats.rankdata(x).tolist()
    assert landscapes.correlation(x, y) == pytest.approx(stats.spearmanr(x, y).statistic)
    assert landscapes.correlation([1, 1, 1], [1, 2, 3]) == 0.0


def test_permutations_count_what_enumeration_counts():
    """2000 rounds: a count is off by more than 5 standard errors once in a million seeds."""
    for p, exact in (
        (landscapes.chance([1, 2, 3, 4], [4, 3, 2, 1]), 1 / 24),
        (landscapes.chance([1, 2, 3, 4], [1, 2, 3, 4]), 1.0),
        (landscapes.chance([1, 2, 3], [5, 5, 5]), 1.0),
        (landscapes.chance_of_gain([3, 4], [1, 2]), 1 / 6),
        (landscapes.chance_of_gain([1, 2], [3, 4]), 1.0),
    ):
        assert p == pytest.approx(exact, abs=5 * math.sqrt(exact * (1 - exact) / landscapes.ROUNDS) + 1e-3)
    assert landscapes.chance([1, 2, 3, 4], [4, 3, 2, 1], seed=3) == landscapes.chance(
        [1, 2, 3, 4], [4, 3, 2, 1], seed=3
    )


def test_chance_rejects_nothing_at_its_level(monkeypatch):
    """Under independence p < 0.05 happens in 5 % of cases: of 200, more than 25 once in ten thousand times."""
    monkeypatch.setattr(landscapes, "ROUNDS", 199)
    random = np.random.default_rng(0)
    p = [landscapes.chance(random.normal(size=12), random.normal(size=12), seed) for seed in range(200)]
    assert sum(value < 0.05 for value in p) <= 25


def test_auroc_and_parabolas():
    assert landscapes.auroc([3.0, 4.0], [1.0, 2.0]) == 1.0
    assert landscapes.auroc([1.0], [1.0]) == 0.5
    assert landscapes.auroc([], [1.0]) is None
    x = np.linspace(-1, 1, 9)
    assert landscapes.explained(x, 1 - x**2) == pytest.approx(1.0)
    assert landscapes.explained(x, x**3 - x * (x**4).sum() / (x**2).sum()) == pytest.approx(0.0, abs=1e-12)
    assert landscapes.explained(x, np.ones(9)) == 0.0


def test_the_best_are_those_of_least_loss_and_what_broke_off_is_last():
    found = [trial(loss=loss) for loss in (3.0, math.inf, 1.0, 2.0)]
    landscape = Landscape("digits", {"lr": np.arange(4.0)}, found)
    assert landscape.best(0.5).tolist() == [False, False, True, True]
    assert landscape.plain()["loss"] == [3.0, None, 1.0, 2.0]
    assert landscape.plain()["lr"] == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize(("accuracy", "failed", "is_so"), [(0.2, None, True), (0.14, None, False), (0.9, "NaN", False)])
def test_what_counts_as_learnt(accuracy, failed, is_so):
    assert landscapes.learnt(trial(accuracy, failed=failed)) is is_so


def test_bounds_enclose_the_best():
    """Of runs all over a region with known bounds, the bounds are found, a little inside."""
    random = np.random.default_rng(0)
    momentum, lr = random.uniform(0, 1, 4000), random.uniform(0, 1, 4000)
    inside = (lr + 0.5 * momentum < 0.5) & (lr > (1 - np.sqrt(momentum)) ** 2 / 2)
    landscape = Landscape("digits", {"momentum": momentum[inside], "lr": lr[inside]}, [trial()] * int(inside.sum()))
    found_bounds = sgd_landscape.bounds(landscape)
    assert 0.4 < found_bounds["a"] <= 0.5
    assert 1.2 < found_bounds["h"] <= 2.0


def test_hyper_parameters_are_drawn_near_their_bases():
    random = np.random.default_rng(0)
    momenta = np.array([optimizers.near(0.95, "momentum", random) for _ in range(2000)])
    assert momenta.min() > 0
    assert momenta.max() < 1
    rates = np.array([optimizers.near(0.01, "lr", random) for _ in range(2000)])
    assert rates.min() > 0
    assert np.median(rates) == pytest.approx(0.0103, rel=0.05)  # that of N(1, 1/2) above 0 is 1.03
    assert optimizers.near(0.0, "momentum", random) == 0.0
    drawn = optimizers.draws("sgd", 30, random)
    by_base = [np.median([place["lr"] for place in drawn[start::3]]) for start in range(3)]
    assert by_base[0] < 0.005 < by_base[1] < 0.05 < by_base[2]
    assert {tuple(place) for place in drawn} == {("lr", "momentum")}
    assert max(place["lr"] for place in optimizers.draws("yellowfin", 20, random)) > 0.5


def test_the_summary_leaves_out_what_learnt_nothing():
    found = [trial(0.5), trial(0.7), trial(0.1), trial(0.1, math.inf, "NaN")]
    summary = optimizers.summary(found)
    assert summary == pytest.approx({"mean": 0.6, "std": math.sqrt(0.02), "best": 0.7, "success": 0.5})
    assert optimizers.summary(found[2:]) == {"mean": None, "std": None, "best": None, "success": 0.0}


def test_falls_are_within_the_turns_of_a_group():
    nll = [9.0, 8.0, 8.0, 8.5, 5.0, 2.0, 2.0, 1.5]
    by_turns = trial(history=[{"nll": value} for value in nll])
    assert groups.falls(by_turns, "nll", 0) == 2.0
    assert groups.falls(by_turns, "nll", 1) == 0.0


@pytest.mark.parametrize(("means", "deviations", "low", "high"), [(1, 0, 0, 0.01), (0, 1, 0.99, 1), (1, 1, 0.05, 1)])
def test_which_rate_the_accuracy_depends_on(means, deviations, low, high):
    """A lead is found where there is one; of two rates that count alike neither leads."""
    random = np.random.default_rng(0)
    x, y = random.uniform(-4, 0, (2, 40))
    found = [trial(0.9 - 0.05 * (means * a**2 + deviations * b**2)) for a, b in zip(x, y, strict=True)]
    share, other, p = groups.ahead(Landscape("digits", {"means": np.exp(x), "deviations": np.exp(y)}, found))
    assert low <= p <= high
    assert max(share, other) > (0.99 if means != deviations else 0.2)


def test_plateaus_go_by_their_own_metrics():
    """The means' rate falls when the nll has not improved for two epochs, the deviations' only with the divergence."""
    history = [{"nll": 1.0, "penalty": 5.0 - epoch} for epoch in range(5)]
    found = group_plateau.rates(trial(history=history))
    assert found["means"] == pytest.approx([1e-3, 1e-3, 1e-3, 1e-4, 1e-4])
    assert found["deviations"] == pytest.approx([1e-3] * 5)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_falling_rate_finds_the_line(seed):
    """At a constant rate SGD stays about a distance away; with a rate that falls it comes within a tenth of that."""
    falling, constant = (
        lr_schedules.excess(schedule, Setting(seed=seed))[:, -1] for schedule in (Cosine(), Constant())
    )
    assert falling.min() >= 0
    assert falling.mean() < 0.1 * constant.mean()


def test_the_settings_differ_in_what_the_experiment_is_about():
    methods = group_plateau._methods()
    assert {m.initial_std for m in methods.values()} == {book.METHOD["initial_std"]}
    assert methods["constant 0.001"].schedule == "constant"
    assert methods[group_plateau.PLATEAU].deviations.schedule.metric == "penalty"
