"""The leaderboard: every method on standard data, beside baselines and published figures."""

from bayesrule.boards.base import BOARDS, Board, Own, chosen
from bayesrule.boards.cells import (
    Cell,
    Part,
    Reference,
    Simple,
    Terms,
    ask,
    ask_simple,
    fingerprint,
    protocol,
    told,
    whole,
)
from bayesrule.boards.standings import Row, Standing, ranks, standings

__all__ = [
    "BOARDS",
    "Board",
    "Cell",
    "Own",
    "Part",
    "Reference",
    "Row",
    "Simple",
    "Standing",
    "Terms",
    "ask",
    "ask_simple",
    "chosen",
    "fingerprint",
    "protocol",
    "ranks",
    "standings",
    "told",
    "whole",
]
