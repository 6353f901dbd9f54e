"""Objects from words: a method with ``--set``, a prior with ``--prior``."""

from __future__ import annotations

from collections.abc import Iterable
from types import NoneType
from typing import Any, get_args

from bayesrule import likelihoods, methods, priors
from bayesrule.likelihoods import Likelihood
from bayesrule.methods import Method, assign, type_of
from bayesrule.naming import unknown
from bayesrule.priors import Prior
from bayesrule.sweeps import literal


def method(name: str | Method, assignments: Iterable[str] = ()) -> Method:
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
    ValueError: unknown field of swag 'ranks': did you mean 'rank'? Valid: burn_in, lr, rank, snapshots, swa_lr_ratio
    """
    chosen = methods.choose(name)
    for assignment in sorted(assignments, key=lambda word: word.partition("=")[0].count(".")):
        path, equals, text = assignment.partition("=")
        if not equals:
            raise ValueError(f"--set must be FIELD=VALUE, such as lr=0.01, got {assignment!r}")
        path = path.strip()
        chosen = assign(chosen, path, _parsed(path, text.strip(), type_of(chosen, path)))
    return chosen


def own(name: str, names: Iterable[str], assignments: Iterable[str]) -> tuple[str, ...]:
    """What is for one of several methods: ``swag.rank=10`` is for swag alone, ``lr=0.01`` for all.

    >>> own("swag", ["swag", "map"], ["swag.rank=10", "lr=0.01", "map.lr=0.1"])
    ('rank=10', 'lr=0.01')
    """
    known = set(names)
    owners = [(words, words.partition(".")[0]) for words in assignments]
    return tuple(words.removeprefix(f"{name}.") for words, owner in owners if owner == name or owner not in known)


def likelihood(text: str) -> Likelihood:
    """A likelihood by name, with fields after a colon.

    >>> likelihood("heteroscedastic:deviation=true").deviation, likelihood("gaussian").name
    (True, 'gaussian')
    >>> likelihood("heteroscedastic:deviations=true")
    Traceback (most recent call last):
    ValueError: unknown field of heteroscedastic 'deviations': did you mean 'deviation'? Valid: deviation, scale
    """
    name, _, words = text.partition(":")
    chosen = likelihoods.choose(name)
    for assignment in filter(None, words.split(",")):
        path, equals, value = (part.strip() for part in assignment.partition("="))
        if not equals:
            raise ValueError(f"--likelihood must be NAME or NAME:FIELD=VALUE,FIELD=VALUE, got {text!r}")
        chosen = assign(chosen, path, _parsed(path, value, type_of(chosen, path)))
    return chosen


def prior(text: str | None) -> Prior | None:
    """A prior from a scale, a rule for scales, ``flat`` or ``by-layer``; None is left for the fit to settle.

    >>> prior("0.5"), prior("kaiming")
    (Gaussian(scale=0.5, mean=None), Gaussian(scale='kaiming', mean=None))
    """
    if text is None:
        return None
    words = (*priors.RULES, *priors.AVAILABLE, *priors.OPEN)
    if text in words:
        return priors.choose(text)
    try:
        scale = float(text)
    except ValueError:
        raise unknown("prior", text, (*words, "a number")) from None
    return priors.choose(scale)


def _parsed(name: str, text: str, hint: Any) -> Any:
    """``text`` as the first of the field's types that can read it."""
    if hint is Any:
        return literal(text)
    options = get_args(hint) or (hint,)
    if NoneType in options and text.lower() == "none":
        return None
    # In the order in which the type names them: int | float reads 3 as a whole number, and 3.5 as the other.
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
