"""The stiffest directions of a curvature, from one pass over the data.

G = Σ_k Σ_i g_ik g_ikᵀ is met with a few random vectors Ω [P, S] only. From Y = G Ω comes Nyström's approximation

    G ≈ Y (Ωᵀ Y)⁺ Yᵀ,

which is exact if G has rank S or less, never above G, and close where the eigenvalues fall off. Of what it leaves out,
the diagonal is kept: directions that were not found are not flat.
"""

from __future__ import annotations

import torch

from bayesrule.curvature.costs import Block
from bayesrule.curvature.forms import pieces
from bayesrule.curvature.parts import add_squares, check_finite, gradients, zeros
from bayesrule.curvature.watched import Columns
from bayesrule.structures import LowRank


class Sketch:
    """The stiffest directions of Σ_k Σ_i g_ik g_ikᵀ, as many as the rank of the block.

    The random vectors are the same in every run; 4·P·S operations for each gradient.
    """

    def __init__(self, block: Block) -> None:
        self.parameters, self.rank = block.parameters, block.rank
        like, size, width = next(iter(block.parameters.values())), block.size, block.width
        draws = torch.randn(size, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        self.probes = torch.linalg.qr(draws).Q.to(zeros(like))
        self.images = torch.zeros_like(self.probes)
        self.squares = zeros(like, size)

    def add(self, columns: Columns) -> None:
        """The gradients of some columns, as many examples at a time as there is room."""
        add_squares(self.parameters, self.squares, columns)
        for rows in pieces(columns.examples, len(self.probes)):
            for forms in columns.forms:
                g = gradients(forms, self.parameters, rows)
                self.images.addmm_(g.T, g @ self.probes)

    def result(self) -> LowRank:
        """The directions: with Ωᵀ Y = V diag(e) Vᵀ the left singular vectors of Y V e^−½, times its singular values."""
        images = self.images.double()
        inner = self.probes.double().T @ images
        values, vectors = torch.linalg.eigh((inner + inner.T) / 2)
        kept = values > values[-1].clamp(min=0) * len(values) * torch.finfo(self.images.dtype).eps
        factor = images @ (vectors[:, kept] / values[kept].sqrt())
        left, sizes, _ = torch.linalg.svd(factor, full_matrices=False)
        stiffest = (left * sizes)[:, : self.rank].to(self.images.dtype)
        rest = (self.squares - stiffest.square().sum(1)).clamp(min=0)
        check_finite(self.parameters, rest)
        return LowRank(rest, stiffest)
