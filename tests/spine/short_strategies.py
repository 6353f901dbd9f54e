"""Strategies of life-long learning with settings for a few examples and steps."""

from dataclasses import fields, replace

from bayesrule import lifelong


def small(name):
    """The strategy of that name: six examples kept of a task, and a rate that needs few steps."""
    strategy = lifelong.AVAILABLE[name]()
    settings = {"points": 6, "lr": 1e-2}
    known = {field.name for field in fields(strategy)}
    return replace(strategy, **{field: value for field, value in settings.items() if field in known})
