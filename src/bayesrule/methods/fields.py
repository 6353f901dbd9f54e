"""Fields by path: ``base.lr`` is the field lr of the method in the field base."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar, get_args, get_type_hints

from bayesrule import optim
from bayesrule.naming import Named, unknown
from bayesrule.optim import Group, Recipe, Schedule

T = TypeVar("T", bound=Named)


def assign(owner: T, path: str, value: Any) -> T:
    """The object with the field at a path set; what a field holds may be a method, an optimiser, a schedule, a group.

    >>> from bayesrule.methods import BBB, MAP, Ensemble
    >>> assign(Ensemble(base=MAP()), "base.lr", 0.01).base
    MAP(lr=0.01)
    >>> assign(BBB(optimizer="sgd"), "optimizer.momentum", 0.5).optimizer
    Recipe(optimizer='sgd', options={'momentum': 0.5})
    >>> assign(BBB(), "deviations.lr", 0.1).deviations.lr
    0.1
    """
    name, _, rest = path.partition(".")
    if isinstance(owner, Recipe):
        return dataclasses.replace(owner, options={**owner.options, path: value})
    if rest:
        value = assign(_held(owner, name), rest, value)
    _hint(owner, name)
    return dataclasses.replace(owner, **{name: value})  # type: ignore[type-var]


def type_of(owner: Named, path: str) -> Any:
    """The type hint of the field at a path; of an optimiser's option, which has none, ``Any``.

    >>> from bayesrule.methods import MAP, Ensemble
    >>> type_of(Ensemble(base=MAP()), "base.lr")
    <class 'float'>
    """
    name, _, rest = path.partition(".")
    if isinstance(owner, Recipe):
        return Any
    return type_of(_held(owner, name), rest) if rest else _hint(owner, name)


def _hint(owner: Named, name: str) -> Any:
    known = [field.name for field in dataclasses.fields(owner)]  # type: ignore[arg-type]
    if name not in known:
        raise unknown(f"field of {owner.name}", name, known)
    return get_type_hints(type(owner))[name]


def _held(owner: Named, name: str) -> Named:
    """What a field holds as an object with fields, also where it is given by name or left out."""
    kinds, held = get_args(_hint(owner, name)), getattr(owner, name)
    if Recipe in kinds:
        return optim.choose(held)
    if Schedule in kinds:
        return optim.schedule(held)
    if Group in kinds and held is None:
        return Group()
    if not isinstance(held, Named):
        raise ValueError(f"{name} of {owner.name} has nothing within it to set, it is {held!r}")
    return held
