"""The memorable past: which examples of a task to keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from bayesrule import files
from bayesrule.data import inputs
from bayesrule.data.centres import k_centre
from bayesrule.lifelong.streams import Examples
from bayesrule.likelihoods import Likelihood
from bayesrule.modules import outputs_of
from bayesrule.naming import unknown


@dataclass(frozen=True, eq=False)
class Memory:
    """Examples kept of each task that is over, in the tasks' order."""

    parts: tuple[Examples, ...] = field(default_factory=tuple)

    def with_part(self, part: Examples) -> Memory:
        """One task more."""
        return Memory((*self.parts, part))

    def together(self) -> Examples:
        """All that is kept."""
        return joined(self.parts)

    def save(self, path: str | Path) -> None:
        """To a file."""
        parts = [{"inputs": dict(inputs.named(x)), "target": y} for x, y in self.parts]
        files.save(path, {"parts": parts}, "memory")

    @property
    def bytes(self) -> int:
        """The memory that inputs and targets take."""
        total = 0
        for x, y in self.parts:
            total += y.nbytes + sum(part.nbytes for _, part in inputs.named(x))
        return total


def read(path: str | Path) -> list[tuple[Tensor, Tensor]]:
    """The examples of each task in a file that `Memory.save` wrote: the first of their inputs, and targets."""
    found = files.load(path, "memory")["parts"]
    return [(next(iter(part["inputs"].values())), part["target"]) for part in found]


def joined(parts: tuple[Examples, ...] | list[Examples]) -> Examples:
    """Examples of several tasks, one after the other."""
    return inputs.join([x for x, _ in parts]), torch.cat([y for _, y in parts])


def choose(
    rule: str, count: int, model: nn.Module, train: Examples, likelihood: Likelihood, generator: torch.Generator
) -> Tensor:
    """The rows of ``train`` to keep: ``count`` of them, of classes as many of each as can be.

    ``rule``: ``"relevance"``, the examples of which a trained network is least sure, tr ∇²_ff ℓ (Khan's memorable
    past); ``"leverage"``, those that hold its last layer most, tr(Λ J Σ Jᵀ); ``"random"``; or ``"k-centre"``, those
    farthest from all that are kept already, by the network's outputs.
    """
    x, y = train
    if rule not in RULES:
        raise unknown("rule of a memory", rule, RULES)
    if not 1 <= count <= len(y):
        raise ValueError(f"a memory must keep from 1 to all {len(y)} examples of a task, not {count}: lower points")
    if y.is_floating_point():
        groups = [torch.arange(len(y))]
    else:
        groups = [(y == label).nonzero()[:, 0] for label in sorted(set(y.tolist()))]
    likelihood = likelihood.matched(outputs_of(model, x), y)  # noise that a fit has yet to learn has no value here
    quotas = _quotas([len(group) for group in groups], count)
    kept = []
    for rows, quota in zip(groups, quotas, strict=True):
        part = inputs.take(x, rows), y[rows]
        kept.append(rows[RULES[rule](quota, model, part, likelihood, generator)])
    return torch.cat(kept)


def _quotas(sizes: list[int], count: int) -> list[int]:
    """As equal shares of ``count`` as the sizes allow.

    >>> _quotas([2, 10, 10], 11)
    [2, 5, 4]
    """
    shares = [0] * len(sizes)
    left = count
    while left:
        open_ones = [k for k, size in enumerate(sizes) if shares[k] < size]
        each = left // len(open_ones)
        for k in open_ones if each else open_ones[:left]:  # what is left over goes to the first, one each
            taken = min(max(each, 1), sizes[k] - shares[k])
            shares[k] += taken
            left -= taken
    return shares


def _by_relevance(
    count: int, model: nn.Module, part: Examples, likelihood: Likelihood, generator: torch.Generator
) -> Tensor:
    outputs = outputs_of(model, part[0])
    score = likelihood.hessian(outputs).diagonal(dim1=-2, dim2=-1).flatten(1).sum(1)
    return score.argsort(descending=True, stable=True)[:count]


def _by_leverage(
    count: int, model: nn.Module, part: Examples, likelihood: Likelihood, generator: torch.Generator
) -> Tensor:
    from bayesrule.gp import relevance

    found = relevance(model, part, likelihood, 1.0, method="leverage", subset="last-layer")
    return found.order[:count]


def _at_random(
    count: int, model: nn.Module, part: Examples, likelihood: Likelihood, generator: torch.Generator
) -> Tensor:
    return torch.randperm(len(part[1]), generator=generator)[:count]


def _k_centre(
    count: int, model: nn.Module, part: Examples, likelihood: Likelihood, generator: torch.Generator
) -> Tensor:
    return k_centre(outputs_of(model, part[0]).flatten(1), count, generator)


RULES: dict[str, Callable[[int, nn.Module, Examples, Likelihood, torch.Generator], Tensor]] = {
    "relevance": _by_relevance,
    "leverage": _by_leverage,
    "random": _at_random,
    "k-centre": _k_centre,
}
