import re

import pytest
import torch
from matplotlib.image import imread

import bayesrule as br
from bayesrule.data import Schema, Split
from bayesrule.evaluate import score
from bayesrule.predictions import Classes, Counts, Reals
from bayesrule.report import MEASURES, Comparison, Entry, examine, write
from bayesrule.report.comparison import grid
from bayesrule.report.page import render

HOSTILE = "<script>alert('$x$')</script>"


def fitted(name, *methods, epochs=3):
    split = br.data.load_set(name)
    data = split.train if split.image_shape else br.data.standardize(split.train)
    network = br.models.build(br.models.default_for(split))
    return Comparison(split, [examine(m, br.fit(network, data, m, epochs=epochs), split) for m in methods])


@pytest.fixture(scope="module")
def digits():
    return fitted("digits", "map", "swag", epochs=1)


def ids(page):
    return re.findall(r'<section id="([\w-]+)"', page)


def test_pictures(digits):
    page = render(digits)
    figures = ["reliability", "confidence", "strangers", "risk"]
    assert ids(page) == ["leaderboard", "classes", "choices", *figures, "examples", "settings"]
    assert page.count("data:image/png;base64,") == 2 * 2 * 10
    assert page.count("<svg") == 6  # a panel for each of two methods, and two figures of both


def test_a_plane_and_a_curve():
    assert "plane" in ids(render(fitted("moons", "map")))
    page = render(fitted("sine", "mle", "swag"))
    assert ids(page)[1:-2] == [
        "choices",
        "curve",
        "quantiles",
        "scatter",
        "deviation",
        "strangers",
        "risk-reals",
        "training",
    ]


@pytest.mark.parametrize("methods", [1, 2, 4, 9])
def test_any_number_of_methods(methods, request):
    if methods < 9:
        request.getfixturevalue("unpainted")
    split = br.data.load_set("and")
    y = split.test[1]
    entries = []
    for i in range(methods):
        prediction = Classes(torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(i)))
        entries.append(Entry(f"method {i}", score(prediction, y, bootstrap=10), prediction))
    plain = Split("two", "classes", "two inputs", split.test, None, split.classes, image_shape=(1, 1, 2))
    page = render(Comparison(plain, entries))
    assert all(f">method {i}<" in page for i in range(methods))


def test_counts_without_training_examples():
    y = torch.tensor([0, 3, 1, 2])
    prediction = Counts(torch.zeros(2, 4))
    split = Split("counts", "counts", "four counts", (torch.randn(4, 3), y))
    page = render(Comparison(split, [Entry("map", score(prediction, y, bootstrap=10), prediction)]))
    assert ids(page) == ["leaderboard", "scatter", "deviation", "risk-reals", "examples", "settings"]


def test_nothing_from_outside_and_everything_escaped(tmp_path):
    import pandas as pd

    cells = [f"<img src=x>{i}" for i in (1, 2, 1, 2)]
    frame = pd.DataFrame({HOSTILE: [1.0, None, 3.0, 4.0], "b": cells, "y": [0.5, 1, 2, 3]})
    schema = Schema.learn(frame, "y")
    x, y = torch.from_numpy(schema.inputs(frame)), torch.from_numpy(schema.targets(frame))
    split = Split(HOSTILE, "reals", HOSTILE, (x, y), None, features=schema.features)
    prediction = Reals(torch.zeros(2, 4, dtype=torch.float64), torch.ones(()))
    entry = Entry(HOSTILE, score(prediction, y, bootstrap=10), prediction, settings={HOSTILE: HOSTILE})
    write(tmp_path / "report.html", Comparison(split, [entry], HOSTILE, notes=[HOSTILE], schema=schema))
    page = (tmp_path / "report.html").read_text()
    assert "<script" not in page
    assert "<img src=x>" not in page
    assert "&lt;script&gt;" in page
    assert not re.search(r"https?:|//\w+\.|@import|url\((?!#)", page)


def test_names_of_features_and_classes_are_escaped_in_figures():
    x, y = torch.randn(6, 2), torch.tensor([0, 1, 0, 1, 0, 1])
    split = Split("s", "classes", "s", (x, y), (x, y), (HOSTILE, "b"), (HOSTILE, "新しい"))
    logits = torch.randn(2, 6, 2)
    on_grid = Classes(torch.randn(2, len(grid(split)), 2))
    prediction = Classes(logits)
    page = render(Comparison(split, [Entry("m", score(prediction, y, bootstrap=10), prediction, None, on_grid)]))
    assert "<script" not in page
    assert "新しい" in page


def test_baselines_are_in_the_leaderboard_and_a_warning_below_it():
    x, y = torch.randn(6, 3), torch.tensor([0, 1, 0, 1, 0, 1])
    split = Split("s", "classes", "s", (x, y), (x, y), ("a", "b"))
    sure, right = Classes(torch.tensor([9.0, 0.0]).expand(1, 6, 2)), Classes(9.0 * torch.eye(2)[y][None])
    wrong, good = (Entry(name, score(p, y, bootstrap=10), p) for name, p in (("m", sure), ("linear", right)))
    page = render(Comparison(split, [wrong], baselines=[good]))
    assert "<th>linear (baseline)</th>" in page
    assert page.index("linear (baseline)") < page.index("<th>m</th>")  # best NLL first
    assert "m is not better than the baseline linear" in page
    fine = render(Comparison(split, [good], baselines=[wrong]))
    assert "m (baseline)" in fine
    assert "not better than" not in fine
    assert "baseline" not in render(Comparison(split, [good]))


def test_cells_are_as_in_the_table():
    import pandas as pd

    from bayesrule.report.examples import extremes

    frame = pd.DataFrame({"a": [1.5, None], "b": ["x", None], "y": [1.0, 2.0]})
    schema = Schema.learn(pd.concat([frame, frame.assign(b="z", a=7.0)]), "y")
    pair = torch.from_numpy(schema.inputs(frame)), torch.from_numpy(schema.targets(frame))
    ends = extremes(Reals(torch.zeros(1, 2), torch.tensor([[1.0, 2.0]])), Split("s", "reals", "s", pair), schema)
    assert ends.columns == ("a", "b")
    assert ends.most[0].cells == ("1.5", "x")
    assert ends.least[0].cells == ("–", "–")


def test_cost_and_best(digits):
    map_, swag = digits.entries
    assert digits.cost(map_) == 1
    assert digits.cost(swag) == pytest.approx(swag.seconds / map_.seconds)
    assert Comparison(digits.split, [swag]).cost(swag) is None
    assert MEASURES["accuracy"].best({"a": 0.98, "b": 0.98, "c": 0.9}) == {"a", "b"}
    assert MEASURES["width_90"].best({"a": 1.0, "b": 2.0}) == set()
    assert MEASURES["rmse"].best({"a": 12345.0, "b": 2.0}) == {"b"}


def test_no_entries():
    with pytest.raises(ValueError, match="entries must hold at least one method"):
        Comparison(br.data.load_set("and"), [])


def test_in_a_browser(digits, tmp_path, browser):
    page, shot = tmp_path / "report.html", tmp_path / "shot.png"
    write(page, digits)
    dom = browser(page, "--dump-dom")
    assert ids(dom) == ids(render(digits))
    assert dom.count("<svg") == 6
    browser(page, f"--screenshot={shot}", "--window-size=900,1400")
    pixels = imread(shot)
    assert pixels.shape[:2] == (1400, 900)
    assert (pixels.std(axis=1) > 0.01).any(axis=1).mean() > 0.2  # a blank page has rows of one colour only


def test_a_calibration_error_is_shown_with_what_chance_alone_gives(digits, capsys):
    """On the page, in scores.json and on the terminal."""
    from bayesrule.cli.terminal import show_board

    null = digits.entries[0].scores.null("ece")
    assert digits.to_json()["methods"]["map"]["nulls"]["ece"] == {"mean": null.mean, "upper": null.upper}
    page = render(digits)
    assert f"({null.mean:.3f})<small>" in page
    assert f"null below {null.upper:.3f}</small>" in page
    show_board(digits)
    shown = capsys.readouterr().out
    assert "ECE (null)" in shown
    assert f"({null.mean:.3f})" in shown
