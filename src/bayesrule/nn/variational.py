"""A mean-field Gaussian over the parameters of any module, to be trained by gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import softplus

from bayesrule import likelihoods, modules, priors, shards
from bayesrule.data import Scaling
from bayesrule.likelihoods import Likelihood
from bayesrule.modules import Parameters
from bayesrule.nn import initial
from bayesrule.nn.checks import check_model, check_settings
from bayesrule.nn.estimators import ESTIMATORS, Bare, fast_layers
from bayesrule.posteriors import Context, Gaussian
from bayesrule.priors import Prior
from bayesrule.seeds import untouched
from bayesrule.structures import Diagonal


def bayesianize(
    model: nn.Module,
    prior: str | float | Prior | None = None,
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
        initial_std: the first σ, by value or by the name of a scale rule; no wider than the prior where that is
            Gaussian.
        initial_mean: a scale rule to draw the first means by, instead of the model's own weights.

    >>> bnn = bayesianize(nn.Linear(2, 1), initial_std=1.0)
    >>> x, y = torch.randn(8, 2), torch.randn(8, 1)
    >>> nll = (bnn(x) - y).square().mean() / 2
    >>> bnn.objective(nll, weight=1 / 8).backward()
    >>> sorted(bnn.stds)
    ['bias', 'weight']
    """
    check_settings(estimator, gradient, initial_std, initial_mean)
    check_model(model)
    belief = priors.choose("gaussian" if prior is None else prior).resolve(model)
    std = initial.no_wider(initial.deviations(initial_std, model), belief)
    mean = modules.parameters(model) if initial_mean is None else initial.means(initial_mean, model)
    return Variational(model, belief, estimator, gradient, modules.flatten(mean), modules.flatten(std))


class Variational(nn.Module):
    """q(w) = Π_j N(w_j; mean_j, softplus(rho_j)²) over a module's parameters; every call is one draw of them.

    ``mean`` and ``rho`` are its trainable parameters, flat vectors over all of the module's. Made by `bayesianize`.
    """

    def __init__(
        self, module: nn.Module, prior: Prior, estimator: str, gradient: str, mean: Tensor, std: Tensor
    ) -> None:
        super().__init__()
        self.prior, self.estimator, self.gradient = prior, estimator, gradient
        self.module = modules.twin(module)
        self.like = modules.copies(modules.parameters(module))
        fast = fast_layers(self.module) if ESTIMATORS[estimator] else {}
        self.fast = {path: Bare(layer) for path, layer in fast.items()}
        self._settled = not fast
        self.module.requires_grad_(False)
        self.mean = nn.Parameter(mean.detach().clone())
        self.rho = nn.Parameter(inverse_softplus(std.detach()))
        self._drawn: tuple[Tensor, Tensor | None] | None = None  # σ and the weights of the last pass

    @property
    def means(self) -> Parameters:
        """The means by the module's own names."""
        return modules.unflatten(shards.whole(self.mean.detach()), self.like)

    @property
    def stds(self) -> Parameters:
        """The standard deviations by the module's own names."""
        return modules.unflatten(softplus(shards.whole(self.rho.detach())), self.like)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """The module's output under one draw."""
        if not self._settled:
            self.settle(args, kwargs)
        if self.gradient == "score" and self._drawn is not None:
            raise RuntimeError('gradient="score" needs one objective for each pass: call bnn.objective before the next')
        if self.fast:
            std, weights = softplus(self.rho), None
            output = self._noisy_output(std, args, kwargs)
        else:
            std, weights = _Draw.apply(self.mean, self.rho)  # type: ignore[no-untyped-call]
            if self.gradient == "score":  # the gradient comes from log q(w) alone, see `terms`
                weights = weights.detach()
            output = modules.run(self.module, modules.unflatten(weights, self.like), args, kwargs)
        if torch.is_grad_enabled():  # a pass that nobody learns from leaves no trace
            self._drawn = std, weights
        return output

    def settle(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Find out, on a copy, without a trace, which layers are fast: called once, their weights not read elsewhere.

        Weights that are NaN wherever the layer itself does not use them show who else reads them.
        """
        self._settled = True
        if not self.fast:
            return
        twin = modules.twin(self, shared=())
        with torch.no_grad(), untouched(self.mean.device):
            calls: dict[str, int] = {}
            twin._noisy_output(softplus(twin.rho), args, kwargs, calls)
            once = {path: bare for path, bare in self.fast.items() if calls.get(path) == 1}
            self.fast = {}
            for path, bare in once.items():
                twin.fast = {path: bare}
                if not _has_nan(twin._noisy_output(softplus(twin.rho), args, kwargs)):
                    self.fast[path] = bare

    def _noisy_output(
        self, std: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any], calls: dict[str, int] | None = None
    ) -> Tensor:
        """Fast layers under their means with noise on their outputs, everything else under drawn weights.

        A fast layer that is called again in a pass would draw its weights anew, and is an error; with ``calls`` it is
        only counted.
        """
        means, stds = modules.unflatten(self.mean, self.like), modules.unflatten(std, self.like)
        state = {}
        for name, m in means.items():
            if name.rpartition(".")[0] in self.fast:
                # nobody but the layer should read it: NaN shows in the output if somebody does (`settle`)
                hidden = math.nan if calls is None else 0.0
                state[name] = m.new_full((), hidden).expand(m.shape)
            else:
                state[name] = torch.addcmul(m, stds[name], torch.randn_like(m))
        with self._perturbed(means, stds, calls):
            return modules.run(self.module, state, args, kwargs)

    @contextmanager
    def _perturbed(self, means: Parameters, stds: Parameters, calls: dict[str, int] | None) -> Iterator[None]:
        """Within this block fast layers run with their means and add the effect of the weights' noise."""
        perturb = ESTIMATORS[self.estimator]
        assert perturb is not None
        seen: dict[str, int] = {} if calls is None else calls

        def forward(path: str, *args: Any, **kwargs: Any) -> Tensor:
            seen[path] = seen.get(path, 0) + 1
            if seen[path] > 1 and calls is None:
                raise RuntimeError(f'layer {path!r} is called twice in a pass, but once before: use estimator="weight"')
            bare, bias = self.fast[path], layers[path].bias
            x, *rest = args or (kwargs.pop("input"),)
            m, s = {}, {}
            for name in ("weight", "bias"):
                full = f"{path}.{name}" if path else name
                if full in means:
                    m[name], s[name] = means[full], stds[full]
            # a bias that is frozen belongs to the mean, and is zero where the noise goes through the layer
            frozen, quiet = {}, {}
            if isinstance(bias, Tensor) and "bias" not in m:
                frozen["bias"], quiet["bias"] = bias, torch.zeros_like(bias)

            def run(x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
                return bare({**weights, **quiet}, (x, *rest), kwargs)

            return perturb(run, x, bare({**m, **frozen}, (x, *rest), kwargs), s)

        layers = {path: self.module.get_submodule(path) for path in self.fast}
        try:
            for path, layer in layers.items():
                layer.forward = partial(forward, path)
            yield
        finally:
            for layer in layers.values():
                vars(layer).pop("forward", None)

    def objective(self, nll: Tensor, weight: float) -> Tensor:
        """The loss nll + weight·KL(q‖p) for the last pass, with the gradient that was chosen.

        ``nll`` is the mean −log p(y|f) of the pass; ``weight`` is η/N, for temperature η and N examples in all.
        """
        return self.terms(nll, weight)[0]

    def terms(self, nll: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        """The loss, and KL(q‖p): in closed form where there is one and the gradient allows it, else sampled."""
        std, weights = self._drawn or (softplus(self.rho), None)
        self._drawn = None  # a graph is gone through once
        # the path gradient has a small variance only if the divergence is sampled at the weights of the pass
        closed = None if self.gradient == "path" else self.prior.divergence(self.mean, std, self.like)
        divergence = self._sampled_divergence(std, weights) if closed is None else closed
        self._guard(divergence, std)
        loss = nll + weight * divergence
        if self.gradient == "score":
            if weights is None:
                raise RuntimeError('gradient="score" needs a pass for each objective: call the module before')
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
        if divergence.device.type in modules.SYNCHRONOUS and not bool(divergence.isfinite()):
            self._check_range(std.detach())

    def _check_range(self, std: Tensor) -> None:
        for name, s in modules.unflatten(std, self.like).items():
            bad = s[~(s.isfinite() & (s.square() > 0))]
            if bad.numel():
                raise FloatingPointError(
                    f"the deviation of parameter {name!r} has become {float(bad[0])}, not positive and finite: "
                    "lower the learning rate of the deviations, or start from another initial_std"
                )

    def __getstate__(self) -> dict[str, Any]:
        """Without the graph of the last pass, which cannot be copied."""
        return {**self.__dict__, "_drawn": None}

    def posterior(self, likelihood: str | Likelihood, scaling: Scaling | None = None) -> Gaussian:
        """q as a Gaussian posterior over the parameters of the original module.

        Where ``mean`` and ``rho`` are sharded, all processes have to call this: shares are gathered.
        """
        std = softplus(shards.whole(self.rho.detach()))
        self._check_range(std)
        frozen = [p for name, p in self.module.named_parameters() if name not in self.like]
        model = modules.twin(self.module, frozen)
        for name, p in model.named_parameters():
            p.requires_grad_(name in self.like)
        return Gaussian(
            modules.copies(self.means),
            Diagonal(std.square().reciprocal()),
            modules.copies(dict(model.named_buffers())),
            Context(model, likelihoods.choose(likelihood), scaling or Scaling()),
        )


def _has_nan(output: Any) -> bool:
    if isinstance(output, Tensor):
        return bool(output.isnan().any())
    if isinstance(output, dict):
        output = list(output.values())
    return isinstance(output, list | tuple) and any(map(_has_nan, output))


class _Draw(torch.autograd.Function):
    """σ = softplus(ρ) and w = mean + σε as one node, whose way back is dρ = (dσ + ε dw)·sigmoid(ρ)."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
        """The deviations and one draw."""
        std, noise = softplus(rho), torch.randn_like(rho)
        ctx.save_for_backward(rho, noise)
        return std, torch.addcmul(mean, std, noise)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        """What comes to σ and to w, handed on to mean and ρ."""
        rho, noise = ctx.saved_tensors
        to_std, to_w = grads
        return to_w, torch.addcmul(to_std, to_w, noise).mul_(torch.sigmoid(rho))


def log_normal(w: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Σ_j log N(w_j; mean_j, std_j²)."""
    return -(0.5 * ((w - mean) / std).square() + std.log()).sum() - 0.5 * w.numel() * math.log(2 * math.pi)


def inverse_softplus(std: Tensor) -> Tensor:
    """ρ with softplus(ρ) = std."""
    # log(exp(std) − 1) as it stands would overflow for large ones, and lose all digits of small ones
    return std + torch.log(-torch.expm1(-std))
