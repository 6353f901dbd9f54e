"""The data sets that can be given by name, and which of them are there."""

from __future__ import annotations

import argparse

from bayesrule.cli import options
from bayesrule.cli.terminal import show_json, show_table
from bayesrule.data import names

EPILOG = "Sets that are not embedded are read below --data-dir or $BAYESRULE_DATA; nothing is ever downloaded."


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    options.where_data(parser)
    options.as_json(parser)


def run(args: argparse.Namespace) -> None:
    """Print a table."""
    found = names(getattr(args, "data_dir", None))
    if args.json:
        show_json([entry._asdict() | {"available": not entry.missing} for entry in found])
        return
    rows = [[entry.name, "no" if entry.missing else "yes", entry.what] for entry in found]
    show_table(["name", "there", "what it is"], rows)
    if missing := next((entry.missing for entry in found if entry.missing), ""):
        print(missing)
