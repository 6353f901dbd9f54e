"""Small modules of every awkward kind, with data to fit."""

import torch
from torch import Tensor, nn


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def classes(n: int = 48, features: int = 4, count: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, features, generator=generator(seed))
    return x, x[:, :count].argmax(1)


def mlp(outputs: int = 3, features: int = 4, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(features, 8), nn.Tanh(), nn.Linear(8, outputs))


class Shared(nn.Module):
    """One layer used twice, one parameter never used, one frozen, one output head."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.again = self.first
        self.unused = nn.Linear(2, 2)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.frozen(torch.tanh(self.again(torch.tanh(self.first(x)))))))


class Named(nn.Module):
    """Inputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 4), nn.Linear(8, 3)

    def forward(self, token: Tensor, value: Tensor) -> Tensor:
        return self.head(torch.cat([self.embed(token), value], 1))


class Attention(nn.Module):
    """Attention with dropout and layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(4, 2, dropout=0.1, batch_first=True)
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x + self.attend(x, x, x)[0]).mean(1))


class Recurrent(nn.Module):
    """A two-layer bidirectional LSTM with dropout between."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 4, num_layers=2, bidirectional=True, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Scalar(nn.Module):
    """A parameter without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.factor = mlp(), nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.factor)

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * self.net(x)


def batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def segmenter() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 1))


def zoo() -> dict[str, tuple[nn.Module, tuple[object, Tensor]]]:
    """Modules by what is awkward about them, each with 24 examples."""
    x, y = classes(24)
    g = generator(1)
    sequence = torch.randn(24, 5, 4, generator=g)
    token, value = torch.randint(5, (24,), generator=g), x
    image, mask = torch.randn(24, 1, 6, 6, generator=g), torch.randint(3, (24, 6, 6), generator=g)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return {
            "plain": (mlp(), (x, y)),
            "shared, unused and frozen": (Shared(), (x, y)),
            "scalar": (Scalar(), (x, y)),
            "tuple inputs": (Named(), ((token, value), y)),
            "dict inputs": (Named(), ({"token": token, "value": value}, y)),
            "batch norm": (batch_norm(), (x, y)),
            "attention": (Attention(), (sequence, y)),
            "recurrent": (Recurrent(), (sequence, y)),
            "segmentation": (segmenter(), (image, mask)),
        }
