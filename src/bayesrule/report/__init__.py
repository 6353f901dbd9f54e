"""What came out, for people: a leaderboard, and one self-contained HTML page."""

from bayesrule.report.comparison import Comparison, Entry, examine, in_words, machine, versions
from bayesrule.report.leaderboard import board
from bayesrule.report.measures import MEASURES, number
from bayesrule.report.page import write

__all__ = [
    "MEASURES",
    "Comparison",
    "Entry",
    "board",
    "examine",
    "in_words",
    "machine",
    "number",
    "versions",
    "write",
]
