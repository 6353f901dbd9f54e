"""Numbers as people write them: money and percent signs, thousands apart, decimal commas."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_MONEY = r"[€$£¥₹]|EUR|USD|GBP|CHF|JPY"
_NUMBER = re.compile(
    rf"""(?P<sign>[+\-−]?)\s*(?P<before>(?:{_MONEY})?)\s*(?P<inner>[+\-−]?)
    (?P<digits>\d[\d.,'’\s]*|[.,]\d+)(?P<exponent>(?:e[+-]?\d+)?)
    \s*(?P<after>(?:%|{_MONEY})?)""",
    re.VERBOSE | re.IGNORECASE,
)
_DIGITS = {
    ".": re.compile(r"(?P<whole>\d*|\d{1,3}(?P<group>[,'’\s])\d{3}(?:(?P=group)\d{3})*)(?:\.(?P<part>\d*))?"),
    ",": re.compile(r"(?P<whole>\d*|\d{1,3}(?P<group>[.'’\s])\d{3}(?:(?P=group)\d{3})*)(?:,(?P<part>\d*))?"),
}
"""The digits of a number, by the sign of its decimals; thousands are apart by one and the same sign."""


class Written(NamedTuple):
    """Numbers, and what else was in their texts: ``signs`` in words, such as ``the sign €``."""

    values: list[float]
    signs: list[str]


def numbers_in(texts: Sequence[str], decimals: str = ".,") -> Written | None:
    """Texts as numbers, all read in one way; None if one is no number, or if they are not of one unit.

    ``decimals`` are the signs that may stand before decimals, the likelier first: a later one only counts where the
    texts cannot be read with an earlier one. A percentage keeps its size: 45 % is 45.

    >>> numbers_in(["€ 1,234.50", "€ -12"])
    Written(values=[1234.5, -12.0], signs=['the sign €', 'thousands apart'])
    >>> numbers_in(["1,234", "12,5"]).values, numbers_in(["1,234", "12"]).values
    ([1.234, 12.5], [1234.0, 12.0])
    >>> numbers_in(["€ 12", "$ 12"]), numbers_in(["45 %", "0.3"]), numbers_in(["12", "a dozen"])
    (None, None, None)
    """
    found = [_NUMBER.fullmatch(text) for text in texts]
    parts = [match for match in found if match is not None]
    if not parts or len(parts) < len(found):
        return None
    units = {_unit(match) for match in parts}
    if None in units:
        return None
    # A bare number among sums of money is money, too; beside percentages it may be a share: 0.3 or 30.
    if len(units) > 2 or (len(units) == 2 and ("" not in units or "%" in units)):
        return None
    signs = [f"the sign {unit}" for unit in sorted(unit or "" for unit in units) if unit]
    for decimal in decimals:
        digits = [_DIGITS[decimal].fullmatch(match["digits"].strip()) for match in parts]
        if not all(digits):
            continue
        if any(one is not None and one["group"] for one in digits):
            signs.append("thousands apart")
        if decimal == ",":
            signs.append("decimal commas")
        return Written([_value(match, one) for match, one in zip(parts, digits, strict=True)], signs)
    return None


def _unit(match: re.Match[str]) -> str | None:
    """The sign of a number; None if it has two."""
    before, after = match["before"].upper(), match["after"].upper()
    return None if before and after else before or after


def _value(match: re.Match[str], digits: re.Match[str] | None) -> float:
    assert digits is not None
    whole = "".join(sign for sign in digits["whole"] if sign.isdigit())
    value = float(f"{whole or 0}.{digits['part'] or 0}{match['exponent']}")
    minus = {match["sign"], match["inner"]} & {"-", "−"}
    return -value if minus else value
