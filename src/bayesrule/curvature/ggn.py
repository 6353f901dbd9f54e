"""The curvature of a network's loss: generalised Gauss–Newton and Fisher matrices, in several structures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayesrule import structures
from bayesrule.curvature import roots
from bayesrule.curvature.costs import check_sums
from bayesrule.curvature.heads import Head, KroneckerHead, head
from bayesrule.curvature.parts import Part
from bayesrule.curvature.plans import STRUCTURES, StructureName, Subset, chosen, part_of, plan
from bayesrule.curvature.roots import LABELS, Labels
from bayesrule.curvature.sketch import Sketch
from bayesrule.curvature.watched import Watched
from bayesrule.data import Batch, Inputs, inputs
from bayesrule.likelihoods import Likelihood
from bayesrule.naming import unknown

HEADS: dict[str, type[Head] | type[KroneckerHead]] = {"dense": Head, "kronecker": KroneckerHead}


@dataclass(frozen=True, eq=False)
class Curvature:
    """G = Σ_i J_iᵀ Λ_i J_i over ``examples``.

    - ``shapes``: the parameters that take part, in the order of the flat vector.
    - ``matrix``: G, a `Structure` over that vector; for Kronecker products in blocks, one for each layer.
    - ``loss``: −Σ_i log p(y_i|f_i), which goes with the curvature in a marginal likelihood.
    - ``fallbacks``: layers that have no Kronecker form, with what they got instead and why.
    """

    shapes: Mapping[str, torch.Size]
    matrix: structures.Structure
    examples: int
    loss: float
    fallbacks: Mapping[str, str]

    def blocks(self) -> dict[tuple[str, ...], structures.Structure]:
        """The blocks along the diagonal of G by the names of the parameters that each is over, in their order."""
        if not isinstance(self.matrix, structures.Blocks):
            return {tuple(self.shapes): self.matrix}
        found, names = {}, list(self.shapes)
        for part in self.matrix.parts:
            own: list[str] = []
            missing = part.size
            while missing > 0:
                own.append(names.pop(0))
                missing -= self.shapes[own[-1]].numel()
            found[tuple(own)] = part
        return found


def curvature(
    model: nn.Module,
    batches: Iterable[tuple[Inputs, Tensor]],
    likelihood: Likelihood,
    structure: StructureName = "kronecker",
    subset: Subset = "all",
    labels: Labels = "exact",
    samples: int = 1,
    generator: torch.Generator | None = None,
    rank: int = 32,
) -> Curvature:
    """Σ_i J_iᵀ Λ_i J_i over all examples of the batches (x, y), with J_i = ∂f_i/∂w and Λ_i = −∂² log p(y_i|f_i)/∂f².

    - ``structure``: ``"diagonal"``; ``"kronecker"``, B ⊗ A for each layer; ``"lowrank"``, the ``rank`` stiffest
      directions; or ``"dense"``.
    - ``subset``: all trainable parameters, those of the last layer, or those named, by parameter or by layer.
    - ``labels``: ``"exact"``, one backward pass for each output; ``"sampled"``, one for each of ``samples`` draws of y
      from p(y|f) by ``generator``, whose mean is the exact value (but for the product of Kronecker factors);
      ``"empirical"``, one, with (∂ log p/∂f)(∂ log p/∂f)ᵀ at the given y in the place of Λ.

    The model is copied, and run in eval mode: without dropout, and with the running statistics of norms.

    >>> from bayesrule.likelihoods import Gaussian
    >>> x, y = torch.tensor([[1.0, 2.0], [0.0, 1.0]]), torch.zeros(2)
    >>> found = curvature(nn.Linear(2, 1, bias=False), [(x, y)], Gaussian(noise=0.5), structure="dense")
    >>> found.matrix.dense()  # Xᵀ X / noise²
    tensor([[ 4.,  8.],
            [ 8., 20.]])
    """
    _check(structure, labels, samples, rank)
    run: _Sums | None = None
    for batch in map(_batch, batches):
        if run is None:
            run = _Sums(model, batch.x, likelihood, structure, rank, subset)
        if batch.weight is not None and structure == "kronecker":
            raise ValueError(
                "structure must be 'dense', 'diagonal' or 'lowrank' for weighted examples, not 'kronecker'"
            )
        run.add(batch, labels, samples, generator)
    if run is None:
        raise ValueError("batches must hold at least one pair (x, y): got none; a generator can be gone through once")
    return run.result()


def _check(structure: str, labels: str, samples: int, rank: int) -> None:
    if structure not in STRUCTURES:
        raise unknown("structure", structure, STRUCTURES)
    if labels not in LABELS:
        raise unknown("labels", labels, LABELS)
    if samples < 1:
        raise ValueError(f"samples must be at least 1, not {samples}: how often labels are drawn")
    if rank < 1:
        raise ValueError(f"rank must be at least 1, not {rank}: how many directions a low-rank structure keeps")


def _batch(batch: tuple[Inputs, Tensor]) -> Batch:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise TypeError(f"batches must give pairs (x, y), not {type(batch).__name__}: one batch alone is [(x, y)]")
    return batch if isinstance(batch, Batch) else Batch(*batch)


def _times(columns: Tensor, weight: Tensor | None) -> Tensor:
    """Columns of Λ's root, times √w of each example: Λ is the sum of their squares."""
    if weight is None:
        return columns
    return columns * weight.to(columns).sqrt().reshape(-1, *[1] * (columns.ndim - 1))


def _columns(
    likelihood: Likelihood, f: Tensor, y: Tensor, labels: Labels, samples: int, generator: torch.Generator | None
) -> Iterator[Tensor]:
    """The columns of Λ's root, by the kind of labels."""
    if labels == "exact":
        return roots.exact(likelihood, f)
    if labels == "sampled":
        return roots.sampled(likelihood, f, samples, generator)
    return iter([roots.slope(likelihood, f, y)])


class _Sums:
    """Sums that grow batch by batch."""

    def __init__(
        self, model: nn.Module, x: Inputs, likelihood: Likelihood, structure: StructureName, rank: int, subset: Subset
    ) -> None:
        self.watched = Watched(model, chosen(model, x, subset))
        self.likelihood, self.structure, self.rank = likelihood, structure, rank
        self.parts: list[Part | Sketch] = []
        self.head: Head | KroneckerHead | None = None
        self.fallbacks: dict[str, str] = {}
        self.examples, self.loss = 0, 0.0

    def add(self, batch: Batch, labels: Labels, samples: int, generator: torch.Generator | None) -> None:
        """One batch more; an example of weight w counts as w of them."""
        outputs, weight = self.watched.run(batch.x), batch.weight
        f = outputs.detach()
        y = self.likelihood.check(f, batch.y)
        log_prob = self.likelihood.log_prob(f, y).detach().double()
        self.loss -= float((log_prob if weight is None else weight.to(log_prob) * log_prob).sum())
        if not self.examples:
            self._start(outputs)
        self.examples += inputs.length(batch.x)
        if self.head is not None and labels == "exact":
            self._add_head(outputs, self.head, _times(roots.root(self.likelihood, f)[:, 0], weight))
            self.watched.forget()
            return
        likelihood = self.likelihood.observing(y)
        columns = (_times(column, weight) for column in _columns(likelihood, f, y, labels, samples, generator))
        if self.head is not None:
            self._add_head(outputs, self.head, torch.stack([g.reshape(len(g), -1) for g in columns], 2))
        else:
            self._add(outputs, columns)
        self.watched.forget()

    def _start(self, outputs: Tensor) -> None:
        """Now that there is a pass, the blocks are known."""
        blocks, self.fallbacks = plan(self.structure, self.rank, self.watched)
        check_sums(blocks, outputs.device)
        kind = HEADS.get(self.structure)
        if kind is not None and head(self.watched, outputs) is not None:
            self.head = kind(self.watched.parameters)
        else:
            self.parts = [part_of(block) for block in blocks]

    def _add(self, outputs: Tensor, gradients: Iterator[Tensor]) -> None:
        for columns in self.watched.columns(outputs, gradients):
            with torch.no_grad():
                for each in self.parts:
                    each.add(columns)

    def _add_head(self, outputs: Tensor, sums: Head | KroneckerHead, root: Tensor) -> None:
        """Without a backward pass: Λ from its root [B, C, K], and the layer's input."""
        use = head(self.watched, outputs)
        if use is None:
            raise RuntimeError(
                "the last layer gave the outputs of the first batch but not those of a later one, so that it is not "
                "alone what makes them: take structure='diagonal'"
            )
        sums.add(use.inputs[0], root @ root.transpose(1, 2))

    def result(self) -> Curvature:
        """The parts, in the order of the flat vector."""
        shapes = {name: p.shape for name, p in self.watched.parameters.items()}
        order = {name: index for index, name in enumerate(shapes)}
        found: list[Part | Sketch | Head | KroneckerHead] = [*self.parts]
        if self.head is not None:
            found = [self.head]
        found.sort(key=lambda part: order[next(iter(part.parameters))])
        matrix = structures.joined([part.result() for part in found])
        return Curvature(shapes, matrix, self.examples, self.loss, self.fallbacks)
