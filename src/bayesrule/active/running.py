"""Rounds: learn from the labels that are known, choose the next rows, ask for theirs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule import files, likelihoods, methods, modules, naming
from bayesrule.active import answers, pools
from bayesrule.active.acquisition import Acquisition, View, chosen
from bayesrule.active.answers import Oracle
from bayesrule.active.networks import network_for
from bayesrule.active.results import Result
from bayesrule.active.settings import Settings
from bayesrule.data import Arrays, Scaling, inputs, standardize
from bayesrule.evaluate import judged
from bayesrule.files import FileError
from bayesrule.locks import held
from bayesrule.methods import Method
from bayesrule.naming import to_spec
from bayesrule.posteriors import Dropout, Posterior, central_state
from bayesrule.seeds import mixed
from bayesrule.training import Folder, fit_or_resume

START, FIT, DRAWS, CHOICE, CANDIDATES = range(5)  # what a seed is for; the network's own is 5
SEEN = 1000  # rows of the pool at which uncertainty is measured where there are no test examples
INTERVAL = 30.0  # seconds between checkpoints of a fit


class Session:
    """Questions and answers about a pool: `ask` gives rows, `tell` takes their labels, as often as it takes.

    With ``out`` everything is kept: a session with the same arguments goes on where the last one stood, a minute or
    weeks later. Arguments are those of `run`.

    >>> x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    >>> session = Session(x, "bald", method="map", classes=2, start=4, batch=2, budget=8, epochs=5)
    >>> rows = session.ask()
    >>> len(rows)
    4
    >>> session.tell((x[rows, 0] > 0).long())
    >>> len(session.ask()), session.result.known
    (2, 4)
    """

    def __init__(
        self,
        pool: Any,
        acquire: str | Acquisition = "bald",
        model: nn.Module | None = None,
        method: str | Method = "ensemble",
        *,
        test: Any = None,
        classes: int | None = None,
        features: nn.Module | None = None,
        out: str | Path | None = None,
        tell: Callable[[str], object] | None = None,
        **settings: Any,
    ) -> None:
        self.settings = Settings.of(settings)
        self.pool = pools.of(pool, test, classes)
        if features is not None:
            self.pool = self.pool.through(features)
        self.settings.check(self.pool)
        self.acquisition = chosen(acquire)
        self.acquisition.check(self.pool.kind)
        self.method = naming.choose("method", method, methods.AVAILABLE, Method)
        self.likelihood = likelihoods.choose(self.settings.likelihood or likelihoods.usual(self.pool.kind))
        if self.likelihood.kind != self.pool.kind:
            raise ValueError(
                f"likelihood must be for {self.pool.kind}, as the labels of the pool are, but {self.likelihood.name!r} "
                f"is for {self.likelihood.kind}"
            )
        self.seed = self.settings.seed
        self.fresh = (
            network_for(self.pool, self.likelihood, self.method, self.seed) if model is None else modules.twin(model)
        )
        self.folder, self.say = None if out is None else Path(out), tell
        self.posterior: Posterior | None = None
        self._before: Posterior | None = None
        mine = Result(self.pool.name, self._about(), self.seed)
        self.result = _stored(self.folder, mine) or mine
        if len(self.pool.known) and not self.result.rows:
            self._add(self.pool.known.tolist(), self.pool.given.tolist())

    def ask(self) -> Tensor:
        """Rows whose labels are wanted next, the same until they are told; none when the budget is spent."""
        if not self.result.asked and self.result.known < self.settings.budget:
            self._question()
            self._store()
        return torch.tensor(self.result.asked, dtype=torch.int64)

    def tell(self, labels: Any) -> None:
        """The labels of the rows that `ask` gave, in their order. Whatever is wrong with them, nothing is lost."""
        if not self.result.asked:
            raise ValueError("labels must be of rows that were asked for, but none are: call ask first")
        self._add(self.result.asked, answers.checked(labels, self.result.asked, self.pool))
        self._store()

    def learn(self) -> Posterior:
        """The posterior given all labels that are known, judged if it was not before."""
        if not self.result.rows:
            raise ValueError("labels must be known before anything is learnt: ask, and tell")
        if self.posterior is not None:
            return self.posterior
        began = time.perf_counter()
        rounds = len(self.result.rows)
        self.posterior = self._fitted(rounds)
        if len(self.result.labels) < rounds:
            self._judge(self.posterior)
            self.result.seconds.append(time.perf_counter() - began)
            self._store()
            if self.say is not None:
                self.say(self._line())
        return self.posterior

    def finish(self) -> Result:
        """Learn from all that was told, and say that the run is over."""
        if not self.result.finished or self.result.asked:
            self.learn()
            self.result.finished = True
            self._store()
        return self.result

    def _question(self) -> None:
        """The next rows, and what is predicted of them."""
        result, settings = self.result, self.settings
        result.finished = False
        if not result.rows:
            result.asked = self._first()
            result.asked_guesses, result.asked_sure = [], []
            return
        posterior = self.learn()
        began = time.perf_counter()
        left = self._left()
        count = min(settings.batch, settings.budget - result.known, len(left))
        rounds = len(result.rows)
        if settings.candidates is not None and settings.candidates < len(left):
            order = torch.randperm(len(left), generator=self._generator(CANDIDATES, rounds))
            left = left[order[: max(count, settings.candidates)].sort().values]
        view = View(
            posterior,
            inputs.take(self.pool.x, left),
            inputs.take(self.pool.x, self._known()),
            self.pool.x,
            settings.samples,
            mixed(self.seed, DRAWS, rounds),
        )
        picked = left[self.acquisition.choose(view, count, self._generator(CHOICE, rounds))]
        result.asked = picked.tolist()
        prediction = posterior.predict(inputs.take(self.pool.x, picked), settings.test_samples)
        result.asked_guesses = prediction.point.double().tolist()
        sure = prediction.confidence if self.pool.kind == "classes" else prediction.std
        result.asked_sure = sure.double().tolist()
        result.seconds[-1] += time.perf_counter() - began

    def _first(self) -> list[int]:
        """The rows to start with."""
        start = self.settings.start
        if not isinstance(start, int):
            return list(start)
        seed = mixed(self.seed, START)
        if self.settings.balanced:
            return self.pool.balanced(start, seed).tolist()
        return torch.randperm(len(self.pool), generator=torch.Generator().manual_seed(seed))[:start].tolist()

    def _add(self, rows: Sequence[int], labels: Sequence[float]) -> None:
        """A round more."""
        result = self.result
        result.rows.append(list(rows))
        result.answers.append(list(labels))
        result.guesses.append(result.asked_guesses)
        result.sure.append(result.asked_sure)
        result.asked, result.asked_guesses, result.asked_sure = [], [], []
        self.posterior, self._before = None, self.posterior

    def _fitted(self, rounds: int) -> Posterior:
        """The posterior after so many rounds; it is fitted, or continued, or read."""
        folder = None if self.folder is None else Folder(self.folder / f"round-{rounds:03}", INTERVAL)
        model = self.fresh
        over = folder is not None and folder.posterior.exists()
        if self.settings.warm and rounds > 1 and not over:
            before = self._fitted(rounds - 1) if self._before is None else self._before
            model = modules.twin(self.fresh)
            state = before.weights if isinstance(before, Dropout) else central_state(before)
            model.load_state_dict(state, strict=False)
        options = {"method": self.method, "likelihood": self.likelihood, **self.settings.fit()}
        return fit_or_resume(folder, model, self._data(rounds), seed=mixed(self.seed, FIT, rounds), **options)

    def _data(self, rounds: int) -> Arrays:
        """The examples that were known after so many rounds; numbers are shifted and scaled by their own labels."""
        rows = [row for part in self.result.rows[:rounds] for row in part]
        labels = [label for part in self.result.answers[:rounds] for label in part]
        x, y = inputs.take(self.pool.x, torch.tensor(rows)), answers.as_tensor(labels, self.pool)
        if not self.likelihood.rescales_targets:
            return Arrays(x, y)
        scaling = Scaling(None, standardize((y[:, None].double(), y.double())).scaling.targets)
        return Arrays(*scaling.forward(x, y), scaling)

    def _judge(self, posterior: Posterior) -> None:
        result, samples = self.result, self.settings.test_samples
        result.labels.append(result.known)
        if self.pool.test is None:
            rows = torch.linspace(0, len(self.pool) - 1, min(SEEN, len(self.pool))).long()
            prediction = posterior.predict(inputs.take(self.pool.x, rows), samples)
            result.unsure.append(float(prediction.epistemic.mean()))
            return
        for name, value in judged(posterior, self.pool.test, samples).items():
            getattr(result, name).append(value)

    def _line(self) -> str:
        result = self.result
        said = f"{result.labels[-1]} labels: "
        said += f"accuracy {result.accuracy[-1]:.4f}, " if result.accuracy and self.pool.kind == "classes" else ""
        said += f"RMSE {-result.accuracy[-1]:.4g}, " if result.accuracy and self.pool.kind != "classes" else ""
        return said + f"epistemic {result.unsure[-1]:.4g}, {result.seconds[-1]:.1f} s"

    def _known(self) -> Tensor:
        return torch.tensor([row for part in self.result.rows for row in part], dtype=torch.int64)

    def _left(self) -> Tensor:
        """Rows whose labels are not known."""
        free = torch.ones(len(self.pool), dtype=torch.bool)
        free[self._known()] = False
        return free.nonzero()[:, 0]

    def _generator(self, what: int, rounds: int) -> torch.Generator:
        return torch.Generator().manual_seed(mixed(self.seed, what, rounds))

    def _about(self) -> dict[str, Any]:
        """All that decides what a session gives, but its budget, as it comes back from a file."""
        used = {key: to_spec(value) for key, value in vars(self.settings).items() if key not in ("budget", "seed")}
        plain = {
            "acquire": to_spec(self.acquisition),
            "method": to_spec(self.method),
            "settings": used | {"likelihood": to_spec(self.likelihood)},
            "network": modules.signature(self.fresh),
            "pool": self.pool.fingerprint(),
        }
        found: dict[str, Any] = json.loads(json.dumps(plain, default=str))
        return found

    def _store(self) -> None:
        if self.folder is not None:
            files.write_atomically(self.folder / "result.json", json.dumps(self.result.to_json(), indent=1))


def run(
    pool: Any,
    acquire: str | Acquisition = "bald",
    model: nn.Module | None = None,
    method: str | Method = "ensemble",
    *,
    oracle: Oracle | None = None,
    test: Any = None,
    classes: int | None = None,
    features: nn.Module | None = None,
    out: str | Path | None = None,
    tell: Callable[[str], object] | None = None,
    **settings: Any,
) -> Result:
    """Ask for labels, a batch at a time, until the budget is spent: which rows of a pool are worth a label?

    Args:
        pool: ``(X, y)``, a `Split`, a `Pool`, or X alone with an ``oracle`` and ``classes``.
        acquire: the name of an acquisition (`br.active.AVAILABLE`) or an object such as
            ``br.active.EPIG(targets=200)``.
        model: the network before the first round; None: one that suits the pool.
        method: any way to a posterior, a name (`br.methods.available`) or an object.
        oracle: a function of rows that returns their labels; None: the labels of the pool.
        test: ``(X, y)`` to be judged on after each round; of a `Split` its test examples.
        classes: how many there are, for X alone; 0 for numbers.
        features: a module; the pool is seen through it, and the network is learnt on its outputs.
        out: a directory that keeps every fit, question and answer: the same call goes on where it was cut short, and
            gives the same to the bit; with a larger budget it goes on from its end.
        tell: called with a line after each round.
        settings: ``start``, ``batch``, ``budget``, ``samples``, ``epochs``, …: the fields of `br.active.Settings`.

    >>> from bayesrule.data import moons
    >>> x, y = moons(seed=0)
    >>> result = run((x[:200], y[:200]), "bald", method="map", test=(x[200:], y[200:]), start=4, batch=2, budget=8,
    ...              epochs=10)
    >>> result.labels, len(result.accuracy)
    ([4, 6, 8], 3)
    """
    about: dict[str, Any] = {"test": test, "classes": classes, "features": features, "out": out, "tell": tell}
    with nullcontext() if out is None else held(Path(out)):
        session = Session(pool, acquire, model, method, **about, **settings)
        answer = answers.oracle_of(session.pool, oracle)
        while len(rows := session.ask()):
            session.tell(answer(rows))
        return session.finish()


def _stored(folder: Path | None, like: Result) -> Result | None:
    """What a folder holds of the same session; one of something else is refused."""
    if folder is None or not (path := folder / "result.json").is_file():
        return None
    try:
        found = Result.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise FileError(f"{path}: not a result of active learning, or damaged ({error})") from error
    if found.seed != like.seed:
        raise FileExistsError(f"{folder} holds a run with the seed {found.seed}, not {like.seed}: {ANOTHER}")
    for name, mine in like.about.items():
        if found.about.get(name) != mine:
            raise FileExistsError(f"{folder} holds a run with another {name}: {ANOTHER}")
    return found


ANOTHER = "give the same arguments to go on with it, or choose another directory"
