"""Labels to an accuracy on features that were learnt without labels: a Bayesian head on a frozen encoder."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bayesrule import active
from bayesrule.active import Result as Run
from bayesrule.active import SimCLR, encoders, pools
from bayesrule.data import load_set
from bayesrule.experiments import findings
from bayesrule.experiments.active import curves
from bayesrule.experiments.active.active_mnist import START, draw, told
from bayesrule.experiments.active.curves import SOURCES
from bayesrule.experiments.base import Result, Setting
from bayesrule.methods import MCDropout
from bayesrule.models import Spec, build
from bayesrule.seeds import mixed

ACQUIRE = ("random", "epig", "batchbald")
SEEDS = 3
BUDGETS = (200, 120, 120)
BATCH = 5
DATA = {False: "digits", True: "mnist"}
ENCODERS = {False: SimCLR(features=64, width=16, epochs=30, batch_size=128), True: SimCLR(epochs=6)}
HEAD: Spec = {"hidden": [128], "dropout": 0.5}
FILE = "encoder.safetensors"


@dataclass(frozen=True)
class FeatureQuestion:
    """An acquisition and a seed, on a data set seen through an encoder, of a seed of its own."""

    data: str
    acquire: str
    budget: int
    seed: int
    encoder: int
    how: SimCLR
    folder: str


def run(setting: Setting) -> Result:
    """The encoder learns once; every seed begins with other labels."""
    if setting.cache is not None:
        return _run(setting, setting.cache)
    with tempfile.TemporaryDirectory() as folder:
        return _run(setting, Path(folder))


def _run(setting: Setting, folder: Path) -> Result:
    data, how = DATA[setting.full], ENCODERS[setting.full]
    pool = pools.of(load_set(data, setting.data_dir))
    folder.mkdir(parents=True, exist_ok=True)
    encoders.kept(folder / FILE, pool, how, setting.seed, setting.tell)
    questions = []
    for seed in findings.seeds(setting, SEEDS):
        for acquire, budget in zip(ACQUIRE, BUDGETS, strict=True):
            questions.append(FeatureQuestion(data, acquire, budget, seed, setting.seed, how, str(folder)))
    runs: dict[str, list[Run]] = {name: [] for name in ACQUIRE}
    for question, answer in zip(questions, setting.answers(ask, questions, _key, told), strict=True):
        runs[question.acquire].append(Run.from_json(answer))
    where = f", {BATCH} labels at a time"
    claims = [curves.ahead(runs, name, "random", SOURCES[name], where) for name in ACQUIRE[1:]]
    if setting.full:
        claims.append(curves.within(runs, ACQUIRE[1:], 120, SOURCES["epig"]))
    note = (
        f"One encoder for all seeds: SimCLR on all {len(pool)} rows of the pool, {how.epochs} epochs, without labels."
    )
    return Result(tuple(claims), curves.data_of(runs), lambda figure: draw(figure, runs), (7.0, 3.6), (note,))


def ask(question: FeatureQuestion, data_dir: str | None = None) -> dict[str, Any]:
    """One run, as plain data."""
    pool = pools.of(load_set(question.data, data_dir))
    features = encoders.kept(Path(question.folder) / FILE, pool, question.how, question.encoder)
    network: Spec = {"name": "mlp", "inputs": question.how.features, "outputs": len(pool.classes)}
    found = active.run(
        pool,
        question.acquire,
        build(network | HEAD, mixed(question.seed)),
        MCDropout(lr=3e-3),
        features=features,
        start=START,
        balanced=True,
        batch=BATCH,
        budget=question.budget,
        epochs=100,
        batch_size=32,
        prior=1.0,
        val=0,
        samples=50,
        candidates=3000,
        test_samples=16,
        seed=question.seed,
    )
    return found.to_json()


def _key(question: FeatureQuestion) -> dict[str, Any]:
    """All but the directory, where the encoder is kept."""
    return {**vars(question), "how": asdict(question.how), "folder": None, **HEAD, "batch": BATCH}
