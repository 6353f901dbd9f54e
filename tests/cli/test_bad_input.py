"""Whatever a user gets wrong ends in one line that says what to do, and leaves nothing half done."""

import json
import shutil

import pytest

from bayesrule.cli.runs import checksum
from bayesrule.training import Folder

BAD = {
    "fitt digits": "did you mean 'fit'",
    "fit": "DATA must be a name",
    "fit digit": "did you mean 'digits'",
    "fit digits --method swagg": "did you mean 'swag'",
    "fit digits --method swag --set ranks=3": "did you mean 'rank'",
    "fit digits --method swag --set rank=many": "--set rank must be a value of type int, got 'many'",
    "fit digits --method swag --set rank": "--set must be FIELD=VALUE",
    "fit digits --epochs many": "invalid int value",
    "fit digits --epochs 0": "epochs must be at least 1 for ensemble: 0 is for",
    "fit digits --epochs -1": "epochs must be a whole number of at least 0, not -1",
    "fit digits --threads 0": "--threads must be at least 1",
    "fit digits --device warp": "device must be auto or one of this machine's, cpu",
    "fit digits --device meta": "got 'meta'",
    "fit --resume --out RUNS/houses --device warp": "got 'warp'",
    "predict RUNS/houses TABLES/new.csv --device warp": "got 'warp'",
    "evaluate RUNS/houses TABLES/houses.csv --device cpu:x": "got 'cpu:x'",
    "compare moons --device warp": "got 'warp'",
    "demo --device warp": "got 'warp'",
    "sweep moons --device warp": "got 'warp'",
    "reproduce path-derivative --device warp": "got 'warp'",
    "fit digits --hidden 8,x": "must be whole numbers",
    "fit digits --hidden 99999999999": "hidden must be layers that fit into memory",
    "fit digits --hidden 9999999999999999999999,9999999999999999999999": "hidden must be layers that fit into memory",
    "compare moons --hidden 99999999999": "hidden must be layers that fit into memory",
    "fit digits --temperature -1": "temperature must be positive",
    "fit digits --prior kaimin": "did you mean 'kaiming'",
    "fit digits --prior -1": "must be positive",
    "fit digits --likelihood gausian": "did you mean 'gaussian'",
    "fit digits --likelihood gaussian": "is for reals, but the target of digits holds classes",
    "fit digits --likelihood bernoulli": "is for 2 classes",
    "fit digits --target price": "--target is for .csv and .parquet files",
    "fit digits --drop price": "--drop is for .csv and .parquet files",
    "fit digits --test TABLES/houses.csv": "--test is for .csv and .parquet files",
    "fit TABLES/houses.csv --target price --drop sice": "unknown column 'sice': did you mean 'size'",
    "fit TABLES/houses.csv --target price --keep id,price": "--drop and --keep must not name the target, got 'price'",
    "fit TABLES/houses.csv --target price --test TABLES/new.csv": "unknown target column 'price'",
    "fit TABLES/houses.csv --target price --test TABLES/nothing.csv": "must be an existing file",
    "fit TABLES/houses.csv --target price --sep ;;": "sep must be one sign that separates cells",
    "predict RUNS/houses TABLES/new.csv --keep sice": "unknown --keep column 'sice': did you mean 'size'",
    "predict RUNS/houses TABLES/new.csv --level 95": "--level must be between 0 and 1, got 95: for 95 % give 0.95",
    "predict RUNS/grades TABLES/new.csv --level 0.95": "--level is for predictions of numbers",
    "fit digits --split 3": "split must be 0",
    "fit digits --resume": "--resume must know where the run is",
    "fit digits --resume --out nowhere": "there is no nowhere/run.json",
    "fit TABLES/nothing.csv --target price": "must be an existing file",
    "fit TABLES/empty.csv --target price": "it is empty",
    "fit TABLES/header.csv --target price": "must have rows",
    "fit TABLES/houses.csv": "one of: size, city",
    "fit TABLES/houses.csv --target prize": "did you mean 'price'",
    "fit TABLES/houses.csv --target planet": "must have different values",
    "fit TABLES/houses.csv --target price --split 1": "--split is for uci",
    "fit TABLES/houses.csv --target price --out RUNS/houses": "holds another run",
    "fit --resume --out RUNS/houses --epochs 11": "epochs is 10",
    "compare moons --methods map,swagg": "did you mean 'swag'",
    "compare moons --out RUNS/houses": "holds another run",
    "evaluate RUNS/houses TABLES/new.csv": "unknown target column 'price'",
    "evaluate RUNS/houses digits": "DATA must be a table",
    "predict RUNS/houses TABLES/no-city.csv": "must have the column 'city'",
    "predict RUNS/houses TABLES/nothing.csv": "must be an existing file",
    "predict RUNS/houses TABLES/new.csv --out TABLES/new.csv": "--out must be another file than DATA",
    "predict RUNS/houses TABLES/new.csv --out TABLES/houses.csv": "or one that predict wrote, got",
    "predict RUNS/houses TABLES/new.csv --out RUNS/houses/run.json": "or one that predict wrote, got",
    "predict RUNS/houses TABLES/new.csv --out TABLES": "--out must be a file",
    "fit TABLES/twice.csv --target price": "different names, got 'price' 2 times",
    "predict nowhere TABLES/new.csv": "RUN must be a directory that bayesrule fit wrote",
}


@pytest.mark.parametrize("line", BAD)
def test_one_line_and_nothing_left(bayesrule, tables, runs, tmp_path, line):
    words = line.replace("TABLES", str(tables)).replace("RUNS", str(runs)).split()
    before = contents(tables, runs)
    code, out, err = bayesrule(*words)
    *said, last = err.splitlines()
    assert (code, out) == (2, "")
    assert last.startswith("bayesrule: ")
    assert BAD[line] in last
    assert not any("Traceback" in text for text in said)
    assert contents(tables, runs) == before
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def contents(*folders):
    return {path: path.is_file() and path.read_bytes() for folder in folders for path in folder.rglob("*")}


def test_predictions_do_not_replace_the_data_by_another_name(bayesrule, runs, tables, tmp_path):
    data = shutil.copy(tables / "new.csv", tmp_path / "new.csv")
    (tmp_path / "soft.csv").symlink_to(data)
    (tmp_path / "hard.csv").hardlink_to(data)
    for out in ("new.csv", "soft.csv", "hard.csv"):
        assert "--out must be another file than DATA" in bayesrule("predict", runs / "houses", data, "--out", out)[2]
    assert data.read_bytes() == (tables / "new.csv").read_bytes()


def test_debug_shows_where(bayesrule):
    with pytest.raises(ValueError, match="unknown data set"):
        bayesrule("fit", "digit", "--debug")


@pytest.mark.parametrize("damage", ["truncated", "edited", "foreign", "gone"])
def test_a_damaged_posterior(bayesrule, runs, tables, tmp_path, damage):
    run = shutil.copytree(runs / "houses", tmp_path / "run")
    path = run / "posterior.safetensors"
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        other = (runs / "grades" / "posterior.safetensors").read_bytes()
        edited = content[:-1] + bytes([content[-1] ^ 1])
        path.write_bytes({"truncated": content[:-100], "edited": edited, "foreign": other}[damage])
    code, out, err = bayesrule("predict", run, tables / "new.csv")
    assert (code, out) == (2, "")
    says = {
        "truncated": "truncated",
        "edited": "checksum",
        "foreign": "does not fit the model",
        "gone": "--resume --out",
    }
    assert says[damage] in err


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"format": "other"}', '{"format": "bayesrule-run/1"}', '{"format": "bayesrule-run/1", "schema": 3}'],
)
def test_a_damaged_run_json(bayesrule, tables, tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    code, _, err = bayesrule("predict", tmp_path, tables / "new.csv")
    assert code == 2
    assert "run.json" in err


def signed(plain):
    """With the checksum of what is in it now."""
    rest = {key: value for key, value in plain.items() if key != "sha256"}
    return rest | {"sha256": checksum(rest)}


EDITS = {
    "other epochs": lambda plain: plain["settings"].update(epochs=11),
    "text for a number": lambda plain: plain["settings"].update(hidden="wide"),
    "no settings": lambda plain: plain.update(settings=None),
    "a network that is none": lambda plain: plain.update(model=[1, 2]),
    "a schema that is none": lambda plain: plain["schema"].update(columns=[[]]),
    "no checksum": lambda plain: plain.pop("sha256"),
    "classes that are none": lambda plain: plain.update(classes=7),
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize(
    "verb", ["predict RUN TABLES/new.csv", "evaluate RUN TABLES/houses.csv", "fit --resume --out RUN"]
)
def test_a_run_json_that_was_edited(bayesrule, runs, tables, tmp_path, edit, verb):
    run = shutil.copytree(runs / "houses", tmp_path / "run")
    plain = json.loads((run / "run.json").read_text())
    EDITS[edit](plain)
    (run / "run.json").write_text(json.dumps(plain))
    code, out, err = bayesrule(*verb.replace("RUN", str(run)).replace("TABLES", str(tables)).split())
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "run.json: the checksum does not fit the contents" in err


@pytest.mark.parametrize("edit", ["no settings", "a schema that is none", "classes that are none"])
def test_a_run_json_that_was_edited_and_checksummed_again(bayesrule, runs, tables, tmp_path, edit):
    run = shutil.copytree(runs / "houses", tmp_path / "run")
    plain = json.loads((run / "run.json").read_text())
    EDITS[edit](plain)
    (run / "run.json").write_text(json.dumps(signed(plain)))
    code, _, err = bayesrule("predict", run, tables / "new.csv")
    assert code == 2
    assert "run.json" in err
    assert "Traceback" not in err


def test_settings_of_another_version(bayesrule, runs, tables, tmp_path):
    run = shutil.copytree(runs / "houses", tmp_path / "run")
    plain = json.loads((run / "run.json").read_text())
    plain["settings"]["colour"] = "red"
    (run / "run.json").write_text(json.dumps(signed(plain)))
    assert "does not know: colour" in bayesrule("predict", run, tables / "new.csv")[2]


def test_other_inputs_or_classes(bayesrule, tmp_path):
    assert bayesrule("fit", "moons", "--method", "map", "--epochs", 1, "--out", "run")[0] == 0
    assert "inputs of shape [2]" in bayesrule("predict", "run", "digits")[2]
    assert "classes of the run, upper, lower" in bayesrule("evaluate", "run", "and")[2]


@pytest.mark.parametrize("verb", ["fit moons --method map", "fit --resume", "compare moons --methods map"])
def test_a_directory_that_another_process_writes_to(bayesrule, tmp_path, verb):
    if "--resume" in verb:
        assert bayesrule("fit", "moons", "--method", "map", "--epochs", 1, "--out", "run")[0] == 0
        (tmp_path / "run" / "posterior.safetensors").unlink()
    before = contents(tmp_path)
    with Folder(tmp_path / "run").held():
        code, out, err = bayesrule(*verb.split(), "--out", "run")
    assert (code, out) == (2, "")
    assert "in use by another fit" in err
    assert contents(tmp_path) == before
