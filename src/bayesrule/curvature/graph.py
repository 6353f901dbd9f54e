"""How often each parameter enters the computation of some outputs."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import Tensor


def entries(outputs: list[Tensor]) -> Counter[int]:
    """By the id of a parameter: the operations it enters on the way to ``outputs``.

    >>> import torch
    >>> w = torch.ones(2, requires_grad=True)
    >>> entries([w * 2 + w.exp()])[id(w)]
    2
    """
    found: Counter[int] = Counter()
    todo: list[Any] = [output.grad_fn for output in outputs if output.grad_fn is not None]
    seen = set(todo)
    while todo:
        for following, _ in todo.pop().next_functions:
            if following is None:
                continue
            variable = getattr(following, "variable", None)
            if variable is not None:
                found[id(variable)] += 1
            elif following not in seen:
                seen.add(following)
                todo.append(following)
    return found
