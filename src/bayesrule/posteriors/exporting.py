"""A posterior's predictive distribution as one program, which runs without this library: for torch.export or ONNX.

`predict` itself is traced. Whatever it draws (weights, masks, points of a normal law) is drawn beforehand, by the same
seed, and is a constant of the program; so there is nothing here that knows a kind of posterior.
"""

from __future__ import annotations

import io
import json
import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bayesrule import __version__, modules, tracing
from bayesrule.data import Inputs, as_inputs, inputs
from bayesrule.files import write_atomically
from bayesrule.predictions import Numbers

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from bayesrule.posteriors.base import Posterior

FORMAT = "bayesrule-program/1"
SUFFIXES = (".pt2", ".onnx")
ROWS = 3
"""Examples that are traced: more than one, which torch would take for a constant."""
SINGLE = 1
"""ONNX's number of the type float32."""
NEAR = 1e-5
"""How far a program may be from `predict`, relative to the largest number there: rounding in another order."""


class Predictive(nn.Module):
    """x in the user's units ↦ the `Prediction.summary` of p(y|x, D): what a program computes.

    >>> import bayesrule as br
    >>> x, y = br.data.moons(n=40)
    >>> posterior = br.fit(br.models.mlp(2, 2, hidden=(4,)), (x, y), "map", epochs=1)
    >>> list(Predictive(posterior)(x))
    ['probs', 'aleatoric', 'epistemic']
    """

    def __init__(self, posterior: Posterior, samples: int = 32, seed: int = 0, level: float | None = 0.9) -> None:
        super().__init__()
        self.posterior, self.samples, self.seed, self.level = posterior, samples, seed, level

    def forward(self, x: Inputs) -> dict[str, Tensor]:
        """By name."""
        return self.posterior.predictive(x, self.samples, self.seed).summary(self.level)


def export(
    posterior: Posterior,
    path: str | Path,
    example: Any,
    samples: int,
    seed: int,
    level: float | None,
    about: Mapping[str, Any] | None,
) -> None:
    """See `Posterior.export`."""
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise ValueError(f"path must end in .pt2 (torch.export) or .onnx, got {path}")
    if samples < 1:
        raise ValueError(f"samples must be at least 1, not {samples}")
    if path.suffix == ".onnx":
        _check_onnx()
    predictive = Predictive(posterior.to("cpu"), samples, seed, level)  # one of its own: a trace leaves nothing behind
    x = _rows(posterior, example)
    program = _program(predictive, x)
    told = _told(predictive, x, program) | dict(about or {})
    write_atomically(path, _onnx(program, x, told) if path.suffix == ".onnx" else _pt2(program, told))


def _rows(posterior: Posterior, example: Any) -> Inputs:
    """Inputs to trace with: `ROWS` times the first example, whose numbers do not matter."""
    x = _shaped_like(posterior) if example is None else as_inputs(example)
    return inputs.each(lambda t: t[:1].cpu().expand(ROWS, *t.shape[1:]).clone(), x)


def _shaped_like(posterior: Posterior) -> Tensor:
    """One input, where the posterior knows their shape: by their units, or by a network that begins with a product."""
    units = posterior.context.scaling.inputs
    if units is not None and units.loc.ndim == 1:
        return units.loc[None]
    layers = (layer for layer in posterior.model.modules() if list(layer.parameters(recurse=False)))
    first = next(layers, None)
    if not isinstance(first, nn.Linear):
        raise ValueError(
            "example must be given, since the posterior does not know the shape of its inputs: "
            "posterior.export(path, example=X[:1])"
        )
    return torch.zeros(1, first.in_features, dtype=modules.dtype_of(posterior.model))


def _program(predictive: Predictive, x: Inputs) -> ExportedProgram:
    """The program of any number of examples, found to agree with `predict`."""
    posterior = predictive.posterior
    # Once for real: what is found out by a first call, and kept, is known then.
    prediction = posterior.predictive(x, predictive.samples, predictive.seed)
    if isinstance(prediction, Numbers) and prediction.searched and predictive.level is not None:
        raise ValueError(
            f"level must be None for {type(prediction).__name__}: their quantiles are a search whose length depends on "
            "the numbers, which no program holds; with level=None it gives mean and both uncertainties, and "
            "posterior.predict(x).interval(level) the interval"
        )
    what = f"a {posterior.kind} posterior of {type(posterior.context.model).__name__}"
    try:
        with _quiet():
            program = _traced(predictive, x)
    except Exception as error:  # whatever torch cannot trace, in its own words
        raise ValueError(f"{what} cannot become a program: {_reason(error)}") from error
    if any(torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) for node in program.graph.nodes):
        raise ValueError(f"{what} cannot become a program: the module draws random numbers by itself; let it not")
    _check_alike(predictive, x, program, what)
    return program


def _reason(error: Exception) -> str:
    """What is wrong with a module, as far as torch's error tells, and what to do."""
    said = str(error) or repr(error)
    if "Constraints violated" in said:  # len(t) is a number to Python, and so would be one for all batches
        return (
            "the number of examples becomes fixed. If the module's forward takes len(x), write x.shape[0]; a "
            "linearised posterior must give an example at most 64 outputs"
        )
    return (
        f"{said.splitlines()[0]}. A module must not choose by the values of its inputs; posterior.predict and "
        "`bayesrule serve` work with any"
    )


def _traced(predictive: Predictive, x: Inputs) -> ExportedProgram:
    """`Predictive` of inputs whose number is open."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    # below modes such as `Masks`, which torch.export's own tracing is above
    fake = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    named = _named(x)
    parts = []
    for part in named.values():
        sizes = [DimDynamic.DYNAMIC, *[DimDynamic.STATIC] * (part.ndim - 1)]
        context = StatelessSymbolicContext(dynamic_sizes=sizes)  # type: ignore[var-annotated]
        parts.append(fake.from_tensor(part, symbolic_context=context))

    def function(*given: Tensor) -> dict[str, Tensor]:
        found: dict[str, Tensor] = predictive(_like(x, given))
        return found

    with tracing.on(), fake:
        graph = make_fx(function)(*parts)
    for node, name in zip(graph.graph.find_nodes(op="placeholder"), named, strict=True):
        node.target = name
    graph.recompile()
    open_ends = tuple({0: torch.export.Dim("batch", min=1)} for _ in parts)
    return torch.export.export(graph, tuple(named.values()), dynamic_shapes=open_ends, strict=False)


def _named(x: Inputs) -> dict[str, Tensor]:
    """The tensors by the names that they have in the program: x, or x0, x1, …, or those of a dict."""
    if isinstance(x, Tensor):
        return {"x": x}
    return dict(x) if isinstance(x, dict) else {f"x{index}": part for index, part in enumerate(x)}


def _like(x: Inputs, parts: tuple[Tensor, ...]) -> Inputs:
    """The parts in the form of x."""
    if isinstance(x, Tensor):
        return parts[0]
    return dict(zip(x, parts, strict=True)) if isinstance(x, dict) else parts


def _check_alike(predictive: Predictive, x: Inputs, program: ExportedProgram, what: str) -> None:
    """Refuse a program that is not `predict`, of one example and of several."""
    run = program.module()
    for count in (1, ROWS):
        rows = inputs.each(lambda t, count=count: t[:count], x)
        found = run(*_named(rows).values())
        for name, wanted in predictive(rows).items():
            near = NEAR * max(1.0, float(wanted.abs().max()))
            if not torch.allclose(found[name], wanted, rtol=NEAR, atol=near, equal_nan=True):
                raise ValueError(
                    f"{what} cannot become a program: its {name} would not be that of predict; the module may keep "
                    "something from call to call, or change itself"
                )


def _told(predictive: Predictive, x: Inputs, program: ExportedProgram) -> dict[str, Any]:
    """What stands in the file beside the program."""
    posterior = predictive.posterior
    given = {}
    for name, part in _named(x).items():
        given[name] = {"shape": ["batch", *part.shape[1:]], "dtype": str(part.dtype).removeprefix("torch.")}
    return {
        "format": FORMAT,
        "bayesrule": __version__,
        "posterior": posterior.kind,
        "likelihood": posterior.likelihood.name,
        "samples": predictive.samples,
        "seed": predictive.seed,
        "level": predictive.level,
        "inputs": given,
        "outputs": list(predictive(x)),
    }


def _pt2(program: ExportedProgram, told: Mapping[str, Any]) -> bytes:
    file = io.BytesIO()
    with _quiet():
        torch.export.save(program, file, extra_files={"bayesrule.json": json.dumps(told)})
    return file.getvalue()


def _check_onnx() -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError("a program in ONNX needs onnx and onnxscript: pip install 'bayesrule[onnx]'") from error


def _onnx(program: ExportedProgram, x: Inputs, told: Mapping[str, Any]) -> bytes:
    with _quiet():
        try:
            found = torch.onnx.export(
                program,
                dynamo=True,
                verbose=False,
                input_names=list(_named(x)),
                custom_translation_table={
                    torch.ops.aten.special_ndtr.default: _normal_cdf,
                    torch.ops.aten.erf.default: _erf,
                    torch.ops.prims.hypot.default: _hypotenuse,
                },
            )
        except Exception as error:
            reason = str(error.__cause__ or error).splitlines()[0]
            raise ValueError(
                f"a {told['posterior']} posterior with likelihood {told['likelihood']!r} cannot become ONNX: {reason}; "
                "export it to .pt2"
            ) from error
    assert found is not None
    _name(found.model.graph, told["outputs"])
    found.model.metadata_props["bayesrule"] = json.dumps(told)
    return found.model_proto.SerializeToString()


def _name(graph: Any, outputs: Sequence[str]) -> None:
    """Give the outputs of an ONNX graph their names, which values within it may have had."""
    for node in graph:
        for value in node.outputs:
            if value.name in outputs:
                value.name = f"{value.name}.inner"
    for value, name in zip(graph.outputs, outputs, strict=True):
        value.name = name


def _normal_cdf(x: Any) -> Any:
    """Φ(x) = ½ (1 + erf(x/√2)) in ONNX, which has erf alone."""
    from onnxscript import opset18

    op: Any = opset18  # whose own types leave no room for values of a graph
    half = op.CastLike(op.Constant(value_float=0.5), x)
    root = op.CastLike(op.Constant(value_float=math.sqrt(0.5)), x)
    return op.Add(op.Mul(_erf(op.Mul(x, root)), half), half)


def _erf(x: Any) -> Any:
    """erf(x) in single precision, which is all that runtimes have."""
    from onnxscript import opset18 as op

    single: Any = op.Cast(x, to=SINGLE)
    return op.CastLike(op.Erf(single), x)


def _hypotenuse(x: Any, y: Any) -> Any:
    """√(x² + y²) in ONNX."""
    from onnxscript import opset18

    op: Any = opset18
    return op.Sqrt(op.Add(op.Mul(x, x), op.Mul(y, y)))


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch says of itself while it traces: of its own future, and of extras that are not there."""
    logger = logging.getLogger("torch")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
