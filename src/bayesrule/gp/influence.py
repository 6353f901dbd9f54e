"""What if this row were left out? Leave-one-out predictions of a whole training set from one posterior.

To first order in the weights, an example adds JᵀΛJ to the precision and Jᵀg to the natural mean, with g = ∂ log p/∂f
and Λ = −∂² log p/∂f² at its outputs f. Without it, its own outputs are N(f + Δ, v'):

    v' = v (I − Λ v)⁻¹,    Δ = −v' g,    v = J Σ Jᵀ

one Newton step on the objective of all the others, exact for a linear model with normal noise. For small v it is the
memory perturbation Δ = −v g, prediction variance times prediction error (Nickl et al. 2023).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule import modules, priors
from bayesrule.curvature import Subset, check_memory, curvature, last_layer, propagate
from bayesrule.data import Data, Inputs, as_data, inputs
from bayesrule.gp.features import Features, outputs
from bayesrule.gp.network import from_network
from bayesrule.gp.sites import Sites
from bayesrule.naming import to_spec
from bayesrule.posteriors import Gaussian, Mixture, Posterior, central_state, predict_normal
from bayesrule.predictions import Prediction
from bayesrule.priors import Prior
from bayesrule.structures import Dense, Diagonal, Structure, check_sound

FEW = 4096  # weights up to which all of them are uncertain where nobody says which
BLOCK = 2**22  # numbers of covariances that are worked out at a time


@dataclass(frozen=True, eq=False)
class Influence:
    """What each training example does to its own prediction, and what would be said of it without it.

    ``outputs``: f_i, [N, C], in the network's units. ``variance``: v_i, [N, C, C]. ``residual``: e_i = −g_i, [N, C].
    ``deviation``: Δ_i = −v'_i g_i, by how much f_i changes if the example is left out. ``change``: the length of what
    that does to E[y|f], [N]: of all probabilities together for classes. ``prediction``: of each example from all
    others, in the user's units. ``nll``: −log p of its own target by that prediction, [N]; ``fitted``: the same by the
    posterior with it.
    """

    outputs: Tensor
    variance: Tensor
    residual: Tensor
    deviation: Tensor
    change: Tensor
    prediction: Prediction
    nll: Tensor
    fitted: Tensor

    @property
    def order(self) -> Tensor:
        """The examples by `change`, the most influential first."""
        return self.change.argsort(descending=True, stable=True)

    @property
    def suspicious(self) -> Tensor:
        """The examples by `nll`, those first whose targets the others expect the least: mislabelled, perhaps."""
        return self.nll.argsort(descending=True, stable=True)

    @property
    def generalisation(self) -> float:
        """The mean of `nll`: the negative log-likelihood of new data, as predicted from the training data alone."""
        return float(self.nll.mean())


def influence(
    posterior: Posterior,
    train: Any,
    *,
    prior: str | float | Prior | None = None,
    subset: Subset | None = None,
    first_order: bool | None = None,
    samples: int = 32,
    seed: int = 0,
) -> Influence:
    """Leave-one-out predictions of all training examples, without training again.

    Args:
        posterior: of a Gaussian (laplace, ivon, vogn, swag, bbb) its own covariance is taken. A network alone (map), or
            the first of a sampler's, is taken as a Gaussian process, see `from_network`. The members of an ensemble are
            asked one by one, their predictions pooled, and all else averaged.
        train: what it was fitted to, in the user's units or as ``br.data.standardize`` gave it.
        prior: of a network that is no Gaussian; None: the one that it was fitted under.
        subset: the weights of such a network that are uncertain; None: all up to 4096, else those of the last layer.
        first_order: Δ = −v g in place of −v (I − Λv)⁻¹ g; None: so where the precision is no dense matrix, whose v need
            not leave I − Λv positive.
        samples, seed: of predictions that have no closed form.

    >>> import bayesrule as br
    >>> x = torch.linspace(-1, 1, 9).double()[:, None]
    >>> y = 2 * x[:, 0]
    >>> y[4] = 1.0  # a slip: it should be 0
    >>> exact = br.methods.Laplace(structure="dense", tune="nothing", newton=1)
    >>> line = nn.Linear(1, 1).double()
    >>> posterior = br.fit(line, (x, y), exact, br.likelihoods.Gaussian(0.1), 1.0, epochs=1, val=0)
    >>> found = influence(posterior, (x, y))
    >>> int(found.suspicious[0]), int(found.order[0])
    (4, 4)
    """
    if isinstance(posterior, Mixture):
        options: dict[str, Any] = {"prior": prior, "subset": subset, "first_order": first_order}
        found = []
        for component in posterior.components:
            member = component.with_context(info=posterior.info, likelihood=posterior.likelihood)
            found.append(influence(member, train, **options, samples=samples, seed=seed))
        return _pooled(found, as_data(train).raw().y)
    data, temperature = _data(posterior, train), _temperature(posterior)
    if isinstance(posterior, Gaussian):
        sites, variance = _own(posterior, data, temperature)
        rough = not isinstance(posterior.precision, Dense)
    else:
        sites, variance = _as_process(posterior, data, prior, subset, temperature)
        rough = False
    after = variance
    if not (rough if first_order is None else first_order):
        after = _without(variance, sites.root)
    deviation = -(after @ sites.slope[..., None])[..., 0]
    shape = _shape(posterior, data)
    likelihood = posterior.likelihood

    def predicted(f: Tensor, covariance: Tensor) -> Prediction:
        generator = torch.Generator(f.device).manual_seed(seed)
        found = predict_normal(likelihood, f.reshape(shape), covariance, samples, generator)
        targets = posterior.context.scaling.targets
        return found if targets is None else found.rescaled(targets.loc, targets.scale)

    y = data.raw().y
    left_out, fitted = predicted(sites.outputs + deviation, after), predicted(sites.outputs, variance)
    moved = likelihood.mean((sites.outputs + deviation).reshape(shape)) - likelihood.mean(sites.outputs.reshape(shape))
    return Influence(
        sites.outputs,
        variance,
        -sites.slope,
        deviation,
        moved.flatten(1).norm(dim=1) if moved.ndim > 1 else moved.abs(),
        left_out,
        _nll(left_out, y),
        _nll(fitted, y),
    )


def generalisation(posteriors: Iterable[Posterior], train: Any, **options: Any) -> list[float]:
    """The negative log-likelihood of new data as each of some posteriors predicts it from the training data alone.

    The mean over leave-one-out predictions; ``options`` are those of `influence`. While training, a callback has the
    posterior of the moment: ``lambda progress: kept.append(progress.posterior()) if progress.epoch_ended else None``.
    """
    return [influence(posterior, train, **options).generalisation for posterior in posteriors]


def delete(posterior: Posterior, rows: Any) -> Gaussian:
    """A Gaussian posterior without some of the examples that it was fitted to, without training again.

    Natural parameters are sums over examples, so that what some have added is taken away::

        Λ' = Λ − Σ_i J_iᵀ Λ_i J_i/η,    mean' = mean − Λ'⁻¹ Σ_i J_iᵀ g_i/η

    Exact for a linear model with normal noise; else one Newton step on the objective of the others, which is that of a
    K-prior (Khan and Swaroop 2021) to second order. Of a diagonal precision the diagonals are taken away; every other
    becomes dense.

    >>> import bayesrule as br
    >>> x = torch.tensor([[0.0], [1.0], [2.0]]).double()
    >>> exact = br.methods.Laplace(structure="dense", tune="nothing", newton=1)
    >>> def fitted(count):
    ...     line = nn.Linear(1, 1).double()
    ...     data = x[:count], 3 * x[:count, 0]
    ...     return br.fit(line, data, exact, br.likelihoods.Gaussian(1.0), 1.0, epochs=1, val=0)
    >>> two = delete(fitted(3), (x[2:], 3 * x[2:, 0]))
    >>> torch.allclose(two.mean["weight"], fitted(2).mean["weight"])
    True
    """
    if not isinstance(posterior, Gaussian):
        raise TypeError(
            f"rows can be deleted from a Gaussian posterior alone, such as that of laplace or ivon, not from a "
            f"{posterior.kind} one: a set of networks has no natural parameters"
        )
    data, temperature = _data(posterior, rows), _temperature(posterior)
    known = int(posterior.info.get("n", data.n + 1))
    if data.n >= known:
        raise ValueError(f"rows must be fewer than the {known} that the posterior was fitted to, got {data.n}")
    model, (x, y) = _network(posterior), data.all()
    names = list(posterior.mean)
    sites = _sites(posterior, model, data, temperature)
    centre = modules.flatten(posterior.mean).double()
    features = Features(model, names, torch.ones_like(centre), sites.outputs.shape[1])
    before = posterior.precision.to(torch.float64) * posterior.spread
    structure = "diagonal" if isinstance(before, Diagonal) else "dense"
    check_memory(f"the precision of {len(centre):,} weights, dense,", 3 * _numbers(before), centre, "take ivon")
    given = curvature(model, [(x, y)], posterior.likelihood, structure, tuple(names)).matrix * (1 / temperature)  # type: ignore[arg-type]
    after = _minus(before, given)
    mean = centre - after.solve(features.pull(x, sites.slope)).to(centre)
    info = posterior.info | {"n": known - data.n, "deleted": data.n}
    precision = (after * (1 / posterior.spread)).to(posterior.precision.dtype)
    like = {name: w.double() for name, w in posterior.mean.items()}
    found = modules.unflatten(mean, like)
    changed = {
        "mean": {name: w.to(posterior.mean[name].dtype) for name, w in found.items()},
        "precision": to_spec(precision),
    }
    return type(posterior).from_state(posterior.state() | changed, posterior.with_context(info=info).context)


def _pooled(parts: list[Influence], y: Tensor) -> Influence:
    """Of the members of an ensemble."""

    def mean(name: str) -> Tensor:
        return torch.stack([getattr(part, name) for part in parts]).mean(0)

    prediction = type(parts[0].prediction).pooled([part.prediction for part in parts])
    fitted = torch.stack([-part.fitted for part in parts]).logsumexp(0) - math.log(len(parts))
    return Influence(
        mean("outputs"),
        mean("variance"),
        mean("residual"),
        mean("deviation"),
        mean("change"),
        prediction,
        _nll(prediction, y),
        -fitted,
    )


def _temperature(posterior: Posterior) -> float:
    """η, by which the likelihood was tempered."""
    return float(posterior.info.get("temperature", 1.0))


def _numbers(precision: Structure) -> int:
    return precision.size if isinstance(precision, Diagonal) else precision.size**2


def _minus(before: Structure, given: Structure) -> Structure:
    """A precision without what some rows have added to it."""
    if isinstance(before, Diagonal):
        left: Structure = Diagonal(before.diagonal - given.diagonal.to(before.diagonal))
    else:
        matrix = before.dense()
        left = Dense(matrix - given.dense().to(matrix))
    try:
        check_sound(left)
    except (ValueError, RuntimeError) as error:
        raise ValueError(
            "rows must be among those that the posterior was fitted to, and its precision one that they added up to: "
            f"without them it is not positive ({error}); take a dense one, br.methods.Laplace(structure='dense')"
        ) from error
    return left


def _data(posterior: Posterior, train: Any) -> Data:
    """The data in the network's units and dtype."""
    data = as_data(train)
    if data.weight is not None:
        raise ValueError("influence does not know weights of examples: give train=(X, y)")
    return data.scaled(posterior.context.scaling).to(torch.float64)


def _network(posterior: Posterior) -> nn.Module:
    """The network that stands for the posterior, in double precision."""
    network = modules.twin(posterior.context.model, shared=())
    network.load_state_dict(central_state(posterior), strict=False)
    return network.double().eval()


def _sites(posterior: Posterior, model: nn.Module, data: Data, temperature: float) -> Sites:
    x, y = data.all().to(modules.device_of(model))
    f = outputs(model, x)
    return Sites.create(x, f, posterior.likelihood.check(f, y), posterior.likelihood, temperature)


def _own(posterior: Gaussian, data: Data, temperature: float) -> tuple[Sites, Tensor]:
    """The likelihood at the mean's outputs, and J Σ Jᵀ by the posterior's own precision."""
    model = _network(posterior)
    sites = _sites(posterior, model, data, temperature)
    width = sites.outputs.shape[1]
    rows = torch.split(torch.arange(data.n), max(1, BLOCK // width**2))
    precision, parts = posterior.precision.to(torch.float64), []
    for part in rows:
        parts.append(propagate(model, inputs.take(sites.x, part), precision, list(posterior.mean))[1])
    return sites, torch.cat(parts) / posterior.spread


def _as_process(
    posterior: Posterior, data: Data, prior: str | float | Prior | None, subset: Subset | None, temperature: float
) -> tuple[Sites, Tensor]:
    """The same of a network as a Gaussian process, in double precision."""
    network = _network(posterior)
    if prior is None and "prior" in posterior.info:
        spec = posterior.info["prior"]
        prior = priors.from_spec({"name": spec["name"], "fields": spec["fields"]})
    if subset is None:
        subset = _uncertain(network, next(data.ordered(1)).x)
    gp = from_network(network, data, posterior.likelihood, prior, temperature, subset)
    return gp.sites, gp.solver.each(gp.sites.x)


def _uncertain(network: nn.Module, x: Inputs) -> Subset:
    """All weights if they are few, else those of the last layer, or of the last that has any."""
    names = list(modules.parameters(network))
    if sum(w.numel() for w in modules.parameters(network).values()) <= FEW:
        return "all"
    try:
        return tuple(last_layer(network, x))
    except ValueError:  # outputs that something is still done to, say
        owner = names[-1].rpartition(".")[0]
        return tuple(name for name in names if name.rpartition(".")[0] == owner)


def _without(variance: Tensor, root: Tensor) -> Tensor:
    """v (I − Λv)⁻¹ = v + v R (I − RᵀvR)⁻¹ Rᵀv with R Rᵀ = Λ, [N, C, C]."""
    across = variance @ root
    share = root.mT @ across
    eye = torch.eye(share.shape[-1]).to(share)
    if float(torch.linalg.eigvalsh(share).max()) >= 1:
        raise ValueError(
            "the posterior's covariance is larger than its training data leave room for: are these the data that it "
            "was fitted to? If so, take first_order=True"
        )
    return variance + across @ torch.linalg.solve(eye - share, across.mT)


def _shape(posterior: Posterior, data: Data) -> tuple[int, ...]:
    """Of all outputs, as the likelihood knows them."""
    first = next(data.ordered(1)).to(modules.device_of(posterior.model))
    return (data.n, *outputs(_network(posterior), first.x).shape[1:])


def _nll(prediction: Prediction, y: Tensor) -> Tensor:
    found = -prediction.log_prob(y)
    return found.flatten(1).sum(1) if found.ndim > 1 else found
