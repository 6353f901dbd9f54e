"""The methods, and their fields with defaults."""

from __future__ import annotations

import argparse

from bayesrule.cli import options
from bayesrule.cli.terminal import show_json, show_table
from bayesrule.methods import AVAILABLE
from bayesrule.naming import to_spec
from bayesrule.report import in_words

EPILOG = "A field is set by --set FIELD=VALUE, one of a method within by --set base.lr=0.01."


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    options.as_json(parser)


def run(args: argparse.Namespace) -> None:
    """Print a table."""
    if args.json:
        show_json({name: {"summary": m.summary, "fields": to_spec(m())["fields"]} for name, m in AVAILABLE.items()})
        return
    rows = []
    for name, method in AVAILABLE.items():
        fields = to_spec(method())["fields"]
        rows.append([name, method.summary, "  ".join(f"{key}={in_words(value)}" for key, value in fields.items())])
    show_table(["method", "what it is", "fields"], rows)
