"""VON: the variational online Newton method, by second derivatives."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from bayesrule import processes
from bayesrule.optim.flat import FlatGroup
from bayesrule.optim.natural import Natural, NaturalSettings
from bayesrule.seeds import mixed


class VON(Natural):
    """Newton's method for the mean of a Gaussian, with the Hessian at drawn weights (Khan et al. 2018).

        h ← β₂h + (1 − β₂)ĥ,    m ← m − α·(ḡ/(1 − β₁ᵗ) + δm)/(h + δ)

    with α = lr·(h₀ + δ). ĥ = v·(Hv) with random signs v: its mean is the Hessian's diagonal, and it is exact where the
    Hessian is diagonal. The gradients have to be differentiable: ``loss.backward(create_graph=True)``. As a Hessian may
    be negative, h has IVON's correction of second order in 1 − β₂, which keeps h + δ positive.

    Its arguments are those of `Natural`.

    >>> from torch import nn
    >>> model, x = nn.Linear(3, 1), torch.randn(8, 3)
    >>> optimizer = VON(model.parameters(), lr=0.1, ess=8)
    >>> with optimizer.sampled():
    ...     model(x).square().mean().backward(create_graph=True)
    >>> optimizer.step()
    """

    twice = True
    whole = True
    own_defaults = NaturalSettings(betas=(0.9, 0.9999))

    @contextmanager
    def sampled(self) -> Iterator[None]:
        """As `Natural.sampled`, without torch's warning of gradients that can be differentiated."""
        with super().sampled(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Using backward", UserWarning)
            yield

    def _observe(self, flat: FlatGroup) -> Tensor:
        """v·(Hv) for random signs v, zero where the gradient does not depend on the weights."""
        if not any(_depends(p) for group in self.param_groups for p in group["params"]):
            raise RuntimeError("VON looks at second derivatives: call loss.backward(create_graph=True)")
        signs = flat.room().bernoulli_(
            generator=flat.generator.manual_seed(mixed(self.seed, processes.rank(), self.draws))
        )
        parts = zip(flat.params, flat.views(signs.mul_(2).sub_(1)), strict=True)
        slopes = [(p.grad, sign) for p, sign in parts if _depends(p)]
        if not slopes:
            return signs.zero_()
        outputs, along = zip(*slopes, strict=True)
        found = torch.autograd.grad(outputs, flat.params, along, retain_graph=True, materialize_grads=True)
        return signs.mul_(torch.cat([part.reshape(-1) for part in found]))

    def _learn(self, flat: FlatGroup) -> None:
        flat.seen.div_(flat.precision)
        self._curve(flat, 1.0)
        self._move(flat)


def _depends(p: Tensor) -> bool:
    """Whether the gradient can be differentiated again."""
    return p.grad is not None and p.grad.requires_grad
