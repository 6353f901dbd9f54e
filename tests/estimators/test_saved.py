"""Estimators in files, and the fields of their methods as parameters."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV
from torch import nn

import bayesrule as br
from bayesrule.estimators import BayesianClassifier, BayesianRegressor
from bayesrule.files import FileError

X, Y = load_iris(return_X_y=True)
SHORT = {"hidden": (8,), "epochs": 2, "random_state": 0}
LABELS = {
    "int": Y,
    "text": np.array(["setosa", "versicolor", "virginica"])[Y],
    "object": np.array(["a", "b", "c"], dtype=object)[Y],
    "bool": Y > 0,
    "float": Y + 0.0,
}


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_a_classifier_comes_back(labels, tmp_path):
    classifier = BayesianClassifier("map", **SHORT).fit(X, labels)
    classifier.save(tmp_path / "c")
    again = BayesianClassifier.load(tmp_path / "c")
    np.testing.assert_array_equal(again.predict_proba(X), classifier.predict_proba(X))
    assert again.predict(X).dtype == classifier.predict(X).dtype
    assert again.get_params() == classifier.get_params()


@pytest.mark.parametrize("likelihood", ["gaussian", "heteroscedastic"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("targets", [1, 2])
def test_a_regressor_comes_back(likelihood, dtype, targets, tmp_path):
    y = X[:, 2:] if targets == 2 else X[:, 3]
    settings = {"likelihood": likelihood, "prior": br.priors.Gaussian(0.5), **SHORT}
    regressor = BayesianRegressor(br.methods.SWAG(rank=2), **settings).fit(X[:, :2].astype(dtype), y)
    regressor.save(tmp_path / "r")
    again = BayesianRegressor.load(tmp_path / "r")
    np.testing.assert_array_equal(again.predict(X[:, :2]), regressor.predict(X[:, :2]))
    assert repr(again) == repr(regressor)


def test_the_default_method_and_names_of_columns_come_back(tmp_path):
    frame = pd.DataFrame(X, columns=list("abcd"))
    classifier = BayesianClassifier(hidden=(4,), epochs=1, random_state=0).fit(frame, Y)
    classifier.save(tmp_path / "c")
    again = BayesianClassifier.load(tmp_path / "c")
    np.testing.assert_array_equal(again.predict_proba(frame), classifier.predict_proba(frame))
    with pytest.raises(ValueError, match="feature names should match"):
        again.predict(frame.rename(columns={"a": "other"}))


def test_a_model_of_ones_own_is_given_again(tmp_path):
    classifier = BayesianClassifier("map", model=nn.Linear, epochs=1, random_state=0).fit(X.astype(np.float32), Y)
    classifier.save(tmp_path / "c")
    again = BayesianClassifier.load(tmp_path / "c", nn.Linear)
    np.testing.assert_array_equal(again.predict_proba(X), classifier.predict_proba(X))
    with pytest.raises(FileError, match="fitted with a model of yours"):
        BayesianClassifier.load(tmp_path / "c")


def test_what_is_in_a_file_is_said(tmp_path):
    classifier = BayesianClassifier("map", **SHORT).fit(X, Y)
    classifier.save(tmp_path / "c")
    classifier.posterior_.save(tmp_path / "p")
    with pytest.raises(FileError, match=r"holds a BayesianClassifier, not a BayesianRegressor: use Bayes.*load"):
        BayesianRegressor.load(tmp_path / "c")
    with pytest.raises(FileError, match="holds a posterior, not a estimator"):
        BayesianClassifier.load(tmp_path / "p")
    classifier.random_state = np.random.RandomState(0)
    with pytest.raises(TypeError, match="random_state must be a whole number or None to be saved"):
        classifier.save(tmp_path / "other")


@pytest.mark.parametrize("method", ["map", br.methods.MAP()], ids=["name", "object"])
def test_a_search_reaches_the_fields_of_a_method(method):
    grid = {"method__lr": [1e-6, 0.02]}
    search = GridSearchCV(BayesianClassifier(method, hidden=(8,), epochs=5, random_state=0), grid, cv=2).fit(X, Y)
    assert search.best_params_ == {"method__lr": 0.02}
    assert search.best_estimator_.posterior_.info["method"]["fields"]["lr"] == 0.02
    assert clone(search.best_estimator_).method == br.methods.MAP(lr=0.02)


def test_fields_of_methods_within_methods():
    classifier = BayesianClassifier("map").set_params(method="ensemble", method__base__lr=0.5, method__members=3)
    assert classifier.method == br.methods.Ensemble(3, br.methods.MAP(lr=0.5))
    assert classifier.get_params()["method__base__lr"] == 0.5
    assert "method__members" not in classifier.get_params(deep=False)
    before = br.methods.MAP()
    BayesianClassifier(before).set_params(method__lr=0.5)
    assert before == br.methods.MAP()


def test_a_field_that_a_method_has_not():
    with pytest.raises(ValueError, match="unknown field of map 'rate'"):
        BayesianClassifier("map").set_params(method__rate=0.5)
