"""A scikit-learn front: `BayesianClassifier` and `BayesianRegressor` clone, pipeline and grid-search as its own do.

Inputs and real targets are standardised inside, and predictions come back in the user's units. Import this module by
its name: it needs scikit-learn, which ``import bayesrule`` does not.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import Tags, check_random_state, column_or_1d
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn

from bayesrule import files, methods, modules, priors, temperatures
from bayesrule.data import Arrays, standardize
from bayesrule.data.intake import check_unmasked
from bayesrule.files import FileError, Tree
from bayesrule.likelihoods import AVAILABLE
from bayesrule.methods import Method, assign
from bayesrule.models import choose_device, tabular
from bayesrule.naming import to_spec, unknown
from bayesrule.posteriors import Posterior, from_tree
from bayesrule.predictions import Prediction
from bayesrule.priors import Prior
from bayesrule.task import Task
from bayesrule.temperatures import Tempering
from bayesrule.training import fit

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["BayesianClassifier", "BayesianRegressor"]

Array: TypeAlias = NDArray[Any]
Model: TypeAlias = nn.Module | Callable[[int, int], nn.Module]
RandomState: TypeAlias = int | np.random.RandomState | None

FLOATS = (np.float64, np.float32)
REGRESSIONS = [name for name, likelihood in AVAILABLE.items() if likelihood.kind != "classes"]


def _check_unmasked(X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None) -> None:
    """Refuse masked values, which scikit-learn would read as if there were no mask."""
    for name, given in (("X", X), ("y", y), ("sample_weight", sample_weight)):
        check_unmasked(name, given)


class _Bayesian(BaseEstimator):  # type: ignore[misc]
    """All but the kind of target."""

    posterior_: Posterior
    outputs_: int

    def __init__(
        self,
        method: str | Method = "auto",
        hidden: Sequence[int] = (64, 64),
        model: Model | None = None,
        prior: str | float | Prior | None = None,
        temperature: Tempering | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        random_state: RandomState = None,
        device: str | torch.device | None = None,
    ) -> None:
        self.method = method
        self.hidden = hidden
        self.model = model
        self.prior = prior
        self.temperature = temperature
        self.epochs = epochs
        self.batch_size = batch_size
        self.random_state = random_state
        self.device = device

    def predict_distribution(self, X: ArrayLike, samples: int = 32) -> Prediction:
        """The distribution of y at X under at most ``samples`` networks: its uncertainties, quantiles and draws."""
        check_is_fitted(self)
        check_unmasked("X", X)
        return self.posterior_.predict(validate_data(self, X, reset=False, dtype=FLOATS), samples)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name; with ``deep`` also the fields of the method, as ``method__lr``."""
        params = super().get_params(deep)
        method = self.method
        if isinstance(method, str) and method in methods.AVAILABLE:
            method = methods.choose(method)
        if deep and isinstance(method, Method):
            params |= _within("method", method)
        return params

    def set_params(self, **params: Any) -> Self:
        """Set parameters, and fields of the method: ``method__lr=0.01``, or ``method__base__lr`` of one within it."""
        fields = {key: value for key, value in params.items() if key.startswith("method__")}
        super().set_params(**{key: value for key, value in params.items() if key not in fields})
        for key in sorted(fields, key=lambda key: key.count("__")):  # what something is before what is in it
            path = key.removeprefix("method__").replace("__", ".")
            self.method = assign(methods.choose(self.method), path, fields[key])
        return self

    def save(self, path: str | Path) -> None:
        """Write the fitted estimator to one safetensors file, atomically, but for the code of a ``model`` of yours."""
        check_is_fitted(self)
        params = {name: to_spec(value) for name, value in self.get_params(deep=False).items() if name != "model"}
        if not (params["random_state"] is None or isinstance(params["random_state"], Integral)):
            raise TypeError(f"random_state must be a whole number or None to be saved, not {params['random_state']!r}")
        if params["device"] is not None:
            params["device"] = str(params["device"])
        tree = {
            "class": type(self).__name__,
            "own_model": self.model is not None,
            "params": params,
            "learnt": self._learnt(),
            "dtype": str(modules.dtype_of(self.posterior_.model)).removeprefix("torch."),
            "posterior": self.posterior_.tree(),
        }
        files.save(path, files.sealed(tree), "estimator")

    @classmethod
    def load(cls, path: str | Path, model: Model | None = None) -> Self:
        """Read what `save` wrote. ``model``: the module, or the function that makes it, if the fit had one."""
        tree = files.unsealed(path, files.load(path, "estimator"))
        if tree["class"] != cls.__name__:
            raise FileError(f"{path}: holds a {tree['class']}, not a {cls.__name__}: use {tree['class']}.load")
        if tree["own_model"] and model is None:
            raise FileError(f"{path}: was fitted with a model of yours, whose code no file holds: load(path, model)")
        params = tree["params"]
        for name, read in (
            ("method", methods.from_spec),
            ("prior", priors.from_spec),
            ("temperature", temperatures.from_spec),
        ):
            if isinstance(params[name], dict):
                params[name] = read(params[name])
        estimator = cls(**params, model=model)
        estimator._set_learnt(tree["learnt"])
        inputs, dtype = tree["learnt"]["n_features_in_"], getattr(torch, tree["dtype"])
        network = estimator._moved(estimator._made(inputs, estimator.outputs_, dtype, seed=0))
        estimator.posterior_ = from_tree(path, files.moved(tree["posterior"], modules.device_of(network)), network)
        return estimator

    def _learnt(self) -> dict[str, Tree]:
        """What a fit has set beside the posterior, as plain data."""
        found: dict[str, Tree] = {"n_features_in_": self.n_features_in_, "outputs_": self.outputs_}
        if hasattr(self, "feature_names_in_"):
            found["feature_names_in_"] = list(self.feature_names_in_)
        return found

    def _set_learnt(self, learnt: dict[str, Tree]) -> None:
        """Undo `_learnt`."""
        for name, value in learnt.items():
            setattr(self, name, np.array(value, dtype=object) if name == "feature_names_in_" else value)

    def _weighted(self, X: Array, y: Array, sample_weight: ArrayLike | None) -> tuple[Array, ...]:
        """Rows with their weights, if there are any; those of weight zero are not there."""
        if sample_weight is None:
            return X, y
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if not weight.any():
            raise ValueError("sample_weight must be above zero for some row, but all are zero")
        return X[weight > 0], y[weight > 0], weight[weight > 0]

    def _learn(self, data: Arrays, likelihood: str, outputs: int) -> Self:
        # scikit-learn's convention: a whole number gives the same fit each time, None another one.
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.outputs_ = outputs
        self.posterior_ = fit(
            self._network(data, outputs, seed),
            data,
            self.method,
            likelihood,
            self.prior,
            self.temperature,
            self.epochs,
            self.batch_size,
            seed,
        )
        return self

    def _network(self, data: Arrays, outputs: int, seed: int) -> nn.Module:
        """The user's module, or a new one that is a function of the seed; one of ours has the dtype of X."""
        assert isinstance(data.x, Tensor)
        return self._moved(self._made(data.x.shape[1], outputs, data.x.dtype, seed))

    def _moved(self, network: nn.Module) -> nn.Module:
        """The network on the device that was asked for."""
        if self.device is None:
            return network
        if network is self.model:
            network = modules.twin(network, shared=())  # moving a module changes it, and this one is the user's
        return network.to(choose_device(self.device))

    def _made(self, inputs: int, outputs: int, dtype: torch.dtype, seed: int) -> nn.Module:
        if isinstance(self.model, nn.Module):
            return self.model
        if not (self.model is None or callable(self.model)):
            raise TypeError(
                "model must be None, a torch.nn.Module or a function (inputs, outputs) -> Module, "
                f"not {type(self.model).__name__}: {self.model!r}"
            )
        if not isinstance(self.hidden, Sequence):
            raise TypeError(f"hidden must be a sequence of widths, not {self.hidden!r}: for one layer give (50,)")
        with torch.random.fork_rng(devices=[]):  # a new network draws on the CPU only
            torch.default_generator.manual_seed(seed)
            if self.model is None:
                return tabular(inputs, outputs, self.hidden).to(dtype)
            return self.model(inputs, outputs)


def _within(path: str, method: Method) -> dict[str, Any]:
    """The fields of a method, and of methods within it, by scikit-learn's names of them.

    >>> _within("method", methods.Ensemble(members=2))
    {'method__members': 2, 'method__base': MAP(lr=0.01), 'method__base__lr': 0.01}
    """
    found = {}
    for field in dataclasses.fields(method):  # type: ignore[arg-type]
        name, value = f"{path}__{field.name}", getattr(method, field.name)
        found[name] = value
        if isinstance(value, Method):
            found |= _within(name, value)
    return found


class BayesianClassifier(ClassifierMixin, _Bayesian):  # type: ignore[misc]
    """A network that tells classes apart, and how sure it is.

    Args:
        method: a name (`br.methods.available`) or an object such as ``br.methods.SWAG(rank=10)``.
        hidden: widths of the hidden layers.
        model: a network instead of `br.models.tabular` with ``hidden``: a ``torch.nn.Module``, or a function of the
            numbers of inputs and outputs that makes one; one output for each class.
        prior: a prior, the standard deviation of all weights, the name of a scale rule, or None for the default.
        temperature: η of the objective, mean −log p(y|f) − (η/N) log p(w), or as `br.fit` takes it.
        epochs: passes over the data; None: enough for 2000 steps, and at least 10.
        batch_size: examples in a step; None: 32, less for fewer than 320 examples, 128 from 10 000 and 512 from 100 000
            on.
        random_state: a whole number for the same result each time.
        device: ``"auto"`` for a GPU if there is one, or a name such as ``"cuda"``; None: the model's own, else the CPU.
        class_weight: how many times the rows of each class count, as a dict; ``"balanced"``: all classes alike. The
            probabilities are then those of data in which classes are that frequent.

    Attributes:
        posterior_: what was learnt, as `br.fit` gives it.
        classes_: the labels, in the order of the columns of `predict_proba`.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> classifier = BayesianClassifier(epochs=20, random_state=0).fit(X, y)
    >>> classifier.score(X, y) > 0.9
    True
    >>> clear, borderline = classifier.predict_distribution(X[[0, 70]]).total
    >>> bool(clear < borderline)
    True
    """

    classes_: Array

    def __init__(
        self,
        method: str | Method = "auto",
        hidden: Sequence[int] = (64, 64),
        model: Model | None = None,
        prior: str | float | Prior | None = None,
        temperature: Tempering | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        random_state: RandomState = None,
        device: str | torch.device | None = None,
        class_weight: str | dict[Any, float] | None = None,
    ) -> None:
        super().__init__(method, hidden, model, prior, temperature, epochs, batch_size, random_state, device)
        self.class_weight = class_weight

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Learn from inputs ``[N, features]`` and labels ``[N]`` of any kind.

        ``sample_weight``: how many times each row counts, ``[N]``.
        """
        _check_unmasked(X, y, sample_weight)
        inputs, labels = validate_data(self, X, y, dtype=FLOATS, ensure_min_samples=2)
        check_classification_targets(labels)
        inputs, labels, *weight = self._weighted(inputs, labels, sample_weight)
        if self.class_weight is not None:
            # scikit-learn's "balanced" is by the rows, whatever they weigh
            balance = compute_sample_weight(self.class_weight, labels)
            weight = [balance * weight[0] if weight else balance]
        self.classes_, index = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y must hold at least two classes, got only one class: {self.classes_[0]}")
        return self._learn(standardize((inputs, index, *weight)), "categorical", len(self.classes_))

    def predict_proba(self, X: ArrayLike) -> Array:
        """The probability of each class, ``[N, classes]``, averaged over networks."""
        return self.predict_distribution(X).probs.cpu().numpy()

    def predict(self, X: ArrayLike) -> Array:
        """The most probable labels."""
        index = self.predict_distribution(X).point.cpu().numpy()
        return self.classes_[index]

    def _learnt(self) -> dict[str, Tree]:
        dtype = str(self.classes_.dtype)
        return super()._learnt() | {"classes_": {"values": self.classes_.tolist(), "dtype": dtype}}

    def _set_learnt(self, learnt: dict[str, Tree]) -> None:
        labels = learnt["classes_"]
        super()._set_learnt(learnt | {"classes_": np.array(labels["values"], dtype=labels["dtype"])})

    def _network(self, data: Arrays, outputs: int, seed: int) -> nn.Module:
        network = super()._network(data, outputs, seed)
        if self.model is not None:
            task = Task.create(network, data, "categorical")
            with torch.no_grad():
                shape = modules.call(task.model.eval(), next(task.ordered(1)).x).shape
            if shape[1:] != (outputs,):
                raise ValueError(
                    f"model must give {outputs} outputs, one for each class in y, not {list(shape[1:])}: "
                    "change its last layer"
                )
        return network


class BayesianRegressor(RegressorMixin, _Bayesian):  # type: ignore[misc]
    """A network that predicts numbers, each with a standard deviation that includes the noise of y.

    Targets are ``[N]``, or ``[N, D]`` for D of them.

    Args:
        method: a name (`br.methods.available`) or an object such as ``br.methods.SWAG(rank=10)``.
        hidden: widths of the hidden layers.
        model: a network instead of `br.models.tabular` with ``hidden``: a ``torch.nn.Module``, or a function of the
            numbers of inputs and outputs that makes one.
        likelihood: ``"gaussian"``, noise that is learnt; ``"heteroscedastic"``, noise that depends on x; ``"student"``,
            ``"log-normal"``; ``"poisson"`` and ``"negative-binomial"``, for counts.
        prior: a prior, the standard deviation of all weights, the name of a scale rule, or None for the default.
        temperature: η of the objective, mean −log p(y|f) − (η/N) log p(w), or as `br.fit` takes it.
        epochs: passes over the data; None: enough for 2000 steps, and at least 10.
        batch_size: examples in a step; None: 32, less for fewer than 320 examples, 128 from 10 000 and 512 from 100 000
            on.
        random_state: a whole number for the same result each time.
        device: ``"auto"`` for a GPU if there is one, or a name such as ``"cuda"``; None: the model's own, else the CPU.

    Attributes:
        posterior_: what was learnt, as `br.fit` gives it.

    >>> X = np.linspace(-1, 1, 600)[:, None]
    >>> y = 30 + 5 * X[:, 0] + np.random.default_rng(0).normal(size=600)
    >>> regressor = BayesianRegressor(epochs=20, random_state=0).fit(X, y)
    >>> mean, std = regressor.predict([[0.0]], return_std=True)
    >>> abs(float(mean[0]) - 30) < 1, 0.8 < float(std[0]) < 1.3
    (True, True)
    """

    def __init__(
        self,
        method: str | Method = "auto",
        hidden: Sequence[int] = (64, 64),
        model: Model | None = None,
        likelihood: str = "gaussian",
        prior: str | float | Prior | None = None,
        temperature: Tempering | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        random_state: RandomState = None,
        device: str | torch.device | None = None,
    ) -> None:
        super().__init__(method, hidden, model, prior, temperature, epochs, batch_size, random_state, device)
        self.likelihood = likelihood

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Learn from inputs ``[N, features]`` and targets ``[N]`` or ``[N, D]``.

        ``sample_weight``: how many times each row counts, ``[N]``.
        """
        if self.likelihood not in REGRESSIONS:
            raise unknown("likelihood", str(self.likelihood), REGRESSIONS)
        likelihood = AVAILABLE[self.likelihood]()
        _check_unmasked(X, y, sample_weight)
        inputs, targets = validate_data(self, X, y, dtype=FLOATS, multi_output=True, ensure_min_samples=2)
        targets = np.asarray(targets, np.float64)  # integers would be taken for labels
        if targets.shape[1:] == (1,):
            targets = column_or_1d(targets, warn=True)
        data = likelihood.standardized(self._weighted(inputs, targets, sample_weight))
        return self._learn(data, self.likelihood, likelihood.outputs_for(math.prod(targets.shape[1:])))

    def predict(self, X: ArrayLike, return_std: bool = False) -> Array | tuple[Array, Array]:
        """The mean of y, and with ``return_std`` its standard deviation: noise and ignorance together."""
        prediction = self.predict_distribution(X)
        mean = prediction.point.cpu().numpy()
        return (mean, prediction.total.sqrt().cpu().numpy()) if return_std else mean

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
