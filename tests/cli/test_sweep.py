"""The verb sweep, and the options of optimisers that it needs ``--set`` for."""

import inspect
import json
import shlex
from dataclasses import replace

import pytest
from matplotlib.image import imread

import bayesrule as br
from bayesrule import sweeps
from bayesrule.cli import fields, parser
from bayesrule.cli.options import RunSettings
from bayesrule.cli.sources import read
from bayesrule.cli.sweep import fit_command
from bayesrule.methods import BBB
from bayesrule.optim import Cosine, Group, Plateau, Recipe
from bayesrule.report.landscape import landscapes
from bayesrule.sweeps import Trial

SMALL = ("--hidden", "8", "--epochs", "2", "--trials", "3", "--sampler", "random")
SGD = ("--space", "optimizer=sgd", "--space", "lr=1e-3:1:log", "--space", "momentum=0:0.9")
SGD += ("--method", "bbb", "--space", "temperature=1e-3:1:log", "--space", "sigma_lr_ratio=1e-2:1:log")


def test_what_a_sweep_writes_and_shows(bayesrule, tmp_path):
    code, out, err = bayesrule("sweep", "moons", *SMALL, *SGD, "--prior", "kaiming")
    assert code == 0, err
    assert "200 examples to train on, 200 held out" in err
    assert [f"{k}/3" in err for k in (1, 2, 3)] == [True] * 3
    folder = tmp_path / "sweeps" / "moons-bbb"
    assert sorted(path.name for path in folder.iterdir()) == ["landscapes.png", "result.json", "sweep.db"]
    result = json.loads((folder / "result.json").read_text())
    assert [trial["number"] for trial in result["trials"]] == [0, 1, 2]
    assert result["best"]["nll"] == min(trial["nll"] for trial in result["trials"])
    assert result["space"]["momentum"] == "0.0:0.9"
    assert {"accuracy", "nll", "ece"} <= set(result["best"]["scores"])
    assert result["failed"] == 0
    for head in ("trial", "NLL", "accuracy", "lr", "momentum", "temperature"):
        assert head in out
    command = result["best"]["fit"]
    assert command in out
    assert "--prior kaiming" in command

    code, _, err = bayesrule(*shlex.split(command)[1:], "--out", tmp_path / "run")
    assert code == 0, err
    run = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]
    method = fields.method(run["method"], run["set"])
    settings = result["best"]["settings"]
    assert run["temperature"] == settings["temperature"]
    assert method == BBB(
        lr=settings["lr"],
        sigma_lr_ratio=settings["sigma_lr_ratio"],
        optimizer=Recipe("sgd", {"momentum": settings["momentum"]}),
    )


def test_the_same_command_goes_on(bayesrule, as_json):
    first = as_json("sweep", "moons", *SMALL, *SGD, "--out", "a")
    more = as_json("sweep", "moons", *SMALL, *SGD, "--out", "a", "--trials", "4")
    assert more["trials"][:3] == first["trials"]
    assert len(more["trials"]) == 4
    code, _, err = bayesrule("sweep", "moons", *SMALL, *SGD, "--out", "a", "--epochs", 3)
    assert code == 2
    assert "was begun with epochs 2, not 3" in err


def test_a_storage_elsewhere(as_json, tmp_path):
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    line = ("sweep", "moons", *SMALL, "--method", "map", "--storage", url)
    first = as_json(*line, "--out", "a")
    assert as_json(*line, "--out", "b")["trials"] == first["trials"]
    assert "shared.db" not in first["command"]
    assert first["best"]["fit"].startswith("bayesrule fit moons --method map --epochs 2 --hidden 8 --set lr=")
    assert not (tmp_path / "a" / "sweep.db").exists()


def test_tables_and_other_methods(as_json, tables):
    line = ("--target", "price", "--method", "swag", "--set", "lr=0.01", "--temperature", "0.5", *SMALL)
    result = as_json("sweep", tables / "houses.csv", *line, "--seed", 1)
    assert list(result["space"]) == ["rank", "swa_lr_ratio"]
    assert "rmse" in result["best"]["scores"]
    words = shlex.split(result["best"]["fit"])
    assert words[:3] == ["bayesrule", "fit", str(tables / "houses.csv")]
    text = " ".join(words)
    for option in ("--target price", "--seed 1", "--hidden 8", "--temperature 0.5", "--set lr=0.01"):
        assert option in text
    assert f"--set rank={result['best']['settings']['rank']}" in text


def test_test_examples_are_never_seen(bayesrule, monkeypatch):
    seen = []

    def spy(model, train, *rest, **fixed):
        seen.append(train)
        raise ValueError("enough")

    monkeypatch.setattr(sweeps, "sweep", spy)
    assert bayesrule("sweep", "moons", *SMALL)[0] == 2
    split = read(RunSettings("moons")).split
    given = {tuple(row) for row in seen[0].raw().x.tolist()}
    assert len(given) == len(split.train[1])
    for rows, shared in ((split.train[0], len(given)), (split.test[0], 0)):
        assert sum(bool((row - seen[0].raw().x).abs().amax(1).amin() < 1e-6) for row in rows) == shared


def test_diverging_trials(as_json, bayesrule, tmp_path):
    line = ("sweep", "moons", *SMALL, "--method", "bbb", "--set", "optimizer=sgd", "--trials", "6")
    result = as_json(*line, "--space", "lr=1e-3:1e30:log", "--out", "a")
    failed = [trial for trial in result["trials"] if trial["failed"]]
    assert result["failed"] == len(failed) > 0
    assert all(trial["nll"] is None for trial in failed)
    code, out, err = bayesrule(*line, "--space", "lr=1e29:1e30:log", "--out", "b")
    assert (code, out) == (2, "")
    assert "no trial of 6 gave a posterior" in err.splitlines()[-1]


def test_the_picture(as_json, tmp_path, painted):
    as_json("sweep", "moons", "--method", "bbb", "--hidden", 8, "--epochs", 1, "--trials", 4, "--out", "a")
    picture = imread(tmp_path / "a" / "landscapes.png")
    assert picture.shape[0] > 500
    assert picture.shape[1] > 500
    assert len({tuple(pixel) for row in picture[::7, ::7] for pixel in row}) > 20
    assert all((panel != 1).any() for panel in corners(picture))


def corners(picture):
    height, width = (side // 2 for side in picture.shape[:2])
    return picture[:height, :width], picture[:height, width:], picture[height:, :width], picture[height:, width:]


@pytest.mark.parametrize("broken", [(), (0,), (0, 1, 2)])
def test_the_picture_of_little(broken, painted):
    space = sweeps.parse_space(["lr=0.1:0.1", "rank=2:4:int", "estimator=weight,flipout"])
    one = Trial(0, {"lr": 0.1, "rank": 2, "estimator": "weight"}, BBB(), 1.0, {}, 0, 0.5, {}, 0.0)
    trials = [replace(one, number=k, failed="diverged" if k in broken else None, nll=10.0**k) for k in range(3)]
    assert landscapes(sweeps.Sweep(tuple(trials), space)).startswith(b"\x89PNG")


def test_methods_priors_widths_and_lengths_are_searched(bayesrule, as_json, tmp_path):
    spaces = ("method=map,swag", "prior=0.3:3:log", "width=4:9:int", "epochs=1:3:int", "rank=2:4:int")
    words = [word for space in spaces for word in ("--space", space)]
    result = as_json("sweep", "moons", *words, "--trials", "4", "--sampler", "random", "--out", "a")
    for trial in result["trials"]:
        settings = trial["settings"]
        assert trial["method"]["name"] == settings["method"]
        assert ("rank" in settings) == (settings["method"] == "swag")
        assert 0.3 <= settings["prior"] <= 3
    assert {trial["settings"]["method"] for trial in result["trials"]} == {"map", "swag"}
    best = result["best"]["settings"]
    command = shlex.split(result["best"]["fit"])
    code, _, err = bayesrule(*command[1:], "--out", tmp_path / "run")
    assert code == 0, err
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["settings"]["method"] == best["method"]
    assert float(run["settings"]["prior"]) == best["prior"]
    assert run["settings"]["epochs"] == best["epochs"]
    assert run["model"]["hidden"] == [best["width"]] * 2


def test_the_method_is_that_of_fit():
    assert inspect.signature(br.fit).parameters["method"].default == sweeps.search.USUAL
    settings = RunSettings.of(parser().parse_args(["sweep", "houses.csv"]))
    assert settings.method == "auto"


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("sweep moons --space width=4:8:int --hidden 8", "--space width is searched over and set as well"),
        ("sweep moons --space epochs=1:2:int --epochs 3", "--space epochs is searched over and set as well"),
        ("sweep moons --space method=map --method map", "--space method is searched over and set as well"),
        ("sweep moons --space method=map,swga", "did you mean 'swag'"),
        ("sweep moons --space method=map,swag --space rnak=2:3:int", "unknown setting of"),
        ("sweep moons --space epochs=1:3", "space['epochs'] must be whole numbers"),
        ("sweep", "the following arguments are required: DATA"),
        ("sweep moons --space lr", "--space must be FIELD=RANGE"),
        ("sweep moons --space lr=1:0", "low must be at most high"),
        ("sweep moons --method bbb --space lrr=0:1", "did you mean 'lr'"),
        ("sweep moons --method bbb --space lr=1e-3:1:log --set lr=0.1", "--space lr is searched over and set as well"),
        (
            "sweep moons --method bbb --set sigma_lr_ratio=1 --space sigma_lr=0.1:1",
            "--space sigma_lr is searched over and set as well",
        ),
        ("sweep moons --method bbb --epochs 0", "epochs must be at least 1 for bbb: 0 is for laplace, map"),
        ("sweep moons --method bbb --space temperature=0.1:1 --temperature 0.1", "is searched over and set as well"),
        ("sweep moons --method map --set lr=0.1", "space must be given for map"),
        ("sweep moons --method bbbb", "did you mean 'bbb'"),
        ("sweep moons --sampler grid", "unknown sampler 'grid'"),
        ("sweep moons --trials 0", "trials must be a whole number of at least 1, not 0"),
        ("sweep moons --jobs 0", "--jobs must be at least 1, got 0"),
        ("sweep moons --val 1", "val must be held-out data"),
        ("sweep moons --threads 0", "--threads must be at least 1"),
        ("sweep moons --out RUNS/houses", "holds another run"),
        ("fit moons --method bbb --set optimizer.momentum=0.5", "unknown option of adam 'momentum'"),
        ("fit moons --method bbb --set optimizer=sgd --set optimizer.momentum=much", "cannot be built"),
        ("fit moons --method bbb --set optimizer=sgd --set optimizer.moment=1", "did you mean 'momentum'"),
        ("fit moons --method bbb --set lr.x=1", "lr of bbb has nothing within it to set"),
        ("fit moons --method bbb --set schedule.patience=3", "unknown field of cosine 'patience'"),
        ("fit moons --method bbb --set deviations.rate=3", "unknown field of group 'rate'"),
    ],
)
def test_errors(bayesrule, runs, tmp_path, line, error):
    code, out, err = bayesrule(*line.replace("RUNS", str(runs)).split())
    assert (code, out) == (2, "")
    assert error in err.splitlines()[-1]
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_another_result_is_not_overwritten(bayesrule, tmp_path):
    for content in ('{"command": "bayesrule reproduce"}', "[]", "not json"):
        (tmp_path / "result.json").write_text(content)
        code, _, err = bayesrule("sweep", "moons", *SMALL, "--out", tmp_path)
        assert code == 2
        assert "holds another result.json" in err


def test_options_of_an_optimiser():
    words = ["optimizer=sgd", "optimizer.momentum=0.5", "optimizer.nesterov=true"]
    assert fields.method("bbb", words).optimizer == Recipe("sgd", {"momentum": 0.5, "nesterov": True})
    assert fields.method("bbb", ["optimizer.betas=0.8,0.99"]).optimizer == Recipe("adam", {"betas": (0.8, 0.99)})


def test_what_is_within_schedules_and_groups():
    """In any order: the plateau is there before its patience is set."""
    words = ["schedule.patience=3", "schedule=plateau", "deviations.optimizer.momentum=0.5", "deviations.lr=0.001"]
    bbb = fields.method("bbb", [*words, "deviations.optimizer=sgd", "deviations.schedule.warm_up=0.2"])
    assert bbb.schedule == Plateau(patience=3)
    assert bbb.deviations == Group(Recipe("sgd", {"momentum": 0.5}), 0.001, Cosine(0.2))
    assert fields.method("ensemble", ["base=bbb", "base.optimizer=sgd", "base.optimizer.momentum=0.5"]).base == BBB(
        optimizer=Recipe("sgd", {"momentum": 0.5})
    )
    assert fields.method("bbb", ["initial_mean=none", "lr=none"]) == BBB()


def test_the_command_says_all(tmp_path):
    settings = RunSettings(
        "uci/yacht", data_dir="a b", split=2, seed=3, method="bbb", set=("samples=2",), batch_size=7, threads=2
    )
    assignments = {"optimizer": "adam", "optimizer.betas": (0.8, 0.999), "temperature": 0.5, "initial_mean": None}
    trial = Trial(0, {}, BBB(), 0.5, assignments, 0, 0.1, {}, 1.0)
    assert fit_command(settings, trial) == (
        "bayesrule fit uci/yacht --method bbb --data-dir 'a b' --split 2 --seed 3 --batch-size 7 --threads 2 "
        "--temperature 0.5 --set samples=2 --set optimizer=adam --set optimizer.betas=0.8,0.999 --set initial_mean=None"
    )
