"""Does a variational posterior still listen to the data, or has it gone back to the prior?

The objective of a mean-field q is E_q[−log p(D|w)] + η·KL(q‖p). Of a wide network the second term can outweigh the
first so far that the best q is the prior. What is looked at here is both terms, and the likelihood of the same targets
under the best outputs that do not depend on the inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from bayesrule import modules
from bayesrule.data import Arrays, Batch
from bayesrule.likelihoods import Likelihood
from bayesrule.likelihoods.base import mean_over
from bayesrule.posteriors import Gaussian, Posterior
from bayesrule.predictions.base import log_mean
from bayesrule.priors import Prior
from bayesrule.task import Task

EXAMPLES = 256  # that are looked at
DRAWS = 16  # of q, for the same purpose
AT_PRIOR = 0.05  # nats up to which q of a weight is the prior: a mean a third of a deviation off, or 25 % of σ
# The share of weights that are at the prior in a posterior that has collapsed. Of a network that has little to learn
# from its data two thirds are there as well.
MOST = 0.95
UNDER_Q = 0.05  # nats that an example gains over constant outputs on average over q, up to which it gains nothing
IN_PREDICTIONS = 0.15  # the same for the mean of the densities, which is never worse


@dataclass(frozen=True)
class Terms:
    """The two terms of the objective: ``kl``, KL(q‖p) in nats, and ``nll``, E_q[−log p(y|f)] of an example."""

    kl: float
    nll: float


@dataclass(frozen=True)
class Layer:
    """What q has learnt in a layer: its part of the divergence, in nats, and the share of weights ``at_prior``."""

    kl: float
    weights: int
    at_prior: float


@dataclass(frozen=True)
class Collapse:
    """Whether a posterior has collapsed onto its prior, and the figures behind the verdict.

    ``start``, ``end``: both terms of the objective, before training and after; ``start`` None: not known. ``constant``:
    mean −log p(y|f) of the best outputs f that do not depend on the inputs. ``predictive``: mean −log p(y|x, D), the
    densities averaged over q. ``at_prior``: the share of weights whose q is within 0.05 nats of the prior.
    ``temperature``: η. ``balanced``: the η to try, p/N of examples and parameters, or a tenth of η if that is not less.
    ``collapsed``: at least 95 % of the weights are at the prior, and over constant outputs an example gains less than
    0.05 nats on average over q, and less than 0.15 in predictions.
    """

    collapsed: bool
    temperature: float
    balanced: float
    examples: float
    start: Terms | None
    end: Terms
    constant: float
    predictive: float
    at_prior: float
    layers: Mapping[str, Layer]

    def ratio(self, at: str = "end") -> float | None:
        """p·E_q[−log p(y|f)] / (η·KL(q‖p)) at ``"start"`` or ``"end"``: what the data weigh beside the prior."""
        terms = self.start if at == "start" else self.end
        if terms is None or terms.kl == 0:
            return None
        return self.examples * terms.nll / (self.temperature * terms.kl)

    @property
    def says(self) -> str:
        """The verdict in a sentence."""
        figures = (
            f"{self.at_prior:.0%} of the weights are as the prior has them, and −log p(y|x, D) of an example is "
            f"{self.predictive:.3g}, against {self.constant:.3g} without a look at the inputs"
        )
        if self.collapsed:
            return (
                f"the posterior has collapsed onto the prior: {figures}. At temperature {self.temperature:.3g} the "
                f"prior outweighs the data: try temperature={self.balanced:.3g}, and br.Balanced() for any width"
            )
        if self.constant - self.predictive < UNDER_Q:
            return f"the posterior has learnt nothing of the inputs, though it is not the prior: {figures}"
        return f"the posterior listens to the data: {figures}"

    def __str__(self) -> str:
        rows = [self.says, f"{'layer':<24} {'weights':>8} {'KL(q‖p)':>10} {'at the prior':>13}"]
        for name, layer in self.layers.items():
            rows.append(f"{name or 'the module':<24} {layer.weights:>8} {layer.kl:>10.4g} {layer.at_prior:>12.1%}")
        for at, terms in (("start", self.start), ("end", self.end)):
            if terms is not None and (ratio := self.ratio(at)) is not None:
                rows.append(
                    f"{at}: likelihood {self.examples * terms.nll:.4g}, η·KL {self.temperature * terms.kl:.4g}, "
                    f"ratio {ratio:.3g}"
                )
        return "\n".join(rows)

    def to_json(self) -> dict[str, Any]:
        """Plain data, with the ratios and the sentence."""
        ratios = {"start": self.ratio("start"), "end": self.ratio("end")}
        return asdict(self) | {"ratios": ratios, "says": self.says}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Collapse:
        """Undo `to_json`."""
        fields = {name: value for name, value in plain.items() if name not in ("ratios", "says")}
        start = None if plain["start"] is None else Terms(**plain["start"])
        layers = {name: Layer(**layer) for name, layer in plain["layers"].items()}
        return cls(**{**fields, "start": start, "end": Terms(**plain["end"]), "layers": layers})


def some_of(task: Task) -> Batch:
    """Examples to look at, from all parts of data in memory, the first of those behind a loader."""
    if not isinstance(task.data, Arrays):
        return next(task.ordered(EXAMPLES))
    rows = torch.linspace(0, task.data.n - 1, min(EXAMPLES, task.data.n)).round().long()
    return task.data.take(rows).all().to(task.device)


def terms(posterior: Posterior, prior: Prior, batch: Batch) -> Terms | None:
    """Both terms of the objective; None if q is no Gaussian, or the prior has no divergence in closed form."""
    divergence = _divergence(posterior, prior)
    if divergence is None:
        return None
    return Terms(divergence, _mean(_log_probs(posterior, batch).mean(0), batch))


def diagnose(
    posterior: Posterior, prior: Prior, batch: Batch, temperature: float, examples: float, start: Terms | None = None
) -> Collapse | None:
    """Whether a Gaussian posterior has collapsed; None where `terms` knows none.

    ``batch``: examples of the training, in the network's units. ``examples``: how many there were in all.
    """
    divergence = _divergence(posterior, prior)
    if divergence is None:
        return None
    assert isinstance(posterior, Gaussian)
    log_probs = _log_probs(posterior, batch)
    expected = _mean(log_probs.mean(0), batch)
    predictive = _mean(log_mean(log_probs), batch)
    constant = _constant(posterior, batch)
    each = _by_weight(posterior, prior)
    weights = sum(w.numel() for w in posterior.mean.values())
    at_prior = sum(float((kl < AT_PRIOR).sum()) for kl in each.values()) / weights
    silent = constant - expected < UNDER_Q and constant - predictive < IN_PREDICTIONS
    balanced = examples / weights
    return Collapse(
        collapsed=at_prior >= MOST and silent,
        temperature=temperature,
        balanced=balanced if balanced < temperature else temperature / 10,
        examples=examples,
        start=start,
        end=Terms(divergence, expected),
        constant=constant,
        predictive=predictive,
        at_prior=at_prior,
        layers=_layers(each),
    )


@torch.no_grad()
def _log_probs(posterior: Posterior, batch: Batch) -> Tensor:
    """log p(y|f) of draws and examples, [S, B], in float64."""
    generator = torch.Generator(modules.device_of(posterior.model)).manual_seed(0)
    outputs = posterior.outputs(batch.x, DRAWS, generator)
    y = posterior.likelihood.check(outputs[0], batch.y)  # which those of a loader have not been yet
    return torch.stack([posterior.likelihood.log_prob(f, y) for f in outputs]).double()


def _mean(log_prob: Tensor, batch: Batch) -> float:
    """Minus the mean over examples, each as often as its weight says."""
    return -float(mean_over(log_prob, batch.weight))


def _divergence(posterior: Posterior, prior: Prior) -> float | None:
    """KL(q‖p) of the product of q's marginals."""
    if not isinstance(posterior, Gaussian) or set(posterior.mean) != set(modules.parameters(posterior.context.model)):
        return None
    # in double precision: next to the prior it is a small difference of large sums
    mean, std = modules.flatten(posterior.mean).double(), modules.flatten(posterior.std).double()
    found = prior.divergence(mean, std, posterior.mean)
    return None if found is None else float(found)


@torch.no_grad()
def _by_weight(posterior: Gaussian, prior: Prior) -> modules.Parameters:
    """KL(q‖p) of each weight; under a prior that is no Gaussian each has the mean of its parameter."""
    found: modules.Parameters = {}
    try:
        means, precisions = prior.mean_field(posterior.mean)
    except ValueError:
        for name, m in posterior.mean.items():
            part = prior.divergence(m.flatten(), posterior.std[name].flatten(), {name: m})
            each = torch.zeros_like(m) if part is None else part / m.numel()
            found[name] = torch.as_tensor(each).expand(m.shape)
        return found
    for name, m in posterior.mean.items():
        variance, precision = posterior.std[name].double().square(), precisions[name]
        squares = precision * ((m.double() - means[name]).square() + variance)
        found[name] = 0.5 * (squares - 1 - (precision * variance).log())
    return found


def _layers(each: modules.Parameters) -> dict[str, Layer]:
    """The same summed up over the parameters of each layer."""
    parts: dict[str, list[Tensor]] = {}
    for name, kl in each.items():
        parts.setdefault(name.rpartition(".")[0], []).append(kl.flatten())
    layers = {}
    for name, part in parts.items():
        flat = torch.cat(part)
        layers[name] = Layer(float(flat.sum()), flat.numel(), float((flat < AT_PRIOR).double().mean()))
    return layers


def _constant(posterior: Posterior, batch: Batch) -> float:
    """Mean −log p(y|f) of the best outputs f that are the same for all inputs, with the unknowns best for them."""
    with torch.no_grad():
        generator = torch.Generator(modules.device_of(posterior.model)).manual_seed(0)
        drawn = posterior.outputs(batch.x, 1, generator)[0]
    likelihood, like = posterior.likelihood, drawn[0].double()
    y = likelihood.check(drawn, batch.y)
    if y.is_floating_point():
        y = y.double()
    free = {name: u.detach().double().requires_grad_() for name, u in likelihood.unknowns().items()}
    output = torch.zeros_like(like).requires_grad_()
    optimizer = torch.optim.LBFGS([output, *free.values()], max_iter=100, line_search_fn="strong_wolfe")

    @torch.enable_grad()
    def loss() -> Tensor:
        optimizer.zero_grad()
        value = -mean_over(_at(likelihood.with_unknowns(free), output, y), batch.weight)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        return -float(mean_over(_at(likelihood.with_unknowns(free), output, y), batch.weight))


def _at(likelihood: Likelihood, output: Tensor, y: Tensor) -> Tensor:
    return likelihood.log_prob(output.expand(len(y), *output.shape), y)
