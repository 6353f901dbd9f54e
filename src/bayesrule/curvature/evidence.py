"""How well a prior and a noise level explain the data, by Laplace's method; and the posterior that goes with them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from bayesrule.curvature.ggn import Curvature
from bayesrule.curvature.limits import check_memory
from bayesrule.structures import Blocks, Dense, Diagonal, Structure, common_bounds, joined, relative_eigenvalues

Grouping = Literal["one", "layer", "parameter"]
BOUND = 16.0  # logs of factors stay within ±BOUND: e^16 is nine million
SLOPE = 1e-4  # nats that the evidence gains by a step of one in the log of a factor: less is a maximum
CHANGE = 1e-7  # nats, or steps, after which nothing more comes


@dataclass(frozen=True)
class Scatter:
    """What a noise level does to a loss: −Σ_i log p = ``loss`` at present, of which ``misfit`` is ½ Σ (y − f)²/noise².

    With c times the noise variance it is loss − misfit + misfit/c + ½ ``numbers`` log c.
    """

    loss: float
    misfit: float = 0.0
    numbers: float = 0.0

    def at(self, noise: Tensor) -> Tensor:
        """The loss with ``noise`` times the variance of the noise."""
        return self.loss - self.misfit + self.misfit / noise + 0.5 * self.numbers * noise.log()


@dataclass(frozen=True, eq=False)
class Tuning:
    """Factors on the prior variance of each parameter, and on the variance of the noise."""

    variances: dict[str, Tensor]
    noise: Tensor

    @classmethod
    def neutral(cls, names: Mapping[str, object], device: torch.device | None = None) -> Tuning:
        """All as they are."""
        one = torch.ones((), dtype=torch.float64, device=device)
        return cls(dict.fromkeys(names, one), one)


class _Independent(NamedTuple):
    """A prior and a curvature that nothing ties to the others, with the sizes of the parameters that they are over."""

    sizes: dict[str, int]
    prior: Structure
    curvature: Structure
    eigenvalues: Tensor | None


@dataclass(frozen=True, eq=False)
class Evidence:
    """log p(D) ≈ −L(w*)/η − ½ Σ_p q_p/t_p − ½ (log |Λ| − log |Λ₀|), with the prior Λ₀ and the posterior

        Λ = Λ₀ + G/(c η)

    for a curvature G, factors t_p on the prior variance of parameter p, under which Λ₀ is Λ₀/t, a factor c on the
    variance of the noise, and a temperature η. It is exact for a linear model with normal noise if w* is the mode.

    ``squares``: q_p by parameter, with Σ_p q_p = (w* − m)ᵀ Λ₀ (w* − m), m the prior's mean.
    """

    sizes: Mapping[str, int]
    prior: Structure
    curvature: Structure
    squares: Mapping[str, float]
    scatter: Scatter
    temperature: float = 1.0

    @classmethod
    def of(
        cls,
        curvature: Curvature,
        prior: Structure,
        offsets: Mapping[str, Tensor],
        scatter: Scatter | None = None,
        temperature: float = 1.0,
    ) -> Evidence:
        """From a curvature, a prior's precision, and the weights less the prior's mean, by name.

        >>> found = Curvature({"w": torch.Size([1])}, Diagonal(torch.tensor([3.0])), 1, 0.0, {})
        >>> round(float(Evidence.of(found, Diagonal(torch.ones(1)), {"w": torch.zeros(1)}).log()), 4)  # −½ log 4
        -0.6931
        """
        if prior.size != curvature.matrix.size:
            sizes_differ = f"the prior is over {prior.size} weights and the curvature over {curvature.matrix.size}"
            raise ValueError(f"{sizes_differ}: they must be over the same, prior.gaussian(...) of curvature.shapes")
        if not temperature > 0:
            raise ValueError(f"temperature must be positive, not {temperature}")
        _check_room(curvature.matrix)
        # in float64 from here on: the evidence is a small difference of large logs of determinants
        prior = prior.to(torch.float64)
        matrix = curvature.matrix.to(torch.float64)
        sizes = {name: shape.numel() for name, shape in curvature.shapes.items()}
        away = torch.cat([offsets[name].detach().double().flatten() for name in sizes])
        shares = torch.split(away * prior.multiply(away), list(sizes.values()))
        squares = {}
        for name, share in zip(sizes, shares, strict=True):
            squares[name] = float(share.sum())
        return cls(sizes, prior, matrix, squares, scatter or Scatter(curvature.loss), temperature)

    @property
    def device(self) -> torch.device:
        """Where the matrices are."""
        return self.prior.diagonal.device

    def precision(self, tuning: Tuning | None = None) -> Structure:
        """Λ = Λ₀/t + G/(c η)."""
        tuning = tuning or Tuning.neutral(self.sizes, self.device)
        return definite_sum(rescaled(self.prior, self.sizes, tuning), self.curvature, self._weight(tuning))

    def prior_scales(self, tuning: Tuning) -> dict[str, float]:
        """The mean standard deviation of each parameter's weights, given all others, under the tuned prior."""
        deviations = rescaled(self.prior, self.sizes, tuning).diagonal.rsqrt()
        parts = torch.split(deviations, list(self.sizes.values()))
        found = {}
        for name, part in zip(self.sizes, parts, strict=True):
            found[name] = float(part.mean())
        return found

    def log(self, tuning: Tuning | None = None) -> Tensor:
        """The log evidence, with its gradient in the factors of a tuning."""
        tuning = tuning or Tuning.neutral(self.sizes, self.device)
        volume = torch.stack([self._volume(piece, tuning) for piece in self._pieces]).sum()
        away = torch.stack([square / tuning.variances[name] for name, square in self.squares.items()]).sum()
        return -self.scatter.at(tuning.noise) / self.temperature - 0.5 * (away + volume)

    def _weight(self, tuning: Tuning) -> Tensor:
        """1/(c η)."""
        return 1 / (tuning.noise * self.temperature)

    @cached_property
    def _pieces(self) -> list[_Independent]:
        """What can be looked at apart, with the eigenvalues that serve for all factors."""
        bounds = set(common_bounds(self.prior, self.curvature))
        found: list[_Independent] = []
        own: dict[str, int] = {}
        start = stop = 0
        for name, size in self.sizes.items():
            own[name] = size
            stop += size
            if stop not in bounds:  # bounds within a parameter do not count: a factor is for all of it
                continue
            prior, curvature = self.prior.part(start, stop), self.curvature.part(start, stop)
            found.append(_Independent(own, prior, curvature, relative_eigenvalues(prior, curvature)))
            own, start = {}, stop
        return found

    def _volume(self, piece: _Independent, tuning: Tuning) -> Tensor:
        """log |Λ| − log |Λ₀| of a piece: from its eigenvalues, unless its parameters have several factors."""
        # with the eigenvalues λ of Λ₀^−½ G Λ₀^−½ it is Σ log(1 + t λ/(c η)), for any factors at no cost
        factors = [tuning.variances[name] for name in piece.sizes]
        weight = self._weight(tuning)
        if piece.eigenvalues is not None and isinstance(piece.curvature, Diagonal):
            return (_spread(piece.sizes, tuning) * weight * piece.eigenvalues).log1p().sum()
        if piece.eigenvalues is not None and all(factor is factors[0] for factor in factors):
            return (factors[0] * weight * piece.eigenvalues).log1p().sum()
        prior = rescaled(piece.prior, piece.sizes, tuning)
        if isinstance(prior, Diagonal) and isinstance(piece.curvature, Dense):
            return _dense_logdet(prior, piece.curvature, weight) - prior.logdet()
        return definite_sum(prior, piece.curvature, weight).logdet() - prior.logdet()

    def tuned(self, grouping: Grouping) -> Tuning:
        """The factors of the largest evidence: one for all parameters, for each layer or for each parameter.

        L-BFGS on their logs, so that they stay positive and steps are relative. The noise is tuned if the scatter is
        known.
        """
        keys = {name: group(name, grouping) for name in self.sizes}
        zero = torch.zeros((), dtype=torch.float64, device=self.device)
        logs = {key: zero.clone().requires_grad_() for key in keys.values()}
        noise = zero.clone()
        free = list(logs.values())
        if self.scatter.numbers > 0:
            free.append(noise.requires_grad_())
        optimizer = torch.optim.LBFGS(
            free, max_iter=200, tolerance_grad=SLOPE, tolerance_change=CHANGE, line_search_fn="strong_wolfe"
        )

        def tuning() -> Tuning:
            # parameters of one group must hold the same tensor, by which `rescaled` knows that they share a factor
            factors = {key: value.clamp(-BOUND, BOUND).exp() for key, value in logs.items()}
            variances = {name: factors[key] for name, key in keys.items()}
            return Tuning(variances, noise.clamp(-BOUND, BOUND).exp())

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


def _spread(sizes: Mapping[str, int], tuning: Tuning) -> Tensor:
    """The factors on the prior variances, one for each number."""
    return torch.cat([tuning.variances[name].expand(size) for name, size in sizes.items()])


def rescaled(prior: Structure, sizes: Mapping[str, int], tuning: Tuning) -> Structure:
    """A prior's precision with t times its variances; weights that depend on each other share one factor."""
    if isinstance(prior, Diagonal):
        return prior * (1 / _spread(sizes, tuning))
    if isinstance(prior, Blocks):
        separate = _by_parts(prior, sizes)
        # blocks that meet within parameters all the way are scaled as one, like any other structure
        tied = len(separate) == 1 and isinstance(separate[0][0], Blocks) and len(prior.parts) > 1
        if not tied:
            return Blocks([rescaled(part, own, tuning) for part, own in separate])
    first, *rest = (tuning.variances[name] for name in sizes)
    if any(factor is not first for factor in rest):
        raise ValueError(
            f"the prior's precision is {prior.name} over {', '.join(sizes)}, which must share one factor: take "
            "precision='one', or tune='nothing'"
        )
    return prior * (1 / first)


def _by_parts(prior: Blocks, sizes: Mapping[str, int]) -> list[tuple[Structure, dict[str, int]]]:
    """The parts of a prior with the parameters that each is over; those that meet within a parameter together."""
    found: list[tuple[Structure, dict[str, int]]] = []
    names, waiting = list(sizes.items()), list[Structure]()
    for part in prior.parts:
        waiting.append(part)
        own: dict[str, int] = {}
        total = sum(each.size for each in waiting)
        while names and sum(own.values()) + names[0][1] <= total:
            name, size = names.pop(0)
            own[name] = size
        if sum(own.values()) == total:
            found.append((joined(waiting), own))
            waiting = []
        else:
            names[:0] = own.items()
    return found


def definite_sum(prior: Structure, curvature: Structure, weight: Tensor) -> Structure:
    """prior + weight·curvature, positive definite even where rounding says otherwise.

    The exact sum always is, since the prior is. Two things can hide it: rounding of the sum itself, where the prior is
    less than the last digit of the curvature (`Dense.lifted`), and eigenvalues below zero of a curvature that was
    summed up in single precision (`Dense.clipped`).
    """
    total = prior + curvature * weight
    if _definite(total):
        return total
    lifted = _lifted(total)
    if _definite(lifted):
        return lifted
    return _lifted(prior + _clipped(curvature) * weight)


def _dense_logdet(prior: Diagonal, curvature: Dense, weight: Tensor) -> Tensor:
    """log |Λ| of Λ = D + wG with the gradients Σ_j (Λ⁻¹)_jj dD_jj + tr(Λ⁻¹G) dw, tr(wΛ⁻¹G) = P − Σ_j D_jj (Λ⁻¹)_jj.

    The variances are all that they need: autograd would go back through the Cholesky factor, at many times the cost.
    """
    needed = torch.is_grad_enabled() and (prior.values.requires_grad or weight.requires_grad)
    with torch.no_grad():
        total = definite_sum(prior, curvature, weight)
        volume = total.logdet()
        if not needed:
            return volume
        variances = total.variances
        explained = len(variances) - torch.dot(variances, prior.values)
    moved = torch.dot(variances, prior.values - prior.values.detach())
    return volume + moved + explained * (weight.log() - weight.log().detach())


def _definite(precision: Structure) -> bool:
    """Whether it can be inverted. The factor that this takes is kept by the structure, for whoever asks next."""
    try:
        precision.logdet()
    except ValueError:
        return False
    return True


def _lifted(precision: Structure) -> Structure:
    """The same with the dense parts lifted that cannot be inverted as they are."""
    if isinstance(precision, Blocks):
        return Blocks([_lifted(part) for part in precision.parts])
    if isinstance(precision, Dense) and not _definite(precision):
        return precision.lifted()
    return precision


def _clipped(curvature: Structure) -> Structure:
    """The curvature without negative eigenvalues."""
    if isinstance(curvature, Blocks):
        return Blocks([_clipped(part) for part in curvature.parts])
    if isinstance(curvature, Dense):
        return curvature.clipped()
    return curvature


def _check_room(matrix: Structure) -> None:
    """Refuse dense matrices for whose factors there is no memory."""
    if isinstance(matrix, Blocks):
        for part in matrix.parts:
            _check_room(part)
    if isinstance(matrix, Dense):
        what = f"the posterior of {matrix.size:,} weights in a dense matrix, with its factors,"
        like = matrix.matrix.new_ones((), dtype=torch.float64)  # on the device that has to have the room
        check_memory(what, 4 * matrix.size**2, like, "take structure='kronecker'")
