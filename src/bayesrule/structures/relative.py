"""A curvature in the units of a prior."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesrule.structures.base import Structure
from bayesrule.structures.dense import Dense
from bayesrule.structures.diagonal import Diagonal
from bayesrule.structures.kronecker import Kronecker, to_matrix, to_vector


def relative_eigenvalues(prior: Structure, curvature: Structure) -> Tensor | None:
    """λ_j with log |aΛ + bG| = log |aΛ| + Σ_j log(1 + b/a λ_j) for a prior Λ, a curvature G and all a, b > 0.

    They are the eigenvalues of Λ^−½ G Λ^−½: worked out once, they give the evidence of every factor on the prior or on
    the noise. None where they are no cheaper than the determinants (low rank, sums of products).

    >>> relative_eigenvalues(Diagonal(torch.tensor([2.0, 1.0])), Diagonal(torch.tensor([6.0, 0.0])))
    tensor([3., 0.])
    """
    if isinstance(prior, Diagonal) and isinstance(curvature, Diagonal):
        return curvature.values / prior.values
    if isinstance(prior, Diagonal) and isinstance(curvature, Kronecker):
        return _of_product(prior, curvature)
    if isinstance(curvature, Dense) and isinstance(prior, Diagonal):
        root = prior.values.rsqrt()
        return torch.linalg.eigvalsh(root[:, None] * curvature.matrix * root).clamp(min=0)
    if isinstance(curvature, Dense) and isinstance(prior, Dense):
        half = torch.linalg.solve_triangular(prior.factor, curvature.matrix, upper=False)
        whole = torch.linalg.solve_triangular(prior.factor, half.T, upper=False)
        return torch.linalg.eigvalsh((whole + whole.T) / 2).clamp(min=0)
    return None


def _of_product(prior: Diagonal, curvature: Kronecker) -> Tensor | None:
    """Of one product under a prior that is the same for all rows, where both have the same eigenvectors."""
    columns = to_matrix(prior.values, *curvature.shape, curvature.bias)[0]
    even = torch.outer(torch.ones_like(curvature.lefts[0][0]), columns)
    if len(curvature.lefts) > 1 or bool(curvature.values.any()):
        return None
    if not torch.equal(to_vector(even, curvature.bias), prior.values):
        return None
    # eigenvalues of a Kronecker product are the products of its factors' eigenvalues
    root = columns.rsqrt()
    outputs = torch.linalg.eigvalsh(curvature.lefts[0])
    inputs = torch.linalg.eigvalsh(root[:, None] * curvature.rights[0] * root)
    return torch.outer(outputs.clamp(min=0), inputs.clamp(min=0)).flatten()
