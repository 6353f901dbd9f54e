"""Objects by name: every method, likelihood and prior can be given as an object or by its short name.

A *named* object is a frozen dataclass with a class attribute ``name``. That is enough to pick it by name (with the
nearest valid name in the error), and to write it to a file and read it back without running code from the file.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeVar

import numpy as np


class Named:
    """Base of everything that can be picked by a short name."""

    name: ClassVar[str]


T = TypeVar("T", bound=Named)


def unknown(kind: str, given: str, valid: Iterable[str]) -> ValueError:
    """The error for a name that does not exist, with the nearest one that does.

    >>> unknown("method", "swagg", ["map", "swag"])
    ValueError("unknown method 'swagg': did you mean 'swag'? Valid: map, swag")
    """
    options = sorted(valid)
    near = difflib.get_close_matches(given, options, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return ValueError(f"unknown {kind} {given!r}: {hint}Valid: {', '.join(options)}")


def choose(kind: str, given: object, options: Mapping[str, type[T]], base: type[Any]) -> T:
    """The object that ``given`` stands for: itself, if it is a ``base``, or the named class with its defaults."""
    if isinstance(given, str):
        if given not in options:
            raise unknown(kind, given, options)
        return options[given]()
    if not isinstance(given, base):
        raise TypeError(f"{kind} must be a name or a {kind} object, not {type(given).__name__}: {given!r}")
    return given


def to_spec(thing: Any) -> Any:
    """A named object as plain data: its name and its fields, nested objects included."""
    if isinstance(thing, Named):
        fields = {f.name: to_spec(getattr(thing, f.name)) for f in dataclasses.fields(thing)}  # type: ignore[arg-type]
        return {"name": thing.name, "fields": fields}
    if isinstance(thing, list | tuple):
        return type(thing)(map(to_spec, thing))
    if isinstance(thing, np.generic):  # a number from a grid, say, which JSON does not know
        return thing.item()
    return thing


def from_spec(kind: str, spec: Mapping[str, Any], options: Mapping[str, type[T] | str]) -> T:
    """Undo `to_spec`. Only classes listed in ``options`` can come out.

    A class that is rarely needed may stand there as ``"module:Class"``: its module is loaded when it is.
    """
    name, fields = spec["name"], dict(spec["fields"])
    if name not in options:
        raise unknown(kind, name, options)
    values = {key: _from_plain(kind, value, options) for key, value in fields.items()}
    return _loaded(options[name])(**values)


def _loaded(found: type[T] | str) -> type[T]:
    """A class, or the one that ``"module:Class"`` stands for."""
    if not isinstance(found, str):
        return found
    module, _, name = found.partition(":")
    return getattr(importlib.import_module(module), name)


def _from_plain(kind: str, value: Any, options: Mapping[str, type[Any] | str]) -> Any:
    """A field's value, with all that is named in it."""
    if isinstance(value, Mapping) and set(value) == {"name", "fields"}:
        return from_spec(kind, value, options)
    if isinstance(value, list | tuple):
        return type(value)(_from_plain(kind, v, options) for v in value)
    return value
