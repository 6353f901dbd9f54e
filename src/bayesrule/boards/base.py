"""The boards: data that methods are measured on, each with the network and the budget that all methods have there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch

from bayesrule.boards.tables import TABLES
from bayesrule.data import Split, load_set
from bayesrule.likelihoods import Heteroscedastic, Likelihood
from bayesrule.methods import MCLMC, Method
from bayesrule.models import Spec, default_for
from bayesrule.naming import Named, unknown

AUTO = "auto"  # of a likelihood: for numbers the noise that held-out training rows prefer
SAMPLES = 32  # networks of a prediction


@dataclass(frozen=True)
class Own(Named):
    """What one method has for itself on a board; None: as all others there.

    ``method``: with its settings. ``likelihood``: with its fields. ``model``: another network, but for the numbers of
    its inputs and outputs. ``prior``: the deviation of the weights. ``samples``: networks of a prediction.
    """

    name: ClassVar[str] = "own"
    method: Method
    likelihood: Likelihood | None = None
    model: Spec | None = None
    prior: float | None = None
    samples: int = SAMPLES

    def __str__(self) -> str:
        found = [settings(self.method)]
        if self.model is not None:
            found.append(f"network {network(self.model)}")
        if self.likelihood is not None:
            found.append(f"noise {self.likelihood.name} {settings(self.likelihood)}".strip())
        if self.prior is not None:
            found.append(f"prior {self.prior:g}")
        return ", ".join([*filter(None, found), f"{self.samples} networks of a prediction"])


def settings(thing: Any) -> str:
    """The fields of a method or a likelihood that are not as they are by default.

    >>> settings(Heteroscedastic(deviation=True)), settings(Heteroscedastic())
    ('deviation=True', '')
    """
    changed = []
    for known in fields(thing):
        usual = known.default if known.default_factory is MISSING else known.default_factory()
        if (value := getattr(thing, known.name)) != usual:
            changed.append(f"{known.name}={value}")
    return ", ".join(changed)


def network(spec: Spec) -> str:
    """A network in words.

    >>> network({"name": "mlp", "inputs": 3, "outputs": 1, "hidden": [16, 16], "activation": "silu"})
    'mlp 16-16 silu'
    """
    words = [spec["name"], "-".join(map(str, spec.get("hidden", ()))), spec.get("activation", "")]
    return " ".join(filter(None, words))


@dataclass(frozen=True)
class Board:
    """One data set.

    ``splits``: how many standard splits there are; None: as many as one asks for; 0: there is one, and a repetition is
    another seed. ``epochs``, ``epochs_in_full``: passes over the data; None: as `br.fit` has it. ``model``: the
    network, if it is not the default one for the data. ``augment``: how pictures are changed while training.
    ``standardized``: whether pixels are, too. ``strangers``: sets beside the split's own from elsewhere.
    ``hidden``, ``likelihood``: widths and noise of all methods, where validation has chosen others than the usual ones.
    ``own``: what some methods have for themselves.
    """

    name: str
    splits: int | None
    epochs: int | None = None
    epochs_in_full: int | None = None
    model: str | None = None
    augment: tuple[str, ...] = ()
    standardized: bool = True
    strangers: tuple[str, ...] = ()
    hidden: tuple[int, ...] | None = None
    likelihood: str | Likelihood = AUTO
    own: Mapping[str, Own] = field(default_factory=dict)

    def load(self, repeat: int, data_dir: str | None = None) -> Split:
        """The data of a repetition."""
        kind, _, rest = self.name.partition("/")
        if kind == "tables":
            return _table(rest, repeat)
        if kind == "uci":
            return load_set(self.name, data_dir, split=repeat)
        return load_set(kind, data_dir, seed=repeat) if kind == "digits" else _pictures(kind, data_dir)

    def repeats(self, splits: int, seeds: Sequence[int]) -> list[int]:
        """The splits or seeds of the repetitions; of standard splits the last first: defaults saw the first two.

        >>> BOARDS["uci/yacht"].repeats(2, [0]), BOARDS["digits"].repeats(2, [0]), BOARDS["mnist"].repeats(2, [0, 7])
        ([19, 18], [0, 1], [0, 7])
        """
        if self.splits == 0:
            return list(seeds)
        if self.splits is None:
            return list(range(splits))
        return list(reversed(range(self.splits)))[:splits]

    def spec(
        self, split: Split, likelihood: Likelihood, hidden: tuple[int, ...] | None = None, own: Own | None = None
    ) -> Spec:
        """The network as plain data; ``hidden``: widths, of one that is fully connected; None: as the board has it."""
        spec = default_for(split, likelihood)
        if self.model is not None:
            assert split.image_shape is not None
            spec = {"name": self.model, "channels": split.image_shape[0], "outputs": spec["outputs"]}
        elif self.hidden is not None:
            spec |= {"hidden": list(self.hidden)}
        if own is not None and own.model is not None:
            spec = {"inputs": spec["inputs"], "outputs": spec["outputs"], **own.model}
        return spec if hidden is None or "hidden" not in spec else spec | {"hidden": list(hidden)}


def _slug(name: str) -> str:
    return name.replace(" ", "-")


CHAINS = Own(
    MCLMC(chains=8, draws=50, thin=110, warm_up=30, training=20),
    Heteroscedastic(deviation=True),
    {"name": "mlp", "hidden": [16, 16], "activation": "silu"},
    prior=1.0,
    samples=400,
)
"""What ``benchmarks/samplers.py`` measures: chains over small networks that tell their own noise.

Not for wine: its targets are a few whole numbers, about which such noise shrinks without end.
"""
NOISY = ("kin8nm", "naval", "power", "protein")
"""Large sets of which a fifth of the training rows of split 0 was more probable under noise that the network tells."""
LONGER = {"naval": 60, "power": 100}
"""Epochs where those rows were more probable after more than `br.fit` takes by itself."""


def _uci(name: str) -> Board:
    """A regression with its standard splits."""
    likelihood = Heteroscedastic.name if name in NOISY else AUTO
    own = {} if name == "wine" else {"mclmc": CHAINS}
    splits, epochs = 5 if name == "protein" else 20, LONGER.get(name)
    return Board(f"uci/{name}", splits, epochs, likelihood=likelihood, own=own)


STRANGERS = ("kmnist", "notmnist")
BOARDS: dict[str, Board] = {
    board.name: board
    for board in (
        Board("digits", None, standardized=False),
        *(Board(f"tables/{_slug(name)}", None) for name in TABLES),
        *(
            _uci(name)
            for name in ("boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine", "yacht")
        ),
        Board("mnist", 0, epochs_in_full=20, standardized=False, strangers=STRANGERS),
        Board("cifar10/lenet-5", 0, 20, 60, augment=("flips", "crops")),
        Board("cifar10/resnet-20", 0, 20, 100, model="resnet", augment=("flips", "crops")),
    )
}
IN_FULL = ("cifar10/resnet-20",)
"""What is only measured where it is asked for by its own name, or at length."""


def chosen(names: Sequence[str], full: bool = False) -> list[Board]:
    """Boards by name or by family, such as ``uci``.

    >>> [board.name for board in chosen(["cifar10", "digits"])], len(chosen(["uci", "tables"]))
    (['cifar10/lenet-5', 'digits'], 18)
    >>> chosen(["uci/yachts"])
    Traceback (most recent call last):
    ValueError: unknown board 'uci/yachts': did you mean 'uci/yacht'? Valid: cifar10, cifar10/lenet-5, ...
    """
    families = list(dict.fromkeys(name.partition("/")[0] for name in BOARDS))
    found: dict[str, Board] = {}
    for name in names:
        if name in BOARDS:
            found[name] = BOARDS[name]
        elif name in families:
            found |= {
                key: board
                for key, board in BOARDS.items()
                if key.startswith(f"{name}/") and (full or key not in IN_FULL)
            }
        else:
            raise unknown("board", name, {*BOARDS, *families})
    return list(found.values())


@lru_cache(maxsize=1)
def _pictures(name: str, data_dir: str | None) -> Split:
    return load_set(name, data_dir)  # a minute's cells are of the same one


def _table(name: str, repeat: int) -> Split:
    """An embedded or generated table."""
    make = next(make for known, make in TABLES.items() if _slug(known) == name)
    x, y, test, truth = make(repeat)
    real = np.issubdtype(y.dtype, np.floating)
    classes = () if real else tuple(str(number) for number in range(int(max(y.max(), truth.max())) + 1))
    train, held = ((torch.from_numpy(a), torch.from_numpy(b)) for a, b in ((x, y), (test, truth)))
    what = f"{len(y)} rows to train on, {x.shape[1]} columns"
    return Split(f"tables/{name}", "reals" if real else "classes", what, held, train, classes)
