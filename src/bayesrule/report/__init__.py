"""What came out, for people: a leaderboard, and one self-contained HTML page."""

from bayesrule.report.comparison import Comparison, Entry, beside, examine, examine_baselines, in_words
from bayesrule.report.examples import Worth, worth
from bayesrule.report.leaderboard import board
from bayesrule.report.measures import MEASURES, number
from bayesrule.report.page import Opening, write
from bayesrule.report.provenance import commit, machine, provenance, versions
from bayesrule.report.verdict import verdict

__all__ = [
    "MEASURES",
    "Comparison",
    "Entry",
    "Opening",
    "Worth",
    "beside",
    "board",
    "commit",
    "examine",
    "examine_baselines",
    "in_words",
    "machine",
    "number",
    "provenance",
    "verdict",
    "versions",
    "worth",
    "write",
]
