"""What is to be learnt: a module, data, a likelihood, a prior and a temperature."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule import likelihoods, modules, priors, seeds, temperatures
from bayesrule.data import Arrays, Batch, Data, Inputs, as_data, inputs
from bayesrule.likelihoods import Likelihood
from bayesrule.modules import Parameters
from bayesrule.priors import Prior
from bayesrule.temperatures import Temperature, Tempering

FEW = 30  # a mean count above which Poisson's noise is as good as normal


@dataclass(frozen=True, eq=False)
class Task:
    """Model, data, likelihood, prior and temperature, checked against each other by `Task.create`.

    The loss of a batch is the mean of −log p(y|f) plus (η/N)·(−log p(w)), for temperature η and N examples. An example
    of weight w counts as w of them: −log p(y|f) is multiplied by w, and N is the sum of the weights.

    ``prior`` is bound to the model, ``belief`` is the one that it was made of, and ``believed`` whether the user has
    said so, rather than left it open. ``autocast``: of forward passes. ``tempering``: what ``temperature`` is η of, if
    it was asked for by name; a cold posterior's has tempered ``prior`` too. ``targets``: numbers of y of one example,
    such as pixels, as which it counts in such a temperature.
    """

    model: nn.Module
    data: Data
    likelihood: Likelihood
    prior: Prior
    temperature: float = 1.0
    autocast: str | None = None
    belief: Prior | None = None
    believed: bool = False
    tempering: Temperature | None = None
    targets: int = 1

    @classmethod
    def create(
        cls,
        model: nn.Module,
        train: Any,
        likelihood: str | Likelihood | None = None,
        prior: str | float | Prior | None = None,
        temperature: Tempering = 1.0,
        autocast: str | None = None,
    ) -> Task:
        """A task from what users have. The model is copied; everything is checked before any training.

        >>> task = Task.create(nn.Linear(2, 1), (torch.randn(8, 2), torch.randn(8)))
        >>> task.likelihood.name, task.weight
        ('gaussian', 0.125)
        """
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
        asked = temperatures.choose(temperature)
        if autocast not in (None, "bfloat16"):
            raise ValueError(f"autocast must be 'bfloat16', or None for the model's own dtype, not {autocast!r}")
        modules.check(model)
        model = modules.twin(model, shared=()).eval()  # frozen parameters too: the user may go on to train them
        data = as_data(train).to(modules.dtype_of(model))
        batch, outputs = _peek(model, data)
        if likelihood is None:  # by all targets that are at hand: the first few reals may be zeros and ones
            chosen = likelihoods.infer(outputs, data.y if isinstance(data, Arrays) else batch.y)
            if isinstance(data, Arrays) and chosen.kind == "reals":
                _advise_counts(data)
        else:
            chosen = likelihoods.choose(likelihood)
        if data.scaling.targets is not None and not chosen.rescales_targets:
            raise ValueError(
                f"the data's targets are standardised, but {chosen} counts in its own units: "
                'standardise the inputs only, br.data.standardize(..., targets="keep")'
            )
        if isinstance(data, Arrays):  # a loader's targets are checked as they come
            # all targets, against outputs that take no memory: only their shape is looked at
            shaped = outputs[:1].expand(data.n, *outputs.shape[1:])
            data = data.replaced(data.x, chosen.check(shaped, data.y), data.weight)
            chosen = chosen.placed(data.y)  # by all of them, which the first need not be like
            first = data.y[: len(outputs)].to(outputs.device)
        else:
            first = chosen.check(outputs, batch.y)
        weight = None if batch.weight is None or not bool(batch.weight.any()) else batch.weight
        chosen = chosen.matched(outputs, first, weight)
        _advise_scaling(batch, data, chosen)
        if isinstance(chosen, likelihoods.Categorical):
            _advise_logits(outputs)
        belief = priors.Gaussian(chosen.prior_scale) if prior is None else priors.choose(prior)
        resolved = belief.resolve(model)
        untempered = cls(model, data, chosen, resolved, 1.0, autocast, belief, believed=prior is not None)
        if isinstance(asked, float):
            return replace(untempered, temperature=asked)
        return replace(untempered, tempering=asked, targets=first[0].numel()).with_data(data)

    @property
    def tempered_as(self) -> str | None:
        """What the temperature by name came to, in a sentence."""
        if self.tempering is None:
            return None
        return self.tempering.says(self.model, self.targets * self.data.total)

    @property
    def weight(self) -> float:
        """η/N: what the prior, or a divergence from it, counts in a loss that is a mean over examples."""
        return self.temperature / self.data.total

    @cached_property  # asked for in every step
    def device(self) -> torch.device:
        """That of the model: the device that everything else follows."""
        return next(self.model.parameters()).device

    def batches(self, batch_size: int, seed: int) -> Iterator[Batch]:
        """One epoch in the order that ``seed`` says, on the model's device."""
        device = self.device
        return (batch.to(device) for batch in self.data.batches(batch_size, seed))

    def ordered(self, batch_size: int) -> Iterator[Batch]:
        """Every example once, in the data's own order, on the model's device."""
        device = self.device
        return (batch.to(device) for batch in self.data.ordered(batch_size))

    def outputs(self, network: nn.Module, x: Inputs) -> Tensor:
        """The outputs of a network like the model, in its dtype; computed in ``autocast``."""
        if self.autocast is None:
            return modules.call(network, x)
        with torch.autocast(self.device.type, torch.bfloat16):
            outputs = modules.call(network, x)
        return outputs.to(modules.dtype_of(self.model))

    def nll(self, outputs: Tensor, y: Tensor, likelihood: Likelihood, weight: Tensor | None = None) -> Tensor:
        """Mean −log p(y|f) of a batch under a likelihood, that of the task or one with better unknowns.

        ``weight``: of the batch's examples. The mean is Σ w_i (−log p_i) over the sum of as many average weights, so
        that the mean over all batches is that over all examples, each counted w_i times.
        """
        if not isinstance(self.data, Arrays):
            y = likelihood.check(outputs, y)
        log_prob = likelihood.log_prob(outputs, y)
        if weight is None:
            return -log_prob.mean()
        return -(weight.to(log_prob) * log_prob).mean() * (self.data.n / self.data.total)

    def total_nll(self, outputs: Tensor, batch: Batch, likelihood: Likelihood) -> Tensor:
        """Σ w_i (−log p(y_i|f_i)) of a batch."""
        mean = self.nll(outputs, batch.y, likelihood, batch.weight)
        return mean * len(batch.y) * (self.data.total / self.data.n)

    def loss(
        self, outputs: Tensor, y: Tensor, likelihood: Likelihood, penalty: Tensor, weight: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Mean −log p(y|f) + (η/N)·penalty, and its two terms apart; ``penalty`` is −log p(w)."""
        nll = self.nll(outputs, y, likelihood, weight)
        penalty = self.weight * penalty
        loss = nll + penalty
        return loss, {"loss": loss.detach(), "nll": nll.detach(), "penalty": penalty.detach()}

    @property
    def prior_power(self) -> float:
        """The power to which what is believed of the weights counts: 1/T for a cold posterior, one otherwise."""
        return 1 / self.temperature if self.tempering is not None and self.tempering.tempers_prior else 1.0

    def with_prior(self, prior: Prior) -> Task:
        """The same task under another belief."""
        resolved = prior.resolve(self.model)
        if self.tempering is not None:
            resolved = self.tempering.tempered(resolved, self.temperature)
        return replace(self, prior=resolved, belief=prior, believed=True)

    def with_data(self, data: Data) -> Task:
        """The same task on other data, with the temperature that belongs to so many examples."""
        if self.tempering is None:
            return replace(self, data=data)
        assert self.belief is not None
        temperature = self.tempering.resolve(self.model, self.targets * data.total)
        prior = self.tempering.tempered(self.belief.resolve(self.model), temperature)
        return replace(self, data=data, temperature=temperature, prior=prior)

    def with_model(self, model: nn.Module) -> Task:
        """The same task from another start."""
        return replace(self, model=model)

    def parameters(self) -> Mapping[str, Tensor]:
        """The model's trainable parameters."""
        return modules.parameters(self.model)


def units(task: Task) -> float:
    """log scale of the targets, summed over those of an example: a density of standardised ones is that much larger."""
    targets = task.data.scaling.targets
    if targets is None:
        return 0.0
    shape = next(task.ordered(1)).y[0].shape
    return float(targets.scale.log().expand(shape).sum())


def _peek(model: nn.Module, data: Data) -> tuple[Batch, Tensor]:
    """The first examples and the model's outputs on them; its buffers, and torch's random state, stay as they were."""
    size = inputs.block(next(iter(data.ordered(64))).x)
    device = next(model.parameters()).device
    batch = next(iter(data.ordered(size))).to(device)
    buffers = modules.copies(dict(model.named_buffers()))  # which a pass may change
    with seeds.untouched(device):
        with torch.no_grad():
            outputs = modules.try_call(model, batch.x, state=buffers or None)
        if not outputs.is_floating_point():
            raise TypeError(f"the model must give real numbers, such as logits, not {outputs.dtype}")
        if not bool(outputs.isfinite().all()):
            raise ValueError(
                "the model gives NaN or infinite outputs before training: check its weights and the inputs' scale"
            )
        _check_graph(model, batch.x, buffers)
    return batch, outputs


def _check_graph(model: nn.Module, x: Inputs, buffers: Parameters) -> None:
    """Refuse a module that changes its inputs where torch cannot see it, or whose outputs no weight can be learnt from.

    By a pass of two examples, since it keeps what a derivative needs; and one in training mode, if it takes that.
    """
    few = inputs.each(lambda t: t[:2], x)
    given = inputs.each(inputs.duplicate, few)
    connected = modules.try_call(model, given, state=buffers or None).requires_grad
    for (name, part), (_, before) in zip(inputs.named(given), inputs.named(few), strict=True):
        if not torch.equal(part, before):
            raise ValueError(
                f"{type(model).__name__} changes its inputs ({name}) where torch cannot see it, by .data or numpy: let "
                "its forward work on a copy, x = x.clone()"
            )
    if not connected:
        twin = modules.training_mode(modules.twin(model))
        try:
            connected = modules.call(twin, few).requires_grad
        except (RuntimeError, ValueError):  # such as BatchNorm of too few examples
            connected = False
    if not connected:
        names = ", ".join(map(repr, modules.parameters(model)))
        raise ValueError(
            f"the outputs of {type(model).__name__} do not depend on any of its trainable parameters ({names}) by a "
            "graph: a detach(), .data, .item() or torch.no_grad() in its forward cuts it, so that nothing can be learnt"
        )


def _advise_scaling(batch: Batch, data: Data, likelihood: Likelihood) -> None:
    """Warn of a table or of real targets on a scale that a new network does not reach."""
    x, noise = batch.x, getattr(likelihood, "noise", None)
    if data.scaling.inputs is None and isinstance(x, Tensor) and x.ndim == 2 and x.is_floating_point():
        largest = float(x.abs().max())
        if largest > 100:
            _advise(f"inputs reach {largest:.3g}")
    if data.scaling.targets is None and isinstance(noise, Tensor):
        largest = float(noise.max())
        if largest > 10:
            _advise(f"targets are off the model's outputs by {largest:.3g}")


def _advise_counts(data: Arrays) -> None:
    """Warn of reals that are whole numbers from 0 up, and so small that normal noise would be a bad guess of counts."""
    y = data.y.double()
    if data.scaling.targets is not None:
        y = data.scaling.targets.inverse(y)
    # within the rounding of single precision, in which targets may have been standardised
    whole = bool(((y > -0.5) & ((y - y.round()).abs() < 1e-4)).all())
    if whole and 0 < float(y.mean()) < FEW:
        warnings.warn(
            f"y holds whole numbers from 0 up, {float(y.mean()):.3g} in the mean, and is taken for reals: if they "
            'count something, pass likelihood="poisson" or "negative-binomial", and y as it is; else "gaussian"',
            stacklevel=4,
        )


def _advise_logits(outputs: Tensor) -> None:
    """Warn of a network that ends in a softmax: the likelihood takes another one of its outputs."""
    if bool(((outputs < 0) | (outputs > 1)).any()):
        return
    if bool(((outputs.sum(1) - 1).abs() > torch.finfo(outputs.dtype).eps ** 0.5).any()):
        return
    warnings.warn(
        "the model's outputs are probabilities, each row between 0 and 1 with the sum 1, but the categorical "
        "likelihood takes logits, of which it makes probabilities itself: leave out the softmax at its end",
        stacklevel=4,
    )


def _advise(what: str) -> None:
    warnings.warn(
        f"{what}: networks learn badly on such a scale. If the model was not trained on it, pass "
        "br.data.standardize((X, y)) as train; predictions still take and give your units",
        stacklevel=5,
    )
