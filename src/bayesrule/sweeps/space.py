"""Which settings are searched over: a range for each, and how a draw becomes a method and a temperature.

A *key* names a setting:

- ``temperature``, η of the objective; ``prior``, the standard deviation of all weights, or a rule for it; ``epochs``;
  ``width``, of which the model is a function: settings of the fit;
- ``method``: a choice of names; every other key is then for those methods that have it;
- a field of the method, ``lr``, or of a method within it, ``base.lr``;
- an option of the optimiser, ``momentum``, drawn where it has one; ``beta1`` and ``beta2`` are the parts of betas;
- ``sgd.momentum``, ``yellowfin.lr``: the same for one optimiser alone, before the general one;
- ``sigma_lr``: the learning rate of the deviations, instead of ``sigma_lr_ratio``, their multiple of ``lr``.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple, get_args

import torch

from bayesrule import optim
from bayesrule.methods import Method, assign, type_of
from bayesrule.methods import choose as choose_method
from bayesrule.naming import unknown
from bayesrule.optim import Group
from bayesrule.sweeps.ranges import DIGITS, Choice, Log, Range, Uniform, Value, Whole, parse

OPTIMIZERS = ("sgd", "adam", "amsgrad", "radam", "adabound", "amsbound", "yellowfin", "rmsprop", "adagrad")
BOUND = ("adabound", "amsbound")  # in a package that need not be there
DEFAULTS: dict[str, dict[str, Range]] = {
    "optimizer": {"optimizer": Choice(OPTIMIZERS), "yellowfin.lr": Log(0.1, 10), "sgd.momentum": Uniform(0, 0.98)},
    "lr": {"lr": Log(1e-4, 1)},
    "sigma_lr_ratio": {"sigma_lr_ratio": Log(1e-3, 10)},
    "kl_ratio": {"temperature": Log(1e-3, 1)},
    "initial_std": {"initial_std": Log(1e-4, 0.3)},
    "rate": {"rate": Uniform(0.01, 0.5)},
    "rank": {"rank": Whole(2, 40)},
    "swa_lr_ratio": {"swa_lr_ratio": Log(0.05, 1)},
}
"""The ranges that a field of a method brings with it, whatever the method: a divergence brings the temperature."""
BETAS = {"beta1": 0, "beta2": 1}
FIT = {"temperature": float, "prior": float, "epochs": int, "width": int}
"""Settings of a fit beside the fields of its method."""
METHOD = "method"


class Candidate(NamedTuple):
    """What a draw stands for.

    ``fit``: values of `FIT`. ``assignments``: paths as for ``--set``, `FIT` and ``method``, with their values.
    """

    method: Method
    fit: dict[str, Any]
    assignments: dict[str, Any]


@dataclass(frozen=True)
class Knob:
    """A key taken apart: the fields that lead to its method, the optimiser that it is for, its name, where it goes."""

    within: tuple[str, ...]
    optimizer: str | None
    name: str
    path: str

    @property
    def prefix(self) -> str:
        """What stands before the name of a field of the same method."""
        return "".join(f"{part}." for part in self.within)

    @property
    def option(self) -> str | None:
        """The option of the optimiser that it sets, if it does."""
        head, _, option = self.path.removeprefix(self.prefix).partition(".")
        if head != "optimizer" or not option:
            return None
        return option

    def rival(self, other: Knob) -> bool:
        """Whether both set the same thing."""
        # beta1 and beta2 have the path of betas, but different parts of it.
        apart = self.name in BETAS and other.name in BETAS and self.name != other.name
        return self.path == other.path and self.optimizer == other.optimizer and not apart


class Space:
    """Ranges for settings of a method, checked: every draw from them can be built.

    >>> from bayesrule.methods import BBB
    >>> space = Space({"optimizer": Choice(["adam", "sgd"]), "momentum": Uniform(0, 0.98)}, BBB())
    >>> space.draw(lambda key, of: of.at(0.0)), space.draw(lambda key, of: of.at(0.5))
    ({'optimizer': 'adam'}, {'optimizer': 'sgd', 'momentum': 0.49})
    >>> space.candidate({"optimizer": "sgd", "momentum": 0.49}).method.optimizer
    Recipe(optimizer='sgd', options={'momentum': 0.49})
    """

    def __init__(self, ranges: Mapping[str, Range], method: Method) -> None:
        self.method = method
        self.each: dict[str, Space | Method] = {}  # where methods are searched over: what is searched of each
        if METHOD in ranges and not _has(method, METHOD):
            self._start_methods(ranges)
            return
        self.knobs = {key: _knob(key, method) for key in ranges}
        # The optimiser first, since other settings depend on it; sigma_lr, which depends on lr, last.
        self.ranges = dict(
            sorted(
                ranges.items(),
                key=lambda item: (self.knobs[item[0]].name != "optimizer", self.knobs[item[0]].name == "sigma_lr"),
            )
        )
        if not ranges:
            raise ValueError(f"space must name at least one setting of {method.name}, got none: such as lr=1e-4:1:log")
        for key in ranges:
            self._check(key)
        # Both ends of all ranges and every option of each choice, not all combinations: an error is in one setting.
        most = max(len(of.ends()) for of in self.ranges.values())
        for upper in (False, True):
            for index in range(most):
                self._try(index, upper)

    def _start_methods(self, ranges: Mapping[str, Range]) -> None:
        """A space for each method that may be drawn, of the keys that are its own; each key must be that of one."""
        of = ranges[METHOD]
        if not isinstance(of, Choice):
            raise ValueError(f"space['method'] must be a choice of names, not {of}: Choice([…]), or A,B,…")
        rest = {key: each for key, each in ranges.items() if key != METHOD}
        self.ranges = {METHOD: of} | rest
        self.knobs = {METHOD: Knob((), None, METHOD, METHOD)}
        refused: dict[str, ValueError] = {}
        for name in map(str, of.options):
            method = self.method if name == self.method.name else choose_method(name)
            own = {}
            for key in rest:
                try:
                    self.knobs[key] = _knob(key, method)
                    own[key] = rest[key]
                except ValueError as error:
                    refused[key] = error
            self.each[name] = Space(own, method) if own else method
        for key, reason in refused.items():
            if key not in self.knobs:
                raise reason

    def draw(self, choose: Callable[[str, Range], Value]) -> dict[str, Value]:
        """A setting for each key that applies, one after the other, the method and the optimiser first."""
        if self.each:
            name = choose(METHOD, self.ranges[METHOD])
            within = self.each[str(name)]
            return {METHOD: name} | (within.draw(choose) if isinstance(within, Space) else {})
        settings: dict[str, Value] = {}
        for key, of in self.ranges.items():
            if self._applies(key, settings):
                settings[key] = choose(key, of)
        return settings

    def candidate(self, settings: Mapping[str, Value]) -> Candidate:
        """The method with these settings."""
        if self.each:
            name, within = settings[METHOD], self.each[str(settings[METHOD])]
            found = within.candidate(settings) if isinstance(within, Space) else Candidate(within, {}, {})
            return found._replace(assignments={METHOD: name} | found.assignments)
        method, fit, assignments = self.method, {}, {}
        for key in (key for key in self.ranges if key in settings):
            knob, value = self.knobs[key], settings[key]
            if knob.path in FIT and not _has(self.method, knob.path):
                fit[knob.path] = assignments[knob.path] = _of_fit(knob.path, value)
                continue
            assignments[knob.path] = _meant(knob, value, _owner(method, knob.within))
            method = assign(method, knob.path, assignments[knob.path])
        return Candidate(method, fit, assignments)

    def words(self) -> dict[str, str]:
        """The ranges as texts that `parse` reads."""
        return {key: str(of) for key, of in self.ranges.items()}

    def _applies(self, key: str, settings: Mapping[str, Value]) -> bool:
        knob = self.knobs[key]
        owner = _owner(self.method, knob.within)
        if not _has(owner, "optimizer"):
            return True
        optimizer = str(settings.get(f"{knob.prefix}optimizer", _optimizer(owner)))
        # What is for one optimiser alone goes before what is for all.
        if knob.optimizer is None and f"{knob.prefix}{optimizer}.{knob.name}" in self.ranges:
            return False
        return knob.optimizer in (None, optimizer) and (knob.option is None or _takes(optimizer, knob.option))

    def _optimizers(self, knob: Knob) -> list[Value]:
        """The optimisers that a key can meet."""
        drawn = self.ranges.get(f"{knob.prefix}optimizer")
        if drawn is None:
            return [_optimizer(_owner(self.method, knob.within))]
        return list(drawn.ends())

    def _check(self, key: str) -> None:
        knob, of = self.knobs[key], self.ranges[key]
        if not isinstance(of, Range):
            raise TypeError(f"space[{key!r}] must be a range such as Log(1e-4, 1), not {of!r}")
        twins = [other for other, each in self.knobs.items() if each.rival(knob) and other != key]
        if twins:
            raise ValueError(f"space must name each setting once, got {key} and {twins[0]}, which are the same")
        if (knob.optimizer or knob.option) and not self._met(key):
            met = ", ".join(map(str, self._optimizers(knob)))
            raise ValueError(
                f"space[{key!r}] is never drawn: the optimizer is {met}; leave it out, or add an optimizer"
            )
        if knob.path == f"{knob.prefix}sigma_lr_ratio" and _apart(_owner(self.method, knob.within)):
            raise ValueError(f"space[{key!r}] has no effect: the deviations are trained by a group of their own")
        hint: Any = FIT.get(knob.name, float)
        if knob.path == knob.prefix + knob.name and (knob.name not in FIT or _has(self.method, knob.name)):
            hint = type_of(self.method, knob.path)
        kinds = get_args(hint) or (hint,)
        if any(isinstance(kind, type) and issubclass(kind, Method) for kind in kinds):
            raise ValueError(f"space[{key!r}] must be of plain values, but it is a method: search its fields, {key}.lr")
        if not isinstance(of, Choice) and float not in kinds and not (int in kinds and isinstance(of, Whole)):
            what, fix = "a choice", "Choice([…]), or A,B,…"
            if int in kinds:
                what, fix = "whole numbers", "Whole(2, 40), on the command line 2:40:int"
            raise ValueError(f"space[{key!r}] must be {what}, not {of}: {fix}")

    def _met(self, key: str) -> bool:
        prefix = self.knobs[key].prefix
        return any(self._applies(key, {f"{prefix}optimizer": name}) for name in self._optimizers(self.knobs[key]))

    def _try(self, index: int, upper: bool) -> None:
        """Build what the ends of all ranges give, with the option of each choice that ``index`` counts to."""

        def end(key: str, of: Range) -> Value:
            if isinstance(of, Choice):
                return of.options[index % len(of.options)]
            return of.ends()[upper]

        settings = self.draw(end)
        try:
            self._build(self.candidate(settings).method)
        except (TypeError, ValueError) as error:
            shown = ", ".join(f"{key}={value}" for key, value in settings.items())
            raise ValueError(
                f"space must hold only what {self.method.name} can be, but with {shown}: {error}"
            ) from error

    def _build(self, method: Method) -> None:
        for within in {knob.within for knob in self.knobs.values()}:
            owner = _owner(method, within)
            if _has(owner, "optimizer"):
                optim.choose(owner.optimizer).build([torch.zeros(1, requires_grad=True)], lr=1.0)  # type: ignore[attr-defined]


def default_space(method: Method, without: Collection[str] = ()) -> dict[str, Range]:
    """The usual ranges of a method's settings, but for those that are ``without``: paths as for ``--set``.

    >>> from bayesrule.methods import MAP, Ensemble
    >>> default_space(Ensemble(base=MAP()))
    {'base.lr': Log(low=0.0001, high=1.0)}
    """
    found = _defaults(method, "", without)
    ranges = {key: of for key, of in found.items() if not {key, _knob(key, method).path} & set(without)}
    if not ranges:
        fields = "no field of it"
        if without:
            fields += f" but {', '.join(without)}"
        raise ValueError(f"space must be given for {method.name}: {fields} has a usual range")
    return ranges


def parse_space(words: Collection[str]) -> dict[str, Range]:
    """Ranges from words.

    >>> parse_space(["lr=1e-4:1:log", "optimizer=adam,sgd"])
    {'lr': Log(low=0.0001, high=1.0), 'optimizer': Choice(options=('adam', 'sgd'))}
    """
    ranges: dict[str, Range] = {}
    for word in words:
        key, equals, text = word.partition("=")
        key = key.strip()
        if not equals or not key or not text.strip():
            raise ValueError(f"--space must be FIELD=RANGE, such as lr=1e-4:1:log, got {word!r}")
        if key in ranges:
            raise ValueError(f"--space must name each field once, got {key} twice: {ranges[key]} and {text}")
        try:
            ranges[key] = parse(text.strip())
        except ValueError as error:
            raise ValueError(f"--space {key}: {error}") from error
    return ranges


def _defaults(method: Method, prefix: str, without: Collection[str]) -> dict[str, Range]:
    found: dict[str, Range] = {}
    for field in dataclasses.fields(method):  # type: ignore[arg-type]
        if isinstance(inner := getattr(method, field.name), Method):
            found |= _defaults(inner, f"{prefix}{field.name}.", without)
    mine: dict[str, Range] = {}
    for name, ranges in DEFAULTS.items():
        if _has(method, name):
            mine |= ranges
    if _apart(method):
        mine.pop("sigma_lr_ratio", None)
    if "optimizer" in mine:
        mine["optimizer"] = Choice(name for name in OPTIMIZERS if name not in BOUND or find_spec("pytorch_optimizer"))
    if f"{prefix}optimizer" in without:
        own = _optimizer(method)
        # Of the ranges for one optimiser alone, those of the optimiser that is set; they stand for the general ones.
        mine = {key: of for key, of in mine.items() if key.partition(".")[0] == own or "." not in key}
        mine = {key: of for key, of in mine.items() if f"{own}.{key}" not in mine}
    for key, of in mine.items():
        if key == "temperature":  # is the fit's, not the method's
            found[key] = of
        else:
            found[f"{prefix}{key}"] = of
    return found


def _knob(key: str, method: Method) -> Knob:
    parts, owner, within = key.split("."), method, []
    while len(parts) > 1 and isinstance(inner := getattr(owner, parts[0], None), Method):
        owner = inner
        within.append(parts.pop(0))
    trained = _has(owner, "optimizer")
    optimizer = None
    if trained and len(parts) > 1 and parts[0] in optim.AVAILABLE:
        optimizer = parts.pop(0)
    if trained and len(parts) > 1 and parts[0] == "optimizer":
        parts.pop(0)
    name, prefix = ".".join(parts), "".join(f"{part}." for part in within)
    known = [field.name for field in dataclasses.fields(owner)]  # type: ignore[arg-type]
    if name in known and not (optimizer and name == "optimizer"):
        return Knob(tuple(within), optimizer, name, prefix + name)
    if name in FIT and not within and not optimizer:
        return Knob((), None, name, name)
    if name == "sigma_lr" and "sigma_lr_ratio" in known:
        return Knob(tuple(within), optimizer, name, f"{prefix}sigma_lr_ratio")
    known += FIT
    if trained:
        option = name
        if name in BETAS:  # a part of the option betas
            option = "betas"
        meant = [optimizer] if optimizer else list(optim.AVAILABLE)
        if any(_takes(each, option) for each in meant):
            return Knob(tuple(within), optimizer, name, f"{prefix}optimizer.{option}")
        known += sorted({option for each in optim.AVAILABLE for option in _options(each)} | set(BETAS))
    raise unknown(f"setting of {owner.name}", name, known)


def _meant(knob: Knob, value: Value, owner: Any) -> Any:
    """The value that goes to the path of a knob."""
    if knob.name == "sigma_lr":
        # Rounded as draws are, so that the command line that is shown gives the very same number.
        return float(f"{_positive('sigma_lr', value) / Group(owner.optimizer, owner.lr).full_rate:.{DIGITS}g}")
    if knob.name in BETAS and knob.option == "betas":
        recipe = optim.choose(owner.optimizer)
        usual = inspect.signature(optim.AVAILABLE[recipe.optimizer]).parameters["betas"].default
        betas = list(recipe.options.get("betas", usual))
        betas[BETAS[knob.name]] = value
        return tuple(betas)
    return value


def _of_fit(name: str, value: Value) -> Any:
    """A value for a fit, checked."""
    if name == "prior" and isinstance(value, str):  # a rule, such as kaiming
        return value
    if FIT[name] is int:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")
        return value
    return _positive(name, value)


def _positive(name: str, value: Value) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ValueError(f"{name} must be a positive number, not {value!r}")
    return float(value)


def _owner(method: Method, within: tuple[str, ...]) -> Method:
    for name in within:
        method = getattr(method, name)
    return method


def _optimizer(owner: Any) -> str:
    return optim.choose(owner.optimizer).optimizer


def _apart(owner: Any) -> bool:
    return getattr(owner, "deviations", None) is not None


def _has(method: Method, name: str) -> bool:
    return name in {field.name for field in dataclasses.fields(method)}  # type: ignore[arg-type]


def _options(optimizer: str) -> list[str]:
    return list(inspect.signature(optim.AVAILABLE[optimizer]).parameters)[2:]  # after params and lr


def _takes(optimizer: str, option: str) -> bool:
    return optimizer in optim.AVAILABLE and option in _options(optimizer)
