"""Derivatives for every example: Jacobians ∂f_i/∂w, and gradients of the loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from bayesrule.curvature import roots
from bayesrule.curvature.limits import check_memory
from bayesrule.curvature.parts import gradients, zeros
from bayesrule.curvature.plans import select
from bayesrule.curvature.watched import Watched
from bayesrule.data import Inputs, inputs
from bayesrule.likelihoods import Likelihood


def jacobians(model: nn.Module, x: Inputs, names: Sequence[str] | None = None) -> Tensor:
    """J_i = ∂f_i/∂w for the examples of ``x``, [B, C, P]: C outputs, all dimensions after the first flattened.

    P are the numbers of the trainable parameters, or of those in ``names`` (of parameters or layers), in the order of
    the flat vector. Each output takes one backward pass over a block of examples. The model is copied, and run in eval
    mode.

    >>> jacobians(nn.Linear(2, 1), torch.tensor([[3.0, 4.0]]))
    tensor([[[3., 4., 1.]]])
    """
    watched = Watched(model, None if names is None else select(model, names))
    size = sum(p.numel() for p in watched.parameters.values())
    count, step = inputs.length(x), inputs.block(x)
    found: Tensor | None = None
    for start in range(0, count, step):
        rows = torch.arange(start, min(start + step, count))
        outputs = watched.run(inputs.take(x, rows))
        if found is None:
            found = _room(watched, count, outputs[0].numel(), size, outputs)
        _fill(found[start : start + step], watched, outputs)
        watched.forget()
    if found is None:
        raise ValueError("x must hold at least one example to know how many outputs there are: got none")
    return found


def example_gradients(
    model: nn.Module, x: Inputs, y: Tensor, likelihood: Likelihood, names: Sequence[str] | None = None
) -> Tensor:
    """g_i = −∂ log p(y_i|f_i)/∂w for the examples of ``x``, [B, P]: their sum is the gradient of the loss.

    ``names`` and the model as for `jacobians`. One backward pass over a block of examples.

    >>> from bayesrule.likelihoods import Gaussian
    >>> model = nn.Linear(2, 1, bias=False)
    >>> x = torch.tensor([[3.0, 4.0], [1.0, 0.0]])
    >>> example_gradients(model, x, model(x).detach() - 1, Gaussian(noise=1.0)).round()
    tensor([[3., 4.],
            [1., 0.]])
    """
    watched = Watched(model, None if names is None else select(model, names))
    size = sum(p.numel() for p in watched.parameters.values())
    if not inputs.length(x):
        raise ValueError("x must hold at least one example: got none")
    found: list[Tensor] = []
    for rows in torch.split(torch.arange(inputs.length(x)), inputs.block(x)):
        outputs = watched.run(inputs.take(x, rows))
        if not found:
            what = f"the gradients of {inputs.length(x):,} examples and {size:,} parameters"
            check_memory(what, inputs.length(x) * size, outputs, "take fewer examples, or fewer parameters by name")
        f = outputs.detach()
        slope = -roots.slope(likelihood, f, likelihood.check(f, y[rows.to(y.device)]))
        (columns,) = watched.columns(outputs, [slope])
        with torch.no_grad():
            found.append(gradients(columns.forms[0], watched.parameters, slice(0, len(outputs))))
        watched.forget()
    return torch.cat(found)


def _room(watched: Watched, examples: int, width: int, size: int, like: Tensor) -> Tensor:
    what = f"the Jacobian of {examples:,} examples, {width:,} outputs and {size:,} parameters"
    check_memory(what, examples * width * size, like, "take fewer examples at a time, or fewer parameters by name")
    return zeros(like, examples, width, size)


def _fill(found: Tensor, watched: Watched, outputs: Tensor) -> None:
    """The rows of a block of examples."""
    output = 0
    for columns in watched.columns(outputs, units(outputs)):
        with torch.no_grad():
            for forms in columns.forms:
                found[:, output] = gradients(forms, watched.parameters, slice(0, len(outputs)))
                output += 1


def units(outputs: Tensor) -> Iterator[Tensor]:
    """For each output of an example, the gradient that is 1 there and 0 elsewhere."""
    for index in range(outputs[0].numel()):
        unit = torch.zeros(outputs.shape, dtype=outputs.dtype, device=outputs.device)  # contiguous, whatever they are
        unit.view(outputs.shape[0], -1)[:, index] = 1
        yield unit
