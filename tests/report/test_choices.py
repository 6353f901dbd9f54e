"""What a fit has settled is said in sentences that are true of what it stored."""

import re

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.data import load_set
from bayesrule.report import Comparison, examine
from bayesrule.report.choices import choices
from bayesrule.report.page import render
from bayesrule.training import EarlyStopping


def settled(scale, **tried):
    found = {name.replace("_", ".").lstrip("s"): nll for name, nll in tried.items()}
    return {"prior": {"settled": {"scale": scale, "held_out_nll": found, "networks": 30, "steps": 400}}}


def test_the_next_is_the_best_of_the_others():
    (said,) = choices(settled(3.0, s0_9=0.4, s1_6=0.3, s3=0.2, s5_5=0.25))
    assert said.endswith("3/√fan-in, was settled on held-out data: NLL 0.200 against 0.250 of the next, 5.5/√fan-in")


def test_a_tie_goes_to_the_narrower_prior_and_says_so():
    (said,) = choices(settled(1.6, s0_9=0.4, s1_6=0.2004, s3=0.2))
    assert said.endswith("NLL 0.200, not clearly above 0.200 of the next, 3/√fan-in, and narrower")


def test_nothing_else_was_finite():
    (said,) = choices(settled(0.9, s0_9=0.4))
    assert said.endswith("NLL 0.400; under all others it was not finite")


def test_why_nothing_was_settled():
    why = "data behind a loader cannot be held out: give (X, y)"
    assert choices({"prior": {"settled": {"scale": None, "why": why}}}) == [
        f"the prior's width was not settled from the data: {why}"
    ]


def test_the_temperature_of_classes():
    tried = {"temperature": {"value": 1.734, "nll": 0.31}}
    info = {"calibration": {"chosen": "temperature", "examples": 90, "nll": 0.42, "tried": tried}}
    assert choices(info) == [
        "the temperature of the classes was set to 1.73: NLL 0.310 of held-out answers that it was not found on, "
        "0.420 at 1"
    ]
    info["calibration"] |= {"chosen": None, "nll": 0.312}
    assert choices(info) == [
        "the temperature of the classes stays at 1, NLL 0.312: 1.73 has NLL 0.310 of held-out answers that it was not "
        "found on"
    ]
    few = {"calibration": {"chosen": None, "examples": 12, "nll": 0.3, "tried": {}}}
    assert choices(few) == ["the answers were not recalibrated: 12 held-out examples are too few to tell"]


def test_nothing_was_open():
    assert choices({"prior": None, "best_epoch": None, "diagnostics": {"converged": True}}) == []
    assert choices({}) == []


def test_candidates_by_their_weights():
    found = [("constant", 0.0, 0.7), ("ridge 0.1", 0.25, 0.3), ("network 2.7", 0.75, 0.2), ("lasso 0.2", 0.0, 0.35)]
    told = [{"name": name, "weight": weight, "held_out_nll": nll} for name, weight, nll in found]
    assert choices({"diagnostics": {"candidates": told}}) == [
        "4 candidates were weighed by data that they had not seen: network 2.7 75% (NLL 0.200), "
        "ridge 0.1 25% (NLL 0.300); the best that was left out, lasso 0.2, has NLL 0.350"
    ]


@pytest.fixture(scope="module")
def of_a_fit():
    """A fit that settles its prior, its split, and its report."""
    split = load_set("moons")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
    posterior = br.fit(model, split.train, "map", epochs=200, val=0.1, callbacks=[EarlyStopping(2)])
    entry = examine("map", posterior, split)
    return posterior.info, entry, Comparison(split, [entry])


def test_what_is_said_of_a_fit_is_what_it_stored(of_a_fit):
    info, entry, _ = of_a_fit
    width, temperature, epoch = entry.choices
    stored = info["prior"]["settled"]
    scale, nll = re.search(r"width, (\S+)/√fan-in, .*: NLL (\d\.\d+)", width).groups()
    assert float(scale) == stored["scale"]
    assert float(nll) == pytest.approx(stored["held_out_nll"][scale], abs=5e-4)
    tried = info["calibration"]["tried"]["temperature"]
    assert f"{tried['value']:.2f}" in temperature
    assert ("stays at 1" in temperature) == (info["calibration"]["chosen"] is None)
    kept, of = map(int, re.search(r"kept epoch (\d+) of (\d+)", epoch).groups())
    assert (kept, of) == (info["best_epoch"] + 1, len(info["history"]))


def test_the_page_and_the_scores_say_it(of_a_fit):
    _, entry, comparison = of_a_fit
    page = render(comparison)
    assert 'id="choices"' in page
    assert "<dd>The prior&#39;s width, " in page
    assert "<dd>Early stopping kept epoch " in page
    assert comparison.to_json()["methods"]["map"]["choices"] == list(entry.choices)


def test_a_page_without_choices_has_no_such_section():
    split = load_set("moons")
    posterior = br.fit(nn.Linear(2, 2), split.train, "map", prior=1.0, epochs=1)
    assert 'id="choices"' not in render(Comparison(split, [examine("map", posterior, split)]))
