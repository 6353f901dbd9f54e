"""What a penalty believes: the prior it stands for, or why there is none.

Writes figure.png (the penalty, A_ν for several ν, the prior) and result.json to a directory. --scale is the family's
scale ν: a number where it is fixed, low:high where it is trained.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesrule.cli import options
from bayesrule.cli.expressions import formula
from bayesrule.cli.terminal import say, show_json
from bayesrule.files import write_atomically
from bayesrule.naming import to_spec, unknown
from bayesrule.penalties import (
    L1,
    L2,
    GroupLasso,
    Implied,
    Penalty,
    Radial,
    Verdict,
    plot_belief,
    prior_of,
    translations,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMED: dict[str, Callable[[float], Penalty]] = {
    "l2": L2,
    "l1": L1,
    "group": GroupLasso,
    "group-transposed": lambda factor: GroupLasso(factor, axis=1),
}

EPILOG = """examples:
  bayesrule prior --penalty l2 --factor 0.5 --family gaussian --scale 0.1
  bayesrule prior --penalty l2 --factor 0.5 --family gaussian --scale 0.1:2
  bayesrule prior --penalty l1 --factor 3 --family point-mass
  bayesrule prior --penalty "0.5*(mu**2 + nu**2) - log(nu)" --scale 0.1:2 --out results/prior"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    kinds = ", ".join(NAMED)
    parser.add_argument("--penalty", required=True, metavar="R", help=f"{kinds}, or a formula of mu and nu")
    parser.add_argument("--factor", type=float, default=1.0, metavar="X", help="times the penalty, if it is a name (1)")
    parser.add_argument(
        "--family", default="gaussian", metavar="NAME", help=f"{', '.join(translations.AVAILABLE)} (gaussian)"
    )
    parser.add_argument("--scale", type=_scale, metavar="X", help="ν, as 0.1 or trained, as 0.1:2 (1)")
    parser.add_argument("--df", type=float, metavar="X", help="degrees of freedom of student (3)")
    parser.add_argument("--points", type=int, default=16384, metavar="N", help="of the grid, if one is needed (16384)")
    options.about_output(parser, "where the result goes (results/prior)")


def run(args: argparse.Namespace) -> None:
    """Ask, print, draw."""
    penalty, family = _penalty(args.penalty, args.factor), _family(args)
    answer = prior_of(penalty, family, args.points)
    plain = {"penalty": args.penalty, "factor": args.factor, "family": repr(family)} | _plain(answer)
    folder = Path(args.out or "results/prior")
    write_atomically(folder / "figure.png", _png(plot_belief(penalty, family, answer, args.points)))
    write_atomically(folder / "result.json", json.dumps(plain, indent=1))
    if args.json:
        show_json(plain)
    else:
        print("\n".join(_lines(answer)))
    say(f"wrote {folder / 'result.json'} and {folder / 'figure.png'}")


def _penalty(text: str, factor: float) -> Penalty | Callable[..., Any]:
    if text in NAMED:
        return NAMED[text](factor)
    if text.isidentifier() and text not in ("mu", "nu", "sigma", "pi"):
        raise unknown("penalty", text, NAMED)
    if factor != 1.0:
        raise ValueError("--factor goes with a penalty by name: write it into the formula")
    return formula(text)


def _family(args: argparse.Namespace) -> translations.Translation:
    if args.family not in translations.AVAILABLE:
        raise unknown("family", args.family, translations.AVAILABLE)
    kind = translations.AVAILABLE[args.family]
    if args.df is not None and kind is not translations.Student:
        raise ValueError(f"--df is of student, not of {args.family}")
    if kind is translations.PointMass:
        if args.scale is not None:
            raise ValueError("a point mass has no scale: leave out --scale")
        return translations.PointMass()
    scale = 1.0 if args.scale is None else args.scale
    return translations.Student(scale, df=args.df) if args.df is not None else kind(scale)


def _scale(text: str) -> float | tuple[float, ...]:
    try:
        values = tuple(float(part) for part in text.split(":"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, or low:high as in 0.1:2, got {text!r}") from None
    return values[0] if len(values) == 1 else values


def _plain(answer: Implied | Radial | Verdict) -> dict[str, Any]:
    if isinstance(answer, Verdict):
        completed = None if answer.completed is None else _plain(answer.completed)
        return {
            "exists": False,
            "reason": answer.reason,
            "measure": _finite(answer.measure),
            "sentence": answer.sentence,
            "completed": completed,
        }
    if isinstance(answer, Radial):
        return {"exists": True, "prior": to_spec(answer), "error": answer.error}
    moments = {name: _finite(getattr(answer, name)) for name in ("mean", "variance")}
    exact = None if answer.exact is None else to_spec(answer.exact)
    return {"exists": True, "exact": exact, "error": answer.error, **moments}


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _lines(answer: Implied | Radial | Verdict) -> list[str]:
    if isinstance(answer, Verdict):
        more = [f"completed   {_named(answer.completed)}"] if answer.completed else []
        why = [f"reason      {answer.reason} ({answer.measure:.4g})", f"because     {answer.sentence}"]
        return ["no prior", *why, *more]
    if isinstance(answer, Radial):
        law = f"α(w) ∝ exp(−{answer.factor:g}·‖w‖) for a group w of n weights"
        return [f"prior       {law}", f"variance    (n + 1)/{answer.factor**2:.6g} of a weight"]
    return [
        f"prior       {_named(answer)}",
        f"mean        {answer.mean:.6g}",
        f"variance    {answer.variance:.6g}",
        f"error       {answer.error:.1e} nats",
    ]


def _named(prior: Implied) -> str:
    return str(prior.exact) if prior.exact else "see figure.png"


def _png(figure: Figure) -> bytes:
    import io

    target = io.BytesIO()
    figure.savefig(target, format="png", dpi=150, metadata={"Software": None})
    return target.getvalue()
