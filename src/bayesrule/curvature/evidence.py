"""How well a prior and a noise level explain the data, by Laplace's method; and the posterior that goes with them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from bayesrule.curvature.blocks import Curvature
from bayesrule.curvature.terms import Factors, Term, term
from bayesrule.structures import Blocks, Structure

Grouping = Literal["one", "layer", "parameter"]
BOUND = 16.0  # logs of factors stay within ±BOUND: e^16 is nine million


@dataclass(frozen=True)
class Scatter:
    """What a noise level does to a loss: −Σ_i log p = ``loss`` at present, of which ``misfit`` is ½ Σ (y − f)²/noise².

    With c times the noise variance it is loss − misfit + misfit/c + ½ ``numbers`` log c.
    """

    loss: float
    misfit: float = 0.0
    numbers: int = 0

    def at(self, noise: Tensor) -> Tensor:
        """The loss with ``noise`` times the variance of the noise."""
        return self.loss - self.misfit + self.misfit / noise + 0.5 * self.numbers * noise.log()


@dataclass(frozen=True, eq=False)
class Tuning:
    """Factors on the prior variance of each parameter, and on the variance of the noise."""

    variances: dict[str, Tensor]
    noise: Tensor

    @classmethod
    def neutral(cls, names: Mapping[str, object]) -> Tuning:
        """All as they are."""
        one = torch.ones((), dtype=torch.float64)
        return cls(dict.fromkeys(names, one), one)


@dataclass(frozen=True, eq=False)
class Evidence:
    """log p(D) ≈ −L(w*) − ½ Σ_p ‖u_p‖²/t_p − ½ log |I + √r H √r|, with the curvature in blocks.

    u = (w* − m)/s is where the weights are in units of the prior N(m, s²), H = diag(s) G diag(s); t_p is a factor on
    the prior variance of parameter p, c one on the variance of the noise, and r = t/(c η) for a temperature η, under
    which the loss is L/η. It is exact for a linear model with normal noise if w* is the mode.

    ``squares``: ‖u_p‖² by parameter.
    """

    terms: tuple[Term, ...]
    squares: Mapping[str, float]
    scatter: Scatter
    temperature: float = 1.0
    dtype: torch.dtype = field(default=torch.float64)

    @classmethod
    def of(
        cls,
        curvature: Curvature,
        offsets: Mapping[str, Tensor],
        scales: Mapping[str, float | Tensor],
        scatter: Scatter | None = None,
        temperature: float = 1.0,
    ) -> Evidence:
        """From a curvature, where the weights are from the prior's mean, and the prior's deviations, all by name.

        >>> from bayesrule.curvature import DiagonalBlock
        >>> found = Curvature({"w": torch.Size([1])}, (DiagonalBlock(("w",), torch.tensor([3.0])),), 1, 0.0, {})
        >>> round(float(Evidence.of(found, {"w": torch.zeros(1)}, {"w": 1.0}).log()), 4)  # −½ log 4
        -0.6931
        """
        wide = {
            name: torch.as_tensor(scales[name], dtype=torch.float64).expand(shape).flatten()
            for name, shape in curvature.shapes.items()
        }
        terms = tuple(term(block, {name: wide[name] for name in block.names}) for block in curvature.blocks)
        squares = {k: float((offsets[k].detach().double().flatten() / s).square().sum()) for k, s in wide.items()}
        dtype = next(iter(offsets.values())).dtype
        return cls(terms, squares, scatter or Scatter(curvature.loss), temperature, dtype)

    def log(self, tuning: Tuning | None = None) -> Tensor:
        """The log evidence, with its gradient in the factors of a tuning."""
        tuning = tuning or Tuning.neutral(self.squares)
        ratios = self._ratios(tuning)
        volume = torch.stack([each.logdet(ratios) for each in self.terms]).sum()
        away = torch.stack([square / tuning.variances[name] for name, square in self.squares.items()]).sum()
        return -self.scatter.at(tuning.noise) / self.temperature - 0.5 * (away + volume)

    def covariance(self, tuning: Tuning | None = None) -> Structure:
        """Σ in the order of the blocks, in the dtype of the weights."""
        tuning = tuning or Tuning.neutral(self.squares)
        parts = [each.covariance(tuning.variances, self._ratios(tuning)) for each in self.terms]
        found = parts[0] if len(parts) == 1 else Blocks(parts)
        return found.to(self.dtype)

    def _ratios(self, tuning: Tuning) -> Factors:
        """t/(c η), the same tensor for parameters that share t."""
        known = {id(t): t / (tuning.noise * self.temperature) for t in tuning.variances.values()}
        return {name: known[id(t)] for name, t in tuning.variances.items()}

    def tuned(self, grouping: Grouping) -> Tuning:
        """The factors of the largest evidence: one for all parameters, for each layer or for each parameter.

        L-BFGS on their logs. The noise is tuned if the scatter is known.
        """
        keys = {name: group(name, grouping) for name in self.squares}
        logs = {key: torch.zeros((), dtype=torch.float64, requires_grad=True) for key in keys.values()}
        noise = torch.zeros((), dtype=torch.float64, requires_grad=self.scatter.numbers > 0)
        free = [*logs.values(), *([noise] if noise.requires_grad else [])]
        optimizer = torch.optim.LBFGS(free, max_iter=200, line_search_fn="strong_wolfe")

        def tuning() -> Tuning:
            found = {key: value.clamp(-BOUND, BOUND).exp() for key, value in logs.items()}
            return Tuning({name: found[key] for name, key in keys.items()}, noise.clamp(-BOUND, BOUND).exp())

        def loss() -> Tensor:
            optimizer.zero_grad()
            value = -self.log(tuning())
            value.backward()  # type: ignore[no-untyped-call]
            return value

        optimizer.step(loss)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            best = tuning()
            if not math.isfinite(float(self.log(best))):
                raise FloatingPointError("the evidence is not finite: is the network trained, and are its weights?")
        return best


def group(name: str, grouping: Grouping) -> str:
    """What a parameter shares its factor with.

    >>> [group("2.bias", grouping) for grouping in ("one", "layer", "parameter")]
    ['', '2', '2.bias']
    """
    return {"one": "", "layer": name.rpartition(".")[0], "parameter": name}[grouping]
