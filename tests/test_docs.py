"""The documentation runs: every Python block and every `bayesrule` line of every page, and no link leads nowhere."""

import contextlib
import dataclasses
import importlib.metadata
import io
import os
import re
import shlex
import subprocess
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple
from unittest import mock

import pytest
import torch

import bayesrule as br
from bayesrule.cli import main

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NEEDS = {"large.md": ("transformers", "peft")}
"""Packages of the tests that a page imports: without them it is skipped, and what they warn of is their business."""
LINK = re.compile(r"\]\(([^)\s]+)\)")


class Block(NamedTuple):
    """A fenced block; ``line`` is that of its first line of code."""

    language: str
    line: int
    code: str


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        yield Block(found[1], text.count("\n", 0, found.start(2)) + 1, found[2])


def run(page: Path) -> None:
    """All blocks of a page in order, in one module and in the working directory."""
    with mock.patch.dict(br.methods.AVAILABLE), torch.random.fork_rng(devices=[]), new_module() as module:
        torch.manual_seed(0)
        for block in blocks(page):
            if block.language == "python":
                run_python(page, block, module)
            elif block.language == "sh":
                run_shell(page, block)
            elif block.language != "text":
                pytest.fail(f"{page.name}:{block.line}: a block must be python, sh or text, not {block.language!r}")


@contextlib.contextmanager
def new_module() -> Iterator[ModuleType]:
    """An empty module that can be found by its name, as dataclasses want."""
    module = ModuleType("page")
    sys.modules["page"] = module
    try:
        yield module
    finally:
        del sys.modules["page"]


def run_python(page: Path, block: Block, module: ModuleType) -> None:
    try:
        code = "\n" * (block.line - 1) + block.code
        exec(compile(code, str(page), "exec", dont_inherit=True), module.__dict__)
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(page)]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1]
        pytest.fail(f"{page.name}:{line}: {type(error).__name__}: {error}")


def run_shell(page: Path, block: Block) -> None:
    for number, line in enumerate(block.code.splitlines(), block.line):
        if not line.startswith("bayesrule "):
            continue
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            code = main(shlex.split(line, comments=True)[1:])
        if code:
            pytest.fail(f"{page.name}:{number}: exit code {code} of {line!r}: {said.getvalue()}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_runs(page, tmp_path, monkeypatch, unpainted, few_trees):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BAYESRULE_DATA", raising=False)
    with warnings.catch_warnings():
        if page.name in NEEDS:
            warnings.simplefilter("ignore")
        for package in NEEDS.get(page.name, ()):
            pytest.importorskip(package, reason=f"{page.name} needs the extra 'test': {package}")
        run(page)
    assert Path(os.getcwd()) == tmp_path, "a page must stay in its directory"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("# A\n\n```python\nx = 1\nassert x == 2\n```\n", "bad.md:5: AssertionError"),
        ("```python\nx = 1\n```\n\n```python\nassert x == 1\nx +\n```\n", "bad.md:7: SyntaxError"),
        ("```sh\nmake demo\nbayesrule methods  # all of them\nbayesrule fit nothing\n```\n", "bad.md:4: exit code 2"),
        ("```\nx = 1\n```\n", "bad.md:2: a block must be python, sh or text"),
    ],
)
def test_a_broken_page_fails_and_says_where(text, error, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "bad.md"
    page.write_text(text)
    with pytest.raises(pytest.fail.Exception, match=re.escape(error)):
        run(page)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    prose = BLOCK.sub("", page.read_text(encoding="utf-8"))
    for link in LINK.findall(prose):
        if link.startswith(("http://", "https://")):
            continue
        path, _, section = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        assert not section or section in sections(target), f"{page.name}: {link}"


def sections(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def documentation() -> str:
    return "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *DOCS))


@pytest.mark.parametrize("name", br.__all__)
def test_every_public_name_is_documented(name):
    assert re.search(rf"\b(br|bayesrule)\.{name}\b", documentation())


def fields(method):
    return [(field.name, getattr(method, field.name)) for field in dataclasses.fields(method)]


@pytest.mark.parametrize("name", sorted(br.methods.available()))
def test_every_method_is_documented_with_the_defaults_of_its_fields(name):
    assert f"| `{name}` |" in (ROOT / "README.md").read_text(encoding="utf-8")
    (section,) = re.findall(rf"^## `{name}`.*?(?=^## |\Z)", (ROOT / "docs/methods.md").read_text(), re.M | re.DOTALL)
    for field, value in fields(br.methods.choose(name)):
        shown = f"{type(value).__name__}()" if isinstance(value, br.methods.Method) else value
        assert f"`{field}={shown}`" in section


def test_every_dependency_has_its_reason():
    page = (ROOT / "docs/dependencies.md").read_text(encoding="utf-8")
    for requirement in importlib.metadata.requires("bayesrule"):
        name = re.match(r"[\w-]+", requirement)[0]
        assert name == "bayesrule" or f"| `{name}` |" in page


def test_every_page_is_in_the_index():
    index = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    assert {link for link in LINK.findall(index) if link.endswith(".md")} >= {p.name for p in DOCS} - {"index.md"}


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_the_readme_names_both_commands(command):
    assert command in (ROOT / "README.md").read_text(encoding="utf-8")


WRONG = """
import bayesrule, torch
bayesrule.load("posterior.safetensors", torch.nn.Linear(1, 1)).predict([[0.5]]).lable
"""  # what a check that sees no types would let pass


@pytest.mark.slow  # mypy reads all of torch's types first
def test_readme_and_tutorials_pass_strict_type_checks_as_a_users_scripts(tmp_path):
    pages = [ROOT / "README.md", ROOT / "docs/tutorial-table.md", ROOT / "docs/tutorial-network.md"]
    scripts = [f"{page.stem.replace('-', '_').lower()}.py" for page in pages]
    for page, script in zip(pages, scripts, strict=True):
        code = [block.code for block in blocks(page) if block.language == "python"]
        (tmp_path / script).write_text("\n".join([*code, WRONG]), encoding="utf-8")
    # of the package only the types count, as if it were installed; its own errors are another check's
    line = ["--strict", "--config-file=", "--follow-imports=silent", "--cache-dir", ROOT / ".mypy_cache", *scripts]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *line],
        cwd=tmp_path,
        env=os.environ | {"MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    *errors, _ = done.stdout.splitlines()
    errors = [
        error for error in errors if 'untyped function "backward"' not in error
    ]  # torch's own, which has no types
    planted = '"Prediction" has no attribute "lable"; maybe "label"?  [attr-defined]'
    assert sorted((error.split(":")[0], error.split("error: ")[-1]) for error in errors) == [
        (script, planted) for script in sorted(scripts)
    ]
