"""The experiment about adapters and a language model."""

import io
import json
from dataclasses import replace

import pytest
import torch
from matplotlib.image import imread

from bayesrule.experiments import EXPERIMENTS, Setting, png
from bayesrule.experiments.large import lora, words
from bayesrule.experiments.large.transformer import adapted, fresh


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Six rooms of a dozen docstrings each, and trainings of a few steps."""
    for room in "abcdef":
        (tmp_path / room).mkdir()
        for number in range(12):
            text = f"the {room} of number {number} is what this room {room} tells of all that it has"
            (tmp_path / room / f"file{number}.py").write_text(f'"""{text}."""\n')
    monkeypatch.setitem(words.SOURCES, "package", tmp_path)
    words._docstrings.cache_clear()
    monkeypatch.setattr(words, "LABELLED", 24)
    for recipes in (lora.LANGUAGE, lora.ADAPTERS):
        for name, recipe in recipes.items():
            monkeypatch.setitem(recipes, name, replace(recipe, steps=3, batch=4))
    yield
    words._docstrings.cache_clear()


@pytest.mark.filterwarnings("ignore:the network's NLL")  # after three steps
def test_claims_numbers_and_a_figure(small):
    result = EXPERIMENTS["lora"](Setting())
    assert len(result.claims) == 3
    assert all(claim.says and claim.measured and claim.held is not None for claim in result.claims)
    assert [run["seed"] for run in result.data["runs"]] == [0, 1, 2]
    json.dumps(result.data, allow_nan=False)
    assert imread(io.BytesIO(png(result)), format="png").std() > 0.01


def test_what_is_tested_on_is_not_learnt_from(small):
    found = words.words("package", 0)
    known = {tuple(row.tolist()) for row in found.labelled.x["input_ids"]}
    asked = {tuple(row.tolist()) for row in found.asked.x["input_ids"]}
    assert len(found.asked.y) == 18
    assert len(found.labelled.y) == 24
    assert not known & asked
    assert sorted(set(found.labelled.y.tolist())) == list(range(6))


def test_adapters_start_at_the_function_of_the_base():
    base, ids = fresh(0), torch.arange(8)[None]
    before = base(ids).hidden
    classifier = adapted(base, 3, seed=1)
    assert torch.equal(classifier.model(ids).hidden, before)
    names = [name for name, p in classifier.named_parameters() if p.requires_grad]
    assert all("down" in name or "up" in name or "head" in name for name in names)


def run(adamw, ivon, laplace):
    scores = [dict(zip(("nll", "ece", "accuracy"), values, strict=True)) for values in (adamw, ivon, laplace)]
    both = dict(zip(("adamw", "ivon", "laplace"), scores, strict=True))
    return {"language": both, "adapters": both}


@pytest.mark.parametrize(
    ("ivon", "language", "adapters"),
    [
        ((0.9, 0.1, 0.80), True, True),
        ((1.1, 0.1, 0.80), False, False),  # NLL above
        ((0.9, 0.3, 0.80), False, False),  # ECE above
        ((1.0, 0.1, 0.80), True, False),  # NLL as it was: a perplexity that is not above
        ((0.9, 0.1, 0.78), True, False),  # two points of accuracy lost
    ],
)
def test_a_claim_is_of_the_means_and_of_the_accuracy(ivon, language, adapters):
    like = run((1.0, 0.2, 0.80), (1.0, 0.2, 0.80), (1.0, 0.2, 0.80))
    found = [run((1.0, 0.2, 0.80), ivon, ivon)] * 2
    assert lora._language([like, *found]).held is language
    assert lora._adapters([like, *found], "laplace").held is adapters
