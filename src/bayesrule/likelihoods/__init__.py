"""p(y|f): how targets scatter about the network's outputs."""

from __future__ import annotations

from torch import Tensor

from bayesrule import naming
from bayesrule.data import Kind
from bayesrule.likelihoods.base import Likelihood
from bayesrule.likelihoods.bernoulli import Bernoulli
from bayesrule.likelihoods.categorical import Categorical
from bayesrule.likelihoods.choice import NoiseChoice, best
from bayesrule.likelihoods.gaussian import Gaussian
from bayesrule.likelihoods.heteroscedastic import Heteroscedastic
from bayesrule.likelihoods.log_normal import LogNormal
from bayesrule.likelihoods.poisson import Poisson
from bayesrule.likelihoods.student import Student

__all__ = [
    "AVAILABLE",
    "Bernoulli",
    "Categorical",
    "Gaussian",
    "Heteroscedastic",
    "Likelihood",
    "LogNormal",
    "NoiseChoice",
    "Poisson",
    "Student",
    "best",
    "choose",
    "infer",
    "usual",
]

AVAILABLE: dict[str, type[Likelihood]] = {
    kind.name: kind for kind in (Categorical, Bernoulli, Gaussian, Heteroscedastic, LogNormal, Student, Poisson)
}


def choose(given: str | Likelihood) -> Likelihood:
    """The likelihood that ``given`` stands for: itself, or one of `AVAILABLE` by name.

    >>> choose("gaussian")
    Gaussian(noise=None, known=False)
    """
    return naming.choose("likelihood", given, AVAILABLE, Likelihood)


def usual(kind: Kind) -> Likelihood:
    """The likelihood for a kind of target where nobody says: the first one of `AVAILABLE`.

    >>> usual("counts")
    Poisson()
    """
    return next(likelihood for likelihood in AVAILABLE.values() if likelihood.kind == kind)()


def infer(outputs: Tensor, y: Tensor) -> Likelihood:
    """The likelihood that targets ``y`` suggest: floats gaussian, integers bernoulli (one output) or categorical.

    >>> import torch
    >>> infer(torch.zeros(4, 3), torch.tensor([0, 2, 1, 1]))
    Categorical()
    """
    if y.is_floating_point():
        return Gaussian()
    if outputs.ndim == 1 or outputs.shape[1] == 1:
        return Bernoulli()
    return Categorical()
