"""The scripts that make the tables of README and docs: complete, fair, resumable, and one command."""

import importlib.util
import json
import sys
from functools import partial
from pathlib import Path

import pytest

import bayesrule as br

ROOT = Path(__file__).parent.parent


def script(name):
    """A script of benchmarks/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


PAGES = ["README.md", "docs/which-method.md", "docs/methods.md", "docs/estimators.md", "docs/leaderboard.md"]


@pytest.fixture
def results():
    return script("results")


@pytest.fixture
def images():
    return script("images")


@pytest.fixture
def samplers():
    return script("samplers")


@pytest.mark.parametrize("page", PAGES)
def test_tables_are_as_the_stored_results_have_them(results, page):
    if results.pending(page):
        pytest.skip(f"{results.TABLES[page][0]} is still to be made, and the page says so")
    assert results.written(page) == (ROOT / page).read_text(encoding="utf-8"), "python benchmarks/results.py tables"


def test_a_table_is_written_from_its_file(results, tmp_path, monkeypatch):
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(results, "TABLES", {"page.md": ("digits.json", [results.leaderboard])})
    scores = {"accuracy": 0.9871, "nll": 0.05, "brier": 0.02, "ece": 0.013, "auroc_ood": 0.94}
    row = {"scores": scores, "nulls": {"ece": {"mean": 0.0119, "upper": 0.02}}, "cost": 1.0}
    (tmp_path / "digits.json").write_text(json.dumps({"methods": {"map": row}}))
    page = tmp_path / "page.md"
    page.write_text(
        "# A\n\n<!-- figures: none, until it has run: digits.json -->\n| old |\n| --- |\n| 0.1 |\n\nRest.\n"
    )
    results.main(["tables"])
    comment, head, rule, line = page.read_text().splitlines()[2:6]
    assert comment == "<!-- figures: digits.json -->"
    assert head == "| method | accuracy | NLL | Brier | ECE (null) | OOD AUROC | training |"
    assert set(rule) == set("| -")
    assert line == "| `map` | 0.987 | 0.050 | 0.020 | 0.013 (0.012) | 0.940 | 1.0 × |"
    assert page.read_text().endswith("\n\nRest.\n")
    page.write_text("# no table\n")
    with pytest.raises(ValueError, match=r"page.md must have 1 tables after .* got 0"):
        results.main(["tables"])


def test_the_table_of_splits_shows_every_method_and_goes_on_where_it_stopped(results, tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    monkeypatch.setattr(results, "tables", lambda args: None)
    monkeypatch.setattr(results.br, "fit", partial(br.fit, epochs=1))
    original = results.on_split
    monkeypatch.setattr(results, "on_split", lambda question: asked.append(question) or original(question))
    few = ["splits", "--splits", "2", "--methods", "map,mle", "--cache", str(tmp_path / "kept")]
    results.main(few)
    results.main(few)
    assert len(asked) == 4  # none of them twice
    stored = json.loads((tmp_path / "digits-splits.json").read_text())
    own, baseline = stored["methods"]["mle"], stored["methods"]["map"]
    gains = [b["nll"] - a["nll"] for a, b in zip(own["runs"], baseline["runs"], strict=True)]
    assert own["gain"] == pytest.approx(sum(gains) / 2)
    assert own["error"] == pytest.approx(abs(gains[0] - gains[1]) / 2)
    assert own["better"] == sum(gain > 0 for gain in gains)
    assert 0 < own["ece_null"] < 0.2
    assert len(results.split_table(stored)) == 3
    assert set(stored) >= {"command", "commit", "seed", "date", "machine"}

    monkeypatch.setattr(results.jobs, "run", lambda ask, questions, *rest: pytest.fail(f"{questions}"))
    with pytest.raises(pytest.fail.Exception) as every:
        results.main(["splits"])
    for name, method in br.methods.AVAILABLE.items():  # samplers, of no set length, only where they are asked for
        assert (f"'{name}', seed=9" in str(every.value)) != method.sampler
    with pytest.raises(SystemExit):
        results.main(["splits", "--methods", "mle"])
    assert "--methods must hold map" in capsys.readouterr().err


@pytest.mark.parametrize("table", ["NATURAL", "VARIATIONAL"])
def test_image_tables_compare_with_regularised_and_unregularised_networks(images, table):
    """On each data set: the same network, epochs and batches for the methods and for both baselines."""
    rows = getattr(images, table)
    for data in ("MNIST", "CIFAR-10"):
        methods = {name.partition(": ")[2]: row for name, row in rows.items() if name.startswith(f"LeNet-5, {data}:")}
        baselines = [row for row in methods.values() if isinstance(row.method, br.methods.MAP | br.methods.MLE)]
        assert {type(row.method) for row in baselines} == {br.methods.MAP, br.methods.MLE}
        assert len({(row.epochs, row.batch_size, row.hidden) for row in methods.values()}) == 1


def test_a_row_of_an_image_table_trains(images):
    """On digits, for an epoch: scores, with the null of the ECE."""
    row = images.Row("digits", br.methods.MAP(), 1, seeds=(0,))
    found = images.train(images.Training("digits: map", row, 0))
    assert set(found) == {"accuracy", "nll", "ece", "ece_null", "seconds"}
    assert 0 < found["ece_null"] < 0.2
    shown = images.summary(row, [found])
    assert shown["ece_null"] == pytest.approx(found["ece_null"], abs=1e-5)


def test_settings_of_samplers_are_tried_at_one_cost_and_only_a_clear_gain_is_taken(samplers):
    """One thing changed at a time, the same gradients to a step between draws, and the rule on made-up gains."""
    base = samplers.SETTINGS[samplers.AS_IT_IS]
    for name, (method, head) in samplers.SETTINGS.items():
        assert abs(samplers.gradients(method) - samplers.gradients(base.method)) <= method.draws
        changed = {key for key, value in vars(method).items() if value != getattr(base.method, key)} - {"thin"}
        assert len(changed) + (head != base.head) == (name != samplers.AS_IT_IS)
    nothing = {samplers.AS_IT_IS: [0.0] * 4}
    assert samplers.chosen(nothing | {"clear": [0.1, 0.2, 0.1, 0.2], "less": [0.1] * 4}) == "clear"
    assert samplers.chosen(nothing | {"noise": [0.9, -0.5, -0.4, 0.2]}) == samplers.AS_IT_IS
    assert samplers.chosen(nothing | {"worse": [-0.1] * 4}) == samplers.AS_IT_IS


def test_a_file_of_results_names_the_commit_of_the_code_that_ran():
    from bayesrule.report import provenance

    about = provenance("make results", seed=3)
    assert about["seed"] == 3
    assert about["commit"] is None or len(about["commit"].removesuffix("-dirty")) == 40


def test_settings_of_lifelong_learning_that_are_tried_and_what_is_chosen():
    lifelong = script("lifelong")
    held = {"held": 1000}
    found = {"in use": held | {"average": 0.885}, "a": held | {"average": 0.89}, "b": held | {"average": 0.85}}
    assert lifelong.chosen(found) == "in use"  # within sqrt(.89 * .11 / 1000) = .0099 of the best
    assert lifelong.chosen(found | {"in use": held | {"average": 0.87}}) == "a"
    for stream, methods in lifelong.CANDIDATES.items():
        for method, labels in methods.items():
            for label in ("in use", *labels):
                asked = lifelong.Question(stream, method, label, 100, 1, 0)
                points = getattr(asked.strategy, "points", None)
                assert points in (None, 200 if stream == "perm-mnist" else 40)
