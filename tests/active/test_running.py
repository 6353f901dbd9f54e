"""Rounds: what is asked, resuming to the bit, people who answer later, and what is refused."""

import json

import pytest
import torch

import bayesrule as br
from bayesrule import active
from bayesrule.active import running
from bayesrule.active.results import Result
from bayesrule.seeds import mixed

X, Y = br.data.moons(seed=0)
POOL, TEST = (X[:150], Y[:150]), (X[150:], Y[150:])
SHORT = {"method": "mc-dropout", "start": 6, "batch": 4, "budget": 14, "epochs": 8, "samples": 8, "test": TEST}


def timeless(result):
    return {name: value for name, value in result.to_json().items() if name not in ("seconds", "summary")}


@pytest.mark.parametrize("acquire", ["bald", "random"])
def test_rounds(acquire):
    result = active.run(POOL, acquire, **SHORT)
    assert result.labels == [6, 10, 14]
    assert [len(rows) for rows in result.rows] == [6, 4, 4]
    rows = [row for part in result.rows for row in part]
    assert len(set(rows)) == 14
    assert [label for part in result.answers for label in part] == Y[:150][rows].tolist()
    assert len(result.accuracy) == len(result.nll) == len(result.unsure) == 3
    assert result.finished
    assert [len(guesses) for guesses in result.guesses] == [0, 4, 4]
    assert timeless(active.run(POOL, acquire, **SHORT)) == timeless(result)
    assert timeless(active.run(POOL, acquire, **SHORT, seed=1)) != timeless(result)


OTHERS = ("swag", "vogn", "bbb", "sgld", "hmc", "auto")


@pytest.mark.parametrize(
    "method", ["ivon", "laplace", "ensemble", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def test_any_posterior_chooses_by_its_own_networks(method, tmp_path):
    settings = SHORT | {"method": method, "budget": 10, "prior": 1.0, "model": br.models.mlp(2, 2, hidden=(8,))}
    result = active.run(POOL, "bald", out=tmp_path, **settings)
    assert result.labels == [6, 10]
    assert timeless(active.run(POOL, "bald", **settings)) == timeless(result)
    fitted = br.load(tmp_path / "round-001" / "posterior.safetensors", settings["model"])
    left = torch.tensor([row for row in range(150) if row not in result.rows[0]])
    generator = torch.Generator().manual_seed(mixed(0, running.DRAWS, 1))
    scores = active.information.bald(fitted.outputs(X[left], 8, generator).softmax(2))
    assert result.rows[1] == left[scores.argsort(descending=True, stable=True)[:4]].tolist()
    assert float(scores.max()) > 0  # its networks disagree


def test_the_last_budget_is_a_smaller_batch_and_the_pool_may_be_emptied():
    settings = SHORT | {"budget": 9}
    assert active.run((X[:9], Y[:9]), "random", **settings).labels == [6, 9]


def test_the_curve_is_what_evaluate_says(tmp_path):
    result = active.run(POOL, "entropy", out=tmp_path, **SHORT)
    model = br.models.mlp(2, 2, hidden=(64, 64))
    posterior = br.load(tmp_path / "round-003" / "posterior.safetensors", model)
    assert result.accuracy[2] == br.evaluate(posterior, TEST, samples=32)["accuracy"]


SLOW = pytest.mark.slow
MOMENTS = [
    ("in a fit", True),
    ("in a choice", False),
    ("in an answer", True),
    pytest.param("in a fit", False, marks=SLOW),
    pytest.param("in a choice", True, marks=SLOW),
    pytest.param("in an answer", False, marks=SLOW),
]


@pytest.mark.parametrize(("where", "warm"), MOMENTS)
def test_a_run_that_was_killed_goes_on_to_the_bit(where, warm, tmp_path, monkeypatch):
    settings = SHORT | {"warm": warm, "candidates": 40}
    whole = active.run(POOL, "batchbald", **settings)
    count = [0]

    def killed(real, at):
        def call(*args, **options):
            count[0] += 1
            if count[0] == at:
                raise KeyboardInterrupt
            return real(*args, **options)

        return call

    def answer(rows):
        return Y[:150][rows]

    with monkeypatch.context() as patch:
        patch.setattr(running, "INTERVAL", 0.0)
        if where == "in a fit":
            patch.setattr(br.training.loop.Loop, "_learn", killed(br.training.loop.Loop._learn, 13))
        elif where == "in a choice":
            patch.setattr(active.BatchBALD, "choose", killed(active.BatchBALD.choose, 2))
        oracle = killed(answer, 2) if where == "in an answer" else answer
        with pytest.raises(KeyboardInterrupt):
            active.run(POOL, "batchbald", oracle=oracle, out=tmp_path, **settings)
    left = tmp_path / "result.json"
    assert not left.exists() or not json.loads(left.read_text())["finished"]
    resumed = active.run(POOL, "batchbald", out=tmp_path, **settings)
    assert timeless(resumed) == timeless(whole)
    assert active.run(POOL, "batchbald", out=tmp_path, **settings) == resumed  # which is over: it is read


def test_a_larger_budget_goes_on_from_the_end(tmp_path):
    whole = active.run(POOL, "bald", **SHORT)
    active.run(POOL, "bald", out=tmp_path, **SHORT | {"budget": 10})
    assert timeless(active.run(POOL, "bald", out=tmp_path, **SHORT)) == timeless(whole)


def test_a_session_over_days_is_the_same_as_a_run(tmp_path):
    whole = active.run(POOL, "epig", **SHORT)
    settings = {key: value for key, value in SHORT.items()}
    for _ in range(10):
        session = active.Session(X[:150], "epig", classes=2, out=tmp_path, **settings)  # each day another process
        rows = session.ask()
        assert torch.equal(active.Session(X[:150], "epig", classes=2, out=tmp_path, **settings).ask(), rows)
        if not len(rows):
            break
        session.tell(Y[:150][rows].tolist())
    result = session.finish()
    assert timeless(result) == timeless(whole)


def test_labels_that_are_known_from_the_start():
    rows = torch.tensor([3, 5, 77])
    pool = active.Pool(X[:150], "classes", None, TEST, ("0", "1"), known=rows, given=Y[rows])
    session = active.Session(pool, "bald", **{k: v for k, v in SHORT.items() if k != "test"})
    asked = session.ask()
    assert session.result.rows == [[3, 5, 77]]
    assert len(asked) == 4
    assert not {3, 5, 77} & set(asked.tolist())


def test_balanced_starts_and_given_rows():
    result = active.run(POOL, "random", **SHORT | {"balanced": True, "budget": 6})
    assert sum(result.answers[0]) == 3
    result = active.run(POOL, "random", **SHORT | {"start": [1, 2, 3, 4, 5, 6], "budget": 6})
    assert result.rows == [[1, 2, 3, 4, 5, 6]]


@pytest.mark.parametrize(
    "acquire", ["expected-variance", *(pytest.param(name, marks=SLOW) for name in ("epig", "bald"))]
)
def test_numbers(acquire, tmp_path):
    x = torch.linspace(-2, 2, 120)[:, None]
    y = 1000 + 50 * (2 * x[:, 0]).sin()
    settings = {"method": "laplace", "start": 10, "batch": 5, "budget": 20, "epochs": 40, "samples": 20}
    whole = active.run((x, y), acquire, test=(x, y), **settings)
    assert whole.labels == [10, 15, 20]
    assert all(-60 < value < 0 for value in whole.accuracy)  # minus the RMSE, in units of y
    active.run((x, y), acquire, test=(x, y), out=tmp_path, **settings | {"budget": 15})
    assert timeless(active.run((x, y), acquire, test=(x, y), out=tmp_path, **settings)) == timeless(whole)


def test_frozen_features_and_a_network_of_the_users():
    features = torch.nn.Sequential(torch.nn.Linear(2, 5), torch.nn.Tanh())
    head = torch.nn.Linear(5, 2)
    before = [p.clone() for p in features.parameters()]
    result = active.run(POOL, "bald", head, features=features, **SHORT | {"method": "laplace"})
    assert result.labels[-1] == 14
    assert all(torch.equal(p, q) for p, q in zip(before, features.parameters(), strict=True))


def test_without_test_examples_the_pool_says_how_unsure_it_is():
    result = active.run(POOL, "bald", **{**SHORT, "test": None})
    assert result.accuracy == []
    assert len(result.unsure) == 3


def test_labels_to_an_accuracy():
    result = Result("p", {}, 0, labels=[1, 2, 3], accuracy=[0.5, 0.95, 0.9])
    assert (result.labels_to(0.9), result.labels_to(0.96)) == (2, None)


def wrong(**changes):
    return lambda: active.run(POOL, "bald", **SHORT | changes)


def told(labels):
    return wrong(oracle=lambda rows: labels)


HOLES = X[:150].clone()
HOLES[7, 1] = torch.nan

BAD = {
    "budget must be at most the 150 rows of the pool, got 151": wrong(budget=151),
    "start must be at most the budget of 14 labels, got 15": wrong(start=15),
    "start must be different rows from 0 to 149": wrong(start=[3, 3]),
    "start must be different rows from 0 to 149, at least one, got \\(0, 150\\)": wrong(start=[0, 150]),
    "batch must be at least 1, not 0": wrong(batch=0),
    "candidates must be at least the batch of 4, not 2": wrong(candidates=2),
    "unknown argument 'budge': did you mean 'budget'": wrong(budge=3),
    "label for each of 6 rows, got nothing": told(None),
    "label for each of 6 rows, got 5": told([0] * 5),
    "must return 6 numbers": told(["cat"] * 6),
    "must be a number, got nan": told([0, 0, 0, 0, 0, float("nan")]),
    "must be a whole number from 0, got 0.5": told([0.5] * 6),
    "must be a class from 0 to 1 .* got 2: announce": told([2] * 6),
    "pool: X must hold finite numbers|pool: .*row 7": lambda: active.run((HOLES, Y[:150]), "bald", **SHORT),
    "oracle must be given for a pool without labels": lambda: active.run(X, "bald", classes=2, **SHORT),
    "classes must be given for a pool without labels": lambda: active.run(X, "bald", **SHORT),
    "features: the model cannot take the inputs": wrong(features=torch.nn.Linear(3, 2)),
    "features: X must be finite": wrong(features=torch.nn.Threshold(9.0, float("nan"))),
    "likelihood must be for classes": wrong(likelihood="gaussian"),
    "balanced must be of a pool whose labels": lambda: active.run(X, "bald", classes=2, **SHORT | {"balanced": True}),
    "acquire='expected-variance' is for reals": lambda: active.run(POOL, "expected-variance", **SHORT),
    "labels must be of rows that were asked for": lambda: active.Session(POOL, "bald", **SHORT).tell([1]),
    "labels must be known before anything is learnt": lambda: active.Session(POOL, "bald", **SHORT).learn(),
}


@pytest.mark.parametrize("message", BAD)
def test_what_is_refused(message):
    with pytest.raises(ValueError, match=message):
        BAD[message]()


def test_features_must_be_a_module():
    with pytest.raises(TypeError, match=r"features must be a module, such as .* not str"):
        active.run(POOL, "bald", features="simclr", **SHORT)


def test_an_oracle_must_be_a_function():
    with pytest.raises(TypeError, match="oracle must be a function of rows, got list"):
        active.run(POOL, "bald", oracle=[1, 2], **SHORT)


def test_bad_answers_lose_nothing(tmp_path):
    settings = SHORT | {"out": tmp_path}
    session = active.Session(X[:150], "bald", classes=2, **settings)
    rows = session.ask()
    for bad in (None, [1], [9] * 6, ["a"] * 6):
        with pytest.raises(ValueError, match="label"):
            session.tell(bad)
    again = active.Session(X[:150], "bald", classes=2, **settings)
    assert torch.equal(again.ask(), rows)
    assert again.result.rows == []


def test_another_session_is_not_written_over(tmp_path):
    active.run(POOL, "random", out=tmp_path, **SHORT | {"budget": 6})
    for changes, message in (
        ({"seed": 1}, "the seed 0, not 1"),
        ({"epochs": 9}, "another settings"),
        ({"method": "map"}, "another method"),
    ):
        with pytest.raises(FileExistsError, match=message):
            active.run(POOL, "random", out=tmp_path, **SHORT | changes)
    with pytest.raises(FileExistsError, match="another acquire"):
        active.run(POOL, "bald", out=tmp_path, **SHORT)
    with pytest.raises(FileExistsError, match="another pool"):
        active.run((X[1:151], Y[1:151]), "random", out=tmp_path, **SHORT)
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(br.files.FileError, match="damaged"):
        active.run(POOL, "random", out=tmp_path, **SHORT)
