"""Kernels of a network's outputs: how far they move together at some inputs when the weights do."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bayesrule import modules
from bayesrule.curvature.forms import GradientForm, Outer, pieces
from bayesrule.curvature.jacobians import units
from bayesrule.curvature.limits import check_memory
from bayesrule.curvature.watched import Watched
from bayesrule.data import Inputs, inputs


def kernels(model: nn.Module, x: Inputs, variances: Tensor) -> Tensor:
    """K_c = J_c diag(v) J_cᵀ for each output c of a model, [C, B, B] in float64: J_c is ∂f_c/∂w at the examples ``x``.

    ``variances``: v, a number for each trainable parameter, in the order of the flat vector. For a weight that each
    example uses once, J_ic = g_ic x_iᵀ, and K_c = Σ_o g_co g_coᵀ ∘ (X diag(v_o) Xᵀ): the products with the inputs are
    the same for all outputs, and no Jacobian is written out.

    >>> kernels(nn.Linear(2, 1, bias=False), torch.eye(2), torch.tensor([3.0, 4.0]))
    tensor([[[3., 0.],
             [0., 4.]]], dtype=torch.float64)
    """
    watched = Watched(model)
    count = inputs.length(x)
    outputs = watched.run(x)
    width = outputs[0].numel()
    check_memory(f"the kernels of {count:,} examples and {width:,} outputs", width * count**2, outputs, "take fewer")
    found = outputs.new_zeros(width, count, count, dtype=torch.float64)
    by_name = modules.unflatten(variances.double(), watched.parameters)
    start = 0
    for columns in watched.columns(outputs, units(outputs)):
        some = found[start : start + len(columns.forms)]
        with torch.no_grad():
            for name, v in by_name.items():
                _add(some, [forms.get(name, []) for forms in columns.forms], v)
        start += len(columns.forms)
    watched.forget()
    return found


def _add(total: Tensor, uses: list[list[GradientForm]], v: Tensor) -> None:
    """One parameter's part of the kernel of each output; ``uses``: its gradients for each of these outputs."""
    outers = [forms[0] for forms in uses if len(forms) == 1 and isinstance(forms[0], Outer)]
    if len(outers) == len(uses):
        _add_outer(total, torch.stack([form.left for form in outers]), outers[0].right.double(), v.flatten(1))
        return
    for kernel, forms in zip(total, uses, strict=True):
        if not forms:
            continue
        for rows in pieces(len(kernel), v.numel()):
            some = _written(forms, rows) * v.flatten()
            for others in pieces(len(kernel), v.numel()):
                kernel[rows, others] += some @ _written(forms, others).T


def _written(forms: list[GradientForm], rows: slice) -> Tensor:
    """The gradients of some examples, summed over the uses of a parameter: [len(rows), P]."""
    return torch.stack([form.gradients(rows) for form in forms]).sum(0).flatten(1).double()


def _add_outer(total: Tensor, lefts: Tensor, right: Tensor, v: Tensor) -> None:
    """Σ_o lefts_co lefts_coᵀ ∘ (right diag(v_o) rightᵀ) for all outputs c."""
    for o, own in enumerate(v):
        left = lefts[:, :, o].double()
        total += left[:, :, None] * left[:, None, :] * ((right * own) @ right.T)
