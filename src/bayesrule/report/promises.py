"""What a posterior promises, and what test examples show of it, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from bayesrule.data import Split
from bayesrule.evaluate import guarantees
from bayesrule.posteriors import Posterior


def promises(posterior: Posterior, split: Split) -> list[str]:
    """A sentence for each promise; those for groups that the split does not know, without what the test shows."""
    return list(_promises(posterior, split))


def _promises(posterior: Posterior, split: Split) -> Iterator[str]:
    known, n = posterior.guarantees, len(split.test[1])
    own = () if known.conformal is None else known.conformal.groups
    groups = split.groups.test if own and split.groups is not None else None
    if known.conformal is not None and own and (groups is None or not set(groups) <= set(own)):
        yield known.conformal.says
        groups = None
        posterior = posterior.with_context(guarantees=type(known)(selective=known.selective))
    if not list(posterior.guarantees):
        return
    seen, left = guarantees(posterior, split.test, groups, bootstrap=0), posterior.guarantees
    if left.conformal is not None:
        yield f"{left.conformal.says}; on the {n} test examples {100 * seen['coverage']:.1f} % do"
    if left.selective is not None and left.selective.doubt is None:
        yield left.selective.says
    elif left.selective is not None:
        answered = round(seen["answered"] * n)
        wrong = round(seen["error"] * answered)
        yield f"{left.selective.says}; of the {n} test examples {answered} are answered, {wrong} of them wrongly"
