"""Objects from words: a method with ``--set``, a prior with ``--prior``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from bayesrule import methods, optim, priors
from bayesrule.methods import Method
from bayesrule.naming import Named, unknown
from bayesrule.optim import Group, Recipe, Schedule
from bayesrule.priors import Prior
from bayesrule.sweeps.ranges import literal

T = TypeVar("T", bound=Named)


def method(name: str, assignments: Iterable[str] = ()) -> Method:
    """The method called ``name`` with fields set, also those of what is within it, and options of its optimiser.

    What something is goes before what is in it, whatever the order of the words.

    >>> method("ensemble", ["members=3", "base.lr=0.01"])
    Ensemble(members=3, base=MAP(lr=0.01))
    >>> method("bbb", ["optimizer=sgd", "optimizer.momentum=0.5"]).optimizer
    Recipe(optimizer='sgd', options={'momentum': 0.5})
    >>> method("bbb", ["deviations.schedule.patience=2", "deviations.schedule=plateau"]).deviations.schedule
    Plateau(metric='loss', patience=2, factor=0.1, threshold=0.0001)
    >>> method("swag", ["ranks=3"])
    Traceback (most recent call last):
    ValueError: unknown field of swag 'ranks': did you mean 'rank'? Valid: burn_in, lr, rank, snapshots, wander
    """
    chosen = methods.choose(name)
    for assignment in sorted(assignments, key=lambda word: word.partition("=")[0].count(".")):
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


def _with(owner: T, path: str, text: str) -> T:
    """The object with a field set, or a field within a field."""
    name, _, rest = path.partition(".")
    hints = get_type_hints(type(owner))
    known = [field.name for field in dataclasses.fields(owner)]  # type: ignore[arg-type]
    if name not in known:
        raise unknown(f"field of {owner.name}", name, known)
    hint = hints[name]
    value = _within(owner, name, get_args(hint), rest, text) if rest else _parsed(path, text, hint)
    return dataclasses.replace(owner, **{name: value})  # type: ignore[type-var]


def _within(owner: Named, name: str, kinds: tuple[type, ...], rest: str, text: str) -> Named:
    """What a field holds with something set in it: a method, an optimiser, a schedule, or a group of these."""
    inner = getattr(owner, name)
    if Recipe in kinds:
        recipe = optim.choose(inner)
        return Recipe(recipe.optimizer, {**recipe.options, rest: literal(text)})
    if Schedule in kinds:
        inner = optim.schedule(inner)
    elif Group in kinds and inner is None:
        inner = Group()
    if not isinstance(inner, Named):
        raise ValueError(f"--set {name}.{rest}: {name} of {owner.name} has nothing within it to set, it is {inner!r}")
    return _with(inner, rest, text)


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
