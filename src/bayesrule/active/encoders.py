"""Features of small pictures that are learnt from the pool alone, without a label: SimCLR (Chen et al. 2020)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayesrule import files
from bayesrule.active.pools import Pool
from bayesrule.seeds import mixed, untouched

NETWORK, ORDER, VIEWS = range(3)  # what a seed is for
PROJECTED = 64  # numbers whose directions are compared
KIND = "encoder"  # of files
SMALLEST = 8  # pixels of a side: three convolutions halve it


@dataclass(frozen=True)
class Views:
    """Random views of pictures that leave what they show as it is: moved, bent and lit otherwise.

    ``turn``: up to so many degrees either way. ``scale``: sizes by a factor between 1 − scale and 1 + scale. ``shear``,
    ``shift``: up to these shares of a side. ``bend``: points of a grid of 4 × 4 move by up to this share of a side, and
    what is between them follows smoothly. ``light``: contrast by a factor between 1 − light and 1 + light, and
    brightness by as much of a deviation. No view is mirrored: of letters and digits that is another one.
    """

    turn: float = 20.0
    scale: float = 0.25
    shear: float = 0.25
    shift: float = 0.1
    bend: float = 0.06
    light: float = 0.25

    def of(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """One view of each picture [B, C, H, W].

        >>> Views(0, 0, 0, 0, 0, 0).of(torch.eye(3)[None, None], torch.Generator())
        tensor([[[[1., 0., 0.],
                  [0., 1., 0.],
                  [0., 0., 1.]]]])
        """

        def uniform(most: float, *shape: int) -> Tensor:
            return most * (2 * torch.rand(len(x), *shape, generator=generator, dtype=x.dtype) - 1)

        angle, size = torch.deg2rad(uniform(self.turn)), 1 + uniform(self.scale)
        shear = uniform(self.shear)
        cos, sin = size * angle.cos(), size * angle.sin()
        map = torch.stack([cos, cos * shear - sin, sin, sin * shear + cos], 1).reshape(-1, 2, 2)
        shift = uniform(2 * self.shift, 2, 1)  # a side is 2 long in the units of affine_grid
        grid = F.affine_grid(torch.cat([map, shift], 2), list(x.shape), align_corners=False)
        bent = F.interpolate(uniform(2 * self.bend, 2, 4, 4), x.shape[2:], mode="bicubic", align_corners=True)
        grid = grid + bent.permute(0, 2, 3, 1)
        moved = F.grid_sample(x, grid, padding_mode="border", align_corners=False)
        brighter = uniform(self.light, 1, 1, 1) * x.std()
        return moved * (1 + uniform(self.light, 1, 1, 1)) + brighter


@dataclass(frozen=True)
class SimCLR:
    """Features that tell a picture from all others, whatever its view: learnt without labels (Chen et al. 2020).

    Two views i, j of a picture among the 2B of a batch have the loss −log e^{z_i·z_j/τ} / Σ_{k≠i} e^{z_i·z_k/τ}, z the
    projections of the features, of length 1.

    ``features``: how many there are. ``width``: channels of the first of three convolutions; each of the others has
    twice as many as the one before. ``epochs``: passes over the pictures, in batches of ``batch_size`` pictures.
    ``temperature``: τ. ``lr``: Adam's learning rate at the start; it falls to nothing along a cosine.

    >>> x = torch.rand(64, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    >>> encoder = SimCLR(features=16, width=4, epochs=1, batch_size=32).learn(x)
    >>> encoder(x).shape
    torch.Size([64, 16])
    """

    features: int = 128
    width: int = 32
    epochs: int = 10
    batch_size: int = 256
    temperature: float = 0.2
    lr: float = 2e-3
    views: Views = Views()

    def __post_init__(self) -> None:
        for name in ("features", "width", "epochs"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if self.batch_size < 2:
            raise ValueError(f"batch_size must be at least 2 pictures to be told apart, not {self.batch_size}")
        for name in ("temperature", "lr"):
            if not (value := getattr(self, name)) > 0:
                raise ValueError(f"{name} must be positive, not {value:g}")

    def network(self, channels: int) -> nn.Sequential:
        """The encoder before it has learnt: three convolutions that halve the side, and a linear layer.

        Its features have the mean 0 and the deviation 1.
        """
        layers: list[nn.Module] = []
        before = channels
        for after in (self.width, 2 * self.width, 4 * self.width):
            layers += [nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
            before = after
        layers += [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * before, self.features)]
        return nn.Sequential(*layers, nn.BatchNorm1d(self.features, affine=False))

    def learn(self, x: Tensor, seed: int = 0, tell: Callable[[str], object] | None = None) -> nn.Module:
        """A frozen encoder of pictures [N, C, H, W], in eval mode. ``tell``: called with a line after each epoch."""
        _check(x, self.batch_size)
        with untouched(torch.device("cpu")):
            torch.manual_seed(mixed(seed, NETWORK))
            encoder = self.network(x.shape[1])
            head = nn.Sequential(nn.Linear(self.features, self.features), nn.ReLU())
            head.append(nn.Linear(self.features, PROJECTED))
        network = nn.Sequential(encoder, head).to(dtype=x.dtype)
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # a third faster
        steps = self.epochs * (len(x) // self.batch_size)
        optimiser = torch.optim.AdamW(network.parameters(), self.lr, weight_decay=1e-4)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        noise = torch.Generator().manual_seed(mixed(seed, VIEWS))
        for epoch in range(self.epochs):
            total = 0.0
            for rows in self._batches(len(x), seed, epoch):
                pair = torch.cat([self.views.of(x[rows], noise), self.views.of(x[rows], noise)])
                loss = contrast(network(pair), self.temperature)
                optimiser.zero_grad()
                torch.autograd.backward(loss)
                optimiser.step()
                schedule.step()
                total += float(loss.detach()) * len(rows)
            if tell is not None:
                tell(f"SimCLR, epoch {epoch + 1} of {self.epochs}: loss {total / len(x):.3f}")
        return encoder.eval().requires_grad_(False)

    def _batches(self, count: int, seed: int, epoch: int) -> Iterator[Tensor]:
        """Rows in a random order, in whole batches."""
        order = torch.randperm(count, generator=torch.Generator().manual_seed(mixed(seed, ORDER, epoch)))
        yield from torch.split(order[: count - count % self.batch_size], self.batch_size)


def contrast(projections: Tensor, temperature: float) -> Tensor:
    """The mean loss of 2B projections, the views of a picture B rows apart.

    Of pictures whose views agree with each other and with no other picture it is log(1 + 2(B−1)e^{−1/τ}):

    >>> loss = contrast(torch.eye(3).repeat(2, 1), temperature=0.5)
    >>> torch.allclose(loss, torch.log1p(4 * torch.tensor(-2.0).exp()))
    True
    """
    z = F.normalize(projections, dim=1)
    alike = z @ z.T / temperature
    alike.fill_diagonal_(-torch.inf)
    return F.cross_entropy(alike, torch.arange(len(z), device=z.device).roll(len(z) // 2))


def kept(
    path: str | Path, pool: Pool, how: SimCLR, seed: int = 0, tell: Callable[[str], object] | None = None
) -> nn.Module:
    """The encoder of a file, if it learnt in this way from this pool; without the file it learns, and is written.

    It takes rows as the pool has them. A file of another one is refused.
    """
    if pool.image_shape is None or not isinstance(pool.x, Tensor):
        raise ValueError(f"features can be learnt from pictures only, which the rows of {pool.name} are not")
    path, x = Path(path), pool.x.reshape(-1, *pool.image_shape)
    about = {"how": asdict(how), "seed": seed, "pool": pool.fingerprint()}
    if path.is_file():
        encoder = _read(path, about, how.network(x.shape[1]).to(dtype=x.dtype))
    else:
        encoder = how.learn(x, seed, tell)
        files.save(path, files.sealed({"about": about, "weights": dict(encoder.state_dict())}), KIND)
    return encoder if pool.x.ndim == 4 else nn.Sequential(nn.Unflatten(1, pool.image_shape), encoder)


def _read(path: Path, about: dict[str, Any], encoder: nn.Module) -> nn.Module:
    tree = files.unsealed(path, files.load(path, KIND))
    if tree["about"] != about:
        raise FileExistsError(f"{path} holds an encoder of another pool, settings or seed: choose another directory")
    encoder.load_state_dict(tree["weights"])
    return encoder.eval().requires_grad_(False)


def _check(x: Tensor, batch_size: int) -> None:
    if x.ndim != 4 or min(x.shape[2:]) < SMALLEST or not x.is_floating_point():
        raise ValueError(
            f"x must be pictures [N, C, H, W] of at least {SMALLEST} pixels a side, in floating point, got {x.dtype} "
            f"{list(x.shape)}"
        )
    if len(x) < batch_size:
        raise ValueError(f"batch_size must be at most the {len(x)} pictures, not {batch_size}")
