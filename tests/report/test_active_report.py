"""The pages of active learning: curves, and a page that people answer on, in a real browser."""

import html
import io
import json
import re

import pandas as pd
import pytest
import torch

from bayesrule.active import Pool, Result, questions
from bayesrule.cli import main
from bayesrule.report import active as report
from bayesrule.report.runs import Shown, shown

EVIL = "</script><b>&amp;"


def result(seed, accuracy):
    return Result(
        "pool",
        {},
        seed,
        rows=[[0, 1], [2]],
        answers=[[0, 1], [1]],
        guesses=[[], [0]],
        sure=[[], [0.7]],
        labels=[2, 3],
        accuracy=accuracy,
        nll=[1.0, 0.5],
        ece=[0.1, 0.2],
        unsure=[0.3, 0.2],
        seconds=[1.0, 2.0],
        finished=True,
    )


def curves(labelled=True, **more):
    runs = {"random": [result(0, [0.5, 0.6]), result(1, [0.5, 0.7])], "bald": [result(0, [0.5, 0.92])] * 2}
    return report.Curves(EVIL, "four rows", runs, labelled, reach=(0.9,), **more)


def test_the_table():
    best, other = report.lines(curves())
    assert best.name == "bald"
    assert [cell.text for cell in best.cells][:2] == ["3", "92.0 ± 0.0 %"]
    assert [cell.text for cell in other.cells][:2] == ["> 3", "65.0 ± 5.0 %"]
    assert best.cells[0].best
    assert not other.cells[0].best


def test_a_run_that_never_got_there_counts_as_more_than_all():
    runs = [result(seed, [0.5, accuracy]) for seed, accuracy in enumerate((0.95, 0.95, 0.5))]
    assert report._reached(runs, 0.9).text == "3 (1 never)"
    assert report._reached(runs[1:], 0.9).text == "> 3"


@pytest.mark.parametrize("labelled", [True, False])
def test_the_page_escapes_and_needs_nothing_else(labelled):
    asked = report.Asked("bald", [("round 1", [Shown(EVIL, "", [EVIL])])], [EVIL])
    page = report.render(curves(labelled, asked=[asked], notes=[EVIL]))
    assert "<b>&amp;" not in page.replace(html.escape(EVIL), "")
    assert "http" not in page
    assert page.count("<svg") == 1


def answering(classes=("cat", "dog", EVIL)):
    examples = [shown(torch.rand(1, 4, 4), "", (1, 4, 4)) for _ in range(2)] + [Shown("", "", [EVIL, "7"])]
    return report.answering("abcd1234", "kind, of", [5, 9, 11], examples, ["name", "size"], classes)


def csv_of(dom):
    text = re.search(r'<textarea id="csv"[^>]*>(.*?)</textarea>', dom, re.DOTALL)[1]
    return html.unescape(text)


def acted(tmp_path, page, script):
    """The page, with what a person does appended."""
    path = tmp_path / "queries.html"
    path.write_text(page.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    return path


def test_no_text_ends_the_script():
    page = answering()
    assert page.count("</script>") == 1
    assert "http" not in page


def test_a_person_clicks_through_and_the_file_answers_the_question(tmp_path, browser):
    clicks = """
      const buttons = () => [...document.querySelectorAll("#answers button")];
      const press = (label) => buttons().find((button) => button.dataset.label === label).click();
      press("dog");
      document.dispatchEvent(new KeyboardEvent("keydown", { key: "1" }));
      document.getElementById("back").click();
      press("dog");
      press(about.classes[2]);
    """
    dom = browser(acted(tmp_path, answering(), clicks), "--dump-dom")
    assert "3 of 3, 3 answered" in dom
    assert not re.search(r'<button id="export"[^>]*disabled', dom)
    told = pd.read_csv(io.StringIO(csv_of(dom)))
    assert told["row"].tolist() == [5, 9, 11]
    assert told["kind, of"].tolist() == ["dog", "dog", EVIL]
    (tmp_path / "labels.csv").write_text(csv_of(dom))
    run = Result("pool", {}, 0, asked=[11, 5, 9])
    pool = Pool(torch.zeros(12, 1), "classes", classes=("cat", "dog", EVIL))
    told.drop(columns="question").to_csv(tmp_path / "labels.csv", index=False)
    assert questions.read(tmp_path / "labels.csv", run, pool, "kind, of") == [2, 1, 1]


def test_a_person_labels_their_own_pictures(tmp_path, browser, unpainted):
    """From a directory to a page, by clicks to a file, and on to the next question."""
    from PIL import Image

    (tmp_path / "photos").mkdir()
    for place in range(12):
        level = 200 * (place % 2) + place
        Image.new("RGB", (300, 200), (level, level, 0)).save(tmp_path / "photos" / f"{place:02}.jpg")
    (tmp_path / "out").mkdir()
    line = ["active", str(tmp_path / "photos"), "--classes", "dark,light", "--size", "8", "--method", "mc-dropout"]
    line += ["--epochs", "2", "--samples", "4", "--start", "4", "--batch", "2", "--out", str(tmp_path / "out")]
    ask = ["--ask", str(tmp_path / "next.html")]
    assert main([*line, *ask]) == 0
    clicks = """
      for (const item of about.items)
        [...document.querySelectorAll("#answers button")][Number(item.cells[0].slice(0, 2)) % 2].click();
      const image = document.querySelector("#shown img");
      image.addEventListener("load", () => document.body.dataset.size = image.naturalWidth + "x" + image.naturalHeight);
    """
    page = acted(tmp_path, (tmp_path / "next.html").read_text(), clicks)
    dom = browser(page, "--dump-dom", "--virtual-time-budget=1000")
    assert "4 of 4, 4 answered" in dom
    assert 'data-size="300x200"' in dom  # the file itself, not the 8 pixels that the network sees
    (tmp_path / "labels.csv").write_text(csv_of(dom))
    assert main([*line, "--tell", str(tmp_path / "labels.csv"), *ask]) == 0
    found = json.loads((tmp_path / "out" / "bald-0" / "result.json").read_text())
    assert found["answers"] == [[row % 2 for row in found["rows"][0]]]
    assert len(found["asked"]) == 2


def test_classes_of_one_sign_are_their_own_keys(tmp_path, browser):
    keys = """for (const key of ["9", "0", "x"]) document.dispatchEvent(new KeyboardEvent("keydown", { key }));"""
    dom = browser(acted(tmp_path, answering(classes=tuple("0123456789")), keys), "--dump-dom")
    assert csv_of(dom).splitlines()[1:] == ["abcd1234,5,9", "abcd1234,9,0"]


def test_an_unfinished_page_cannot_be_exported_and_numbers_are_checked(tmp_path, browser):
    script = """
      const give = (text) => {
        document.getElementById("number").value = text; document.getElementById("accept").click();
      };
      give("3.5"); give("many");
    """
    dom = browser(acted(tmp_path, answering(classes=()), script), "--dump-dom")
    assert "2 of 3, 1 answered" in dom
    assert re.search(r'<button id="export"[^>]*disabled', dom)
    assert csv_of(dom).splitlines()[1:] == ["abcd1234,5,3.5"]


def test_the_page_is_drawn(tmp_path, browser):
    from matplotlib.image import imread

    page, shot = tmp_path / "queries.html", tmp_path / "shot.png"
    page.write_text(answering(), encoding="utf-8")
    browser(page, f"--screenshot={shot}", "--window-size=900,900")
    pixels = imread(shot)
    assert (pixels.std(axis=1) > 0.01).any(axis=1).mean() > 0.2  # a blank page has rows of one colour only
