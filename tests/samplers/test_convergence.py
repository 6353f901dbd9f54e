"""R̂ and effective draws against ArviZ's, whose values and draws are stored."""

import json
import math
from pathlib import Path

import pytest
import torch

from bayesrule.samplers import e_bfmi, ess_bulk, ess_tail, r_hat

CASES = {case["name"]: case for case in json.loads((Path(__file__).parent / "arviz.json").read_text())["cases"]}


@pytest.mark.parametrize("name", CASES)
def test_the_same_as_arviz(name):
    case = CASES[name]
    draws = torch.tensor(case["draws"], dtype=torch.float64)
    assert float(r_hat(draws)) == pytest.approx(case["r_hat"], rel=1e-9)
    assert float(ess_bulk(draws)) == pytest.approx(case["ess_bulk"], rel=1e-9)
    assert float(ess_tail(draws)) == pytest.approx(case["ess_tail"], rel=1e-9)


def test_several_numbers_are_judged_one_by_one():
    each = [torch.tensor(CASES[name]["draws"], dtype=torch.float64)[:, :60] for name in ("independent", "correlated")]
    for judge in (r_hat, ess_bulk, ess_tail):
        together, apart = judge(torch.stack(each, -1)), torch.stack([judge(own) for own in each])
        # not to the bit: a processor may add numbers in another order where there are more of them
        torch.testing.assert_close(together, apart, rtol=1e-12, atol=0)


@pytest.mark.parametrize("judge", [r_hat, ess_bulk, ess_tail])
def test_too_few_draws_tell_nothing(judge):
    assert math.isnan(float(judge(torch.randn(4, 3))))


def test_e_bfmi_is_that_of_arviz():
    case = CASES["correlated"]
    energy = torch.tensor(case["draws"], dtype=torch.float64)
    changes = energy.diff(dim=1).square().sum(1)
    squares = (energy - energy.mean(1, keepdim=True)).square().sum(1)
    assert e_bfmi(changes, squares).tolist() == pytest.approx(case["bfmi"], rel=1e-6)
