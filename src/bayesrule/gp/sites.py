"""The likelihood of the training data at a network's outputs, to second order."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bayesrule.curvature import check_memory, roots
from bayesrule.data import Inputs
from bayesrule.likelihoods import Likelihood


@dataclass(frozen=True, eq=False)
class Sites:
    """log p(D|f) ≈ Σ_i log p_i + g_iᵀ(f_i − f*_i) − ½ (f_i − f*_i)ᵀ Λ_i (f_i − f*_i), to the power 1/η.

    This is Gaussian in f: the same as targets ỹ_i = f*_i + Λ_i⁻¹ g_i seen with noise of covariance Λ_i⁻¹. No inverse is
    taken, since for classes there is none.

    ``x``: the training inputs. ``outputs``: f*, [N, C]. ``log_prob``: (1/η) Σ_i log p_i. ``slope``: g/η, [N, C].
    ``root``: R with R Rᵀ = Λ/η, [N, C, K].
    """

    x: Inputs
    outputs: Tensor
    log_prob: float
    slope: Tensor
    root: Tensor

    @classmethod
    def create(cls, x: Inputs, outputs: Tensor, y: Tensor, likelihood: Likelihood, temperature: float) -> Sites:
        """From the network's outputs, in its own shape, and targets as the likelihood wants them.

        >>> import torch
        >>> from bayesrule.likelihoods import Gaussian
        >>> x = torch.zeros(2, 1)
        >>> sites = Sites.create(x, x, torch.tensor([1.0, 3.0]), Gaussian(noise=0.5), temperature=1.0)
        >>> sites.slope.flatten(), sites.root.flatten()  # (y − f)/noise² and 1/noise
        (tensor([ 4., 12.]), tensor([2., 2.]))
        """
        flat = outputs.flatten(1) if outputs.ndim > 1 else outputs[:, None]
        n, c = flat.shape
        what = f"the Hessian of the likelihood at {n:,} examples with {c:,} outputs each"
        check_memory(what, n * c * c, outputs, "take fewer examples")
        return cls(
            x,
            flat,
            float(likelihood.log_prob(outputs, y).sum()) / temperature,
            roots.slope(likelihood, outputs, y).reshape(flat.shape) / temperature,
            spread(roots.root(likelihood, outputs)) / temperature**0.5,
        )

    @property
    def size(self) -> int:
        """NC, the number of outputs at all training examples."""
        return self.outputs.numel()

    @property
    def hessian(self) -> Tensor:
        """Λ/η, [N, C, C]."""
        return self.root @ self.root.mT


def spread(root: Tensor) -> Tensor:
    """Roots at T positions, [N, T, C, K], as one for all CT outputs in the order of the network's, [N, CT, TK].

    >>> import torch
    >>> spread(torch.tensor([2.0, 3.0]).reshape(1, 2, 1, 1))
    tensor([[[2., 0.],
             [0., 3.]]])
    """
    n, t, c, k = root.shape
    return root.permute(0, 2, 3, 1).diag_embed().permute(0, 1, 3, 4, 2).reshape(n, c * t, t * k)
