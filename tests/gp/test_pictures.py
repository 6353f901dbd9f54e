"""Pictures of kernels and fits."""

import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

import bayesrule as br


def test_a_kernel_is_sorted_by_class_with_lines_between_classes():
    labels = torch.tensor([2, 0, 2, 0, 1])
    matrix = torch.arange(25.0).reshape(5, 5)
    figure = br.gp.plot_kernel(matrix, labels)
    ax = figure.axes[0]
    order = [1, 3, 4, 0, 2]
    assert ax.images[0].get_array().tolist() == matrix[order][:, order].tolist()
    assert [line.get_ydata()[0] for line in ax.lines[::2]] == [1.5, 2.5]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["0", "1", "2"]
    with pytest.raises(ValueError, match=r"matrix must be \[N, N\], got \[3, 5, 5\]"):
        br.gp.plot_kernel(torch.zeros(3, 5, 5), labels)
    with pytest.raises(ValueError, match=r"labels must be one for each of the 5 examples, got shape \[4\]"):
        br.gp.plot_kernel(matrix, labels[:4])


def test_a_fit_has_two_bands_of_which_that_of_y_is_wider():
    x, y = br.data.gap(n=30)
    gp = br.gp.from_network(br.models.mlp(1, 1, hidden=(8,)), (x, y), br.likelihoods.Gaussian(0.1))
    figure = br.gp.plot_fit(gp, x, y)
    wide, narrow = (band.get_paths()[0].get_extents().height for band in figure.axes[0].collections)
    assert wide > narrow > 0
    limits = figure.axes[0].get_xlim()
    assert limits[0] < float(x.min())
    assert limits[1] > float(x.max())
    mine = Figure()
    assert br.gp.plot_fit(gp, x, y, axes=mine.add_subplot()) is mine
    with pytest.raises(ValueError, match=r"plot_fit draws one real y against one x: got x \[30\]"):
        br.gp.plot_fit(gp, x[:, 0], y)


def test_a_fit_of_classes_is_refused():
    x, y = br.data.moons(n=20)
    gp = br.gp.from_network(nn.Linear(2, 2), (x, y))
    with pytest.raises(ValueError, match="likelihood 'categorical'"):
        br.gp.plot_fit(gp, x, y)
