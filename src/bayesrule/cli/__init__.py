"""The command ``bayesrule``: one file for each verb.

The result of a verb goes to stdout, all else (what was found, progress, where files are) to stderr; errors that a user
can cause are one line there, and the exit code 2.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from bayesrule.cli import (
    active,
    compare,
    data,
    demo,
    evaluate,
    export,
    fit,
    leaderboard,
    lifelong,
    methods,
    options,
    predict,
    prior,
    reproduce,
    serve,
    sweep,
)
from bayesrule.cli.terminal import say
from bayesrule.naming import unknown
from bayesrule.report import versions

VERBS = {"demo": demo, "fit": fit, "predict": predict, "evaluate": evaluate, "compare": compare}
VERBS |= {
    "sweep": sweep,
    "lifelong": lifelong,
    "active": active,
    "prior": prior,
    "export": export,
    "serve": serve,
    "reproduce": reproduce,
    "leaderboard": leaderboard,
    "methods": methods,
    "data": data,
}
CAUSED_BY_USERS = (ValueError, OSError, ImportError, FloatingPointError, MemoryError)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are errors like all others."""

    def error(self, message: str) -> NoReturn:
        """A `ValueError` where argparse would end the process."""
        raise ValueError(f"{message} (see {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and give the exit code: 0, 2 for an error, 130 or 143 when interrupted."""
    if argv is None:
        argv = sys.argv[1:]
    given = list(argv)
    try:
        if given and not given[0].startswith("-") and given[0] not in VERBS:
            raise unknown("verb", given[0], VERBS)
        args = parser().parse_args(given)
        args.command = " ".join(["bayesrule", *given])
        with options.workers(args):
            VERBS[args.verb].run(args)
    except CAUSED_BY_USERS as error:
        if "--debug" in given:
            raise
        say(f"bayesrule: {' '.join(str(error).split())}")
        return 2
    except KeyboardInterrupt:
        say("bayesrule: interrupted")
        return 130
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line as a whole."""
    epilog = "bayesrule VERB --help says more about a verb."
    whole = Parser("bayesrule", description="Neural networks that know what they don't know.", epilog=epilog)
    whole.add_argument("--version", action="version", version=f"bayesrule {versions()['bayesrule']}")
    verbs = whole.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, module in VERBS.items():
        about = module.__doc__ or ""
        form = argparse.RawDescriptionHelpFormatter
        verb = verbs.add_parser(
            name, help=about.splitlines()[0], description=about, epilog=module.EPILOG, formatter_class=form
        )
        module.arguments(verb)
        verb.add_argument("--debug", action="store_true", help="show where an error comes from")
    return whole
