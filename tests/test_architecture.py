"""Imports go one way: a part of the package uses only parts above it in the order of docs/design.md."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import bayesrule

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "bayesrule"


def documented_order() -> list[str]:
    """The parts as the tree of docs/design.md lists them."""
    page = (ROOT / "docs" / "design.md").read_text()
    tree = page.split("## The tree")[1].split("```text\n")[1].split("```")[0]
    return [re.split(r"[/\s]", line)[0] for line in tree.splitlines()]


def part_of(path: Path, package: Path = PACKAGE) -> str:
    return path.relative_to(package).parts[0].removesuffix(".py")


LATE = re.compile(r"bayesrule\.(\w+)(\.\w+)*:\w+")  # "module:Class", a class that is loaded when a file holds it
ALLOWED_LATE = ["methods/__init__.py names lifelong", "priors/__init__.py names penalties"]


def imported_parts(path: Path) -> set[str]:
    """Parts of bayesrule that a file imports anywhere, functions included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = (
                [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "bayesrule" else [node.module]
            )
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("bayesrule.")}
    return found - {"__version__"}


def late_parts(path: Path) -> set[str]:
    """Parts of bayesrule that a file names as "module:Class"."""
    nodes = ast.walk(ast.parse(path.read_text()))
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return {found[1] for text in texts if (found := LATE.fullmatch(text))}


def violations(package: Path, order: list[str]) -> list[str]:
    bad = []
    for path in sorted(package.rglob("*.py")):
        part = part_of(path, package)
        if part in ("__init__", "__main__"):
            continue
        if part not in order:
            bad.append(f"{part} is not in the tree of docs/design.md")
            continue
        for verb, parts in (("imports", imported_parts(path)), ("names", late_parts(path))):
            for used in sorted(parts):
                if used != part and (used not in order or order.index(used) > order.index(part)):
                    bad.append(f"{path.relative_to(package)} {verb} {used}")
    return bad


def test_imports_go_one_way():
    assert violations(PACKAGE, documented_order()) == ALLOWED_LATE


def test_an_import_against_the_direction_is_caught(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "batches.py").write_text("def f():\n    from bayesrule.posteriors import load\n")
    (tmp_path / "task.py").write_text("from bayesrule import methods, priors\n")
    (tmp_path / "naming.py").write_text('KINDS = {"map": "bayesrule.methods.point:MAP"}\n')
    assert violations(tmp_path, documented_order()) == [
        "data/batches.py imports posteriors",
        "naming.py names methods",
        "task.py imports methods",
    ]


STAGES = """
import gc, json, sys, torch
had = {name.split(".")[0] for name in sys.modules}
loaded = lambda: [name for name in sys.modules if name.split(".")[0] not in had]

gc.disable()
import bayesrule as br
told = {"collects": gc.isenabled(), "import": loaded()}
gc.enable()
br.fit(br.models.mlp(2, 2, hidden=(4,)), br.data.moons(seed=0), method="laplace", epochs=1)
told["fit"] = loaded()
br.penalties.prior_of, br.rule.Rule, br.gp.NetworkGP, br.families.Gamma, br.mean_field.elbo
br.lifelong.run, br.active.run
told["rooms"] = loaded()
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """After each stage of a process of its own: all modules of packages that torch itself does not load."""
    done = subprocess.run([sys.executable, "-c", STAGES], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def parts(modules: Iterable[str]) -> set[str]:
    return {name.split(".")[1] for name in modules if name.startswith("bayesrule.")}


ROOMS = {"active", "families", "gp", "lifelong", "mean_field", "penalties", "rule"}
FRONTS = {"boards", "cli", "estimators", "experiments", "jobs", "report", "sweeps"}


def test_the_core_import_is_light(told):
    """Beyond torch, `import bayesrule` loads numpy, safetensors and no room that a fit does not enter."""
    packages = {name.split(".")[0] for name in told["import"]} - set(sys.stdlib_module_names)
    assert packages <= {"bayesrule", "numpy", "safetensors"}
    assert parts(told["import"]) == set(documented_order()) - ROOMS - FRONTS


def test_a_fit_enters_no_room(told):
    assert not parts(told["fit"]) & (ROOMS | FRONTS)


def test_a_room_is_loaded_when_it_is_used(told):
    assert parts(told["rooms"]) >= ROOMS
    assert set(dir(bayesrule)) >= ROOMS


def test_the_garbage_collector_is_left_off_where_it_was_off(told):
    assert told["collects"] is False


@pytest.mark.slow
def test_the_garbage_collector_is_left_on_where_it_was_on():
    code = "import gc; gc.enable(); import bayesrule; print(gc.isenabled())"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "True"


def test_a_name_that_does_not_exist_is_refused():
    with pytest.raises(AttributeError, match="module 'bayesrule' has no attribute 'penalty'"):
        bayesrule.penalty  # noqa: B018
