"""The documentation as a site: every page is in its navigation, links lead where they led, nothing is fetched."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = {page.name for page in (ROOT / "docs").glob("*.md")}
FETCHED = re.compile(r'<(?:script|img|link)[^>]*(?:src|href)="(https?:[^"]*)"')
ADDED = {"all-pages.md", "contributing.md", "changelog.md"}  # from outside of docs, by docs/site.py


def navigation():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    return re.findall(r"([\w-]+\.md)$", text[text.index("\nnav:") :], re.MULTILINE)


def test_every_page_is_in_the_navigation_once():
    pages = navigation()
    assert sorted(pages) == sorted(PAGES | ADDED)


def test_pages_for_users_come_before_theory():
    pages = navigation()
    first, theory = pages.index("index.md"), pages.index("task.md")
    for page in ("tutorial-table.md", "tutorial-network.md", "which-method.md", "recipes.md", "faq.md", "report.md"):
        assert first < pages.index(page) < theory


@pytest.fixture(scope="module")
def hooks():
    pytest.importorskip("mkdocs", reason="the site is built by make docs")
    pytest.importorskip("griffe")
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs/site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Page:
    """As much of MkDocs' page as a hook looks at."""

    def __init__(self, name):
        self.file = type("File", (), {"src_uri": name})()


class Known:
    src_uris = dict.fromkeys([*PAGES, *ADDED, "results/digits.json"])


@pytest.mark.parametrize(
    ("page", "link", "turned"),
    [
        ("index.md", "[a](docs/data.md#tables)", "[a](data.md#tables)"),  # README
        ("index.md", "[a](docs/index.md)", "[a](all-pages.md)"),
        ("index.md", "[a](CONTRIBUTING.md)", "[a](contributing.md)"),
        ("index.md", "![a](docs/results/digits.json)", "![a](results/digits.json)"),
        ("index.md", "see [the licence](LICENSE).", "see the licence."),
        ("faq.md", "[a](../README.md#methods)", "[a](index.md#methods)"),
        ("laplace.md", "[a](../src/bayesrule/methods/insurance.py)", "a"),
        ("laplace.md", "[a](#here), [b](https://x.org/c.md)", "[a](#here), [b](https://x.org/c.md)"),
        ("laplace.md", "```python\nx[0](data.md)\n```", "```python\nx[0](data.md)\n```"),
        ("contributing.md", "[a](docs/design.md)", "[a](design.md)"),
    ],
)
def test_links_are_turned_to_where_their_pages_are(hooks, page, link, turned):
    assert hooks.on_page_markdown(link, page=Page(page), files=Known) == turned


def test_the_reference_has_the_rooms_of_the_package(hooks):
    import bayesrule as br

    rooms = hooks.rooms()
    assert {"methods", "posteriors", "predictions", "optim", "evaluate", "estimators"} <= set(rooms)
    assert "cli" not in rooms
    package = Path(br.__file__).parent
    assert all((package / name).is_dir() or (package / f"{name}.py").is_file() for name in rooms)


def test_examples_of_docstrings_become_code(hooks):
    import griffe

    text = "Law.\n\n::\n\n    p = 1\n\n>>> f(1)\n[2, 3]\n\nMore, with θ::\n\n    q = 2"
    thing = griffe.Function("f", docstring=griffe.Docstring(text))
    hooks.Docstrings().on_object(obj=thing)
    assert "```pycon\n>>> f(1)\n[2, 3]\n```\n\nMore, with θ:\n" in thing.docstring.value
    assert "::" not in thing.docstring.value


@pytest.mark.slow  # half a minute
def test_the_site_is_built_without_a_warning_and_needs_no_network(hooks, tmp_path):
    line = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    # An address that nobody answers: whatever asks the network fails.
    proxies = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    quiet = os.environ | proxies | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(line, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    for page in tmp_path.rglob("*.html"):
        fetched = FETCHED.findall(page.read_text(encoding="utf-8"))
        assert not fetched, f"{page.name} fetches {fetched}"
    reference = (tmp_path / "api/methods.html").read_text(encoding="utf-8")
    assert 'id="bayesrule.methods.IVON"' in reference
