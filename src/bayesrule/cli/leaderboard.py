"""Every method on standard data: means with standard errors, costs as multiples of map's, published figures beside.

Boards are names or families of them: digits, tables (generated, or scikit-learn's own), uci (standard splits), mnist
and cifar10. All methods have the same network, data, likelihood, epochs and seeds; their settings are those of the
library unless --set says otherwise. Which method is best is chosen on a fifth of the training examples, in fits of
their own. Prints a table for each board, and writes result.json, leaderboard.png and report.html. Each cell is kept:
the same command goes on where it stopped, and with more methods, boards or splits it runs only these. A cell that fails
is said, does not stop the others, and is tried again by the same command.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bayesrule import jobs
from bayesrule.cli import fields, options
from bayesrule.cli.compare import every_method
from bayesrule.cli.runs import Run
from bayesrule.cli.terminal import say, show_json, show_table
from bayesrule.data import fingerprint
from bayesrule.files import write_atomically
from bayesrule.jobs import Answer
from bayesrule.likelihoods import Likelihood
from bayesrule.locks import held
from bayesrule.methods import AVAILABLE
from bayesrule.training import Folder

if TYPE_CHECKING:
    from bayesrule.boards import Board, Cell, Part, Reference, Standing, Terms

EPILOG = """examples:
  bayesrule leaderboard
  bayesrule leaderboard --boards uci --splits 20 --methods map,ensemble,laplace,auto --data-dir data --jobs 2
  bayesrule leaderboard --boards tables/circles,uci/yacht --methods map,ivon,hmc
  bayesrule leaderboard --boards mnist --seeds 0,1,2 --full --data-dir data"""
BOARDS = "digits,tables"
REFEREE = "hmc"  # what others are to agree with, where it is among the methods
PARTS: tuple[Part, ...] = ("test", "validation")


class Place(NamedTuple):
    """A repetition of a board."""

    board: str
    repeat: int


@dataclass(frozen=True)
class Work:
    """Where cells are kept, and how they are worked out."""

    folder: Path
    processes: int
    data_dir: str | None

    def answers(self, ask: Callable[..., Answer], questions: Sequence[Any]) -> list[Answer]:
        """Of cells or of baselines, one after another or side by side; those that are kept at once."""
        from bayesrule import boards

        given, cache = (self.data_dir,), self.folder / "cells"
        return jobs.run(ask, questions, given, self.processes, cache, say, self._key, boards.told, boards.whole)

    def _key(self, question: Any) -> dict[str, Any]:
        found: dict[str, Any] = question.key(self.data_dir)
        return found


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("--boards", metavar="A,B", default=BOARDS, help=f"data sets or families ({BOARDS})")
    help = "see: bayesrule methods (all but samplers); all is every one, samplers too"
    parser.add_argument("--methods", metavar="A,B", help=help)
    help = "splits of each table, of standard ones the last N (3; with --full 20)"
    parser.add_argument("--splits", type=int, metavar="N", help=help)
    options.seeds(parser)
    options.method_fields(parser)
    options.shape(parser)
    help = "of numbers: gaussian, heteroscedastic:deviation=true, … (the board's; auto: what training rows prefer)"
    parser.add_argument("--likelihood", metavar="NAME", help=help)
    parser.add_argument("--no-validation", action="store_true", help="choose no method: half of the time")
    help = f"runs of bayesrule fit on boards, to agree with ({REFEREE}, where it is among the methods)"
    parser.add_argument("--reference", metavar="RUN,RUN", help=help)
    parser.add_argument("--full", action="store_true", help="more epochs on pictures, ResNet-20, all standard splits")
    options.jobs(parser)
    options.where_data(parser)
    options.about_output(parser, "where the result goes (results/leaderboard)")


def run(args: argparse.Namespace) -> None:
    """Ask every cell, judge, draw, write."""
    from bayesrule import boards  # scikit-learn and matplotlib take a while

    given = options.given(args)
    data_dir = given.get("data_dir")
    methods = _methods(args, given)
    likelihood = _likelihood(args.likelihood)
    chosen = boards.chosen(options.columns(args.boards), args.full)
    splits = _splits(args, chosen)
    terms = boards.Terms(given.get("epochs"), given.get("hidden"), likelihood, args.full)
    places = [Place(board.name, repeat) for board in chosen for repeat in board.repeats(splits, args.seeds)]
    for place in places:  # an error now if files are missing, rather than after hours
        boards.fingerprint(*place, data_dir)
    cells = _cells(places, methods, terms, PARTS[:1] if args.no_validation else PARTS)
    folder = Path(args.out or "results/leaderboard")
    folder.mkdir(parents=True, exist_ok=True)
    with held(folder):
        say(f"{len(cells)} fits: {len(methods)} methods on {len(places)} repetitions of {len(chosen)} boards")
        work = Work(folder, args.jobs, data_dir)
        asked = _with_references(args.reference, cells, work)
        answers = work.answers(boards.ask, asked)
        simple = [boards.Simple(*place) for place in places]
        found = boards.standings(asked, answers, simple, work.answers(boards.ask_simple, simple))
        protocols = [boards.protocol(one.board, one.repeats[-1], terms, data_dir, methods) for one in found]
        _publish(args, folder, found, protocols)


def _methods(args: argparse.Namespace, given: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """The methods, each with what was said of its fields; a field that it has not is an error now."""
    names = list(AVAILABLE) if args.methods == "all" else options.columns(args.methods or "") or every_method()
    found = {name: fields.own(name, names, given.get("set", ())) for name in dict.fromkeys(names)}
    for name, words in found.items():
        fields.method(name, words)
    return found


def _likelihood(text: str | None) -> str | Likelihood | None:
    """What was asked for of numbers; None: as the boards have it."""
    if text is None or text == "auto":
        return text
    chosen = fields.likelihood(text)
    if chosen.kind != "reals":
        raise ValueError(f"--likelihood must be for reals, got {text}: of classes it is always categorical")
    return chosen


def _splits(args: argparse.Namespace, chosen: Sequence[Board]) -> int:
    """How many splits; errors now rather than after hours."""
    for name, value in (("splits", args.splits), ("epochs", getattr(args, "epochs", None))):
        if value is not None and value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}")
    if not chosen:
        raise ValueError(f"--boards must name at least one board, as in {BOARDS}, got none")
    return args.splits or (20 if args.full else 3)


def _cells(
    places: Sequence[Place], methods: dict[str, tuple[str, ...]], terms: Terms, parts: Sequence[Part]
) -> list[Cell]:
    """Every method on every repetition, and on what is kept apart of its training examples."""
    from bayesrule import boards

    found = []
    for board, repeat in _by_repetition(places):
        for name, words in methods.items():
            own = boards.BOARDS[board].own.get(name)
            method = fields.method(name if own is None else own.method, words)
            found += [boards.Cell(board, name, method, repeat, terms, part, own=own) for part in parts]
    return found


def _by_repetition(places: Sequence[Place]) -> list[Place]:
    """The first repetition of every board before the second: what is cut short has whole ones, and --splits 1 them."""
    left: dict[str, list[Place]] = {}
    for place in places:
        left.setdefault(place.board, []).append(place)
    most = max(map(len, left.values()))
    return [found[turn] for turn in range(most) for found in left.values() if turn < len(found)]


def _with_references(given: str | None, cells: Sequence[Cell], work: Work) -> list[Cell]:
    """Cells that know what to agree with: the runs that were given, or the referee's posteriors, made here and now."""
    from bayesrule import boards

    if given is not None:
        known = dict(_from_run(Path(name), cells) for name in options.columns(given))
        return [_beside(cell, known) for cell in cells]
    kept = []
    for cell in cells:
        if cell.method == REFEREE and cell.part == "test":
            name = f"{cell.board.replace('/', '-')}-{cell.repeat}.safetensors"
            cell = replace(cell, keep=str(work.folder / "references" / name))
        kept.append(cell)
    referees = [cell for cell in kept if cell.keep is not None]
    known = {}
    for cell, answer in zip(referees, work.answers(boards.ask, referees), strict=True):
        assert cell.keep is not None
        if boards.whole(answer):
            known[Place(cell.board, cell.repeat)] = boards.Reference(
                cell.keep, fingerprint(cell.keep), answer["network"]
            )
    return [cell if cell.keep else _beside(cell, known) for cell in kept]


def _beside(cell: Cell, known: dict[Place, Reference]) -> Cell:
    """The cell with its reference, if there is one."""
    reference = known.get(Place(cell.board, cell.repeat))
    return cell if cell.part != "test" or reference is None else replace(cell, reference=reference)


def _from_run(folder: Path, cells: Sequence[Cell]) -> tuple[Place, Reference]:
    """The posterior of a finished run, and the repetition that it belongs to."""
    from bayesrule import boards

    found = Run.read(folder)
    settings, path = found.settings, Folder(folder).posterior
    place = Place(settings.data, settings.split if settings.data.startswith("uci/") else settings.seed)
    places = {Place(cell.board, cell.repeat) for cell in cells}
    if place not in places:
        listed = ", ".join(f"{board} {repeat}" for board, repeat in sorted(places))
        raise ValueError(
            f"--reference must be runs on the boards, but {folder} is on {place.board}, repetition {place.repeat}: "
            f"choose one of {listed}"
        )
    if not path.exists():
        raise FileNotFoundError(f"--reference {folder} is not finished: continue it with bayesrule fit --resume")
    return place, boards.Reference(str(path), fingerprint(path), found.model)


def _publish(args: argparse.Namespace, folder: Path, found: Sequence[Standing], protocols: Sequence[str]) -> None:
    """Tables on the terminal, and the files."""
    from bayesrule.boards import page
    from bayesrule.report.provenance import provenance
    from bayesrule.report.runs import png

    about = provenance(args.command, args.seeds[0])
    shown = page.Shown(found, dict(zip((one.board for one in found), protocols, strict=True)), about)
    plain = page.plain(shown)
    write_atomically(folder / "leaderboard.png", png(page.figure(shown)))
    write_atomically(folder / "report.html", page.render(shown))
    write_atomically(folder / "result.json", json.dumps(plain, indent=1))
    if args.json:
        show_json(plain)
    else:
        for one in found:
            print(f"{one.board}: {shown.protocols[one.board]}")
            show_table(*page.in_short(one), right=True)
            if literature := page.literature(one):
                print(f"beside them: {literature}\n")
    for line in page.failures(found):
        say(line)
    say(f"wrote {folder / 'result.json'} and {folder / 'report.html'}")
