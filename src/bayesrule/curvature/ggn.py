"""The curvature of a network's loss: generalised Gauss–Newton and Fisher matrices, in several structures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayesrule import structures
from bayesrule.curvature import roots
from bayesrule.curvature.costs import check_sums
from bayesrule.curvature.heads import Head, head
from bayesrule.curvature.parts import Part
from bayesrule.curvature.plans import STRUCTURES, StructureName, Subset, chosen, part_of, plan
from bayesrule.curvature.roots import LABELS, Labels
from bayesrule.curvature.sketch import Sketch
from bayesrule.curvature.watched import Watched
from bayesrule.data import Inputs, inputs
from bayesrule.likelihoods import Likelihood
from bayesrule.naming import unknown


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
    for x, y in map(_pair, batches):
        if run is None:
            run = _Sums(model, x, likelihood, structure, rank, subset)
        run.add(x, y, labels, samples, generator)
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


def _pair(batch: tuple[Inputs, Tensor]) -> tuple[Inputs, Tensor]:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise TypeError(f"batches must give pairs (x, y), not {type(batch).__name__}: one batch alone is [(x, y)]")
    return batch[0], batch[1]


class _Sums:
    """Sums that grow batch by batch."""

    def __init__(
        self, model: nn.Module, x: Inputs, likelihood: Likelihood, structure: StructureName, rank: int, subset: Subset
    ) -> None:
        self.watched = Watched(model, chosen(model, x, subset))
        self.likelihood, self.structure, self.rank = likelihood, structure, rank
        self.parts: list[Part | Sketch] = []
        self.head: Head | None = None
        self.fallbacks: dict[str, str] = {}
        self.examples, self.loss = 0, 0.0

    def add(self, x: Inputs, y: Tensor, labels: Labels, samples: int, generator: torch.Generator | None) -> None:
        """One batch more."""
        outputs = self.watched.run(x)
        f = outputs.detach()
        y = self.likelihood.check(f, y)
        self.loss -= float(self.likelihood.log_prob(f, y).detach().double().sum())
        if not self.examples:
            self._start(outputs)
        self.examples += inputs.length(x)
        if self.head is not None and labels == "exact":
            self._add_head(outputs, self.head, roots.root(self.likelihood, f)[:, 0])
        elif self.head is not None:
            columns = [g.reshape(len(g), -1) for g in self._columns(f, y, labels, samples, generator)]
            self._add_head(outputs, self.head, torch.stack(columns, 2))
        else:
            self._add(outputs, self._columns(f, y, labels, samples, generator))
        self.watched.forget()

    def _start(self, outputs: Tensor) -> None:
        """Now that there is a pass, the blocks are known."""
        blocks, self.fallbacks = plan(self.structure, self.rank, self.watched)
        check_sums(blocks, outputs.device)
        if self.structure == "dense" and head(self.watched, outputs) is not None:
            self.head = Head(self.watched.parameters)
        else:
            self.parts = [part_of(block) for block in blocks]

    def _columns(
        self, f: Tensor, y: Tensor, labels: Labels, samples: int, generator: torch.Generator | None
    ) -> Iterator[Tensor]:
        if labels == "exact":
            return roots.exact(self.likelihood, f)
        if labels == "sampled":
            return roots.sampled(self.likelihood, f, samples, generator)
        return iter([roots.slope(self.likelihood, f, y)])

    def _add(self, outputs: Tensor, gradients: Iterator[Tensor]) -> None:
        for columns in self.watched.columns(outputs, gradients):
            with torch.no_grad():
                for each in self.parts:
                    each.add(columns)

    def _add_head(self, outputs: Tensor, sums: Head, root: Tensor) -> None:
        """Without a backward pass: Λ from its root [B, C, K], and the layer's input."""
        use = head(self.watched, outputs)
        if use is None:
            raise RuntimeError("the last layer gave the outputs of the first batch but not those of a later one")
        sums.add(use.inputs[0], root @ root.transpose(1, 2))

    def result(self) -> Curvature:
        """The parts, in the order of the flat vector."""
        shapes = {name: p.shape for name, p in self.watched.parameters.items()}
        order = {name: index for index, name in enumerate(shapes)}
        found: list[Part | Sketch | Head] = [*self.parts]
        if self.head is not None:
            found = [self.head]
        found.sort(key=lambda part: order[next(iter(part.parameters))])
        matrix = structures.joined([part.result() for part in found])
        return Curvature(shapes, matrix, self.examples, self.loss, self.fallbacks)
