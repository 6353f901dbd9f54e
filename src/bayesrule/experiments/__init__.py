"""One file for each figure or table of the documents that this library implements."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from bayesrule.experiments import (
    and_perceptron,
    initial_sigma,
    kl_weights,
    noise_confidence,
    path_derivative,
    sigma_pull,
)
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.figures import png

EXPERIMENTS: dict[str, Callable[[Setting], Result]] = {
    "and-perceptron": and_perceptron.run,
    "initial-sigma": initial_sigma.run,
    "kl-weights": kl_weights.run,
    "noise-confidence": noise_confidence.run,
    "path-derivative": path_derivative.run,
    "sigma-pull": sigma_pull.run,
}


def about(name: str) -> str:
    """An experiment in a line.

    >>> about("path-derivative")
    'The path derivative against the total one: ...'
    """
    module = inspect.getmodule(EXPERIMENTS[name])
    return (inspect.getdoc(module) or "").splitlines()[0]


__all__ = ["EXPERIMENTS", "Claim", "Result", "Setting", "about", "png"]
