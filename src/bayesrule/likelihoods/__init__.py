"""p(y|f): how targets scatter about the network's outputs."""

from __future__ import annotations

from collections.abc import Sequence

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
from bayesrule.likelihoods.negative_binomial import NegativeBinomial
from bayesrule.likelihoods.poisson import Poisson
from bayesrule.likelihoods.student import Student
from bayesrule.likelihoods.tokens import Tokens

__all__ = [
    "AVAILABLE",
    "Bernoulli",
    "Categorical",
    "Gaussian",
    "Heteroscedastic",
    "Likelihood",
    "LogNormal",
    "NegativeBinomial",
    "NoiseChoice",
    "Poisson",
    "Student",
    "Tokens",
    "best",
    "choose",
    "infer",
    "usual",
]

AVAILABLE: dict[str, type[Likelihood]] = {
    kind.name: kind
    for kind in (
        Categorical,
        Bernoulli,
        Tokens,
        Gaussian,
        Heteroscedastic,
        LogNormal,
        Student,
        Poisson,
        NegativeBinomial,
    )
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
    """The likelihood that targets ``y`` suggest, for outputs of a network: only the shape of those counts.

    Integers are classes: bernoulli for one output, else categorical. So are floats that are only 0 and 1, as
    ``torch.nn.BCEWithLogitsLoss`` wants them, for one output; for several of them nobody can know, and it is asked.
    Other floats are reals.

    >>> import torch
    >>> infer(torch.zeros(4, 3), torch.tensor([0, 2, 1, 1]))
    Categorical(temperature=None, vector=None, isotonic=None)
    >>> infer(torch.zeros(4, 1), torch.tensor([0.0, 1.0, 1.0, 0.0]))
    Bernoulli(temperature=None, vector=None, isotonic=None)
    """
    one = outputs.ndim == 1 or outputs.shape[1] == 1
    _ask_if_tokens(outputs.shape, y)
    if not y.is_floating_point():
        return Bernoulli() if one else Categorical()
    if one:
        return Bernoulli() if _zeros_and_ones(y) else Gaussian()
    _ask_if_classes(outputs.shape, y)
    return Gaussian()


def _ask_if_tokens(shape: Sequence[int], y: Tensor) -> None:
    """An error for whole numbers that can only be labels of tokens: where they stand must be said."""
    if y.is_floating_point() or len(shape) != 3 or list(y.shape) != list(shape[:2]) or shape[1] == shape[2]:
        return
    raise ValueError(
        f"likelihood must be given for outputs {list(shape)} and labels {list(y.shape)}, one for each token: pass "
        "br.likelihoods.Tokens(shift=1) where the labels are the inputs themselves, as for a causal language model, "
        'or "tokens" where each stands at the position whose outputs say it'
    )


def _zeros_and_ones(y: Tensor) -> bool:
    """Whether there are both, and nothing else: a constant is no answer to anything."""
    ones = y == 1
    return bool((ones | (y == 0)).all()) and bool(ones.any()) and not bool(ones.all())


def _ask_if_classes(shape: Sequence[int], y: Tensor) -> None:
    """An error for floats that may stand for classes of a network with several outputs."""
    count, labels = shape[1], [len(y), *shape[2:]]
    if list(y.shape) in (labels, [*labels[:1], 1, *labels[1:]]):
        if bool(((y == y.floor()) & (y >= 0) & (y < count)).all()):
            raise ValueError(
                f"y must be whole numbers to be classes of a network with {count} outputs, got class indices as "
                f"{y.dtype}: pass y.long()"
            )
        return
    if not _zeros_and_ones(y):
        return
    ways = 'likelihood="bernoulli" for several yes/no labels per example, likelihood="gaussian" for real numbers'
    if y.ndim > 1 and bool((y.sum(1) == 1).all()):
        raise ValueError(
            f"likelihood must be given for y of floats {list(y.shape)} that looks one-hot: pass y.argmax(1) for one of "
            f"{count} classes, {ways}"
        )
    raise ValueError(f"likelihood must be given for y of floats {list(y.shape)} that are only 0 and 1: {ways}")
