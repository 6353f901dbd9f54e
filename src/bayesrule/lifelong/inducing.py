"""FRCL: the past as what was learnt of functions at inducing points, under whatever features the network has now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.data import Inputs, inputs
from bayesrule.lifelong.base import Past, Strategy, keep
from bayesrule.lifelong.fits import Fits, network_of
from bayesrule.lifelong.streams import Chapter, Examples, Heads
from bayesrule.likelihoods import Likelihood
from bayesrule.methods import MAP
from bayesrule.models import MultiHead
from bayesrule.modules import outputs_of
from bayesrule.posteriors import Particles
from bayesrule.priors import Gaussian, Inducing, kernel, with_one


@dataclass(frozen=True)
class InducingPoints(Strategy):
    """Functional regularisation for continual learning (FRCL, Titsias et al. 2020), for a head for each task.

    The head w_c of output c of a task has the prior N(0, scale² I) and, after the task, the posterior N(ŵ_c, V_c) with
    V_c⁻¹ = I/scale² + Σ_i Λ_i[c, c] φ(x_i) φ(x_i)ᵀ, by Laplace's method in the place of the paper's variational one.
    Kept of it is its law at the task's inducing points, q(u_c) = N(Φŵ_c, ΦV_cΦᵀ). While later tasks change the features
    φ, KL(q(u_c) ‖ p_φ(u_c)) holds them, see `br.priors.Inducing`; a head of the past is then read off its inducing
    points, E[w_c] = scale² Φᵀ K⁻¹ E[u_c].

    ``points``: kept of a task. ``rule``: see `br.lifelong.memory.choose`. ``scale``: of the prior of all weights.
    ``jitter``: on the diagonal of the kernel, in units of scale². ``lr``: Adam's rate.
    """

    name: ClassVar[str] = "frcl"
    summary: ClassVar[str] = "each task's function, as a Gaussian process at kept points, stays probable"
    heads: ClassVar[Heads | None] = "many"
    points: int = 40
    rule: str = "random"
    scale: float = 1.0
    jitter: float = 1e-4
    lr: float = 1e-3

    def __post_init__(self) -> None:
        for name in ("scale", "jitter"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)}")

    def learn(self, past: Past, chapter: Chapter, fits: Fits) -> Past:
        """One fit under the prior; the law of the new task's function; all heads in the new features."""
        mode = fits(network_of(past.posterior, fits), chapter.train, MAP(self.lr), self._prior(past))
        network = network_of(mode, fits)
        if not isinstance(network, MultiHead):
            raise ValueError(f"frcl must have a br.models.MultiHead, not a {type(network).__name__}: leave model out")
        memory = keep(past, self.rule, self.points, network, chapter, fits)
        learnt = function_at(network, memory.parts[-1][0], chapter.train, mode.likelihood, self.scale)
        functions = (*past.functions, learnt)
        for (x, _), (mean, _) in zip(memory.parts, functions, strict=True):
            self._restore(network, x, mean)
        return Past(Particles.of([network], mode.context), memory=memory, functions=functions)

    def _prior(self, past: Past) -> Gaussian | Inducing:
        """The past's functions, and a normal prior of the weights."""
        base = Gaussian(self.scale)
        if not past.functions:
            return base
        points = [_parts(x)[0] for x, _ in past.memory.parts]
        means, covariances = [mean for mean, _ in past.functions], [covariance for _, covariance in past.functions]
        return Inducing(points, means, covariances, base, self.scale, self.jitter)

    def _restore(self, network: MultiHead, x: Inputs, mean: Tensor) -> None:
        """Set the head of a task to scale² Φᵀ K⁻¹ m."""
        pictures, task = _parts(x)
        phi = with_one(outputs_of(network.body, pictures)).double()
        root = torch.linalg.cholesky(kernel(phi, self.scale, self.jitter))
        weights = (self.scale**2 * phi.T @ torch.cholesky_solve(mean.double(), root)).T.to(network.heads.weight)
        rows = slice(task * network.outputs, (task + 1) * network.outputs)
        with torch.no_grad():
            network.heads.weight[rows] = weights[:, :-1]
            network.heads.bias[rows] = weights[:, -1]


def function_at(
    network: MultiHead, points: Inputs, train: Examples, likelihood: Likelihood, scale: float
) -> tuple[Tensor, Tensor]:
    """q(u_c) at the points, given the task's data: means ``[M, C]`` and covariances ``[C, M, M]``."""
    phi = with_one(outputs_of(network.body, _parts(train[0])[0])).double()
    at = with_one(outputs_of(network.body, _parts(points)[0])).double()
    hessian = likelihood.hessian(outputs_of(network, train[0])).diagonal(dim1=-2, dim2=-1).double()  # [N, C]
    covariances = []
    for own in hessian.T:
        precision = torch.eye(phi.shape[1]).to(phi) / scale**2 + phi.T @ (own[:, None] * phi)
        covariances.append(at @ torch.cholesky_solve(at.T, torch.linalg.cholesky(precision)))
    mean = outputs_of(network, points)
    return mean, torch.stack(covariances).to(mean)


def _parts(x: Inputs) -> tuple[Tensor, int]:
    """The input of the body, and the number of the task."""
    (_, pictures), (_, task) = inputs.named(x)
    return pictures, int(task[0])
