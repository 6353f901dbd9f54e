"""Functions that make networks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, max_pool2d

from bayesrule.naming import unknown

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "elu": nn.ELU,
    "softplus": nn.Softplus,
}

WIDTH = 8
"""Of the vector of a category, as an input of a network."""


def mlp(
    inputs: int,
    outputs: int,
    hidden: Sequence[int] = (128, 128),
    activation: str = "relu",
    dropout: float = 0.0,
) -> nn.Sequential:
    """Fully connected layers, with the activation, and dropout if any, after each hidden one.

    Pictures and the like are flattened first: ``inputs`` is the number of values of an example.

    >>> mlp(64, 10, hidden=(32,), activation="tanh")
    Sequential(
      (0): Flatten(start_dim=1, end_dim=-1)
      (1): Linear(in_features=64, out_features=32, bias=True)
      (2): Tanh()
      (3): Linear(in_features=32, out_features=10, bias=True)
    )
    """
    widths = [_positive("inputs", inputs), *(_positive("hidden", width) for width in hidden)]
    if activation not in ACTIVATIONS:
        raise unknown("activation", activation, ACTIVATIONS)
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be a probability, at least 0 and below 1, got {dropout}")
    _check_memory([*widths, _positive("outputs", outputs)])
    layers: list[nn.Module] = [nn.Flatten()]
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), ACTIVATIONS[activation]()]
        if dropout:
            layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))


class Tabular(nn.Module):
    """f(x) = linear(x) + network(x): a network needs to learn only what is not linear.

    The last inputs may be numbers of categories, of columns of K₁, K₂, … of them: 1 to K_j, and 0 for one that is not
    known. A category has an effect of its own on each output, and a vector that is an input of the network::

        f(x, c) = linear(x) + Σ_j effects[c_j] + network(x, embedding[c_1], embedding[c_2], …)

    Effect and vector of what is not known start at zero, the mean of the others under the usual priors, and are not
    learnt: examples without a category tell nothing of a new one.
    """

    before: Tensor  # how many rows of `effects` and `embedding` belong to columns on the left

    def __init__(
        self, inputs: int, outputs: int, hidden: Sequence[int], activation: str, categories: Sequence[int] = ()
    ) -> None:
        super().__init__()
        self.categories = tuple(categories)
        numbers = max(inputs - len(categories), 1)  # if there are none, a zero
        self.linear = nn.Linear(numbers, outputs)
        self.network: nn.Module = mlp(numbers + WIDTH * len(categories), outputs, hidden, activation)
        if categories:
            sizes = [1 + count for count in categories]
            self.register_buffer("before", torch.tensor([0, *accumulate(sizes)][:-1]))
            self.effects = Vectors(sizes, outputs)
            self.network = Embedded(Vectors(sizes, WIDTH), self.network)

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs that are numbers [B, H], the rows [B, columns] that categories have in `effects`, and which are known.

        >>> tabular(3, 1, categories=[300, 40]).parts(torch.tensor([[0.5, 300.0, 40.0], [0.5, 1.0, 0.0]]))[1:]
        (tensor([[300, 341],
                [  1, 301]]), tensor([[ True,  True],
                [ True, False]]))
        """
        x, coded = x.flatten(1), len(self.categories)
        if not coded:
            none = x.new_zeros(x.shape[0], 0, dtype=torch.long)
            return x, none, none.bool()
        numbers, codes = x[:, :-coded], x[:, -coded:].long()
        if not numbers.shape[1]:
            numbers = x.new_zeros(x.shape[0], 1)
        return numbers, codes + self.before, codes > 0

    def forward(self, x: Tensor) -> Tensor:
        """Outputs of both paths, added up."""
        numbers, rows, known = self.parts(x)
        if not self.categories:
            return self.linear(numbers) + self.network(numbers)
        effects = learnt_where(known, self.effects(rows)).sum(1)
        return self.linear(numbers) + effects + self.network(numbers, rows, known)


class Embedded(nn.Module):
    """A network of numbers and of the vectors of categories."""

    def __init__(self, embedding: Vectors, layers: nn.Module) -> None:
        super().__init__()
        self.embedding, self.layers = embedding, layers

    def forward(self, numbers: Tensor, rows: Tensor, known: Tensor) -> Tensor:
        """Outputs at ``numbers`` [B, H] and the ``rows`` [B, columns] of the vectors, learnt where ``known``."""
        vectors = learnt_where(known, self.embedding(rows)).flatten(1)
        outputs: Tensor = self.layers(torch.cat([numbers, vectors], 1))
        return outputs


class Vectors(nn.Embedding):
    """A vector for each category of several columns, which start near zero; the first of a column is zero."""

    def __init__(self, sizes: Sequence[int], width: int) -> None:
        self.first = [0, *accumulate(sizes)][:-1]
        super().__init__(sum(sizes), width)

    def reset_parameters(self) -> None:
        """Draw the vectors anew."""
        nn.init.normal_(self.weight, std=0.1)
        with torch.no_grad():
            self.weight[self.first] = 0.0


def learnt_where(known: Tensor, vectors: Tensor) -> Tensor:
    """Vectors [..., B, columns, width] through which gradients flow where ``known`` [B, columns]."""
    return torch.where(known[:, :, None], vectors, vectors.detach())


def tabular(
    inputs: int,
    outputs: int,
    hidden: Sequence[int] = (64, 64),
    activation: str = "relu",
    categories: Sequence[int] = (),
) -> Tabular:
    """A network for tables, with a linear path around it: `br.methods.Auto` also tries that path alone.

    ``categories``: how many there are in each of the last inputs, which are then numbers of categories: see `Tabular`.

    >>> [name for name, _ in tabular(8, 1).named_children()]
    ['linear', 'network']
    >>> network = tabular(3, 1, categories=[300, 40])
    >>> network.effects, network(torch.tensor([[0.5, 300.0, 40.0], [0.5, 1.0, 0.0]])).shape
    (Vectors(342, 1), torch.Size([2, 1]))
    """
    for count in categories:
        _positive("categories", count)
    if len(categories) > _positive("inputs", inputs):
        raise ValueError(f"categories must be of some of the {inputs} inputs, got {len(categories)}: {categories}")
    return Tabular(inputs, _positive("outputs", outputs), hidden, activation, categories)


def lenet5(channels: int, side: int, outputs: int) -> nn.Sequential:
    """LeNet-5 (LeCun et al., 1998) with max pooling and ReLU, for square pictures, without padding.

    >>> sum(p.numel() for p in lenet5(channels=1, side=28, outputs=10).parameters())
    44426
    >>> sum(p.numel() for p in lenet5(channels=3, side=32, outputs=10).parameters())
    62006
    """
    last = _after_two_convolutions(side)
    return nn.Sequential(
        nn.Conv2d(_positive("channels", channels), 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * last * last, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, _positive("outputs", outputs)),
    )


def dropout_cnn(channels: int, side: int, outputs: int, rate: float = 0.5) -> nn.Sequential:
    """Two convolutions and a hidden layer, each with dropout: the network of active learning on MNIST (Kirsch 2019).

    32 and 64 filters of 5 × 5, each followed by dropout of whole channels, max pooling and ReLU; then 128 hidden units
    with dropout.

    >>> sum(p.numel() for p in dropout_cnn(channels=1, side=28, outputs=10).parameters())
    184586
    """
    if not 0 < rate < 1:
        raise ValueError(f"rate must be a probability above 0 and below 1, got {rate}")
    last = _after_two_convolutions(side)
    return nn.Sequential(
        nn.Conv2d(_positive("channels", channels), 32, 5),
        nn.Dropout2d(rate),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(32, 64, 5),
        nn.Dropout2d(rate),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * last * last, 128),
        nn.Dropout(rate),
        nn.ReLU(),
        nn.Linear(128, _positive("outputs", outputs)),
    )


def _after_two_convolutions(side: int) -> int:
    """The side of what is left of square pictures: twice a kernel of five takes four pixels, and pooling halves."""
    last = ((_positive("side", side) - 4) // 2 - 4) // 2
    if last < 1:
        raise ValueError(f"side must be at least 16 pixels for two convolutions and two poolings, got {side}")
    return last


class _Residual(nn.Module):
    """relu(convolutions(x) + shortcut(x)): a block of a residual network."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            *_convolution(before, after, 3, stride), nn.ReLU(), *_convolution(after, after, 3, 1)
        )
        self.shortcut = nn.Sequential() if stride == 1 else nn.Sequential(*_convolution(before, after, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both paths, where it is positive."""
        return (self.convolutions(x) + self.shortcut(x)).relu()


def _convolution(before: int, after: int, kernel: int, stride: int) -> list[nn.Module]:
    """A convolution, and outputs normalised over the batch; their scale is left to the weights that follow."""
    convolution = nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, bias=False)
    return [convolution, nn.BatchNorm2d(after, affine=False)]


def resnet(channels: int, outputs: int, blocks: int = 3, width: int = 16) -> nn.Sequential:
    """A residual network of 6·blocks + 2 layers for small pictures (He et al. 2016): three stages, each half as large.

    A stage begins with a convolution of stride two, whose shortcut is a convolution of 1 × 1, except for the first.
    BatchNorm has no weights of its own. ``blocks=3`` is ResNet-20.

    >>> sum(p.numel() for p in resnet(channels=3, outputs=10).parameters())
    270906
    """
    for name, value in (("channels", channels), ("outputs", outputs), ("blocks", blocks), ("width", width)):
        _positive(name, value)
    layers = [*_convolution(channels, width, 3, 1), nn.ReLU()]
    before = width
    for stage in range(3):
        for block in range(blocks):
            after = width * 2**stage
            layers.append(_Residual(before, after, stride=2 if stage and not block else 1))
            before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, outputs))


class UNet(nn.Module):
    """A network of pictures to pictures (Ronneberger et al. 2015): down by halves, and up again beside what was seen.

    Each level has two convolutions, and twice the channels of the one above. On the way up a level sees what comes from
    below, each pixel four times, beside its own outputs of the way down.
    """

    def __init__(self, channels: int, outputs: int, width: int, levels: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(levels)]
        self.down = nn.ModuleList(_twice(a, b) for a, b in pairwise([channels, *widths]))
        self.up = nn.ModuleList(_twice(a + b, a) for a, b in pairwise(widths))
        self.outer = nn.Conv2d(width, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [B, outputs, H, W] of pictures [B, channels, H, W]."""
        step = 2 ** len(self.up)
        if x.shape[-1] % step or x.shape[-2] % step:
            raise ValueError(
                f"pictures must have sides that are multiples of {step} for {len(self.down)} levels, got "
                f"{x.shape[-2]} x {x.shape[-1]}: pad or crop them"
            )
        seen = [self.down[0](x)]
        for layer in self.down[1:]:
            seen.append(layer(max_pool2d(seen[-1], 2)))
        found = seen.pop()
        for layer in reversed(self.up):
            found = layer(torch.cat([seen.pop(), interpolate(found, scale_factor=2)], -3))
        return self.outer(found)


def unet(channels: int, outputs: int, width: int = 8, levels: int = 3) -> UNet:
    """A small U-Net: a class for each pixel, outputs ``[B, outputs, H, W]``.

    >>> network = unet(channels=1, outputs=3)
    >>> network(torch.zeros(2, 1, 32, 32)).shape
    torch.Size([2, 3, 32, 32])
    >>> sum(p.numel() for p in network.parameters())
    29475
    """
    for name, value in (("channels", channels), ("outputs", outputs), ("width", width), ("levels", levels)):
        _positive(name, value)
    return UNet(channels, outputs, width, levels)


def _twice(before: int, after: int) -> nn.Sequential:
    """Two convolutions of 3 × 3, each normalised and followed by ReLU: without, some starts never learn."""
    return nn.Sequential(*_convolution(before, after, 3, 1), nn.ReLU(), *_convolution(after, after, 3, 1), nn.ReLU())


class MeanFieldNet(nn.Module):
    """f(x) = 1/N Σ_j a_j σ(⟨b_j, x⟩): one hidden layer, no biases, and the sum over neurons is a mean.

    As N grows the law of a neuron's weights stays as it is, whatever N, so that f is a mean over a measure of neurons
    (Huix et al. 2022; `bayesrule.mean_field`). Weights out of a neuron start from N(0, 1).

    >>> network = MeanFieldNet(inputs=3, outputs=1, neurons=100)
    >>> [tuple(p.shape) for p in network.parameters()]
    [(100, 3), (1, 100)]
    """

    def __init__(self, inputs: int, outputs: int, neurons: int, activation: str = "relu") -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise unknown("activation", activation, ACTIVATIONS)
        widths = _positive("inputs", inputs), _positive("neurons", neurons), _positive("outputs", outputs)
        _check_memory(widths)
        self.neurons = neurons
        self.hidden = nn.Linear(inputs, neurons, bias=False)
        self.activation = ACTIVATIONS[activation]()
        self.outer = _Outer(neurons, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The mean over neurons."""
        return self.outer(self.activation(self.hidden(x.flatten(1)))) / self.neurons


class _Outer(nn.Linear):
    """A linear layer whose first weights do not depend on how many there are."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight)


MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "lenet5": lenet5,
    "resnet": resnet,
    "tabular": tabular,
    "mean-field": MeanFieldNet,
    "dropout-cnn": dropout_cnn,
    "unet": unet,
}


def _check_memory(widths: Sequence[int]) -> None:
    """Refuse a network that this machine cannot hold, before torch or the system does so in its own way."""
    weights = sum((a + 1) * b for a, b in pairwise(widths))
    memory = 2**63
    with suppress(AttributeError, ValueError, OSError):  # where nobody can tell
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if 4 * weights > memory:
        raise MemoryError(
            f"hidden must be layers that fit into memory, but a network of widths {', '.join(map(str, widths))} has "
            f"{weights:.3g} weights, {4 * weights / 2**30:,.0f} GiB of this machine's {memory / 2**30:,.0f}: take less"
        )


def _positive(name: str, value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be whole and at least 1, got {value!r}")
    return value
