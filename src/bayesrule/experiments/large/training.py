"""One loop for AdamW and IVON: two lines differ."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR

from bayesrule.data import Batch
from bayesrule.experiments.large.transformer import LanguageModel
from bayesrule.optim import IVON

CLIP = 1.0  # norm of the gradient


@dataclass(frozen=True)
class Recipe:
    """How a model is trained: steps, examples in each, and what the optimiser is given."""

    steps: int
    batch: int
    lr: float
    weight_decay: float
    beta: float = 0.999  # of squares, or of the curvature
    std: float = 0.02  # IVON's first deviation
    warmup: float = 0.1  # share of the steps in which IVON's temperature rises

    def longer(self, times: int) -> Recipe:
        """So many times as many steps."""
        return replace(self, steps=times * self.steps)


def adamw(model: nn.Module, recipe: Recipe, count: int) -> Optimizer:
    """Over what is trainable."""
    found = [p for p in model.parameters() if p.requires_grad]
    return AdamW(found, lr=recipe.lr, betas=(0.9, recipe.beta), weight_decay=recipe.weight_decay)


def ivon(model: nn.Module, recipe: Recipe, count: int) -> Optimizer:
    """The same, where the loss is a mean over ``count`` numbers."""
    return IVON(
        [(name, p) for name, p in model.named_parameters() if p.requires_grad],
        lr=recipe.lr,
        ess=count,
        betas=(0.9, recipe.beta),
        weight_decay=recipe.weight_decay,
        hess_init=1 / (count * recipe.std**2),
        newton=True,
        tempering=round(recipe.warmup * recipe.steps),
        clip_radius=0.1 / recipe.lr,
    )


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    """Mean −log p of a class, or of the next words."""
    args, kwargs = ((), batch.x) if isinstance(batch.x, dict) else ((batch.x,), {})
    logits = model(*args, **kwargs).logits
    if isinstance(model, LanguageModel):
        return cross_entropy(logits[:, :-1].flatten(0, 1), batch.y[:, 1:].flatten())
    return cross_entropy(logits, batch.y)


def train(model: nn.Module, data: Batch, optimizer: Optimizer, recipe: Recipe, seed: int) -> None:
    """Steps on random batches, at a rate that falls as a cosine."""
    schedule = CosineAnnealingLR(optimizer, recipe.steps)
    generator = torch.Generator().manual_seed(seed)
    model.train()
    for _ in range(recipe.steps):
        batch = data.take(torch.randint(len(data.y), (recipe.batch,), generator=generator))
        optimizer.zero_grad()
        with optimizer.sampled() if isinstance(optimizer, IVON) else nullcontext():
            loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], CLIP)
        optimizer.step()
        schedule.step()
    model.eval()
