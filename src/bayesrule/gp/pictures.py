"""Pictures of kernels and fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from bayesrule.gp.network import NetworkGP
from bayesrule.likelihoods import Gaussian

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Z = 1.6449
"""Half the width of a 90 % interval, in standard deviations."""


def plot_kernel(matrix: Any, labels: Any, axes: Axes | None = None) -> Figure:
    """A kernel matrix [N, N] with its examples sorted by class, and lines between the classes.

    ``axes``: where to draw; a new figure if not given.

    >>> plot_kernel(torch.eye(4), torch.tensor([0, 1, 0, 1]))
    <Figure size ...>
    """
    matrix, labels = torch.as_tensor(matrix).detach().cpu(), torch.as_tensor(labels).cpu()
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"matrix must be [N, N], got {list(matrix.shape)}: one class of it, or aggregate='sum'")
    if labels.shape != matrix.shape[:1]:
        raise ValueError(f"labels must be one for each of the {len(matrix)} examples, got shape {list(labels.shape)}")
    ax = _axes(axes, (4.4, 3.8))
    order = labels.argsort(stable=True)
    classes, counts = labels[order].unique_consecutive(return_counts=True)
    image = ax.imshow(matrix[order][:, order].numpy(), interpolation="nearest", cmap="viridis")
    ends = counts.cumsum(0)
    for end in ends[:-1].tolist():
        ax.axhline(end - 0.5, color="white", lw=0.6)
        ax.axvline(end - 0.5, color="white", lw=0.6)
    middles = (ends - counts / 2 - 0.5).tolist()
    names = list(map(str, classes.tolist()))
    ax.set_xticks(middles, names)
    ax.set_yticks(middles, names)
    ax.tick_params(length=0)
    ax.grid(False)
    figure = _figure(ax)
    figure.colorbar(image, ax=ax, fraction=0.046, pad=0.02)
    return figure


def plot_fit(gp: NetworkGP, x: Any, y: Any, axes: Axes | None = None, margin: float = 0.25) -> Figure:
    """Points (x, y) of a regression on a line, and the process with 90 % bands: of f alone, and of y.

    ``margin``: how far beyond the points to look, as a share of their range.

    >>> import bayesrule as br
    >>> x, y = br.data.gap(n=20)
    >>> plot_fit(br.gp.from_network(br.models.mlp(1, 1, hidden=(5,)), (x, y)), x, y)
    <Figure size ...>
    """
    x, y = torch.as_tensor(x).detach(), torch.as_tensor(y).detach()
    if x.ndim != 2 or x.shape[1] != 1 or not isinstance(gp.likelihood, Gaussian) or y.numel() != len(x):
        raise ValueError(
            f"plot_fit draws one real y against one x: got x {list(x.shape)}, y {list(y.shape)} and likelihood "
            f"{gp.likelihood.name!r}; pass x as [N, 1]"
        )
    ax = _axes(axes, (6.0, 3.4))
    edge = margin * float(x.max() - x.min())
    grid = torch.linspace(float(x.min()) - edge, float(x.max()) + edge, 300).to(x.dtype)
    found = gp.posterior(grid[:, None])
    mean, epistemic, total = found.mean[:, 0], found.epistemic.flatten(), found.total.flatten()
    _band(ax, grid, mean, total, "y: with noise", 0.15)
    _band(ax, grid, mean, epistemic, "f: epistemic", 0.3)
    ax.plot(grid, mean, color="C0", label="mean")
    ax.plot(grid, gp.network(grid[:, None])[:, 0], ":", color="0.2", lw=1.0, label="network")
    ax.plot(x[:, 0], y.flatten(), ".", color="0.35", markersize=3)
    ax.set(xlabel="x", ylabel="y")
    ax.legend(fontsize=8, frameon=False)
    return _figure(ax)


def _band(ax: Axes, grid: Tensor, mean: Tensor, variance: Tensor, label: str, alpha: float) -> None:
    half = Z * variance.sqrt()
    ax.fill_between(grid, mean - half, mean + half, color="C0", alpha=alpha, lw=0, label=f"90 % of {label}")


def _axes(axes: Axes | None, size: tuple[float, float]) -> Axes:
    from matplotlib.figure import Figure

    if axes is None:
        return Figure(figsize=size, layout="constrained").add_subplot()
    return axes


def _figure(ax: Axes) -> Figure:
    return cast("Figure", ax.get_figure())
