"""What a setting is drawn from, as objects and in words: ``1e-4:1:log``, ``0:0.98``, ``2:40:int``, ``adam,sgd``."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypeAlias

Value: TypeAlias = bool | int | float | str | None
FORMS = "LOW:HIGH, LOW:HIGH:log, LOW:HIGH:int, or A,B,…"
DIGITS = 4  # of a number that is drawn: enough for any of them, and short on a command line


class Range(ABC):
    """What one setting is drawn from."""

    @abstractmethod
    def at(self, share: float) -> Value:
        """The value below which the share of draws lies, for 0 ≤ share < 1: a uniform share makes a draw."""

    @abstractmethod
    def ends(self) -> tuple[Value, ...]:
        """The values that stand for all: both ends, or every option."""

    def tidy(self, value: Any) -> Any:
        """A value of this range in few digits."""
        return value


@dataclass(frozen=True)
class _Interval(Range):
    low: float
    high: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "low", float(self.low))
        object.__setattr__(self, "high", float(self.high))
        _check(self)

    def ends(self) -> tuple[Value, ...]:
        """Low and high."""
        return self.low, self.high

    def tidy(self, value: float) -> float:
        """The value to four digits, within the range."""
        return min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)


@dataclass(frozen=True)
class Uniform(_Interval):
    """Any number from ``low`` to ``high``, all alike.

    >>> Uniform(0, 0.98).at(0.5), str(Uniform(0, 0.98))
    (0.49, '0.0:0.98')
    """

    def at(self, share: float) -> float:
        """low + share·(high − low)."""
        return self.tidy(self.low + share * (self.high - self.low))

    def __str__(self) -> str:
        return f"{self.low}:{self.high}"


@dataclass(frozen=True)
class Log(_Interval):
    """Any positive number from ``low`` to ``high``, all orders of magnitude alike.

    >>> Log(1e-4, 1).at(0.5), str(Log(1e-4, 1))
    (0.01, '0.0001:1.0:log')
    """

    def at(self, share: float) -> float:
        """low·(high/low)^share."""
        return self.tidy(math.exp(math.log(self.low) + share * math.log(self.high / self.low)))

    def __str__(self) -> str:
        return f"{self.low}:{self.high}:log"


@dataclass(frozen=True)
class Whole(Range):
    """Any whole number from ``low`` to ``high``, both included.

    >>> [Whole(2, 4).at(share) for share in (0.0, 0.5, 0.99)]
    [2, 3, 4]
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Integral):
                raise ValueError(f"{name} of a Whole range must be a whole number, not {value!r}: use Uniform")
        _check(self)

    def at(self, share: float) -> int:
        """low + ⌊share·(high − low + 1)⌋."""
        # share < 1, so that high is reached and not passed
        return self.low + math.floor(share * (self.high - self.low + 1))

    def ends(self) -> tuple[Value, ...]:
        """Low and high."""
        return self.low, self.high

    def __str__(self) -> str:
        return f"{self.low}:{self.high}:int"


@dataclass(frozen=True)
class Choice(Range):
    """One of several options.

    >>> Choice(["adam", "sgd"]).at(0.6), str(Choice(["adam", "sgd"]))
    ('sgd', 'adam,sgd')
    """

    options: tuple[Value, ...]

    def __init__(self, options: Iterable[Value]) -> None:
        object.__setattr__(self, "options", tuple(options))
        if isinstance(options, str):
            raise TypeError(f"options must be a list, not the text {options!r}: write [{options!r}] for one alone")
        if not self.options or len(set(self.options)) < len(self.options):
            raise ValueError(f"options must be different values, at least one, not {list(self.options)}")
        for option in self.options:
            if not isinstance(option, bool | int | float | str | None):
                raise TypeError(f"options must be numbers, texts, booleans or None, not {option!r}")

    def at(self, share: float) -> Value:
        """The option at the share of the list."""
        return self.options[math.floor(share * len(self.options))]

    def ends(self) -> tuple[Value, ...]:
        """Every option."""
        return self.options

    def __str__(self) -> str:
        return ",".join(map(str, self.options))


def parse(text: str) -> Range:
    """A range from words.

    >>> parse("1e-4:1:log"), parse("2:40:int"), parse("adam,sgd")
    (Log(low=0.0001, high=1.0), Whole(low=2, high=40), Choice(options=('adam', 'sgd')))
    """
    kinds: dict[str, Callable[..., Range]] = {"": Uniform, "log": Log, "int": Whole}
    ends = text.split(":")
    if len(ends) == 1:
        return Choice(literal(option.strip()) for option in text.split(","))
    low, high, *rest = ends
    kind = ":".join(rest).strip()
    numbers = [literal(end.strip()) for end in (low, high)]
    if kind not in kinds or not all(isinstance(n, int | float) and not isinstance(n, bool) for n in numbers):
        raise ValueError(f"a range must be {FORMS}, not {text!r}")
    return kinds[kind](*numbers)


def literal(text: str) -> Any:
    """A value from a word: a whole number, a number, true, false or none; several with commas; else a text.

    >>> [literal(text) for text in ("3", "1e-3", "True", "none", "0.9,0.99", "adam")]
    [3, 0.001, True, None, (0.9, 0.99), 'adam']
    """
    if "," in text:
        return tuple(literal(part.strip()) for part in text.split(","))
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _check(span: _Interval | Whole) -> None:
    if not (math.isfinite(span.low) and math.isfinite(span.high) and span.low <= span.high):
        raise ValueError(f"low must be at most high, and both finite, not {span.low} and {span.high}")
    if isinstance(span, Log) and span.low <= 0:
        raise ValueError(f"low of a Log range must be positive, not {span.low}: zero has no logarithm, use Uniform")
