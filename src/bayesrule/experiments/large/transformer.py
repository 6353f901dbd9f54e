"""A small transformer that is called as those of Hugging Face are, and adapters of low rank for it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from bayesrule.experiments.large.words import LENGTH, VOCABULARY

WIDTH, HEADS, BLOCKS = 32, 4, 2
RANK, ALPHA = 4, 8.0  # of the adapters


class Outputs(NamedTuple):
    """What a model returns: logits, and the last hidden states."""

    logits: Tensor
    hidden: Tensor


class Block(nn.Module):
    """Causal attention and a network at each position, each added to what comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.wide, self.back = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """The states [B, T, D] after the block."""
        normed = self.norms[0](x)
        seen = scaled_dot_product_attention(
            _by_head(self.query(normed)), _by_head(self.key(normed)), _by_head(self.value(normed)), is_causal=True
        )
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.back(gelu(self.wide(self.norms[1](x))))


def _by_head(x: Tensor) -> Tensor:
    """States [B, T, D] as [B, heads, T, D/heads]."""
    return x.view(*x.shape[:2], HEADS, -1).transpose(1, 2)


class LanguageModel(nn.Module):
    """The next word at each position; the head has the weights of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        for table in (self.words, self.places):
            nn.init.normal_(table.weight, std=0.1)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(BLOCKS)), nn.LayerNorm(WIDTH)

    def forward(self, input_ids: Tensor) -> Outputs:
        """Logits [B, T, V] of the word after each."""
        x = self.words(input_ids) + self.places.weight[: input_ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        hidden = self.norm(x)
        return Outputs(hidden @ self.words.weight.T, hidden)


class LowRank(nn.Module):
    """W x + α/r · B A x with W frozen and B zero at first (Hu et al. 2022)."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, RANK, bias=False)
        self.up = nn.Linear(RANK, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """The layer's outputs and the adapter's."""
        return self.base(x) + ALPHA / RANK * self.up(self.down(x))


class Classifier(nn.Module):
    """A frozen language model with adapters of its queries and values, and a head on the mean of its states."""

    def __init__(self, model: LanguageModel, classes: int) -> None:
        super().__init__()
        self.model = model.requires_grad_(False)
        for block in model.blocks:
            for name in ("query", "value"):
                base = block.get_submodule(name)
                assert isinstance(base, nn.Linear)
                block.register_module(name, LowRank(base))
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Outputs:
        """Logits [B, C] of a text's class; padding is not looked at."""
        hidden = self.model(input_ids).hidden
        mask = attention_mask.unsqueeze(2).to(hidden)
        mean = (hidden * mask).sum(1) / mask.sum(1)
        return Outputs(self.head(mean), hidden)


def fresh(seed: int) -> LanguageModel:
    """New weights, a function of the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LanguageModel()


def adapted(model: LanguageModel, classes: int, seed: int) -> Classifier:
    """Adapters and a head for a model that is trained: new ones, a function of the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Classifier(model, classes)
