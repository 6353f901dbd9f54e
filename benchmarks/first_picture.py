"""README's picture: one plain network beside posteriors, where there are no data.

    python benchmarks/first_picture.py --out docs/results

All are trained on the embedded set ``gap``, and asked about inputs between and beyond its examples.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import bayesrule as br
from bayesrule.data import Split
from bayesrule.files import write_atomically
from bayesrule.posteriors import Posterior
from bayesrule.report.drawing import PALETTE, STYLE
from bayesrule.report.runs import png

EPOCHS, REACH = 150, 0.35
WAYS = {"one plain network": "mle", "br.fit(model, data)": "ensemble", "br.fit(model, data, 'laplace')": "laplace"}


def draw(axes: Axes, posterior: Posterior, split: Split, colour: str) -> None:
    """The mean, the 90 % interval, and the part of it that more data would narrow."""
    x, y = (part.numpy() for part in split.train)
    beyond = REACH * float(np.ptp(x))
    line = np.linspace(x.min() - beyond, x.max() + beyond, 300)
    prediction = posterior.predict(torch.from_numpy(line[:, None]).to(split.train[0]), samples=32)
    low, high = (end.numpy() for end in prediction.interval(0.9))
    mean, part = prediction.mean.numpy(), 1.645 * prediction.epistemic.sqrt().numpy()
    axes.fill_between(line, low, high, color=colour, alpha=0.2, lw=0, label="90 % interval")
    axes.fill_between(line, mean - part, mean + part, color=colour, alpha=0.35, lw=0, label="epistemic part")
    axes.plot(line, mean, color=colour, lw=1.6, label="mean")
    axes.plot(x[:, 0], y, ".", color="#1c2026", ms=4, label="data")
    reach = 0.6 * float(np.ptp(y))
    axes.set(xlim=(line[0], line[-1]), ylim=(y.min() - reach, y.max() + reach))


def main() -> None:
    """Train, draw, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    args = parser.parse_args()
    split = br.data.load_set("gap", seed=0)
    with matplotlib.rc_context(STYLE):
        figure = Figure((9.6, 3.0), layout="constrained")
        every = figure.subplots(1, 3, sharey=True)
        for axes, (title, method), colour in zip(
            every, WAYS.items(), (PALETTE[1], PALETTE[0], PALETTE[2]), strict=True
        ):
            torch.manual_seed(0)
            model = br.models.mlp(1, 1, hidden=(50, 50))
            posterior = br.fit(model, br.data.standardize(split.train), method, epochs=EPOCHS)
            draw(axes, posterior, split, colour)
            axes.set_title(title)
        every[1].legend(loc="upper left", ncols=2, fontsize=8)
    write_atomically(args.out / "first-picture.png", png(figure))


if __name__ == "__main__":
    main()
