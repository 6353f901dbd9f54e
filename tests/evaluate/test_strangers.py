"""Telling strangers: metrics against scikit-learn, distances by hand, and what each kind of prediction offers."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

import bayesrule as br
from bayesrule.evaluate import weighted
from bayesrule.evaluate.strangers import Mahalanobis
from bayesrule.posteriors import DistanceAware

values = st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.7, 1.0, 2.0]), min_size=1, max_size=40)


def metrics(inside, outside, weights=None):
    inside, outside = torch.tensor(inside, dtype=torch.float64), torch.tensor(outside, dtype=torch.float64)
    if weights is None:
        weights = torch.ones(1, len(inside) + len(outside), dtype=torch.float64)
    kinds = (weighted.separation, weighted.average_precision, weighted.passed_unseen)
    return [kind(inside, outside)(weights) for kind in kinds]


def by_sklearn(inside, outside):
    y, u = np.r_[np.zeros(len(inside)), np.ones(len(outside))], np.r_[inside, outside]
    fpr, tpr, _ = roc_curve(1 - y, -u, drop_intermediate=False)  # those at home are what must pass
    return roc_auc_score(y, u), average_precision_score(y, u), fpr[np.argmax(tpr >= 0.95)]


@given(values, values)
def test_metrics_are_scikit_learns(inside, outside):
    found = [float(value) for value in metrics(inside, outside)]
    assert found == pytest.approx(by_sklearn(inside, outside), abs=1e-9)


@given(values, values, st.integers(0, 1000))
def test_a_weight_is_so_many_copies(inside, outside, seed):
    counts = np.random.default_rng(seed).integers(0, 4, len(inside) + len(outside))
    counts[0] = counts[-1] = 1
    copies = [np.repeat(part, n) for part, n in ((inside, counts[: len(inside)]), (outside, counts[len(inside) :]))]
    found = metrics(inside, outside, torch.from_numpy(counts).double()[None])
    assert [float(value) for value in found] == pytest.approx(by_sklearn(*copies), abs=1e-9)


def test_mahalanobis_by_hand():
    generator = torch.Generator().manual_seed(0)
    x, groups = torch.randn(60, 3, generator=generator, dtype=torch.float64), torch.arange(60) % 3
    means = np.stack([x[groups == c].mean(0).numpy() for c in range(3)])
    apart = x.numpy() - means[groups]
    covariance = apart.T @ apart / 60
    covariance += 1e-6 * np.diag(covariance).mean() * np.eye(3)
    new = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    gaps = new.numpy()[:, None] - means
    wanted = np.einsum("bci,ij,bcj->bc", gaps, np.linalg.inv(covariance), gaps).min(1)
    assert Mahalanobis.of(x, groups)(new).numpy() == pytest.approx(wanted, rel=1e-9)


@pytest.fixture(scope="module")
def moons():
    split = br.data.load_set("moons", seed=0)
    model = br.models.mlp(2, 2, hidden=(16,))
    return br.fit(model, br.data.standardize(split.train), "ensemble", epochs=10), split


def test_a_row_for_each_uncertainty(moons):
    posterior, split = moons
    found = br.evaluate.strangers(posterior, split.test, split.ood, split.train, bootstrap=20)
    assert list(found) == [
        "max-probability",
        "entropy",
        "mutual information",
        "epistemic variance",
        "nearest neighbours",
        "mahalanobis",
    ]
    wanted = br.evaluate(posterior, split.test, split.ood, bootstrap=0)["auroc_ood"]
    assert found["entropy"]["auroc"] == pytest.approx(wanted, abs=1e-12)
    assert found["nearest neighbours"]["auroc"] > 0.95
    low, high = found["entropy"].interval("fpr95")
    assert low <= found["entropy"]["fpr95"] <= high
    assert "nearest neighbours" in repr(found)
    assert "<table" in found._repr_html_()
    assert len(found.to_frame()) == 6
    assert set(found.to_json()["entropy"]) == {"auroc", "aupr", "fpr95"}


def test_distances_of_a_distance_aware_posterior_are_those_of_its_base(moons):
    posterior, split = moons
    aware = DistanceAware.around(posterior, split.train)
    plain, cured = (br.evaluate.strangers(p, split.test, split.ood, split.train) for p in (posterior, aware))
    assert cured["mahalanobis"].table == plain["mahalanobis"].table
    assert cured["mutual information"]["auroc"] > 0.9 > plain["mutual information"]["auroc"]


def test_numbers_and_yes_or_no_have_theirs():
    x, y = br.data.sine(n=60, seed=0)
    line = br.fit(br.models.mlp(1, 1, hidden=(4,)), br.data.standardize((x, y)), "ensemble", epochs=2)
    found = br.evaluate.strangers(line, x, x + 1, (x, y))
    assert list(found) == ["deviation", "epistemic variance", "nearest neighbours", "mahalanobis"]
    either = br.fit(br.models.mlp(1, 1, hidden=(4,)), (x, (y > 0.3).float()), "map", likelihood="bernoulli", epochs=2)
    assert list(br.evaluate.strangers(either, x, x + 1))[:2] == ["max-probability", "entropy"]


def test_no_variance_where_a_sample_stands_for_many_networks():
    x, y = br.data.moons(n=60, seed=0)
    posterior = br.fit(br.models.mlp(2, 2, hidden=(4,)), (x, y), "laplace", epochs=2)
    assert list(br.evaluate.strangers(posterior, x, x + 9)) == ["max-probability", "entropy", "mutual information"]


def test_nothing_to_tell_is_refused(moons):
    posterior, split = moons
    with pytest.raises(ValueError, match="at least one example"):
        br.evaluate.strangers(posterior, split.test[0], split.ood[:0])


def test_an_ensemble_of_dropout_networks_knows_distances():
    split = br.data.load_set("moons")
    method = br.methods.Ensemble(members=2, base=br.methods.MCDropout())
    posterior = br.fit(br.models.mlp(2, 2, hidden=(4,)), split.train, method, epochs=1)
    told = br.evaluate.strangers(posterior, split.test, split.ood, split.train, bootstrap=0)
    assert {"nearest neighbours", "mahalanobis"} <= set(told)
