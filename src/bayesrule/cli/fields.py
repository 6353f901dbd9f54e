"""Objects from words: a method with ``--set``, a prior with ``--prior``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from types import NoneType
from typing import Any, get_args, get_type_hints

from bayesrule import methods, priors
from bayesrule.methods import Method
from bayesrule.naming import unknown
from bayesrule.optim import Recipe
from bayesrule.priors import Prior
from bayesrule.sweeps.ranges import literal
from bayesrule.sweeps.space import assign


def method(name: str, assignments: Iterable[str] = ()) -> Method:
    """The method called ``name`` with fields set, also those of a method within it and options of its optimiser.

    >>> method("ensemble", ["members=3", "base.lr=0.01"])
    Ensemble(members=3, base=MAP(lr=0.01))
    >>> method("bbb", ["optimizer=sgd", "optimizer.momentum=0.5"]).optimizer
    Recipe(optimizer='sgd', options={'momentum': 0.5})
    >>> method("swag", ["ranks=3"])
    Traceback (most recent call last):
    ValueError: unknown field of swag 'ranks': did you mean 'rank'? Valid: burn_in, lr, rank, snapshots, wander
    """
    chosen = methods.choose(name)
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals:
            raise ValueError(f"--set must be FIELD=VALUE, such as lr=0.01, got {assignment!r}")
        chosen = _with(chosen, path.strip(), text.strip())
    return chosen


def prior(text: str | None) -> Prior | None:
    """A prior from a scale, a rule for scales, or ``flat``; None is left for the task to choose.

    >>> prior("0.5"), prior("kaiming")
    (Gaussian(scale=0.5, mean=None), Gaussian(scale='kaiming', mean=None))
    """
    if text is None:
        return None
    if text in (*priors.RULES, *priors.AVAILABLE):
        return priors.choose(text)
    try:
        scale = float(text)
    except ValueError:
        raise unknown("prior", text, (*priors.RULES, *priors.AVAILABLE, "a number")) from None
    return priors.Gaussian(scale=scale)


def _with(owner: Method, path: str, text: str) -> Method:
    name, _, rest = path.partition(".")
    hints = get_type_hints(type(owner))
    known = [field.name for field in dataclasses.fields(owner)]  # type: ignore[arg-type]
    if name not in known:
        raise unknown(f"field of {owner.name}", name, known)
    inner = getattr(owner, name)
    if rest and isinstance(inner, Method):
        return assign(owner, name, _with(inner, rest, text))
    if rest and Recipe in get_args(hints[name]):
        return assign(owner, path, literal(text))
    if rest:
        raise ValueError(f"--set {path}: {name} of {owner.name} has nothing within it to set, it is {inner!r}")
    return assign(owner, name, _parsed(path, text, hints[name]))


def _parsed(name: str, text: str, hint: Any) -> Any:
    """``text`` as the first of the field's types that can read it."""
    options = get_args(hint) or (hint,)
    if NoneType in options and text.lower() == "none":
        return None
    for option in options:
        if option is bool and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if option is Method:
            return methods.choose(text)
        if option in (int, float, str):
            try:
                return option(text)
            except ValueError:
                continue
    kinds = " or ".join(getattr(option, "__name__", str(option)) for option in options)
    raise ValueError(f"--set {name} must be a value of type {kinds}, got {text!r}")
