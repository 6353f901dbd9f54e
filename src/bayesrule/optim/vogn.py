"""VOGN and OGN: the curvature from squared gradients of single examples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from bayesrule.curvature import SquaredGradients
from bayesrule.optim.flat import FlatGroup
from bayesrule.optim.natural import Natural, NaturalSettings

if TYPE_CHECKING:
    from typing_extensions import Unpack


class VOGN(Natural):
    """The variational online Gauss–Newton method (Khan et al. 2018, Osawa et al. 2019).

        h ← β₂h + (1 − β₂)·(1/M)Σ_i ĝ_i²,    m ← m − α·(ḡ/(1 − β₁ᵗ) + δm)/(h + δ + damping)

    with α = lr·(h₀ + δ) and the gradients ĝ_i of the M examples of a batch, at weights from q. The squares come from
    the layers' inputs and output gradients (see `bayesrule.curvature`), so the loss has to be a mean over the batch's
    examples.

    Args:
        model: the module whose parameters are trained.
        params, lr, ess, refresh, seed, compile, settings: as for `Natural`.

    >>> import torch
    >>> model, x = nn.Linear(3, 1), torch.randn(8, 3)
    >>> optimizer = VOGN(model.parameters(), lr=0.1, ess=8, model=model)
    >>> with optimizer.sampled():
    ...     model(x).square().mean().backward()
    >>> optimizer.step()
    """

    whole = True
    own_defaults = NaturalSettings(betas=(0.9, 0.9999))

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        ess: float,
        model: nn.Module,
        refresh: int = 16,
        seed: int = 0,
        compile: bool = False,
        **settings: Unpack[NaturalSettings],
    ) -> None:
        super().__init__(params, lr, ess, refresh, seed, compile, **settings)
        self._model = model
        self._squares: SquaredGradients | None = None  # once it is needed, and anew in a copy

    @contextmanager
    def sampled(self) -> Iterator[None]:
        """As `Natural.sampled`, with the squared gradients of the examples recorded in the block."""
        if self._squares is None:
            self._squares = SquaredGradients(self._model)
        with super().sampled():
            self._squares.clear()
            self._counted = False
            with self._squares:
                yield

    def _observe(self, flat: FlatGroup) -> Tensor:
        """The mean squares, for all parameters at a time."""
        assert self._squares is not None
        if not self._counted:
            self._counted = True
            params = [p for each in self._flats for p in each.params]
            self._squares.mean(params, out=[view for each in self._flats for view in each.views(each.room())])
        return flat.room()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_squares": None}

    def _learn(self, flat: FlatGroup) -> None:
        flat.precision.lerp_(flat.seen.add_(flat.decay), 1 - flat.group["betas"][1])
        self._move(flat)


class OGN(VOGN):
    """The online Gauss–Newton method: `VOGN` with gradients at the mean instead of at drawn weights.

    >>> import torch
    >>> model, x = nn.Linear(3, 1), torch.randn(8, 3)
    >>> optimizer = OGN(model.parameters(), lr=0.1, ess=8, model=model)
    >>> with optimizer.sampled():
    ...     model(x).square().mean().backward()
    >>> optimizer.step()
    """

    noisy = False
