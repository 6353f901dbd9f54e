"""Networks for every layer and every awkward way to use one, with inputs; and the loop that defines what is right."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Loss = Callable[[Tensor, Tensor], Tensor]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64)


def tokens(*shape: int, count: int = 5, seed: int = 0) -> Tensor:
    return torch.randint(count, shape, generator=generator(seed))


def call(model: nn.Module, x: Any) -> Any:
    return model(*x) if isinstance(x, tuple) else model(**x) if isinstance(x, dict) else model(x)


def rows(x: Any, keep: Any) -> Any:
    if isinstance(x, tuple):
        return tuple(t[keep] for t in x)
    return {name: t[keep] for name, t in x.items()} if isinstance(x, dict) else x[keep]


def loss_of(outputs: Any) -> Tensor:
    """ℓ_i for each example: a function with curvature in every number that the model gives."""
    if isinstance(outputs, dict):
        outputs = tuple(outputs.values())
    if isinstance(outputs, tuple):
        return sum(loss_of(part) for part in outputs)  # type: ignore[return-value]
    flat = outputs.flatten(1)
    weights = torch.linspace(-1, 2, flat.shape[1], dtype=flat.dtype)
    return (flat.square() * 0.3 + torch.sin(flat * weights)).sum(1)


def reference(model: nn.Module, x: Any) -> list[Tensor]:
    """(1/M) Σ_i (∂ℓ_i/∂p)², one example at a time."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    count = len(next(iter(x.values() if isinstance(x, dict) else x if isinstance(x, tuple) else [x])))
    found = [torch.zeros_like(p) for p in parameters]
    for i in range(count):
        loss = loss_of(call(model, rows(x, slice(i, i + 1)))).sum()
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        for total, gradient in zip(found, gradients, strict=True):
            total += gradient.detach().square() / count
    return found


def error(found: list[Tensor], wanted: list[Tensor]) -> float:
    """The largest relative error of a parameter, in the norm; of all numbers where the right answer is zero."""
    worst = 0.0
    for a, b in zip(found, wanted, strict=True):
        assert a.shape == b.shape
        worst = max(worst, float((a - b).norm() / b.norm()) if b.any() else float(a.norm()))
    return worst


class Twice(nn.Module):
    """One layer called twice."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(x)))


class TiedLayers(nn.Module):
    """Two layers that hold one weight, and biases of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(x)))


class TiedEmbedding(nn.Module):
    """A language model: the table of the tokens is the weight of the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(self.embed(x))))


class Functional(TiedEmbedding):
    """The same, but the table is used without calling a layer."""

    def __init__(self) -> None:
        super().__init__()
        del self.head

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.mix(self.embed(x))), self.embed.weight)


class Bare(nn.Module):
    """Parameters beside layers: a token in front, positions, a temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.place = nn.Parameter(torch.randn(1, 1, 4)), nn.Parameter(torch.randn(4, 4))
        self.scale, self.body = nn.Parameter(torch.tensor(0.7)), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.front.expand(len(x), -1, -1), x], 1) + self.place
        return self.scale * self.body(torch.tanh(x))


class Listed(nn.Module):
    """Parameters in a list and in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.list = nn.ParameterList([torch.randn(4) for _ in range(2)])
        self.dict = nn.ParameterDict({"scale": torch.randn(1, 4)})

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x * self.list[0] + self.list[1]) * self.dict["scale"]


class Attention(nn.Module):
    """Attention with a mask that examples share, or their own padding."""

    def __init__(self, batch_first: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(4, 2, batch_first=batch_first, dropout=dropout)
        self.batch_first = batch_first
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        z = x if self.batch_first else x.transpose(0, 1)
        z = self.attend(z, z, z, attn_mask=mask, key_padding_mask=padding)[0]
        return self.norm(x + (z if self.batch_first else z.transpose(0, 1)))


# `batch_first` on the model itself would say that the model's own inputs are so
class SequenceFirst(nn.Module):
    """A model that hides a layer with the sequence first."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Attention(batch_first=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class Recurrent(nn.Module):
    """A recurrent layer of which all outputs are used, states included."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        first = self.layer.batch_first
        outputs, states = self.layer(x if first else x.transpose(0, 1))
        states = states if isinstance(states, tuple) else (states,)
        return (outputs if first else outputs.transpose(0, 1), *(s.transpose(0, 1) for s in states))


class Positions(nn.Module):
    """Positions in the rows of a layer's input, as `flatten` makes them, and in the order given."""

    def __init__(self, sequence_first: bool) -> None:
        super().__init__()
        self.sequence_first, self.layer = sequence_first, nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1) if self.sequence_first else x
        out = self.layer(x.flatten(0, 1)).view(*x.shape[:2], 3)
        return out.transpose(0, 1) if self.sequence_first else out


class TwoHeads(nn.Module):
    """A dict of outputs, from two inputs by name; inside, a module with a tuple of outputs."""

    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.v = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(3))

        def forward(self, x: Tensor, *, shift: Tensor) -> tuple[Tensor, Tensor]:
            return x @ self.w, (x + shift).sum(1, keepdim=True) * self.v

    def __init__(self) -> None:
        super().__init__()
        self.split, self.head = self.Split(), nn.Bilinear(3, 3, 2)

    def forward(self, x: Tensor, shift: Tensor) -> dict[str, Tensor]:
        a, b = self.split(x, shift=shift)
        return {"head": self.head(torch.tanh(a), b), "rest": a}


class Decides(nn.Module):
    """A parameter in a branch that depends on the data of the example, and an operation in place."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for i, row in enumerate(x):
            out[i] = row * self.w if float(row.detach().sum()) > 0 else row.square() * self.w.exp()
        return out


class Centred(nn.Module):
    """Examples that act on each other: the mean of the batch is taken off."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        z = torch.tanh(x * self.w)
        return z - z.mean(0)


def _made(seed: int, make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make().double()
        for p in model.parameters():  # norms start at ones and zeros
            nn.init.normal_(p, std=0.6)
    return model


def layers() -> dict[str, tuple[nn.Module, Any]]:
    """One layer each, in double precision and eval mode, with six examples."""
    m, n = 6, nn
    image, volume, line = normal(m, 4, 6, 5), normal(m, 2, 4, 3, 5), normal(m, 4, 9)
    small = normal(m, 4, 3, 2)  # what transposes it has many outputs, and the loop goes over each
    found: dict[str, tuple[Callable[[], nn.Module], Any]] = {
        "linear": (lambda: n.Linear(4, 3), normal(m, 4)),
        "linear, no bias": (lambda: n.Linear(4, 3, bias=False), normal(m, 4)),
        "linear on sequences": (lambda: n.Linear(4, 3), normal(m, 5, 4)),
        "linear on grids": (lambda: n.Linear(4, 3), normal(m, 3, 2, 4)),
        "linear on sequences of one": (lambda: n.Linear(4, 3), normal(m, 1, 4)),
        "conv1d": (lambda: n.Conv1d(4, 3, 3, stride=2, padding=1, dilation=2), line),
        "conv2d": (lambda: n.Conv2d(4, 3, 3), image),
        "conv2d, all settings": (lambda: n.Conv2d(4, 6, (3, 2), (2, 1), (2, 1), (1, 2), 2), image),
        "conv2d, depthwise": (lambda: n.Conv2d(4, 8, 3, padding="same", groups=4), image),
        "conv2d, same": (lambda: n.Conv2d(4, 2, (2, 4), padding="same", dilation=(1, 2)), image),
        "conv2d, reflect": (lambda: n.Conv2d(4, 2, 3, padding=(1, 2), padding_mode="reflect"), image),
        "conv2d, circular": (lambda: n.Conv2d(4, 2, 3, padding=2, padding_mode="circular", stride=2), image),
        "conv2d, replicate same": (lambda: n.Conv2d(4, 2, 2, padding="same", padding_mode="replicate"), image),
        "conv2d, as large as the image": (lambda: n.Conv2d(4, 2, (6, 5)), image),
        "conv2d, so with groups": (lambda: n.Conv2d(4, 2, (6, 5), groups=2), image),
        "conv2d, 1×1": (lambda: n.Conv2d(4, 2, 1, stride=2), image),
        "conv2d, channels last": (lambda: n.Conv2d(4, 2, 3), image.to(memory_format=torch.channels_last)),
        "conv2d, part of an image": (lambda: n.Conv2d(2, 2, 3), image[:, 1:3, :, 1:]),
        "conv3d": (lambda: n.Conv3d(2, 4, (2, 3, 2), padding=1, groups=2), volume),
        "transposed 1d": (lambda: n.ConvTranspose1d(4, 2, 3, 2, 1, output_padding=1), line),
        "transposed 2d": (lambda: n.ConvTranspose2d(4, 6, 3, (2, 1), (1, 0), (1, 0), 2, True, (1, 2)), small),
        "transposed 2d, no padding": (lambda: n.ConvTranspose2d(4, 2, 2, stride=3, output_padding=2), small),
        "transposed 3d": (lambda: n.ConvTranspose3d(2, 2, 2, padding=1), volume),
        "embedding": (lambda: n.Embedding(5, 3), tokens(m, 7)),
        "embedding of one token": (lambda: n.Embedding(5, 3), tokens(m)),
        "embedding, padded": (lambda: n.Embedding(5, 3, padding_idx=1), tokens(m, 2, 3)),
        "embedding bag": (lambda: n.EmbeddingBag(5, 3), tokens(m, 7)),
        "layer norm": (lambda: n.LayerNorm(4), normal(m, 4)),
        "layer norm on sequences": (lambda: n.LayerNorm(4), normal(m, 3, 4)),
        "layer norm of images": (lambda: n.LayerNorm((6, 5)), image),
        "layer norm, no bias": (lambda: n.LayerNorm(4, bias=False), normal(m, 3, 4)),
        "rms norm": (lambda: n.RMSNorm((3, 4)), normal(m, 2, 3, 4)),
        "group norm": (lambda: n.GroupNorm(2, 4), image),
        "group norm of vectors": (lambda: n.GroupNorm(2, 4), normal(m, 4)),
        "instance norm": (lambda: n.InstanceNorm2d(4, affine=True), image),
        "instance norm, running": (lambda: n.InstanceNorm1d(4, affine=True, track_running_stats=True), line),
        "batch norm": (lambda: n.BatchNorm1d(4), normal(m, 4)),
        "batch norm of images": (lambda: n.BatchNorm2d(4), image),
        "bilinear": (lambda: n.Bilinear(4, 2, 3), (normal(m, 4), normal(m, 2, seed=1))),
        "prelu": (lambda: n.PReLU(4), image),
        "lstm cell": (lambda: n.LSTMCell(4, 3), normal(m, 4)),
        "gru cell": (lambda: n.GRUCell(4, 3), normal(m, 4)),
        "weight norm": (lambda: n.utils.parametrizations.weight_norm(n.Linear(4, 3)), normal(m, 4)),
        "orthogonal": (lambda: n.utils.parametrizations.orthogonal(n.Linear(4, 3)), normal(m, 4)),
        "rnn": (lambda: Recurrent(n.RNN(4, 3, batch_first=True)), normal(m, 5, 4)),
        "gru": (lambda: Recurrent(n.GRU(4, 3, num_layers=2)), normal(m, 5, 4)),
        "lstm": (lambda: Recurrent(n.LSTM(4, 3, bidirectional=True, batch_first=True)), normal(m, 5, 4)),
        "lstm, sequence first": (lambda: Recurrent(n.LSTM(4, 3)), normal(m, 5, 4)),
        "lstm, as many steps as examples": (lambda: Recurrent(n.LSTM(4, 3, proj_size=2)), normal(m, m, 4)),
        "attention": (lambda: Attention(), normal(m, 3, 4)),
        "attention, sequence first": (lambda: SequenceFirst(), normal(m, 3, 4)),
        "attention, padded": (lambda: Attention(), (normal(m, 3, 4), torch.arange(3) > tokens(m, 1, count=3))),
        "transformer": (
            lambda: n.Transformer(4, 2, 1, 1, 8, 0.0, batch_first=True).train(),
            (normal(m, 3, 4), normal(m, 2, 4, seed=1)),
        ),
        "transformer layer": (
            lambda: n.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0).train(),
            normal(m, 3, 4),
        ),
    }
    return {name: (_made(1, make).eval(), x) for name, (make, x) in found.items()}


def networks() -> dict[str, tuple[nn.Module, Any]]:
    """Whole networks, in double precision and eval mode, with six examples."""
    m, n = 6, nn
    found: dict[str, tuple[Callable[[], nn.Module], Any]] = {
        "mlp": (
            lambda: n.Sequential(n.Linear(4, 5), n.ReLU(), n.Linear(5, 5), n.ReLU(inplace=True), n.Linear(5, 2)),
            normal(m, 4),
        ),
        "cnn": (
            lambda: n.Sequential(
                n.Conv2d(1, 4, 3, padding=1),
                n.BatchNorm2d(4),
                n.ReLU(inplace=True),
                n.Conv2d(4, 4, 3, stride=2, groups=2),
                n.GroupNorm(2, 4),
                n.Flatten(),
                n.Linear(16, 3),
            ),
            normal(m, 1, 6, 6),
        ),
        "words": (lambda: n.Sequential(n.Embedding(5, 4), n.Flatten(), n.LayerNorm(28), n.Linear(28, 3)), tokens(m, 7)),
        "a layer twice": (lambda: Twice(n.Linear(4, 4)), normal(m, 4)),
        "a layer twice on sequences": (lambda: Twice(n.Linear(4, 4)), normal(m, 3, 4)),
        "a convolution twice": (lambda: Twice(n.Conv2d(2, 2, 3, padding=1)), normal(m, 2, 4, 4)),
        "a norm twice": (lambda: Twice(n.LayerNorm(4)), normal(m, 4)),
        "a recurrent cell twice": (lambda: Twice(n.RNNCell(4, 4)), normal(m, 4)),
        "tied layers": (lambda: TiedLayers(), normal(m, 4)),
        "tied embedding": (lambda: TiedEmbedding(), tokens(m, 7)),
        "bare parameters": (lambda: Bare(), normal(m, 3, 4)),
        "parameters in lists": (lambda: Listed(), normal(m, 4)),
        "lists inside": (lambda: n.Sequential(n.Linear(4, 4), Listed()), normal(m, 4)),
        "tuple in, dict out": (lambda: TwoHeads(), (normal(m, 4), normal(m, 4, seed=1))),
        "dict in, dict out": (lambda: TwoHeads(), {"x": normal(m, 4), "shift": normal(m, 4, seed=1)}),
    }
    return {name: (_made(2, make).eval(), x) for name, (make, x) in found.items()}
