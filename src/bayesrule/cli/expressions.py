"""Formulas of mu and nu that a user types: read by Python's grammar, never run as Python."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bayesrule.naming import unknown

Formula = Callable[[Tensor, Tensor], Any]

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    name: getattr(torch, name) for name in ("abs", "cos", "cosh", "exp", "log", "log1p", "sin", "sqrt", "tanh")
}
PAIRS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
NAMES: dict[str, Formula] = {
    "mu": lambda mu, nu: mu,
    "nu": lambda mu, nu: nu,
    "sigma": lambda mu, nu: nu,
    "pi": lambda mu, nu: math.pi,
}
LONGEST = 1000


def formula(text: str) -> Formula:
    """A function of mu and nu, also called sigma: numbers, + − * / **, parentheses and a few functions.

    >>> float(formula("0.5*mu**2 - log(sigma)")(torch.tensor(2.0), torch.tensor(1.0)))
    2.0
    >>> formula("__import__('os')")
    Traceback (most recent call last):
    ValueError: unknown function '__import__': Valid: abs, cos, cosh, exp, log, log1p, sin, sqrt, tanh
    """
    if len(text) > LONGEST:
        raise ValueError(f"a penalty's formula must have at most {LONGEST} characters, got {len(text)}")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError as error:
        example = "an example is 0.5*mu**2 + log(nu)"
        raise ValueError(f"the penalty {text!r} is no formula: {error.msg}; {example}") from None
    except RecursionError:
        raise ValueError("the penalty's formula has too many parentheses") from None
    try:
        return _read(tree.body)
    except RecursionError:
        raise ValueError("the penalty's formula has too many terms in one another") from None


def _read(node: ast.expr) -> Formula:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        value = float(node.value) if abs(node.value) < 1e308 else math.inf  # float() of a longer integer is an error
        return lambda mu, nu: value
    if isinstance(node, ast.Name):
        if node.id not in NAMES:
            raise unknown("name in the penalty", node.id, NAMES)
        return NAMES[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        inner, sign = _read(node.operand), -1.0 if isinstance(node.op, ast.USub) else 1.0
        return lambda mu, nu: sign * inner(mu, nu)
    if isinstance(node, ast.BinOp) and type(node.op) in PAIRS:
        left, right, apply = _read(node.left), _read(node.right), PAIRS[type(node.op)]
        return lambda mu, nu: apply(_tensor(left(mu, nu)), right(mu, nu))
    if isinstance(node, ast.Call):
        return _call(node)
    raise ValueError(
        f"the penalty may not have {ast.unparse(node)!r} in it: only numbers, mu, nu, + - * / ** and functions"
    )


def _call(node: ast.Call) -> Formula:
    name = ast.unparse(node.func)
    if name not in FUNCTIONS:
        raise unknown("function", name, FUNCTIONS)
    if len(node.args) != 1 or node.keywords:
        raise ValueError(f"{name} takes one argument, got {ast.unparse(node)!r}")
    inner, apply = _read(node.args[0]), FUNCTIONS[name]
    return lambda mu, nu: apply(_tensor(inner(mu, nu)))


def _tensor(value: Tensor | float) -> Tensor:
    """Of torch's numbers, 1/0 is inf and (−1)**0.5 nan; of Python's, one is an error and the other complex."""
    return torch.as_tensor(value, dtype=torch.float64)
