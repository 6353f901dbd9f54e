"""What the chains of a sampler tell of themselves: a sentence, and a row for each chain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from bayesrule.evaluate import chains
from bayesrule.posteriors import Particles, Posterior
from bayesrule.report.measures import number

TITLES = {
    "acceptance": "acceptance",
    "divergences": "divergences",
    "e_bfmi": "E-BFMI",
    "energy_variance": "energy variance",
    "step": "step",
}


class ChainTable(NamedTuple):
    """``says``: whether the chains have mixed. ``rows``: of each chain, what ``columns`` name."""

    says: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def chain_table(posterior: Posterior, x: Tensor) -> ChainTable | None:
    """The chains of a sampler, judged by their predictions at inputs ``x``; None of any other posterior."""
    if not isinstance(posterior, Particles) or posterior.chains is None:
        return None
    told = posterior.info.get("diagnostics", {})
    return tabulated(f"{chains(posterior, x)}{_of_log_posterior(told)}", told)


def tabulated(says: str, told: Mapping[str, Any]) -> ChainTable:
    """The diagnostics that there are of each chain, as a sampler has stored them.

    >>> tabulated("mixed", {"chains": 2, "acceptance": [0.81, 0.794], "divergences": [0, 3], "way": "products"})
    ChainTable(says='mixed', columns=['draws', 'acceptance', 'divergences'], rows=[['–', '0.810', '0'], ...])
    """
    names = [name for name in TITLES if name in told]
    rows = []
    for chain in range(told.get("chains", 0)):
        rows.append([_cell(told.get("draws")), *(_cell(told[name][chain]) for name in names)])
    return ChainTable(says, ["draws", *(TITLES[name] for name in names)], rows)


def _of_log_posterior(told: Mapping[str, Any]) -> str:
    """R̂ and effective draws as the fit has stored them; nothing where draws were too few to tell."""
    if told.get("r_hat") is None or told.get("ess") is None:
        return ""
    return f". Of the log posterior, R̂ is {told['r_hat']:.3f}, and the effective draws are {told['ess']:.0f}"


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return str(value) if isinstance(value, int) else number(value)
