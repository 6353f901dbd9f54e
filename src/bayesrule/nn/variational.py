"""A mean-field Gaussian over the parameters of any module, to be trained by gradients."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.nn.parameter import UninitializedParameter

from bayesrule import likelihoods, modules, priors
from bayesrule.data import Scaling
from bayesrule.likelihoods import Likelihood
from bayesrule.modules import Parameters
from bayesrule.naming import unknown
from bayesrule.nn import initial
from bayesrule.nn.estimators import ESTIMATORS, as_function, fast_layers
from bayesrule.posteriors import Context, Gaussian
from bayesrule.priors import Prior
from bayesrule.structures import Diagonal

GRADIENTS = ("total", "path", "score")


def bayesianize(
    model: nn.Module,
    prior: str | Prior | None = None,
    estimator: str = "weight",
    gradient: str = "total",
    initial_std: float | str = 0.02,
    initial_mean: str | None = None,
) -> Variational:
    """A copy of the module under weights from q(w) = Π_j N(w_j; mean_j, σ_j²), σ = softplus(ρ), to be trained.

    It goes by parameter, not by layer: whatever the module does with its parameters, they are drawn. With another
    ``estimator`` than ``"weight"`` the layers Linear and Conv, transposed or not, draw the noise of their outputs
    instead (see `bayesrule.nn.estimators`), where they are called once in a pass and own their weights alone.

    Args:
        model: any module with trainable parameters; it is copied. Its weights are the first means.
        prior: p(w), by default N(0, 1).
        estimator: ``"weight"``, ``"local-reparam"`` or ``"flipout"``: where the noise is drawn.
        gradient: ``"total"``; ``"path"``, without the score of q (Roeder 2017): its variance vanishes where q is the
            posterior; or ``"score"``, which needs no derivative of the network. The last two look at the drawn weights,
            so they need the estimator ``"weight"``.
        initial_std: the first σ, by value or by the name of a scale rule.
        initial_mean: a scale rule to draw the first means by, instead of the model's own weights.

    >>> bnn = bayesianize(nn.Linear(2, 1), initial_std=1.0)
    >>> x, y = torch.randn(8, 2), torch.randn(8, 1)
    >>> nll = (bnn(x) - y).square().mean() / 2
    >>> bnn.objective(nll, weight=1 / 8).backward()
    >>> sorted(bnn.stds)
    ['bias', 'weight']
    """
    check_settings(estimator, gradient, initial_std, initial_mean)
    _check(model)
    belief = priors.choose("gaussian" if prior is None else prior).resolve(model)
    std = initial.deviations(initial_std, model)
    mean = modules.parameters(model) if initial_mean is None else initial.means(initial_mean, model)
    return Variational(model, belief, estimator, gradient, modules.flatten(mean), modules.flatten(std))


def check_settings(estimator: str, gradient: str, initial_std: float | str, initial_mean: str | None) -> None:
    """Refuse what `bayesianize` would refuse of any module."""
    if estimator not in ESTIMATORS:
        raise unknown("estimator", estimator, ESTIMATORS)
    if gradient not in GRADIENTS:
        raise unknown("gradient", gradient, GRADIENTS)
    if gradient != "total" and estimator != "weight":
        raise ValueError(f'gradient={gradient!r} looks at the drawn weights: it needs estimator="weight"')
    for rule in (initial_std, initial_mean):
        if isinstance(rule, str) and rule not in priors.RULES:
            raise unknown("initialisation rule", rule, priors.RULES)
    if not isinstance(initial_std, str) and not (math.isfinite(initial_std) and initial_std > 0):
        raise ValueError(f"initial_std must be positive and finite, not {initial_std}")


class Variational(nn.Module):
    """q(w) = Π_j N(w_j; mean_j, softplus(rho_j)²) over a module's parameters; every call is one draw of them.

    ``mean`` and ``rho`` are its trainable parameters, flat vectors over all of the module's. Made by `bayesianize`.
    """

    def __init__(
        self, module: nn.Module, prior: Prior, estimator: str, gradient: str, mean: Tensor, std: Tensor
    ) -> None:
        super().__init__()
        self.prior, self.estimator, self.gradient = prior, estimator, gradient
        self.module = copy.deepcopy(module)
        self.like = modules.copies(modules.parameters(module))
        fast = fast_layers(self.module) if ESTIMATORS[estimator] else {}
        self.fast = {path: as_function(layer) for path, layer in fast.items()}
        self.module.requires_grad_(False)
        self.mean = nn.Parameter(mean.detach().clone())
        self.rho = nn.Parameter(inverse_softplus(std.detach()))
        self._drawn: tuple[Tensor, Tensor | None] | None = None  # σ and the weights of the last pass

    @property
    def means(self) -> Parameters:
        """The means by the module's own names."""
        return modules.unflatten(self.mean.detach(), self.like)

    @property
    def stds(self) -> Parameters:
        """The deviations by the module's own names."""
        return modules.unflatten(softplus(self.rho.detach()), self.like)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """The module's output under one draw."""
        if self.fast:
            std = softplus(self.rho)
            self._drawn = std, None
            return self._noisy_outputs(std, args, kwargs)
        std, weights = _Draw.apply(self.mean, self.rho)  # type: ignore[no-untyped-call]
        if self.gradient == "score":
            weights = weights.detach()
        self._drawn = std, weights
        return modules.run(self.module, modules.unflatten(weights, self.like), args, kwargs)

    def _noisy_outputs(self, std: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Fast layers under their means with noise on their outputs, everything else under drawn weights.

        A layer that turns out not to be called just once, as it must be for its noise to be that of its weights, is
        fast no longer, and the pass is made again.
        """
        means, stds = (modules.unflatten(vector, self.like) for vector in (self.mean, std))
        while True:
            slow = [name for name in self.like if name.rpartition(".")[0] not in self.fast]
            drawn = {name: torch.addcmul(means[name], stds[name], torch.randn_like(stds[name])) for name in slow}
            with self._perturbed(stds) as calls:
                output = modules.run(self.module, means | drawn, args, kwargs)
            wrong = [path for path, count in calls.items() if count != 1]
            if not wrong:
                return output
            for path in wrong:
                del self.fast[path]

    @contextmanager
    def _perturbed(self, stds: Parameters) -> Iterator[dict[str, int]]:
        """Within this block the outputs of fast layers have noise added; gives how often each was called."""
        calls = dict.fromkeys(self.fast, 0)
        perturb = ESTIMATORS[self.estimator]
        assert perturb is not None

        def hook(path: str, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Tensor:
            calls[path] += 1
            x, *rest = args or (kwargs["input"],)
            kwargs = {k: v for k, v in kwargs.items() if k != "input"}

            def run(x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
                return self.fast[path](weights, (x, *rest), kwargs)

            prefix = f"{path}." if path else ""
            own = {k: stds[prefix + k] for k in ("weight", "bias") if prefix + k in stds}
            return perturb(run, x, output, own)

        handles = [
            self.module.get_submodule(path).register_forward_hook(partial(hook, path), with_kwargs=True)
            for path in self.fast
        ]
        try:
            yield calls
        finally:
            for handle in handles:
                handle.remove()

    def objective(self, nll: Tensor, weight: float) -> Tensor:
        """The loss nll + weight·KL(q‖p) for the last pass, with the gradient that was chosen.

        ``nll`` is the mean −log p(y|f) of the pass; ``weight`` is η/N, for temperature η and N examples in all.
        """
        return self.terms(nll, weight)[0]

    def terms(self, nll: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        """The loss, and KL(q‖p): in closed form where there is one and the gradient allows it, else sampled."""
        std, weights = self._drawn or (softplus(self.rho), None)
        self._drawn = None  # a graph is gone through once
        closed = None if self.gradient == "path" else self.prior.divergence(self.mean, std, self.like)
        divergence = self._sampled_divergence(std, weights) if closed is None else closed
        self._guard(divergence, std)
        loss = nll + weight * divergence
        if self.gradient == "score":
            assert weights is not None, "the objective is that of the last pass: call the module before"
            log_q = log_normal(weights, self.mean, std)
            cost = (loss if closed is None else nll).detach()
            loss = loss + cost * (log_q - log_q.detach())  # nothing, with the gradient cost·∇ log q
        return loss, divergence

    def divergence(self) -> Tensor | None:
        """KL(q‖p) in closed form, or None if there is no closed form."""
        return self.prior.divergence(self.mean, softplus(self.rho), self.like)

    @torch.no_grad()
    def divergences(self) -> Parameters:
        """KL(q‖p) of each parameter, where the prior has it in closed form and as a sum over parameters."""
        found = {}
        for name, w in self.like.items():
            part = self.prior.divergence(self.means[name].flatten(), self.stds[name].flatten(), {name: w})
            if part is None:
                return {}
            found[name] = part
        return found

    def _sampled_divergence(self, std: Tensor, weights: Tensor | None) -> Tensor:
        """log q(w) − log p(w) at the drawn weights, fresh ones if the pass drew none, or its like with the same mean.

        The total derivative of log q(w) is that of minus the entropy, whatever the draw; so is its mean. Without q's
        own parameters, only the path through w is left.
        """
        if weights is None:
            weights = torch.addcmul(self.mean, std, torch.randn_like(std))
        log_p = self.prior.log_prob(modules.unflatten(weights, self.like))
        if self.gradient == "path":
            return log_normal(weights, self.mean.detach(), std.detach()) - log_p
        if self.gradient == "score":
            return log_normal(weights, self.mean, std).detach() - log_p
        return -(std.log().sum() + 0.5 * std.numel() * math.log(2 * math.pi * math.e)) - log_p

    def _guard(self, divergence: Tensor, std: Tensor) -> None:
        if bool(divergence.isfinite()):
            return
        for name, s in modules.unflatten(std.detach(), self.like).items():
            bad = s[~(s.isfinite() & (s > 0))]
            if bad.numel():
                raise FloatingPointError(
                    f"the deviation of parameter {name!r} has become {float(bad[0])}, not positive and finite: "
                    "lower the learning rate of the deviations, or start from another initial_std"
                )

    def posterior(self, likelihood: str | Likelihood, scaling: Scaling | None = None) -> Gaussian:
        """q as a Gaussian posterior over the parameters of the original module."""
        model = copy.deepcopy(self.module)
        for name, p in model.named_parameters():
            p.requires_grad_(name in self.like)
        return Gaussian(
            modules.copies(self.means),
            Diagonal(softplus(self.rho).detach().square()),
            modules.copies(modules.fixed(model)),
            Context(model, likelihoods.choose(likelihood), scaling or Scaling()),
        )


class _Draw(torch.autograd.Function):
    """σ = softplus(ρ) and w = mean + σε as one node, whose way back is dρ = (dσ + ε dw)·sigmoid(ρ)."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
        """The deviations and one draw."""
        std, noise = softplus(rho), torch.randn_like(rho)
        ctx.save_for_backward(rho, noise)
        return std, torch.addcmul(mean, std, noise)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        """What comes to σ and to w, handed on to mean and ρ."""
        rho, noise = ctx.saved_tensors
        to_std, to_w = grads
        return to_w, torch.addcmul(to_std, to_w, noise).mul_(torch.sigmoid(rho))


def log_normal(w: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Σ_j log N(w_j; mean_j, std_j²)."""
    return -(0.5 * ((w - mean) / std).square() + std.log()).sum() - 0.5 * w.numel() * math.log(2 * math.pi)


def inverse_softplus(std: Tensor) -> Tensor:
    """ρ with softplus(ρ) = std, also where exp would overflow or lose all digits."""
    return std + torch.log(-torch.expm1(-std))


def _check(model: nn.Module) -> None:
    """Refuse, by name, what cannot be drawn."""
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError("a scripted module cannot run under other weights: pass the module it was scripted from")
    trainable = modules.parameters(model)
    if not trainable:
        raise ValueError(f"the model ({type(model).__name__}) has no trainable parameters: there is nothing to draw")
    first, dtype = next((name, p.dtype) for name, p in trainable.items())
    for name, p in trainable.items():
        if isinstance(p, UninitializedParameter):
            raise ValueError(
                f"parameter {name!r} has no shape yet: call the model once on a batch before converting it"
            )
        if not p.is_floating_point():
            raise TypeError(f"parameter {name!r} is {p.dtype}: a normal distribution needs real weights; freeze it")
        if p.dtype != dtype:
            raise TypeError(
                f"parameter {name!r} is {p.dtype} but {first!r} is {dtype}: q needs one dtype, such as model.float()"
            )
        if not bool(p.isfinite().all()):
            raise ValueError(f"parameter {name!r} holds NaN or infinite values")
