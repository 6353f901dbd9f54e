"""No figure without a source: what README and docs show as measured is in a file of results that says how it was made.

The source of a table is a comment in front of it, ``<!-- figures: results/digits.json -->``, or else what the paragraph
before it links to. A paragraph that links to a file of results has its figures from there, too. ``<!-- figures: none,
REASON -->`` is for tables of numbers that nobody measured. A figure is a number with a decimal point; it must be one of
the file's numbers, rounded to the digits shown.
"""

import bisect
import json
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from bayesrule.cli import VERBS
from bayesrule.experiments import EXPERIMENTS

ROOT = Path(__file__).parent.parent
RESULTS = sorted((ROOT / "docs/results").glob("*.json"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MARK = re.compile(r"<!-- figures: (.*?) -->", re.DOTALL)
LINK = re.compile(r"\]\(((?:docs/)?results/[\w-]+\.json)\)")
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
POWERS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
FIGURE = re.compile(r"(?<![\w.])[-−]?(\d*\.\d+|\d+(?=e-\d))(e[-+]?\d+)?(?: · 10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+))?(?![\w.]\d)")
UNSHOWN = {"history", "versions", "seconds", "intervals", "low", "high", "milliseconds"}  # what no page shows
UNSHOWN |= {"runs", "problems"}  # single ones, of which a page shows the mean
LONG = 60  # a list of more numbers is a curve, in which any number could be found


class Figure(NamedTuple):
    """A number as it is shown: its text, its value without a sign, half of its last digit, and whether in per cent."""

    text: str
    value: float
    half: float
    percent: bool


class Passage(NamedTuple):
    """A table or paragraph, and the files that its figures are from; ``none``: a comment says that there are none."""

    line: int
    text: str
    sources: tuple[Path, ...]
    none: bool

    @property
    def table(self):
        return self.text.lstrip().startswith("|")


def passages(page):
    """What stands between blank lines, code left out."""
    text = CODE.sub(lambda found: "\n" * found[0].count("\n"), page.read_text(encoding="utf-8"))
    before, line = (), 1
    for block in re.split(r"(\n\s*\n)", text):
        if block.strip():
            marks, body = MARK.findall(block), MARK.sub("", block).strip()
            named = [name.strip() for mark in marks if not mark.startswith("none") for name in mark.split(",")]
            sources = tuple(page.parent / name for name in (*named, *LINK.findall(body)))
            shown = Passage(line, body, sources, any(mark.startswith("none") for mark in marks))
            if shown.table and not sources:
                shown = shown._replace(sources=before)
            yield shown
            before = sources
        line += block.count("\n")


def figures(text):
    """The figures of a text, without code, addresses and the titles of columns."""
    text = re.sub(r"`[^`]*`|\]\([^)]*\)", " ", text)
    text = re.sub(r"\A.*\n\|[ :|-]+\|\n", "", text)  # a table's head
    found = []
    for match in FIGURE.finditer(text):
        power = int(match[2][1:]) if match[2] else int(match[3].translate(POWERS)) if match[3] else 0
        digits = len(match[1].partition(".")[2])
        percent = bool(re.match(r"( ± \S+)? ?%", text[match.end() :]))
        found.append(Figure(match[0], float(match[1]) * 10.0**power, 0.5 * 10.0 ** (power - digits), percent))
    return found


def numbers(tree):
    """All numbers of a file of results, those in its sentences included, without signs."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            if key not in UNSHOWN:
                yield from numbers(value)
    elif isinstance(tree, list):
        if len(tree) <= LONG or not all(isinstance(value, float | int) for value in tree):
            for value in tree:
                yield from numbers(value)
    elif isinstance(tree, str):
        yield from (figure.value for figure in figures(tree))
        yield from map(float, re.findall(r"(?<![\w.])\d+(?![\w.]\d)", tree))
    elif isinstance(tree, float | int):
        yield abs(tree)


@cache
def pool(path, percent):
    """The numbers of a file, in per cent too where the figure is."""
    found = set(numbers(json.loads(path.read_text(encoding="utf-8"))))
    return sorted(found | {100 * number for number in found if percent})


def is_in(figure, path):
    """Whether a number of the file is the figure when it is rounded."""
    found, slack = pool(path, figure.percent), 1e-9 * figure.value + 1e-15
    index = bisect.bisect_left(found, figure.value - figure.half - slack)
    return index < len(found) and found[index] <= figure.value + figure.half + slack


def missing(passage):
    return [figure.text for figure in figures(passage.text) if not any(is_in(figure, path) for path in passage.sources)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_table_of_figures_names_its_source(page):
    for passage in passages(page):
        if passage.table and not passage.none:
            assert passage.sources or not figures(passage.text), (
                f"{page.name}:{passage.line}: no source of {passage.text}"
            )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_figures_are_those_of_their_source(page):
    for passage in passages(page):
        if passage.sources:
            absent = missing(passage)
            names = ", ".join(path.name for path in passage.sources)
            assert not absent, f"{page.name}:{passage.line}: not in {names}: {absent}"


def test_a_wrong_last_digit_is_noticed():
    """Of all figures that are checked, each changed by one in its last digit, at most a third pass by coincidence.

    README's leaderboard, of which half would, is left out: `tests/test_results.py` compares it to the letter.
    """
    shown = passed = 0
    for page in PAGES[1:]:
        for passage in passages(page):
            if not passage.sources:
                continue
            for figure in figures(passage.text):
                wrong = figure._replace(value=figure.value + 2 * figure.half)
                shown += 1
                passed += any(is_in(wrong, path) for path in passage.sources)
    assert shown > 300
    assert passed <= shown / 3, f"{passed} of {shown}"


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_a_file_of_results_says_how_it_was_made(path):
    """The command, which can still be given, the commit that it was given at, the seed, the day and the machine."""
    about = json.loads(path.read_text(encoding="utf-8"))
    assert re.fullmatch(r"[0-9a-f]{40}", about["commit"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", about["date"])
    assert "seed" in about
    assert about["machine"]
    program, name, *rest = about["command"].removeprefix("BAYESRULE_DATA=data ").split()
    if program == "bayesrule":
        assert name in VERBS
        assert name != "reproduce" or rest[0] in EXPERIMENTS
    else:
        assert program == "python"
        assert (ROOT / name).is_file(), f"{name} is gone"


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_a_file_of_results_is_shown_somewhere(path):
    assert any(path in passage.sources for page in PAGES for passage in passages(page))
