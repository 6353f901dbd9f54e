"""Whether a posterior tells examples from elsewhere: by its uncertainties, and by distances from what it knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bayesrule import showing
from bayesrule.data import Data, as_data, as_inputs, inputs
from bayesrule.evaluate import parts, weighted
from bayesrule.evaluate.score import elsewhere
from bayesrule.evaluate.scores import Scores, scored
from bayesrule.posteriors import DistanceAware, Features, Posterior, nearest
from bayesrule.predictions import Binary, Classes, Prediction

if TYPE_CHECKING:
    import pandas as pd

NEIGHBOURS = 5  # the distance from the fifth nearest training example counts
MOST = 10_000  # training examples that distances are from, a random sample
RIDGE = 1e-6  # of the mean variance, on the diagonal of a covariance: features may be constant


@dataclass(frozen=True, eq=False, repr=False)
class StrangerScores(Mapping[str, Scores]):
    """By what tells strangers: ``auroc``, ``aupr`` and ``fpr95`` with intervals. Strangers are the positives.

    - ``auroc``: the chance that a stranger is above a test example, ties counting half;
    - ``aupr``: average precision, which depends on how many strangers there are;
    - ``fpr95``: the share of strangers that pass at the threshold where 95 % of the test examples do: low is good.
    """

    table: Mapping[str, Scores]

    def __getitem__(self, name: str) -> Scores:
        return self.table[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.table)

    def __len__(self) -> int:
        return len(self.table)

    def to_frame(self) -> pd.DataFrame:
        """A pandas table with a row for each way to tell."""
        import pandas as pd

        return pd.DataFrame([{"by": name, **found} for name, found in self.items()])

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {name: found.to_json() for name, found in self.items()}

    def _rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = [("by", "auroc", "aupr", "fpr95")]
        for name, found in self.items():
            rows.append((name, *(f"{found[score]:.3f}" for score in rows[0][1:])))
        return rows

    def __repr__(self) -> str:
        lines = [f"{by:<20}" + "".join(f"{value:>7}" for value in values) for by, *values in self._rows()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The same table for notebooks."""
        return showing.table(self._rows())


def strangers(
    posterior: Posterior,
    test: Any,
    ood: Any,
    train: Any = None,
    *,
    samples: int = 32,
    bootstrap: int = 0,
    seed: int = 0,
) -> StrangerScores:
    """How well test examples and examples from elsewhere are told apart, by every uncertainty that there is.

    Classes: ``max-probability`` (1 − it), ``entropy``, ``mutual information``, ``epistemic variance`` Σ_c Var_s p_s(c).
    Numbers: ``deviation`` and ``epistemic variance``. With ``train`` also distances in the features of the last layer
    of the network at the posterior's centre: ``nearest neighbours``, from the fifth nearest training example, and
    ``mahalanobis``, from the nearest class mean in the shared covariance of the classes (Lee et al. 2018).

    Args:
        posterior: What predicts.
        test: Inputs from home, or inputs and targets, which do not count.
        ood: The same from elsewhere.
        train: Inputs and targets that the posterior was fitted to, for distances.
        samples: Networks per prediction.
        bootstrap: Resamples behind the intervals; 0 for none.
        seed: Of the networks and of the resamples.
    """
    home, away = as_inputs(elsewhere(test)), as_inputs(elsewhere(ood))
    near, far = (_told(posterior, x, samples, seed) for x in (home, away))
    told = {name: (values, far[name]) for name, values in near.items()}
    if train is not None:
        told |= _distances(posterior, as_data(train), home, away, seed)
    sizes = [inputs.length(x) for x in (home, away)]
    table = {}
    for name, (inside, outside) in told.items():
        statistics = {
            "auroc": weighted.separation(inside, outside),
            "aupr": weighted.average_precision(inside, outside),
            "fpr95": weighted.passed_unseen(inside, outside),
        }
        table[name] = scored(statistics, sizes, bootstrap, seed)
    return StrangerScores(table)


def _told(posterior: Posterior, x: inputs.Inputs, samples: int, seed: int) -> dict[str, Tensor]:
    """Every uncertainty of each example, predicted in parts."""
    first = posterior.predict(inputs.take(x, torch.tensor([0])), samples=1, seed=seed)
    found: dict[str, list[Tensor]] = {}
    for part in parts.of_inputs(x, samples, first.shape.numel()):
        prediction = posterior.predict(part, samples=samples, seed=seed)
        for name, own in _uncertainties(prediction).items():
            found.setdefault(name, []).append(own(prediction))
    return {name: torch.cat(values) for name, values in found.items()}


def _uncertainties(prediction: Prediction) -> dict[str, Any]:
    """Functions of a prediction of this kind, each one number for an example."""
    if not isinstance(prediction, Classes | Binary):
        return {"deviation": lambda p: p.uncertainty, "epistemic variance": lambda p: p.epistemic}
    found = {
        "max-probability": lambda p: 1 - _classes(p).confidence,
        "entropy": lambda p: _classes(p).entropy,
        "mutual information": lambda p: _classes(p).epistemic,
    }
    # a sample with entropies of its own stands for many networks, whose variance nobody tells
    if _classes(prediction).entropies is None:
        found["epistemic variance"] = lambda p: _classes(p).logits.softmax(2).var(0, correction=0).sum(1)
    return found


def _classes(prediction: Prediction) -> Classes:
    if isinstance(prediction, Binary):
        return prediction.classes
    assert isinstance(prediction, Classes)
    return prediction


def _distances(posterior: Posterior, train: Data, home: Any, away: Any, seed: int) -> dict[str, tuple[Tensor, Tensor]]:
    x, y = train.raw()
    some = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))[:MOST]
    known, y = posterior.inputs(inputs.take(x, some)), y[some.to(y.device)]
    base = posterior.base if isinstance(posterior, DistanceAware) else posterior
    features = Features.of(base, known)
    own, inside, outside = (features(part).double() for part in (known, posterior.inputs(home), posterior.inputs(away)))
    neighbours = min(NEIGHBOURS, len(own))
    groups = torch.zeros(len(y), dtype=torch.long) if y.is_floating_point() or y.ndim > 1 else y
    gaussians = Mahalanobis.of(own, groups.to(own.device))
    return {
        "nearest neighbours": (nearest(inside, own, neighbours), nearest(outside, own, neighbours)),
        "mahalanobis": (gaussians(inside), gaussians(outside)),
    }


@dataclass(frozen=True, eq=False)
class Mahalanobis:
    """min_c (x − μ_c)ᵀ Σ⁻¹ (x − μ_c): squared distances from the nearest of several means [C, F]."""

    means: Tensor
    factor: Tensor
    """The lower triangle L of Σ = L Lᵀ, the covariance about the means."""

    @classmethod
    def of(cls, features: Tensor, groups: Tensor) -> Mahalanobis:
        """The means of groups of rows, numbered from 0, and what they scatter about them.

        >>> found = Mahalanobis.of(torch.tensor([[0.0], [2.0], [10.0], [12.0]]), torch.tensor([0, 0, 1, 1]))
        >>> found(torch.tensor([[1.0], [14.0]])).round(decimals=3)
        tensor([0., 9.])
        """
        names, which = torch.unique(groups, return_inverse=True)
        sums = features.new_zeros(len(names), features.shape[1]).index_add(0, which, features)
        means = sums / which.bincount()[:, None]
        apart = features - means[which]
        covariance = apart.T @ apart / len(features)
        ridge = RIDGE * covariance.diagonal().mean().clamp(min=torch.finfo(features.dtype).tiny)
        covariance.diagonal().add_(ridge)
        return cls(means, torch.linalg.cholesky(covariance))

    def __call__(self, features: Tensor) -> Tensor:
        """Of features [B, F]."""
        found = features.new_full((len(features),), torch.inf)
        for mean in self.means:
            white = torch.linalg.solve_triangular(self.factor, (features - mean).T, upper=False)
            found = torch.minimum(found, white.square().sum(0))
        return found
