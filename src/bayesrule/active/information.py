"""How much a label of one of C classes would tell: functions of probabilities [S, N, C] under S joint draws.

The draws stand for the posterior: p(y|x) = 1/S Σ_s p_s(y|x), and a draw is one network for all inputs, so that
p(y, y'|x, x') = 1/S Σ_s p_s(y|x) p_s(y'|x'). All entropies are in nats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

CONFIGURATIONS = 1000  # of the labels of a batch
BLOCK = 2**26  # bytes that a table of joint probabilities may take


class Batch(NamedTuple):
    """Rows in the order in which they were chosen, and I(y_1, …, y_k; w) of the first k of them."""

    rows: Tensor
    information: Tensor


def entropy(probs: Tensor) -> Tensor:
    """H(y|x), [N]: all that is not known of the label, noise included.

    >>> entropy(torch.tensor([[[0.5, 0.5], [1.0, 0.0]]]))
    tensor([0.6931, 0.0000])
    """
    return _entropy(_checked(probs).mean(0))


def variation_ratios(probs: Tensor) -> Tensor:
    """1 − max_y p(y|x), [N]: the probability that the best guess is wrong.

    >>> variation_ratios(torch.tensor([[[0.5, 0.5], [1.0, 0.0]]]))
    tensor([0.5000, 0.0000])
    """
    return 1 - _checked(probs).mean(0).amax(1)


def bald(probs: Tensor) -> Tensor:
    """I(y; w|x) = H(y|x) − E_w H(y|x, w), [N]: what the label tells of the network (Houlsby et al. 2011).

    Two networks that are each sure, of different classes, and two that agree on a coin's toss:

    >>> bald(torch.tensor([[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]]]))
    tensor([0.6931, 0.0000])
    """
    return (entropy(probs) - noise(probs)).clamp(min=0)  # rounding may put equal entropies below 0


def noise(probs: Tensor) -> Tensor:
    """E_w H(y|x, w), [N]: what would not be known of the label if the network were."""
    total = probs.new_zeros(probs.shape[1])
    for draw in probs:  # one after the other: the entropies of all would take as much memory as `probs`
        total += _entropy(draw)
    return total / len(probs)


def epig(probs: Tensor, targets: Tensor) -> Tensor:
    """1/M Σ_* I(y; y_*|x, x_*), [N]: what the label tells of labels elsewhere (Bickford Smith et al. 2023).

    ``targets``: probabilities [S, M, C] under the same draws at M inputs that predictions will be asked for.

    >>> probs = torch.tensor([[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]]])
    >>> epig(probs, probs[:, :1])
    tensor([0.6931, 0.0000])
    """
    _checked(probs)
    if _checked(targets).shape[0] != probs.shape[0]:
        raise ValueError(f"targets must have as many draws as probs, {len(probs)}, got {len(targets)}")
    draws, _, classes = probs.shape
    there = targets.flatten(1) / draws
    alone = _entropy(targets.mean(0)).mean()
    step = _rows_of_a_block(classes * there.shape[1], probs)
    found = []
    for part in torch.split(probs, step, 1):
        joint = part.permute(1, 2, 0) @ there  # [n, C, M C]
        together = torch.special.entr(joint).sum((1, 2)) / targets.shape[1]
        found.append(_entropy(part.mean(0)) + alone - together)
    return torch.cat(found).clamp(min=0)


def batchbald(
    probs: Tensor, count: int, configurations: int = CONFIGURATIONS, generator: torch.Generator | None = None
) -> Batch:
    """The rows whose labels together tell most of the network, chosen one after the other (Kirsch et al. 2019).

    The next row has the largest gain I(y; w|y_1, …, y_k) = Σ p(y_1, …, y_k) H(y|y_1, …, y_k) − E_w H(y|w). Up to
    so many ``configurations`` of y_1, …, y_k the sum is over all of them and exact; beyond, it is a mean over as many
    drawn ones. A gain only falls as the batch grows, so that rows whose last gain is below the best are not looked at
    again. ``generator``: of the drawn ones; None: seeded with 0.

    Of two copies of a question and a vaguer one that parts the networks otherwise:

    >>> yes = torch.tensor([[0.99, 0.99, 0.8], [0.99, 0.99, 0.2], [0.01, 0.01, 0.8], [0.01, 0.01, 0.2]])
    >>> batchbald(torch.stack([yes, 1 - yes], 2), 2).rows
    tensor([0, 2])
    """
    draws, rows, classes = _checked(probs).shape
    if not 1 <= count <= rows:
        raise ValueError(f"count must be from 1 to the {rows} rows of probs, got {count}")
    if configurations < classes:
        raise ValueError(
            f"configurations must be at least {classes}, the classes of one label, got {configurations}: take 1000"
        )
    generator = torch.Generator(probs.device).manual_seed(0) if generator is None else generator
    known = Configurations.none(draws, probs)
    aleatoric = noise(probs)
    bounds = probs.new_full((rows,), math.inf)
    chosen: list[int] = []
    gains: list[Tensor] = []
    for _ in range(count):
        row = _best(probs, known, aleatoric, bounds)
        chosen.append(row)
        gains.append(bounds[row].clone())
        bounds[row] = -math.inf
        known = known.extended(probs[:, row], configurations, generator)
    return Batch(torch.tensor(chosen), torch.stack(gains).cumsum(0))


@dataclass(frozen=True, eq=False)
class Configurations:
    """Labels y_1, …, y_k of a batch: K of them, with their log-probabilities under each draw.

    ``logs``: Σ_i log p_s(y_i), [K, S]. ``members``: p_s(y|x_i) of the batch so far, [S, C] each. ``sources``: the draws
    that sampled ones came from, [K]; None: these are all that there are.
    """

    logs: Tensor
    members: tuple[Tensor, ...] = ()
    sources: Tensor | None = None

    @classmethod
    def none(cls, draws: int, like: Tensor) -> Configurations:
        """The one configuration of no labels."""
        return cls(like.new_zeros(1, draws))

    @property
    def weights(self) -> Tensor:
        """p(w_s|y_1, …, y_k), [K, S]."""
        return self.logs.softmax(1)

    @property
    def shares(self) -> Tensor:
        """What each counts in a mean over configurations, [K]: its probability, or of drawn ones 1/K."""
        if self.sources is None:
            return self.logs.logsumexp(1).exp() / self.logs.shape[1]
        return self.logs.new_full((len(self.logs),), 1 / len(self.logs))

    def extended(self, probs: Tensor, most: int, generator: torch.Generator) -> Configurations:
        """With a label more, of which ``probs`` [S, C] are the probabilities: at most so many configurations."""
        members = (*self.members, probs)
        if self.sources is not None:
            return Configurations(self.logs + _drawn(probs, self.sources, generator), members, self.sources)
        if len(self.logs) * probs.shape[1] <= most:
            logs = (self.logs[:, None] + probs.log().T).flatten(0, 1)
            return Configurations(logs[logs.amax(1) > -math.inf], members)
        sources = torch.arange(most, device=probs.device) % len(probs)  # as equally often as can be
        logs = probs.new_zeros(most, len(probs))
        for member in members:
            logs += _drawn(member, sources, generator)
        return Configurations(logs, members, sources)


def _drawn(probs: Tensor, sources: Tensor, generator: torch.Generator) -> Tensor:
    """log p_s(y_k), [K, S], of labels y_k that were drawn from the draws ``sources``."""
    labels = torch.multinomial(probs[sources], 1, generator=generator)[:, 0]
    return probs.log().T[labels]


def _best(probs: Tensor, known: Configurations, aleatoric: Tensor, bounds: Tensor) -> int:
    """The row of the largest gain; ``bounds`` of the rows that were looked at become their gains."""
    weights, shares = known.weights, known.shares
    order = bounds.argsort(descending=True, stable=True)[: int((bounds > -math.inf).sum())]  # those not chosen yet
    best = -math.inf
    for rows in torch.split(order, _rows_of_a_block(len(weights) * probs.shape[2], probs)):
        if best >= float(bounds[rows[0]]):
            break
        part = probs.index_select(1, rows)
        conditional = (weights @ part.flatten(1)).reshape(-1, *part.shape[1:])  # p(y|y_1, …, y_k), [K, n, C]
        bounds[rows] = shares @ _entropy(conditional) - aleatoric[rows]
        best = max(best, float(bounds[rows].max()))
    return int((bounds >= best).nonzero()[0, 0])


def _entropy(probs: Tensor) -> Tensor:
    """−Σ p log p over the last dimension, 0 where p is."""
    return torch.special.entr(probs).sum(-1)


def _rows_of_a_block(numbers: int, like: Tensor) -> int:
    """How many rows of so many numbers each fit into a block."""
    return max(1, BLOCK // (numbers * like.element_size()))


def _checked(probs: Tensor) -> Tensor:
    """Refuse what are no probabilities of classes under draws."""
    if probs.ndim != 3 or not probs.is_floating_point() or 0 in probs.shape:
        raise ValueError(
            f"probs must be [draws, examples, classes] of floating point, got {probs.dtype} {list(probs.shape)}"
        )
    sums = probs.sum(2)
    wrong = ~((sums - 1).abs() < 1e-3) | (probs.amin(2) < 0)
    if bool(wrong.any()):
        draw, row = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"probs must not be negative and sum to one over classes, draw {draw} of row {row} has "
            f"{float(sums[draw, row]):.4g}: give probabilities, logits.softmax(2)"
        )
    return probs
