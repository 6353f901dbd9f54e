"""One file for each figure or table of the documents that this library implements."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from bayesrule.experiments import path_derivative
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.figures import png

EXPERIMENTS: dict[str, Callable[[Setting], Result]] = {
    "path-derivative": path_derivative.run,
}


def about(name: str) -> str:
    """An experiment in a line.

    >>> about("path-derivative")
    'The path derivative against the total one: ...'
    """
    module = inspect.getmodule(EXPERIMENTS[name])
    return (inspect.getdoc(module) or "").splitlines()[0]


__all__ = ["EXPERIMENTS", "Claim", "Result", "Setting", "about", "png"]
