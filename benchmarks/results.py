"""The results that README and docs show and that take minutes, again: ``make results``, or one of them.

    python benchmarks/results.py demo              # README's first figures: what `make demo` shows; three minutes
    python benchmarks/results.py digits            # README's leaderboard: every method, one split; three minutes
    python benchmarks/results.py splits --jobs 2   # docs/methods.md: every method, ten splits; 10 minutes of one core
    python benchmarks/results.py estimators        # docs/estimators.md: beside scikit-learn's own; 5 minutes
    python benchmarks/results.py board             # docs/leaderboard.md: every method on three splits; 5 minutes
    python benchmarks/results.py quick             # docs/reproduce.md: the quick experiments; 10 minutes
    python benchmarks/results.py tables            # no training: writes the tables from what is stored

Each writes files of results with the command, commit, seed, date and machine, and then the tables of the pages, which
have a comment in front of them, ``<!-- figures: FILE -->``. Trainings of splits that are done are kept in ``--cache``,
so an interrupted run goes on; other code is another question.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import bayesrule as br
from bayesrule import cli, jobs
from bayesrule.experiments import EXPERIMENTS
from bayesrule.experiments.findings import differences
from bayesrule.experiments.trials import average
from bayesrule.files import write_atomically
from bayesrule.methods import AVAILABLE
from bayesrule.models import build, default_for
from bayesrule.report import commit, number, provenance

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs/results"
SPLITS = 10
BASELINE = "map"
BOARD = ("leaderboard", "--boards", "uci/yacht", "--splits", "3", "--epochs", "40", "--no-validation")
"""40 epochs are the budget of the literature on the standard splits."""
SCORES = ("accuracy", "nll", "ece", "auroc_ood")
OWN_FILE = ("dnn2gp-kernels", "dnn2gp-regression", "dnn2gp-tuning", "flat-minima", "learning-rule", "prior-gallery")
OWN_FILE += (
    "relevance",
    "sequential-bayes",
    "toy-lifelong",
    "more-accurate-posterior",
    "fromp-against-ewc",
)  # experiments of which every number is kept; of the others, in their quick form, the claims

Stored = dict[str, Any]


def demo(args: argparse.Namespace) -> None:
    """The demo, as `make demo` runs it."""
    store("demo", scores("demo"))


def digits(args: argparse.Namespace) -> None:
    """Every method on one split of digits."""
    store("digits", scores("compare", "digits"))


def scores(*command: str) -> Stored:
    """What a command of bayesrule writes to ``scores.json``."""
    with tempfile.TemporaryDirectory() as folder:
        run(*command, "--out", folder)
        plain: Stored = json.loads(Path(folder, "scores.json").read_text(encoding="utf-8"))
    return plain | {"command": " ".join(("bayesrule", *command))}


@dataclass(frozen=True)
class OnSplit:
    """A method at its defaults on a split of digits."""

    method: str
    seed: int

    def key(self) -> dict[str, object]:
        """Trainings of other code are no answers."""
        return jobs.plain(self) | {"commit": commit()}


def on_split(asked: OnSplit) -> dict[str, float]:
    """Scores on the split of that seed, from a start of that seed."""
    split = br.data.load_set("digits", seed=asked.seed)
    posterior = br.fit(build(default_for(split), asked.seed), split.train, asked.method, seed=asked.seed)
    scores = br.evaluate(posterior, split.test, split.ood, seed=asked.seed)
    found = {name: float(scores[name]) for name in SCORES}
    return found | {"ece_null": scores.null("ece").mean, "seconds": posterior.info["seconds"]}


def splits(args: argparse.Namespace) -> None:
    """Every method on every split, from one run."""
    asked = [OnSplit(method, seed) for method in args.methods.split(",") for seed in range(args.splits)]
    answers = jobs.run(on_split, asked, (), args.jobs, args.cache, print, OnSplit.key, told)
    runs: dict[str, list[dict[str, float]]] = {question.method: [] for question in asked}
    for question, answer in zip(asked, answers, strict=True):
        runs[question.method].append(answer)
    rows = {method: summary(own, runs[BASELINE]) for method, own in runs.items()}
    about = provenance(f"python benchmarks/results.py splits --splits {args.splits}", seed=0)
    ranked = dict(sorted(rows.items(), key=lambda row: row[1]["nll"]))
    store("digits-splits", about | {"data": "digits", "splits": args.splits, "methods": ranked})


def told(asked: OnSplit, scores: dict[str, float]) -> str:
    """A training and its scores."""
    return f"{asked.method:16} split {asked.seed}: accuracy {scores['accuracy']:.4f}, NLL {scores['nll']:.4f}"


def summary(runs: Sequence[dict[str, float]], baseline: Sequence[dict[str, float]]) -> Stored:
    """Means over splits, the gain in NLL over the baseline on the same split with its standard error, and every run."""
    gains = differences([run["nll"] for run in baseline], [run["nll"] for run in runs])
    centre, error = average(gains)
    means = {name: mean(run[name] for run in runs) for name in runs[0]}
    return means | {"gain": centre, "error": error, "better": sum(gain > 0 for gain in gains), "runs": list(runs)}


def board(args: argparse.Namespace) -> None:
    """Every method on a board; cells that are done are kept, so an interrupted run goes on."""
    folder = args.cache.parent / "leaderboard"
    run(*BOARD, "--jobs", str(args.jobs), "--out", str(folder))
    plain: Stored = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    store("leaderboard", plain | {"command": " ".join(("BAYESRULE_DATA=data", "bayesrule", *BOARD))})
    write_atomically(RESULTS / "leaderboard.png", (folder / "leaderboard.png").read_bytes())


def estimators(args: argparse.Namespace) -> None:
    """scikit-learn's own estimators and ours at their defaults, on three splits of each set."""
    from sklearn import datasets

    about = provenance("python benchmarks/results.py estimators", seed=0)
    classes: dict[str, Stored] = {}
    for name in ("iris", "wine", "breast_cancer", "digits"):
        classes[name] = compared(getattr(datasets, f"load_{name}")(return_X_y=True), classifiers(), class_scores)
        print(name, {kind: {key: round(value, 3) for key, value in row.items()} for kind, row in classes[name].items()})
    sets = {
        "diabetes": datasets.load_diabetes(return_X_y=True),
        "make_regression": datasets.make_regression(500, 10, noise=10, random_state=0),
        "make_friedman1": datasets.make_friedman1(500, noise=1.0, random_state=0),
    }
    reals: dict[str, Stored] = {}
    for name, data in sets.items():
        reals[name] = compared(data, regressors(), real_scores)
        print(name, {kind: {key: round(value, 3) for key, value in row.items()} for kind, row in reals[name].items()})
    store("estimators", about | {"random_states": [0, 1, 2], "classes": classes, "reals": reals})


def classifiers() -> dict[str, Callable[[int], Any]]:
    """Makers of classifiers, by random state."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier

    from bayesrule.estimators import BayesianClassifier

    return {
        "logistic regression": lambda seed: scaled(LogisticRegression(max_iter=500)),
        "MLPClassifier": lambda seed: scaled(MLPClassifier(max_iter=500, random_state=seed)),
        "BayesianClassifier": lambda seed: BayesianClassifier(random_state=seed),
    }


def regressors() -> dict[str, Callable[[int], Any]]:
    """Makers of regressors, by random state."""
    from sklearn.linear_model import Ridge
    from sklearn.neural_network import MLPRegressor

    from bayesrule.estimators import BayesianRegressor

    return {
        "ridge": lambda seed: with_scaled_targets(Ridge()),
        "MLPRegressor": lambda seed: with_scaled_targets(MLPRegressor(max_iter=500, random_state=seed)),
        "BayesianRegressor": lambda seed: BayesianRegressor(random_state=seed),
    }


def scaled(model: Any) -> Any:
    """After standardisation, which ours do themselves."""
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), model)


def with_scaled_targets(model: Any) -> Any:
    """After standardisation of inputs and targets, as ours."""
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.preprocessing import StandardScaler

    return TransformedTargetRegressor(scaled(model), transformer=StandardScaler())


def class_scores(model: Any, x: Any, y: Any) -> dict[str, float]:
    """Accuracy and log-loss."""
    from sklearn.metrics import log_loss

    return {"accuracy": float(model.score(x, y)), "log-loss": float(log_loss(y, model.predict_proba(x)))}


def real_scores(model: Any, x: Any, y: Any) -> dict[str, float]:
    """R², and of ours the share of targets in the 90 % intervals."""
    found = {"R²": float(model.score(x, y))}
    if hasattr(model, "predict_distribution"):
        low, high = model.predict_distribution(x).interval(0.9)
        found["inside"] = float(((low.numpy() <= y) & (y <= high.numpy())).mean())
    return found


def compared(data: Any, makers: dict[str, Callable[[int], Any]], score: Callable[..., dict[str, float]]) -> Stored:
    """Mean scores over three random 75/25 splits."""
    import warnings

    from sklearn.model_selection import train_test_split

    rows = {}
    for kind, make in makers.items():
        runs = []
        for seed in range(3):
            x, x_test, y, y_test = train_test_split(*data, random_state=seed)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # scikit-learn's own stop at max_iter and say so
                runs.append(score(make(seed).fit(x, y), x_test, y_test))
        rows[kind] = {name: mean(run[name] for run in runs) for name in runs[0]}
    return rows


def quick(args: argparse.Namespace) -> None:
    """Every experiment in its quick form."""
    about, claims = provenance("python benchmarks/results.py quick", seed=0), {}
    for name in EXPERIMENTS:
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            run("reproduce", name, "--out", folder)
            plain = json.loads(Path(folder, "result.json").read_text(encoding="utf-8"))
            plain["command"] = f"bayesrule reproduce {name}"
            if name in OWN_FILE:
                store(name, plain)
                write_atomically(RESULTS / f"{name}.png", Path(folder, "figure.png").read_bytes())
        claims[name] = {key: plain[key] for key in ("command", "seconds", "claims", "notes")}
        print(f"{name}: {time.perf_counter() - began:.0f} s")
    store("reproduce-quick", about | claims)


def run(*line: str) -> None:
    """A command line of bayesrule."""
    code = cli.main(list(line))
    if code:
        raise SystemExit(code)


def store(name: str, plain: Stored) -> None:
    """A file of results."""
    write_atomically(RESULTS / f"{name}.json", json.dumps(plain, indent=1, ensure_ascii=False))


def leaderboard(stored: Stored) -> list[list[str]]:
    """Methods, and baselines where there are any, the lowest NLL first."""
    rows = [["method", "accuracy", "NLL", "Brier", "ECE (null)", "OOD AUROC", "training"]]
    named = {f"`{name}`": row for name, row in stored["methods"].items()}
    named |= {f"{name} (baseline)": row for name, row in stored.get("baselines", {}).items()}
    for name, row in sorted(named.items(), key=lambda item: item[1]["scores"]["nll"]):
        scores = row["scores"]
        shown = [number(scores[key]) for key in ("accuracy", "nll", "brier", "ece", "auroc_ood")]
        shown[3] += f" ({number(row['nulls']['ece']['mean'])})"
        rows.append([name, *shown, f"{row['cost']:.1f} ×"])
    return rows


def split_table(stored: Stored) -> list[list[str]]:
    """The table of ten splits."""
    rows = [["method", "accuracy", "NLL", "ECE (null)", "OOD AUROC", f"gain in NLL over `{BASELINE}`", "better on"]]
    for name, row in stored["methods"].items():
        gain = [f"{row['gain']:.4f} ± {row['error']:.4f}".replace("-", "−"), f"{row['better']} of {stored['splits']}"]
        if name == BASELINE:
            gain = ["", ""]
        ece = f"{row['ece']:.3f} ({row['ece_null']:.3f})"
        rows.append([f"`{name}`", f"{row['accuracy']:.3f}", f"{row['nll']:.4f}", ece, f"{row['auroc_ood']:.3f}", *gain])
    return rows


def class_table(stored: Stored) -> list[list[str]]:
    """Classifiers beside scikit-learn's."""
    first = next(iter(stored["classes"].values()))
    rows = [["accuracy / log-loss", *first]]
    for name, own in stored["classes"].items():
        rows.append([name, *(f"{row['accuracy']:.3f} / {row['log-loss']:.3f}" for row in own.values())])
    return rows


def real_table(stored: Stored) -> list[list[str]]:
    """Regressors beside scikit-learn's."""
    first = next(iter(stored["reals"].values()))
    rows = [["R²", *first, "share in its 90 % intervals"]]
    for name, own in stored["reals"].items():
        inside = own["BayesianRegressor"]["inside"]
        rows.append([name, *(f"{row['R²']:.3f}" for row in own.values()), f"{inside:.3f}"])
    return rows


def rival_table(stored: Stored) -> list[list[str]]:
    """The default for tables beside simple models."""
    rows = [
        [
            "table",
            "`auto`",
            "best of the others",
            "`auto` above it",
            "ECE (95 % of its null) or share in 90 % intervals",
        ]
    ]
    for name, row in stored["tables"].items():
        best = row["best other"]
        behind = f"{row['behind']:.3f} ± {row['standard_error']:.3f}".replace("-", "−")
        if "ece" in row:
            calibrated = f"{row['ece']:.3f} ({row['ece_95']:.3f})"
        else:
            calibrated = f"{row['coverage']:.3f} ± {row['coverage_error']:.3f}"
        rows.append([name, f"{row['nll']['bayesrule']:.3f}", f"{best} {row['nll'][best]:.3f}", behind, calibrated])
    return rows


def board_table(stored: Stored) -> list[list[str]]:
    """Test NLL on each board and what training costs there, best first; then baselines and what is published."""
    boards = stored["boards"]
    rows = [["method", *(f"{name}: NLL" for name in boards), *(f"{name}: training" for name in boards)]]
    ranked = stored["ranks"] or next(iter(boards.values()))["methods"]
    for name in ranked:
        own = [found["methods"].get(name, {}) for found in boards.values()]
        rows.append([f"`{name}`", *map(_nll, own), *(_times(row) for row in own)])
    if all("chosen" in found for found in boards.values()):
        own = [found["chosen"] for found in boards.values()]
        rows.append(["best by validation", *map(_nll, own), *(_times(row) for row in own)])
    for name in dict.fromkeys(name for found in boards.values() for name in found["baselines"]):
        own = [found["baselines"].get(name, {}) for found in boards.values()]
        rows.append([f"{name} (baseline)", *map(_nll, own), *(_times(row) for row in own)])
    beside = [f for found in boards.values() for f in found["published"] if "nll" in f]
    for name, how in dict.fromkeys((f["source"], f.get("how", "published")) for f in beside):
        own = [{f["source"]: f for f in found["published"]}.get(name) for found in boards.values()]
        rows.append([f"{name}, {how}", *map(_published, own), *["–"] * len(own)])
    return rows


def _nll(row: Stored) -> str:
    """A mean with its standard error, or that there is none."""
    if row.get("failed"):
        return "failed"
    return _with_error(row["scores"]["nll"]["mean"], row["scores"]["nll"]["error"]) if row else "–"


def _published(figure: Stored | None) -> str:
    return "–" if figure is None else _with_error(figure["nll"], figure["error"])


def _with_error(mean: float, error: float | None) -> str:
    text = f"{mean:.3f}" if error is None else f"{mean:.3f} ± {error:.3f}"
    return text.replace("-", "−")


def _times(row: Stored) -> str:
    return f"{row['training']['mean']:.1f} ×" if row.get("training") else "–"


TABLES: dict[str, tuple[str, Sequence[Callable[[Stored], list[list[str]]]]]] = {
    "README.md": ("docs/results/digits.json", [leaderboard]),
    "docs/which-method.md": ("results/demo.json", [leaderboard]),
    "docs/methods.md": ("results/digits-splits.json", [split_table]),
    "docs/tutorial-table.md": ("results/tables.json", [rival_table]),
    "docs/estimators.md": ("results/estimators.json", [class_table, real_table]),
    "docs/leaderboard.md": ("results/leaderboard.json", [board_table]),
}
"""Pages, the comment in front of their tables, and what makes them, in their order."""


def written(page: str) -> str:
    """A page with its tables as the stored results have them."""
    source, makers = TABLES[page]
    text = (ROOT / page).read_text(encoding="utf-8")
    stored = json.loads(((ROOT / page).parent / source).read_text(encoding="utf-8"))
    mark = f"<!-- figures: {source} -->\n"
    # A comment may say that the table is older than the file: "none, until …: FILE".
    parts = re.split(rf"<!-- figures: (?:none, .*: )?{re.escape(source)} -->\n(?:\|.*\n)+", text)
    if len(parts) != len(makers) + 1:
        raise ValueError(f"{page} must have {len(makers)} tables after {mark!r}, got {len(parts) - 1}")
    whole = parts[0]
    for make, rest in zip(makers, parts[1:], strict=True):
        head, *rows = make(stored)
        lines = [head, ["---"] * len(head), *rows]
        whole += mark + "".join(f"| {' | '.join(line)} |\n".replace("|  |", "| |") for line in lines) + rest
    return whole


def tables(args: argparse.Namespace) -> None:
    """Write the tables of all pages from the stored results."""
    for page in TABLES:
        if not pending(page):
            write_atomically(ROOT / page, written(page))


def pending(page: str) -> bool:
    """Whether the results behind a page are still to be made."""
    return not ((ROOT / page).parent / TABLES[page][0]).exists()


RUNS = {"demo": demo, "digits": digits, "splits": splits, "estimators": estimators, "quick": quick, "tables": tables}
RUNS |= {"board": board}


def main(argv: Sequence[str] | None = None) -> None:
    """Run one, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=RUNS)
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side, of splits")
    parser.add_argument("--splits", type=int, default=SPLITS)
    usual = [name for name, method in AVAILABLE.items() if not method.sampler]
    parser.add_argument("--methods", default=",".join(usual), help="of splits (all but samplers)")
    parser.add_argument("--cache", type=Path, default=Path("results/splits"))
    args = parser.parse_args(argv)
    if BASELINE not in args.methods.split(","):
        parser.error(f"--methods must hold {BASELINE}, which the others are compared with, got {args.methods}")
    RUNS[args.what](args)
    tables(args)


if __name__ == "__main__":
    main()
