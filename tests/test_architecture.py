"""Imports go one way: a part of the package uses only parts above it in the order of docs/design.md."""

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "bayesrule"


def documented_order() -> list[str]:
    """The parts as the tree of docs/design.md lists them."""
    page = (ROOT / "docs" / "design.md").read_text()
    tree = page.split("## The tree")[1].split("```text\n")[1].split("```")[0]
    return [re.split(r"[/\s]", line)[0] for line in tree.splitlines()]


def part_of(path: Path, package: Path = PACKAGE) -> str:
    return path.relative_to(package).parts[0].removesuffix(".py")


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


def violations(package: Path, order: list[str]) -> list[str]:
    bad = []
    for path in sorted(package.rglob("*.py")):
        part = part_of(path, package)
        if part in ("__init__", "__main__"):
            continue
        if part not in order:
            bad.append(f"{part} is not in the tree of docs/design.md")
            continue
        for used in sorted(imported_parts(path)):
            if used != part and (used not in order or order.index(used) > order.index(part)):
                bad.append(f"{path.relative_to(package)} imports {used}")
    return bad


def test_imports_go_one_way():
    assert violations(PACKAGE, documented_order()) == []


def test_an_import_against_the_direction_is_caught(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "batches.py").write_text("def f():\n    from bayesrule.posteriors import load\n")
    (tmp_path / "task.py").write_text("from bayesrule import methods, priors\n")
    assert violations(tmp_path, documented_order()) == ["data/batches.py imports posteriors", "task.py imports methods"]


def test_the_core_import_is_light():
    """Beyond what torch itself loads, `import bayesrule` loads numpy and safetensors only."""
    code = "import sys, torch; had = {n.split('.')[0] for n in sys.modules}; import bayesrule; "
    code += "print(sorted({n.split('.')[0] for n in sys.modules} - had - set(sys.stdlib_module_names)))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert set(ast.literal_eval(loaded)) <= {"bayesrule", "numpy", "safetensors"}
