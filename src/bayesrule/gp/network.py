"""A trained network as a Gaussian process (DNN2GP, Khan et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from bayesrule import likelihoods, modules
from bayesrule.curvature import Subset, chosen
from bayesrule.data import Inputs, as_inputs, inputs
from bayesrule.gp.features import Aggregate, Features, outputs
from bayesrule.gp.sites import Sites
from bayesrule.gp.solvers import Dual, Primal, Solver
from bayesrule.gp.variances import aleatoric, epistemic
from bayesrule.likelihoods import Likelihood
from bayesrule.modules import Parameters
from bayesrule.naming import unknown
from bayesrule.posteriors import predict_normal
from bayesrule.predictions import Prediction
from bayesrule.priors import Prior
from bayesrule.structures import Diagonal
from bayesrule.task import Task
from bayesrule.temperatures import Tempering

Solve = Literal["auto", "primal", "dual"]
SOLVES: tuple[str, ...] = get_args(Solve)


def from_network(
    model: nn.Module,
    train: Any,
    likelihood: str | Likelihood | None = None,
    prior: str | float | Prior | None = None,
    temperature: Tempering = 1.0,
    subset: Subset = "all",
    solve: Solve = "auto",
) -> NetworkGP:
    """The Gaussian process that a trained network is, to first order in its weights, under a Gaussian prior N(m, s²).

    f(x) ≈ f_{w*}(x) + J(x)(w − w*),  w ~ N(m, diag s²):  f ~ GP(f_{w*}(x) + J(x)(m − w*), J(x) diag(s²) J(x')ᵀ).

    Args:
        model: the trained network, w*; it is copied, and run in eval mode and double precision.
        train: what it was trained on, as for `br.fit`.
        likelihood: a name or object; None: as for `br.fit`. Gaussian noise that is not given is that of the residuals.
        prior: an independent Gaussian, a scale rule by name, or None: as for `br.fit`.
        temperature: η; the likelihood counts to the power 1/η.
        subset: the weights that are uncertain: all, those of the last layer, or those named, by parameter or by layer.
            The others stay as they are.
        solve: the linear system, ``"primal"`` of the weights or ``"dual"`` of the data; ``"auto"`` takes the smaller.

    >>> import bayesrule as br
    >>> x = torch.tensor([[-1.0], [0.0], [1.0]])
    >>> gp = from_network(nn.Linear(1, 1), (x, 2 * x[:, 0]), br.likelihoods.Gaussian(0.1), br.priors.Gaussian(1.0))
    >>> gp.posterior([[0.5], [4.0]]).mean.flatten()  # whatever the weights were: the model is linear
    tensor([0.9950, 7.9602])
    """
    if solve not in SOLVES:
        raise unknown("solve", solve, SOLVES)
    task = Task.create(model, train, likelihood, prior, temperature)
    _believed(task.prior, dict(task.parameters()))  # or an error: only then are the outputs a Gaussian process
    if task.data.scaling.targets is not None and not isinstance(task.likelihood, likelihoods.Gaussian):
        raise ValueError(
            f"the data's targets are standardised, but the outputs of likelihood {task.likelihood.name!r} are not all "
            'in units of y: standardise the inputs only, br.data.standardize(..., targets="keep")'
        )
    started = likelihood is None or getattr(likelihoods.choose(likelihood), "noise", 0.0) is None
    names = chosen(model, next(task.ordered(1)).x, subset)
    return NetworkGP(task, tuple(names), solve, started)


@dataclass(frozen=True, eq=False)
class Outputs:
    """What is known of a network's outputs f, and of y, at N examples; of `NetworkGP.posterior`.

    ``mean``: of f, [N, C]. ``covariance``: of f, [N, C, C] or, jointly, [N, C, N, C]. In the shape of y (for classes of
    their probabilities), with Λ = ∂E[y|f]/∂f for classes and counts, and 1 for reals::

        aleatoric = Var(y|f)                σ², and p − p² for classes
        epistemic = diag(Λ Cov(f) Λ)        J Σ Jᵀ, and diag(Λ J Σ Jᵀ Λ) for classes
    """

    mean: Tensor
    covariance: Tensor
    aleatoric: Tensor
    epistemic: Tensor

    @property
    def variance(self) -> Tensor:
        """Of each output, [N, C]."""
        n, c = self.mean.shape
        if self.covariance.ndim == 4:
            return self.covariance.reshape(n * c, -1).diagonal().reshape(n, c)
        return self.covariance.diagonal(dim1=-2, dim2=-1)

    @property
    def total(self) -> Tensor:
        """Aleatoric and epistemic variance together."""
        return self.aleatoric + self.epistemic


class NetworkGP:
    """A network as a Gaussian process; made by `from_network`. Takes and gives the user's units and the model's dtype.

    ``task``: model, data, likelihood, prior, temperature. ``names``: the parameters that are uncertain.
    """

    def __init__(self, task: Task, names: tuple[str, ...], solve: Solve, start_noise: bool) -> None:
        self.names, self._solve = names, solve
        self._dtype = modules.dtype_of(task.model)
        # in float64: kernels of networks have condition numbers at which Cholesky fails in float32
        model = modules.twin(task.model, shared=()).double().eval()
        if task.data.weight is not None:
            raise ValueError("a Gaussian process of a network does not know weights of examples: give train=(X, y)")
        x, y = task.data.all().to(task.device)
        whole = outputs(model, x)
        likelihood = task.likelihood
        if start_noise and isinstance(likelihood, likelihoods.Gaussian):
            likelihood = likelihoods.Gaussian().matched(whole, y)
        self.task = Task(task.model, task.data, likelihood, task.prior, task.temperature)
        weights = modules.parameters(model)
        scale, self._centre = _believed(task.prior, {name: weights[name].detach() for name in names})
        self.sites = Sites.create(x, whole, likelihood.check(whole, y), likelihood, task.temperature)
        self.features = Features(model, list(names), scale, self.sites.outputs.shape[1])

    @property
    def likelihood(self) -> Likelihood:
        """p(y|f), with noise that was started."""
        return self.task.likelihood

    @cached_property
    def solver(self) -> Solver:
        """The smaller of the two systems, solved once."""
        solve = self._solve
        if solve == "auto":
            solve = "primal" if len(self.features.scale) <= self.sites.size else "dual"
        kind = Primal if solve == "primal" else Dual
        return kind(self.features, self.sites)

    @cached_property
    def _off(self) -> Tensor:
        """u = (w* − m)/s: how far the network is from the prior's mean."""
        return (modules.flatten(self.features.parameters).detach() - self._centre) / self.features.scale

    @cached_property
    def _gradient(self) -> Tensor:
        """b = s ∇: the gradient −Jᵀg + (w* − m)/s² of the loss in units of the prior's scale."""
        return self._off - self.features.pull(self.sites.x, self.sites.slope)

    @cached_property
    def _step(self) -> Tensor:
        """v₁ = −C b: the mean of (w − w*)/s."""
        return -self.solver.solve(self._gradient)

    def kernel(self, x: Any, z: Any = None, aggregate: Aggregate = "full") -> Tensor:
        """The prior covariance of outputs, J(x) diag(s²) J(z)ᵀ; ``z`` is x if not given.

        ``aggregate``: ``"full"``, [N, C, M, C]; ``"class"``, of each output with itself, [C, N, M]; or ``"sum"`` of
        these over the outputs, [N, M].
        """
        first = self._inputs(x)
        second = first if z is None else self._inputs(z)
        for given in (first, second):
            self._f(inputs.take(given, torch.tensor([0])))  # an error that says so, if they do not fit the network
        return self.features.gram(first, second, aggregate, self._units[1]).to(self._dtype)

    def network(self, x: Any) -> Tensor:
        """f_{w*}(x), [N, C]: what the network itself says."""
        return self._out(self._f(self._inputs(x)).flatten(1))

    def prior_mean(self, x: Any) -> Tensor:
        """f_{w*}(x) + J(x)(m − w*), [N, C]: what is expected before the data."""
        given = self._inputs(x)
        return self._out(self._f(given).flatten(1) - self.features.times(given, self._off))

    def posterior(self, x: Any, joint: bool = False) -> Outputs:
        """Mean and covariance of the outputs at new inputs; ``joint``: also between the inputs.

        The mean is f_{w*}(x) + J(x)(w₁ − w*), w₁ being one Gauss–Newton step from w*; where w* is the mode, it is
        f_{w*}(x). The covariance is J(x) Σ J(x')ᵀ with Σ⁻¹ = diag(s⁻²) + Σ_i J_iᵀ Λ_i J_i/η.
        """
        given = self._inputs(x)
        f = self._f(given)
        scale, targets = self._units[1], self.task.data.scaling.targets
        if joint:
            covariance = self.solver.joint(given)
            each = covariance.diagonal(dim1=0, dim2=2).permute(2, 0, 1)
            pair = scale[:, None, None] * scale
        else:
            covariance = each = self.solver.each(given)
            pair = scale[:, None] * scale
        squares = 1.0 if targets is None else targets.scale.square()
        return Outputs(
            self._out(self._mean(given, f)),
            (covariance * pair).to(self._dtype),
            (aleatoric(self.likelihood, f) * squares).to(self._dtype),
            (epistemic(self.likelihood, f, each) * squares).to(self._dtype),
        )

    def predict(self, x: Any, samples: int = 32, seed: int = 0) -> Prediction:
        """p(y|x, D), each example alone: exact where noise is normal, from draws of the process otherwise."""
        if samples < 1:
            raise ValueError(f"samples must be at least 1, not {samples}")
        given = self._inputs(x)
        f = self._f(given)
        mean = self._mean(given, f).reshape(f.shape).to(self._dtype)
        generator = torch.Generator(f.device).manual_seed(seed)
        prediction = predict_normal(self.likelihood, mean, self.solver.each(given), samples, generator)
        targets = self.task.data.scaling.targets
        if targets is None:
            return prediction
        return prediction.rescaled(targets.loc, targets.scale)

    def log_marginal_likelihood(self) -> float:
        """Log p(D) of the Gaussian process, which is that of Laplace's approximation.

        log p(D|f*)/η − ½‖(w* − m)/s‖² + ½ bᵀ C b − ½ log|I + Rᵀ K R|, where b is the gradient: its term vanishes at the
        mode. Exact for a linear network under Gaussian noise, whatever its weights. In units of y.
        """
        # −½ bᵀ v₁ = ½ bᵀ C b
        fit = self.sites.log_prob - 0.5 * float(self._off.square().sum()) - 0.5 * float(self._gradient @ self._step)
        units = float(self._units[1].log().sum()) * len(self.sites.outputs) / self.task.temperature
        return fit - 0.5 * self.solver.log_det - units

    def mean_weights(self) -> Parameters:
        """w₁ = w* + s v₁: the mean of the weights, one Gauss–Newton step from the network's own."""
        flat = modules.flatten(self.features.parameters).detach() + self.features.scale * self._step
        found = modules.unflatten(flat, self.features.parameters)
        return {name: w.to(self._dtype).clone() for name, w in found.items()}

    def _f(self, x: Inputs) -> Tensor:
        """f_{w*}(x) in the network's units, [N, C, ...]."""
        found = outputs(self.features.model, x)
        if found.ndim == 1:
            found = found[:, None]
        return found

    def _mean(self, x: Inputs, f: Tensor) -> Tensor:
        """f_{w*}(x) + J(x)(w₁ − w*), [N, C]."""
        return f.flatten(1) + self.features.times(x, self._step)

    def _inputs(self, x: Any) -> Inputs:
        """The user's inputs, checked, in the network's units and dtype."""
        raw, scaling = as_inputs(x), self.task.data.scaling.inputs
        if scaling is not None:
            raw = inputs.each(scaling.forward, raw)
        return inputs.to(raw, self._dtype, self.features.scale.device)

    @cached_property
    def _units(self) -> tuple[Tensor, Tensor]:
        """What y is where the network's units are zero, and how long such a unit is, [C] each."""
        targets, like = self.task.data.scaling.targets, self.sites.outputs[0]
        if targets is None:
            return torch.zeros_like(like), torch.ones_like(like)
        loc, scale = (t.to(like.device).flatten().expand(like.shape) for t in (targets.loc, targets.scale))
        return loc, scale

    def _out(self, f: Tensor) -> Tensor:
        """Outputs [N, C] in the user's units."""
        loc, scale = self._units
        found, targets = f * scale + loc, self.task.data.scaling.targets
        return found if targets is not None and targets.far else found.to(self._dtype)


def _believed(prior: Prior, parameters: Parameters) -> tuple[Tensor, Tensor]:
    """The prior's standard deviation and mean of each weight that takes part, [P], in the weights' dtype."""
    means, precision = prior.gaussian(parameters)
    if not isinstance(precision, Diagonal):
        raise ValueError(
            f"the prior must be of independent normal weights, not one whose precision is {precision.name}: take "
            "br.priors.Gaussian, or a Gaussian posterior with a diagonal precision"
        )
    like = next(iter(parameters.values()))
    return precision.values.rsqrt().to(like), modules.flatten(means).to(like)
