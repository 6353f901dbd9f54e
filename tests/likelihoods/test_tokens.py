"""Tokens: the likelihood of language models, against a categorical one of the labels that count."""

import pytest
import torch
from torch import nn
from torch.autograd.functional import hessian

import bayesrule as br
from bayesrule.curvature import curvature
from bayesrule.likelihoods import Categorical, Tokens, infer
from bayesrule.predictions import TokenClasses

B, T, V = 5, 4, 6
IGNORED = -100


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labels(ignored=True):
    y = torch.randint(V, (B, T), generator=torch.Generator().manual_seed(1))
    if ignored:
        y[::2, 2:] = IGNORED
    return y


def counted(f, y, shift):
    """Logits and labels of the tokens that count, and the row of each."""
    rows, places = (y[:, shift:] != IGNORED).nonzero().T
    return f[rows, places], y[rows, places + shift], rows


@pytest.mark.parametrize("shift", [0, 1, 2])
@pytest.mark.parametrize("temperature", [None, 2.0])
def test_an_example_is_the_product_of_its_tokens(shift, temperature):
    f, y = randn(B, T, V), labels()
    logits, kept, rows = counted(f, y, shift)
    each = Categorical(temperature).log_prob(logits, kept)
    likelihood = Tokens(temperature, shift=shift)
    wanted = torch.zeros(B, dtype=f.dtype).index_add(0, rows, each)
    assert torch.allclose(likelihood.log_prob(f, likelihood.check(f, y)), wanted)
    prediction = likelihood.predict(torch.stack([f, f]))
    assert torch.allclose(prediction.log_prob(y).sum(1), wanted)
    classes, alone = prediction.observed(y)
    assert torch.equal(alone, kept)
    assert torch.allclose(classes.log_prob(alone), each)


@pytest.mark.parametrize("shift", [0, 1])
def test_the_hessian_is_that_of_the_tokens_that_count(shift):
    f, y = randn(B, T, V), labels()
    likelihood = Tokens(shift=shift)
    found = likelihood.observing(y).hessian(f)
    for row in range(B):
        whole = hessian(lambda g, row=row: -likelihood.log_prob(g[None], y[row : row + 1])[0], f[row])
        assert torch.allclose(whole, torch.einsum("tcd,tu->tcud", found[row], torch.eye(T, dtype=f.dtype)))


def test_labels_are_drawn_where_they_count_and_stand_where_they_are_said():
    f, y = torch.full((B, T, V), -50.0), labels()
    f[..., 3] = 50.0
    drawn = Tokens(shift=1).observing(y).sample(f, torch.Generator().manual_seed(0))
    counts = y != IGNORED
    counts[:, 0] = False
    assert torch.equal(drawn, torch.where(counts, 3, IGNORED))
    assert torch.equal(Tokens().sample(f), torch.full((B, T), 3))
    told = Tokens(shift=1).predict(f[None]).sample(2)
    assert torch.equal(told[0], torch.cat([torch.full((B, 1), IGNORED), torch.full((B, T - 1), 3)], 1))


class Bigram(nn.Module):
    """A row of logits for each token, the same at every position."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(V, 3), nn.Linear(3, V)
        with torch.no_grad():
            for index, p in enumerate(self.parameters()):
                p.copy_(randn(*p.shape, seed=index))
        self.double()

    def forward(self, input_ids):
        return {"logits": self.head(self.table(input_ids).tanh()), "hidden": input_ids}


@pytest.mark.parametrize("labels_", ["exact", "empirical"])
@pytest.mark.parametrize("structure", ["dense", "diagonal"])
def test_the_curvature_is_that_of_the_tokens_that_count(structure, labels_):
    x, y = labels(ignored=False), labels()
    model, kept = Bigram(), y[:, 1:] != IGNORED

    class Flat(Bigram):
        def forward(self, input_ids):
            return super().forward(input_ids[:, None])["logits"][:, 0]

    found = curvature(model, [({"input_ids": x}, y)], Tokens(shift=1), structure, ("head",), labels_)
    pairs = (x[:, :-1][kept], y[:, 1:][kept])
    if labels_ == "empirical":  # the square of a sum over the tokens of an example, not the sum of squares
        assert found.loss == pytest.approx(curvature(Flat(), [pairs], Categorical(), structure).loss)
        return
    wanted = curvature(Flat(), [pairs], Categorical(), structure, ("head",))
    assert torch.allclose(found.matrix.dense(), wanted.matrix.dense())
    assert found.loss == pytest.approx(wanted.loss)


def test_padding_changes_nothing_of_a_fit():
    y = labels(ignored=False)
    padded = torch.cat([y, torch.zeros(B, 3, dtype=torch.int64)], 1)
    told = torch.cat([y, torch.full((B, 3), IGNORED)], 1)
    likelihood = Tokens(shift=1)
    plain = br.fit(Bigram(), {"input_ids": y, "labels": y}, "map", likelihood, prior=1.0, epochs=3)
    other = br.fit(Bigram(), {"input_ids": padded, "labels": told}, "map", likelihood, prior=1.0, epochs=3)
    assert torch.allclose(other.predict({"input_ids": y}).logits, plain.predict({"input_ids": y}).logits)


@pytest.mark.parametrize("method", ["map", "swag", br.methods.Laplace("all", "kronecker", labels="sampled")])
def test_scores_are_of_tokens(method, tmp_path):
    y = labels()
    data = {"input_ids": labels(ignored=False), "labels": y}
    posterior = br.fit(Bigram(), data, method, Tokens(shift=1), prior=1.0, epochs=2, out=tmp_path)
    prediction = posterior.predict({"input_ids": data["input_ids"]})
    assert isinstance(prediction, TokenClasses)
    assert prediction.shape == (B, T) == prediction.entropy.shape
    scores = br.evaluate(posterior, data, bootstrap=0)
    counts = (y[:, 1:] != IGNORED).sum()
    assert scores["nll"] == pytest.approx(float(-prediction.log_prob(y).sum() / counts))
    again = br.load(tmp_path / "posterior.safetensors", Bigram())
    assert again.likelihood.shift == 1
    assert torch.equal(again.predict({"input_ids": y.clamp(min=0)}).logits.isfinite().all(), torch.tensor(True))


def test_a_held_out_temperature_is_settled_for_all_tokens():
    y = torch.randint(2, (200, T), generator=torch.Generator().manual_seed(0))
    f = torch.zeros(200, T, 2)
    f[..., 0] = 4.0  # sure of what is no more than even
    found, told = br.posteriors.calibrate(
        Tokens(), lambda likelihood: likelihood.predict(f[None]).log_prob(y).mean(1), width=T
    )
    assert told["chosen"] == "temperature"
    assert found.temperature > 10


def test_what_is_refused():
    f, y = torch.zeros(B, T, V), labels()
    for given, match in (
        (lambda: Tokens(shift=-1), "shift must be a whole number of at least 0, got -1"),
        (lambda: Tokens(vector=torch.ones(2, V)), "only the temperature of tokens"),
        (lambda: Tokens().check(f[:, 0], y), r"outputs must be \[B, T, V\] .* 'categorical'"),
        (lambda: Tokens(shift=T).check(f, y), "more than 4 positions .* pass longer sequences"),
        (lambda: Tokens().check(f, y + V), "got .* at row 0"),
        (lambda: infer(f, y), r"likelihood must be given .*Tokens\(shift=1\)"),
        (lambda: br.fit(Bigram(), {"input_ids": y}, "map"), "train must name its target where it is one dict"),
    ):
        with pytest.raises(ValueError, match=match):
            given()
    huge = torch.zeros(1, 1, 1).expand(2, 128, 50_000)
    with pytest.raises(ValueError, match="labels must be 'sampled' for outputs"):
        br.curvature.roots.root(Tokens(), huge)
