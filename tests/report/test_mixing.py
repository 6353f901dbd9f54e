"""The report of a sampler says whether its chains have mixed, and has a row for each of them."""

import re
import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.data import load_set
from bayesrule.report import Comparison, examine
from bayesrule.report.mixing import ChainTable, chain_table, tabulated
from bayesrule.report.page import render


@pytest.fixture(scope="module")
def split():
    return load_set("moons")


@pytest.fixture(scope="module")
def sampled(split):
    """A few draws of a logistic model."""
    torch.manual_seed(0)
    method = br.methods.HMC(chains=3, draws=50, warm_up=50, leaps=8)
    return br.fit(nn.Linear(2, 2), split.train, method, prior=1.0)


def test_a_row_for_each_chain_and_the_sentence_of_the_test_examples(sampled, split):
    page = render(Comparison(split, [examine("hmc", sampled, split)]))
    section = re.search(r'<section id="chains">.*?</section>', page, re.DOTALL)[0]
    assert len(re.findall("<tr><td>", section)) == 3
    told = sampled.info["diagnostics"]
    for name in ("acceptance", "step"):
        for value in told[name]:
            assert f"<td>{value:.3f}</td>" in section
    said = str(br.evaluate.chains(sampled, split.test[0]))
    assert said[0].upper() + said[1:] in section
    assert f"R̂ is {told['r_hat']:.3f}" in section


def test_chains_apart_are_said_to_be(split):
    """Chains that stand still at networks of their own: no draws bring them together."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
    method = br.methods.LMC(chains=2, draws=20, warm_up=1, warm_start="none", step=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posterior = br.fit(model, split.train, method, prior=1.0)
    table = chain_table(posterior, split.test[0])
    assert table.says.startswith("not mixed: ")
    assert len(table.rows) == 2


def test_what_a_sampler_does_not_tell_has_no_column():
    assert tabulated("mixed", {"chains": 1, "draws": 5, "step": [2.5e-7], "way": "products"}) == ChainTable(
        "mixed", ["draws", "step"], [["5", "2.50e-07"]]
    )


def test_other_methods_have_no_such_section(split):
    posterior = br.fit(nn.Linear(2, 2), split.train, "map", prior=1.0, epochs=1)
    entry = examine("map", posterior, split)
    assert entry.chains is None
    assert 'id="chains"' not in render(Comparison(split, [entry]))


def test_whatever_stands_in_the_table_is_escaped(sampled, split):
    entry = examine("<b>hmc", sampled, split)
    table = ChainTable("<script>says", ["<i>column"], [["<u>cell"]])
    page = render(Comparison(split, [replace(entry, chains=table)]))
    section = re.search(r'<section id="chains">.*?</section>', page, re.DOTALL)[0]
    for part in ("<b>hmc", "<script>", "<i>column", "<u>cell"):
        assert part not in section
    assert "&lt;script&gt;says" in section
