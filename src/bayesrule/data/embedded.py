"""Data sets that need no file: scikit-learn's digits and diabetes, and sets made by a generator.

All are functions of a seed.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesrule.data.splits import Pair, Split, cut


def digits(image: bool = False) -> Pair:
    """The 1797 handwritten digits of 8 × 8 pixels in scikit-learn, in [0, 1].

    >>> digits()[0].shape, digits(image=True)[0].shape
    (torch.Size([1797, 64]), torch.Size([1797, 1, 8, 8]))
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    x = torch.from_numpy(pixels / 16).float()
    if image:
        x = x.reshape(-1, 1, 8, 8)
    return x, torch.from_numpy(labels).long()


def moons(n: int = 400, noise: float = 0.2, seed: int = 0) -> Pair:
    """Two interleaved half circles, one for each class, with Gaussian noise.

    >>> x, y = moons(n=6)
    >>> x.shape, y.tolist()
    (torch.Size([6, 2]), [0, 1, 0, 1, 0, 1])
    """
    random = np.random.default_rng(seed)
    label = np.arange(n) % 2
    angle = random.uniform(0, np.pi, n)
    sign = 1 - 2 * label
    points = np.stack([label + sign * np.cos(angle), 0.5 * label + sign * np.sin(angle)], 1)
    return _float(points + noise * random.standard_normal((n, 2))), torch.from_numpy(label).long()


def and_gate() -> Pair:
    """The truth table of AND.

    >>> and_gate()[1].tolist()
    [0, 0, 0, 1]
    """
    return torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]), torch.tensor([0, 0, 0, 1])


def sine(n: int = 200, seed: int = 0) -> Pair:
    """The curve of Blundell et al. (2015): ``y = x + 0.3 sin(2π(x + ε)) + 0.3 sin(4π(x + ε)) + ε``.

    ``ε ~ N(0, 0.02²)``, and ``x`` is uniform in [0, 0.5].

    >>> x, y = sine()
    >>> x.shape, y.shape, x.max().item() <= 0.5
    (torch.Size([200, 1]), torch.Size([200]), True)
    """
    random = np.random.default_rng(seed)
    x, e = random.uniform(0, 0.5, n), 0.02 * random.standard_normal(n)
    y = x + 0.3 * np.sin(2 * np.pi * (x + e)) + 0.3 * np.sin(4 * np.pi * (x + e)) + e
    return _float(x[:, None]), _float(y)


def gap(n: int = 200, noise: float = 0.1, seed: int = 0) -> Pair:
    """``y = sin(2x) + x/2 + ε`` seen where 0.7 ≤ ∣x∣ ≤ 2 only: nothing is known in the middle. ``ε ~ N(0, noise²)``.

    >>> x, y = gap()
    >>> (x.abs() < 0.7).any().item()
    False
    """
    random = np.random.default_rng(seed)
    x = random.uniform(0.7, 2, n) * random.choice([-1, 1], n)
    return _float(x[:, None]), _float(np.sin(2 * x) + x / 2 + noise * random.standard_normal(n))


def scrambled(x: Tensor, seed: int = 0) -> Tensor:
    """Pictures [N, C, H, W] cut into four quadrants, each put in the place of another.

    Out-of-distribution pictures that need no download. They have the very pixels of the original pictures, and inside
    a quadrant the same strokes, so brightness or contrast, which would give noise away, cannot tell them from the
    real ones: a model has to know the shape of the whole.

    >>> scrambled(torch.arange(4.0).reshape(1, 1, 2, 2)).sort().values.sum().item()
    6.0
    """
    n, c, h, w = x.shape
    # Derangements: no quadrant stays, or half of a picture might be as it was.
    moves = np.array([p for p in permutations(range(4)) if all(i != j for i, j in enumerate(p))])
    chosen = torch.from_numpy(moves[np.random.default_rng(seed).integers(len(moves), size=n)])
    # [N, C, 2, H/2, 2, W/2]: which half of the rows, which row of it, and the same of columns
    quadrants = x.reshape(n, c, 2, h // 2, 2, w // 2).permute(0, 2, 4, 1, 3, 5).reshape(n, 4, c, h // 2, w // 2)
    moved = quadrants[torch.arange(n)[:, None], chosen]
    return moved.reshape(n, 2, 2, c, h // 2, w // 2).permute(0, 3, 1, 4, 2, 5).reshape(n, c, h, w)


FEW = 150  # labelled digits of `few_digits_split`
WHAT = {
    "digits": "handwritten digits, 8 x 8 pixels",
    "few-digits": f"handwritten digits, 8 x 8 pixels, {FEW} of them labelled",
    "diabetes": "442 patients, how far their disease went within a year",
    "moons": "two interleaved half circles",
    "and": "the truth table of AND",
    "sine": "the regression curve of Blundell et al.",
    "gap": "a regression curve with a gap in the data",
}


def digits_split(seed: int) -> Split:
    """80 % of the digits to train on, stratified; `scrambled` test digits are out of distribution."""
    return _digits("digits", 0.2, seed)


def few_digits_split(seed: int) -> Split:
    """`FEW` digits to train on, stratified, all others to test on; `scrambled` ones are out of distribution."""
    return _digits("few-digits", 1 - FEW / 1797, seed)


def _digits(name: str, test_share: float, seed: int) -> Split:
    train, test = cut(*digits(), test=test_share, seed=seed)
    ood = scrambled(test[0].reshape(-1, 1, 8, 8), seed).flatten(1)
    shape = (1, 8, 8)
    return Split(name, "classes", WHAT[name], test, train, tuple("0123456789"), ood=ood, image_shape=shape)


def diabetes_split(seed: int) -> Split:
    """70 % of the patients of Efron et al. (2004) to train on: ten columns, in the units that were measured."""
    from sklearn.datasets import load_diabetes

    table = load_diabetes(scaled=False)
    train, test = cut(_float(table.data), _float(table.target), test=0.3, seed=seed)
    return Split("diabetes", "reals", WHAT["diabetes"], test, train, features=tuple(table.feature_names))


def moons_split(seed: int) -> Split:
    """200 + 200 points; a ring of radius 4 around both moons is out of distribution."""
    x, y = moons(400, seed=seed)
    angle = np.linspace(0, 2 * np.pi, 200, endpoint=False)
    ring = _float(np.stack([0.5 + 4 * np.cos(angle), 0.25 + 4 * np.sin(angle)], 1))
    test, train, classes = (x[200:], y[200:]), (x[:200], y[:200]), ("upper", "lower")
    return Split("moons", "classes", WHAT["moons"], test, train, classes, ("x1", "x2"), ring)


def and_split(seed: int) -> Split:
    """The truth table, to train and to test on; the seed does not matter."""
    table = and_gate()
    return Split("and", "classes", WHAT["and"], table, table, ("false", "true"), ("a", "b"))


def sine_split(seed: int) -> Split:
    """200 + 200 points; inputs in [0.7, 1.2], beyond the data, are out of distribution."""
    x, y = sine(400, seed=seed)
    beyond = torch.linspace(0.7, 1.2, 100)[:, None]
    test, train = (x[200:], y[200:]), (x[:200], y[:200])
    return Split("sine", "reals", WHAT["sine"], test, train, features=("x",), ood=beyond)


def gap_split(seed: int) -> Split:
    """200 + 200 points; inputs in the middle of the gap are out of distribution."""
    x, y = gap(400, seed=seed)
    middle = torch.linspace(-0.5, 0.5, 100)[:, None]
    test, train = (x[200:], y[200:]), (x[:200], y[:200])
    return Split("gap", "reals", WHAT["gap"], test, train, features=("x",), ood=middle)


SPLITS = {
    "digits": digits_split,
    "few-digits": few_digits_split,
    "diabetes": diabetes_split,
    "moons": moons_split,
    "and": and_split,
    "sine": sine_split,
    "gap": gap_split,
}


def _float(a: NDArray[np.floating]) -> Tensor:
    return torch.from_numpy(a).float()
