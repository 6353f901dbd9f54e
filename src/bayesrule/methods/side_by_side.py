"""log p(D|w, u) of many networks and its gradient: as one batch, one after the other, or in processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap

from bayesrule import modules, seeds
from bayesrule.actors import Actors
from bayesrule.data import Batch, Inputs
from bayesrule.likelihoods import Likelihood
from bayesrule.methods.stacked import Layers, stacked
from bayesrule.modules import Parameters

LARGE = 10_000  # weights from which on convolutions of several networks at once take longer than one after the other
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
GIVEN = 2  # batches that processes keep: that of the step, and that of the judges of draws
Array: TypeAlias = np.ndarray[Any, Any]
_NUMBERS = count()


class Piece(NamedTuple):
    """A part of a batch, and its targets once for each network; the number of the batch, and that of the part."""

    batch: Batch
    tiled: Tensor
    whole: int
    part: int


def pieces(parts: Iterable[Batch], chains: int) -> Iterator[Piece]:
    """The parts of a batch, with targets for so many networks."""
    whole = next(_NUMBERS)
    for number, part in enumerate(parts):
        yield Piece(part, part.y.repeat(chains, *[1] * (part.y.ndim - 1)), whole, number)


@dataclass
class SideBySide:
    """Σ_i w_i log p(y_i|f(x_i), u) of rows ``[C, P + U]``: weights w of networks, and unknowns u of the likelihood.

    ``like``: parameters, ``unknown``: unknowns, by name, in the order of a row. ``way``: how networks are run: as
    ``"products"`` of matrices, by ``"vmap"``, in a ``"loop"``, or that in ``"processes"``, to the same bits if each
    computes on as many threads.
    """

    module: nn.Module
    likelihood: Likelihood
    like: Parameters
    unknown: Parameters
    way: str = "loop"
    layers: Layers | None = None
    crew: _Crew | None = None

    def __post_init__(self) -> None:
        self.size = sum(p.numel() for p in self.like.values())
        dtype = modules.dtype_of(self.module)
        self.same_dtype = all(p.dtype == dtype for p in self.like.values())

    def parameters(self, rows: Tensor) -> Parameters:
        """The weights of rows ``[..., P + U]`` by name, ``[..., *shape]``."""
        named = modules.unflatten(rows[..., : self.size], self.like)
        if self.same_dtype:
            return named
        return {name: w.to(self.like[name].dtype) for name, w in named.items()}

    def unknowns(self, rows: Tensor) -> Parameters:
        """The unknowns of the likelihood in rows."""
        if not self.unknown:
            return {}
        return modules.unflatten(rows[..., self.size :], self.unknown)

    def value_and_gradient(self, rows: Tensor, piece: Piece) -> tuple[Tensor, Tensor]:
        """Values ``[C]`` and gradients ``[C, P + U]``."""
        if self.way == "processes":
            assert self.crew is not None
            return self.crew.value_and_gradient(rows, piece)
        if self.way == "loop":  # with the graph of one network in memory, and not of all
            each = [self._at_once(row[None], piece) for row in rows]
            return torch.cat([value for value, _ in each]), torch.cat([slope for _, slope in each])
        return self._at_once(rows, piece)

    def _at_once(self, rows: Tensor, piece: Piece) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            rows = rows.detach().requires_grad_()
            value = self.log_likelihood(rows, piece)
            (slope,) = torch.autograd.grad(value.sum(), rows)
        return value.detach(), slope

    def log_likelihood(self, rows: Tensor, piece: Piece) -> Tensor:
        """Values ``[C]``, as part of a graph."""
        log_probs = self._log_probs(rows, piece)
        if piece.batch.weight is None:
            return log_probs.sum(1)
        return (log_probs * piece.batch.weight.to(log_probs)).sum(1)

    def _log_probs(self, rows: Tensor, piece: Piece) -> Tensor:
        """log p(y|f) of every example under every network, ``[C, B]``."""
        batch = piece.batch
        likelihood, weights, unknowns = self.likelihood, self.parameters(rows), self.unknowns(rows)
        if self.way == "products" and not unknowns:
            outputs = self._products(weights, batch.x)
            chains, examples = outputs.shape[:2]
            # networks side by side as if they were examples: what is known of them is the same
            together = likelihood.log_prob(outputs.flatten(0, 1), piece.tiled)
            return together.view(chains, examples)

        def under(outputs: Tensor, unknown: Parameters) -> Tensor:
            known = likelihood.with_unknowns(unknown) if unknown else likelihood
            return known.log_prob(outputs, batch.y)

        if self.way == "products":
            return vmap(under)(self._products(weights, batch.x), unknowns)

        def run(weights: Parameters, unknown: Parameters) -> Tensor:
            return under(modules.call(self.module, batch.x, weights), unknown)

        if self.way == "vmap":
            return vmap(run, randomness="different")(weights, unknowns)
        return torch.stack([run(_one(weights, c), _one(unknowns, c)) for c in range(len(rows))])

    def _products(self, weights: Parameters, x: Inputs) -> Tensor:
        assert self.layers is not None
        assert isinstance(x, Tensor)
        return self.layers(weights, x)

    def choose_way(self, rows: Tensor, piece: Piece) -> None:
        """The quickest way that gives what a loop over networks does, by a few examples and networks."""
        wanted, slope = self.value_and_gradient(rows, piece)
        if not bool((wanted + slope.sum(1)).isfinite().all()):
            return  # too wide weights, say: the loop says what is wrong
        self.layers = stacked(self.module, piece.batch.x)
        for way in self._ways():
            self.way = way
            try:
                with seeds.untouched(rows.device):
                    found, other = self.value_and_gradient(rows, piece)
            except Exception:  # whatever they cannot do, the loop can, or says what is wrong
                continue
            if _close(found, wanted) and _close(other, slope):
                return
        self.way = "loop"

    def _ways(self) -> list[str]:
        """Those that are quicker than a loop."""
        if self.layers is not None:
            return ["products", "vmap"]
        large = self.size > LARGE and any(isinstance(layer, CONVOLUTIONS) for layer in self.module.modules())
        return [] if large else ["vmap"]

    def spread(self, processes: int) -> None:
        """Run what would be run in a loop in so many processes."""
        if processes > 1 and self.way == "loop":
            self.crew = _Crew(self, processes)
            self.way = "processes"


class _Crew:
    """Processes that have the networks' module each, and pieces of data that they keep for a while."""

    def __init__(self, networks: SideBySide, processes: int) -> None:
        own = modules.twin(networks.module, shared=())  # tensors that another process sees are moved by torch
        like, unknown = modules.copies(networks.like), modules.copies(networks.unknown)
        threads = max(1, torch.get_num_threads() // processes)
        self.actors = Actors(_Runner, (own, networks.likelihood, like, unknown), processes, threads)
        self.given: dict[int, set[int]] = {}  # parts of the last batches

    def value_and_gradient(self, rows: Tensor, piece: Piece) -> tuple[Tensor, Tensor]:
        """Of every row in whichever process is idle."""
        if piece.part not in self.given.get(piece.whole, ()):
            self._give(piece)
        calls = [(piece.whole, piece.part, row.numpy()) for row in rows.detach()]
        each = self.actors.ask("run", calls)
        values = torch.tensor([value for value, _ in each], dtype=rows.dtype)
        return values, torch.stack([torch.from_numpy(slope) for _, slope in each])

    def _give(self, piece: Piece) -> None:
        """Send a piece to all processes, which forget batches before the last ones."""
        self.given.setdefault(piece.whole, set()).add(piece.part)
        self.given = dict(list(self.given.items())[-GIVEN:])
        x, y, weight = piece.batch.x, piece.batch.y, piece.batch.weight
        arrays = _arrays(x), y.numpy(), None if weight is None else weight.numpy()
        self.actors.tell("keep", list(self.given), piece.whole, piece.part, *arrays)


class _Runner:
    """What a process of a `_Crew` does."""

    def __init__(self, module: nn.Module, likelihood: Likelihood, like: Parameters, unknown: Parameters) -> None:
        self.networks = SideBySide(module, likelihood, like, unknown)
        self.batches: dict[int, dict[int, Piece]] = {}

    def keep(self, wholes: list[int], whole: int, part: int, x: Any, y: Array, weight: Array | None) -> None:
        """A part of a batch; batches that are not among ``wholes`` are forgotten."""
        batch = Batch(_tensors(x), torch.from_numpy(y), None if weight is None else torch.from_numpy(weight))
        self.batches = {number: self.batches.get(number, {}) for number in wholes}
        self.batches[whole][part] = Piece(batch, batch.y, whole, part)

    def run(self, whole: int, part: int, row: Array) -> tuple[float, Array]:
        """Value and gradient of one network."""
        value, slope = self.networks.value_and_gradient(torch.from_numpy(row)[None], self.batches[whole][part])
        return float(value), slope[0].numpy()


def _arrays(x: Inputs) -> Any:
    """Inputs as NumPy has them, which are copied from process to process; torch would move tensors to shared memory."""
    if isinstance(x, tuple):
        return tuple(part.numpy() for part in x)
    if isinstance(x, dict):
        return {name: part.numpy() for name, part in x.items()}
    return x.numpy()


def _tensors(x: Any) -> Inputs:
    """Undo `_arrays`."""
    if isinstance(x, tuple):
        return tuple(torch.from_numpy(part) for part in x)
    if isinstance(x, dict):
        return {name: torch.from_numpy(part) for name, part in x.items()}
    return torch.from_numpy(x)


def _close(found: Tensor, wanted: Tensor) -> bool:
    return found.shape == wanted.shape and torch.allclose(found, wanted, rtol=1e-3, atol=1e-4)


def _one(tensors: Parameters, index: int) -> Parameters:
    return {name: t[index] for name, t in tensors.items()}
