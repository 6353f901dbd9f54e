"""A module as a function of its named parameters.

Parameters are ``dict[str, Tensor]`` by the module's own names: trainable ones only, a shared tensor once. Buffers
travel with them. Frozen parameters belong to the module: its copies share them, and files know them by their digests.
Nothing here changes the module it is given, except `refresh_batch_norm`, whose purpose that is.
"""

from __future__ import annotations

import copy
import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from bayesrule import shards
from bayesrule.data import Inputs, inputs

Parameters = dict[str, Tensor]
AnyModule = TypeVar("AnyModule", bound=nn.Module)
Computed: TypeAlias = WeightNorm | SpectralNorm | BasePruningMethod
_READERS: dict[bool, WeakSet[nn.Module]] = {False: WeakSet(), True: WeakSet()}
"""Modules whose calls have left their inputs as they were, in eval mode and in training mode."""
SYNCHRONOUS = ("cpu",)  # devices whose numbers can be read at once; on others a read waits for all that is under way


def parameters(module: nn.Module) -> Parameters:
    """The trainable parameters by name, each shared tensor once."""
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def frozen(module: nn.Module) -> Parameters:
    """The parameters that no fit changes, by name, each shared tensor once."""
    return {name: p for name, p in module.named_parameters() if not p.requires_grad}


def snapshot(module: nn.Module) -> Parameters:
    """Copies of all that a fit may change: trainable parameters and buffers."""
    return copies(parameters(module) | dict(module.named_buffers()))


def twin(module: AnyModule, shared: Iterable[Tensor] | None = None) -> AnyModule:
    """A copy that has the ``shared`` tensors in common with the module: None, its frozen parameters.

    >>> module = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2))
    >>> other = twin(module)
    >>> other[0].weight is module[0].weight, other[1].weight is module[1].weight
    (True, False)
    """
    if shared is None:
        shared = [p for p in module.parameters() if not p.requires_grad]
    # deepcopy takes what is in its memo for copied already
    memo: dict[int, Any] = {id(tensor): tensor for tensor in shared}
    for layer in module.modules():
        for value in vars(layer).values():
            if type(value) is OrderedDict and not value:  # a layer has ten of these, and deepcopy rebuilds each slowly
                memo[id(value)] = OrderedDict()
        for name in computed(layer) if layer._forward_pre_hooks else ():
            value = vars(layer).get(name)
            if isinstance(value, Tensor):  # part of a graph, which deepcopy refuses; the next pass makes it anew
                memo[id(value)] = value.detach().clone()
    return copy.deepcopy(module, memo)


def computed(layer: nn.Module) -> dict[str, Computed]:
    """Weights that hooks of a layer make of its parameters before every pass, by name, with what makes them.

    So do ``torch.nn.utils.weight_norm``, ``spectral_norm`` and ``prune``; their successors in
    ``torch.nn.utils.parametrizations`` need no hooks.

    >>> list(computed(nn.utils.spectral_norm(nn.Linear(2, 2)))), list(computed(nn.Linear(2, 2)))
    (['weight'], [])
    """
    found: dict[str, Computed] = {}
    for hook in layer._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm | SpectralNorm):
            found[hook.name] = hook
        elif isinstance(hook, BasePruningMethod):
            found[hook._tensor_name] = hook
    return found


def shell(module: nn.Module) -> nn.Module:
    """A copy of the module's layers that has all tensors in common with it."""
    return twin(module, [*module.parameters(), *module.buffers()])


def digests(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """A short SHA-256 of the dtype, shape and bytes of every tensor, by name.

    >>> digests({"w": torch.zeros(2)}) == digests({"w": torch.zeros(2)}) != digests({"w": torch.zeros(2, 1)})
    True
    """
    found = {}
    for name, tensor in tensors.items():
        # bytes, not values: NaNs compare, and no rounding on the way through text
        plain = tensor.detach().cpu().contiguous()
        digest = hashlib.sha256(f"{plain.dtype} {list(plain.shape)}".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
        found[name] = digest.hexdigest()[:16]
    return found


def freeze_like(module: nn.Module, known: Mapping[str, str]) -> str | None:
    """Freeze the parameters whose `digests` are known, and no others; the name of one that differs, or None."""
    given = dict(module.named_parameters())
    for name, p in given.items():
        p.requires_grad_(name not in known)
    found = digests({name: given[name] for name in known})
    for name, digest in known.items():
        if found[name] != digest:
            return name
    return None


def copies(tensors: Mapping[str, Tensor]) -> Parameters:
    """Detached copies that share no memory with the originals."""
    return {name: t.detach().clone() for name, t in tensors.items()}


def call(module: nn.Module, x: Inputs, state: Mapping[str, Tensor] | None = None) -> Tensor:
    """The module's outputs at x: ``module(x)``, ``module(*x)`` or ``module(**x)``; under ``state`` if given.

    Of outputs in several parts those named ``logits`` are meant, see `logits_of`.

    x stays as it is, also if the module writes into its inputs. Whether it does, training or not, is found out by its
    first call, which is made on a copy; a module that writes is given copies from then on.
    """
    readers = _READERS[module.training]
    reads = module in readers
    given = x if reads else inputs.each(inputs.duplicate, x)
    # tensors that torch counts changes in place of: those of inference mode it does not
    counted = [given] if isinstance(given, Tensor) else [part for _, part in inputs.named(given)]
    counted = [part for part in counted if not part.is_inference()]
    before = [part._version for part in counted]
    if state is None and isinstance(given, Tensor):
        outputs = module(given)
    else:
        args, kwargs = arguments(given)
        outputs = module(*args, **kwargs) if state is None else run(module, state, args, kwargs)
    wrote = [part._version for part in counted] != before
    if not wrote and not reads:
        readers.add(module)
    elif wrote and reads:
        names = ", ".join(name for name, _ in inputs.named(x))
        raise ChangedInputs(
            f"{type(module).__name__} changed its inputs ({names}) in place, which it did not do before: your array is "
            "no longer what it was. Let its forward work on a copy, x = x.clone()"
        )
    found = outputs if isinstance(outputs, Tensor) else logits_of(outputs)
    if found is None:
        raise NotOneTensor(
            f"the model must return one tensor, but {type(module).__name__} returned {type(outputs).__name__}: say "
            f"which part of it, {_parts(outputs)}"
        )
    return found


def logits_of(outputs: Any) -> Tensor | None:
    """The part ``logits`` of a dict, a dataclass or a named tuple, as models of language return them; None without one.

    >>> logits_of({"logits": torch.ones(1), "hidden": torch.zeros(2)}), logits_of((torch.ones(1),))
    (tensor([1.]), None)
    """
    found = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    return found if isinstance(found, Tensor) else None


class Pick:
    """A forward hook that takes one part of what a module returns: by its name, or of a tuple by its number."""

    def __init__(self, part: str | int) -> None:
        self.part = part

    def __call__(self, module: nn.Module, args: Any, outputs: Any) -> Any:
        """The part."""
        if isinstance(outputs, Mapping) or (isinstance(self.part, int) and isinstance(outputs, tuple | list)):
            with suppress(LookupError):
                return outputs[self.part]  # type: ignore[index]
        elif isinstance(self.part, str) and not isinstance(outputs, Tensor) and hasattr(outputs, self.part):
            return getattr(outputs, self.part)
        raise NotOneTensor(
            f"output={self.part!r} must name a part of what the model returns, but {type(module).__name__} returned "
            f"{type(outputs).__name__}: {_parts(outputs)}"
        )


def _parts(outputs: Any) -> str:
    """How to name a tensor among outputs of several parts."""
    names: list[str | int] = []
    if isinstance(outputs, Tensor):
        return "leave output out, it is one tensor"
    if isinstance(outputs, Mapping):
        names = [name for name in outputs if isinstance(outputs[name], Tensor)]
    elif isinstance(outputs, tuple | list):
        names = [index for index, part in enumerate(outputs) if isinstance(part, Tensor)]
    elif hasattr(outputs, "__dict__"):
        names = [name for name, part in vars(outputs).items() if isinstance(part, Tensor)]
    if not names:
        return "it holds no tensor"
    return " or ".join(f"output={name!r}" for name in names)


def picking(module: AnyModule, part: str | int | None) -> AnyModule:
    """A copy of the module that returns one part of what it returned; None: the module as it is.

    >>> class Two(nn.Linear):
    ...     def forward(self, x): return {"logits": super().forward(x), "hidden": x}
    >>> call(picking(Two(2, 3), "logits"), torch.ones(1, 2)).shape
    torch.Size([1, 3])
    """
    if part is None:
        return module
    module = twin(module, shared=())
    module.register_forward_hook(Pick(part))
    return module


class NotOneTensor(TypeError):
    """A module that returns a tuple, say."""


class ChangedInputs(RuntimeError):
    """A module that writes into its inputs now and then."""


def arguments(x: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a module is called with for these inputs."""
    if isinstance(x, tuple):
        return x, {}
    if isinstance(x, dict):
        return (), x
    return (x,), {}


def run(module: nn.Module, state: Mapping[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``module(*args, **kwargs)`` under other tensors, given once where the module shares one; it is left as it was.

    torch's own way with shared tensors leaves the new ones behind in a layer that is reachable by two names.
    """
    first: dict[int, str] = {}
    everywhere = dict(state)
    for path, layer in module.named_modules():  # each layer once
        for name, p in layer.named_parameters(recurse=False, remove_duplicate=False):
            full = f"{path}.{name}" if path else name
            original = first.setdefault(id(p), full)
            if original in state:
                everywhere[full] = state[original]
    return functional_call(module, everywhere, args, kwargs, tie_weights=False)


def outputs_of(module: nn.Module, x: Inputs) -> Tensor:
    """The outputs of a copy of the module in eval mode, block by block, without a graph.

    >>> outputs_of(nn.Flatten(), torch.zeros(3, 2, 2)).shape
    torch.Size([3, 4])
    """
    network = twin(module).eval()
    found = []
    with torch.no_grad():
        for rows in torch.split(torch.arange(inputs.length(x)), inputs.block(x)):
            found.append(try_call(network, inputs.take(x, rows)))
    return torch.cat(found)


def try_call(module: nn.Module, x: Inputs, state: Mapping[str, Tensor] | None = None) -> Tensor:
    """`call` on inputs that may not fit: what goes wrong is said with their shapes."""
    try:
        outputs = call(module, x, state)
    except (NotOneTensor, ChangedInputs):
        raise
    except (RuntimeError, ValueError, IndexError, TypeError, KeyError) as error:
        parts = ", ".join(f"{name}: {list(part.shape)} {part.dtype}" for name, part in inputs.named(x))
        hint = "; whole numbers that are no indices must be floats: X.float()" if "int" in parts else ""
        raise ValueError(f"the model cannot take the inputs ({parts}): {error}{hint}") from error
    if outputs.shape[:1] != (inputs.length(x),):
        raise ValueError(
            f"the model gives outputs {list(outputs.shape)} for {inputs.length(x)} examples: it must keep the examples "
            "in the first dimension; one example alone is X[None]"
        )
    return outputs


def flatten(tensors: Mapping[str, Tensor]) -> Tensor:
    """All numbers in one vector, in the order of the mapping."""
    return torch.cat([t.reshape(-1) for t in tensors.values()])


def unflatten(vector: Tensor, like: Mapping[str, Tensor]) -> Parameters:
    """Undo `flatten`: views of the last dimension of ``vector`` in the names and shapes of ``like``."""
    pieces = torch.split(vector, [t.numel() for t in like.values()], dim=-1)
    found = {}
    for (name, t), piece in zip(like.items(), pieces, strict=True):
        found[name] = piece.view((*vector.shape[:-1], *t.shape))
    return found


def check(module: nn.Module) -> None:
    """Refuse, by name, a module that cannot be copied, run under other weights, or learnt."""
    for path, layer in module.named_modules():
        where = f"layer {path!r}" if path else "the model"
        if isinstance(layer, torch.jit.ScriptModule):
            raise TypeError(f"{where} is scripted and cannot run under other weights: pass what it was scripted from")
        if isinstance(layer, nn.DataParallel | nn.parallel.DistributedDataParallel):
            raise TypeError(
                f"{where} is a {type(layer).__name__}, which cannot run under other weights: pass the module in it, "
                "model.module; `torchrun` makes the fit one of many processes"
            )
    for name, t in (*module.named_parameters(), *module.named_buffers()):
        if shards.any_of([t]):
            raise TypeError(
                f"{name!r} is sharded (fully_shard), and a fit copies its network: take br.optim.IVON in a loop of "
                "your own, or the network as it was before, in as many processes"
            )
        if isinstance(t, UninitializedParameter | UninitializedBuffer):
            raise ValueError(f"{name!r} has no shape yet: call the model once on a batch, model(X[:2]), before the fit")
        if t.is_meta:
            raise ValueError(
                f"{name!r} is on the meta device, without values: model.to_empty(device=...), then load or draw them"
            )
    trainable = parameters(module)
    if not trainable:
        raise ValueError(f"the model ({type(module).__name__}) has no trainable parameters: there is nothing to learn")
    for name, p in trainable.items():
        if not p.is_floating_point():
            raise TypeError(
                f"parameter {name!r} is {p.dtype}: priors and posteriors are of real weights; hold it as two real "
                "ones, torch.view_as_complex in the forward, or freeze it"
            )
        if p.dtype == torch.float16:
            raise TypeError(
                f"parameter {name!r} is {p.dtype}, in which small steps and squares vanish: model.float(), and "
                'autocast="bfloat16" to save time'
            )
    for name, p in module.named_parameters():
        if not bool(p.isfinite().all()):
            raise ValueError(f"parameter {name!r} of the model holds NaN or infinite values before training")


def dtype_of(module: nn.Module) -> torch.dtype:
    """The floating dtype of the module's parameters: the dtype that data follow."""
    return next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.get_default_dtype())


def device_of(module: nn.Module) -> torch.device:
    """Where the module's parameters are: the device that data follow."""
    return next((p.device for p in module.parameters()), torch.device("cpu"))


def signature(module: nn.Module) -> dict[str, str]:
    """Shape and dtype of everything in the module's state, by name: what must agree for a file to fit."""
    state = dict(module.named_parameters()) | dict(module.named_buffers())
    found = {}
    for name, t in sorted(state.items()):
        dtype = str(t.dtype).removeprefix("torch.")
        found[name] = f"{list(t.shape)} {dtype}"
    return found


def difference(saved: Mapping[str, str], given: Mapping[str, str], where: str = "the file") -> str | None:
    """The first difference between two signatures in words, or None; ``where`` the first of them is from."""
    for name in sorted({*saved, *given}):
        if saved.get(name) != given.get(name):
            return f"{name!r} is {saved.get(name, 'absent')} in {where} and {given.get(name, 'absent')} in the model"
    return None


def training_mode(module: nn.Module) -> nn.Module:
    """The module in training mode, but for frozen normalisation layers: their statistics are frozen with them."""
    module.train()
    for layer in module.modules():
        own = list(layer.parameters(recurse=False))
        if is_norm(layer) and own and not any(p.requires_grad for p in own):
            layer.eval()
    return module


def has_batch_norm(module: nn.Module) -> bool:
    """Whether some layer keeps running statistics, which must fit the weights they are used with."""
    return bool(_batch_norms(module))


def _batch_norms(module: nn.Module) -> list[_BatchNorm]:
    """Layers with running statistics that follow the weights: not those that are frozen."""
    found = []
    for layer in module.modules():
        if not isinstance(layer, _BatchNorm) or not layer.track_running_stats:
            continue
        if not layer.affine or layer.weight.requires_grad or layer.bias.requires_grad:
            found.append(layer)
    return found


@torch.no_grad()
def refresh_batch_norm(module: nn.Module, batches: Iterable[Inputs]) -> None:
    """Set BatchNorm's running statistics to the averages over ``batches`` under the present weights, in place."""
    layers = _batch_norms(module)
    momenta = [layer.momentum for layer in layers]
    module.eval()
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # torch's word for a cumulative average: every batch counts alike
        layer.train()
    for x in batches:
        call(module, x)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    module.eval()


def owners(module: nn.Module) -> dict[str, nn.Module]:
    """The layer that holds each trainable parameter."""
    found = {}
    for name in parameters(module):
        path, _, _ = name.rpartition(".")
        found[name] = module.get_submodule(path)
    return found


def is_norm(layer: nn.Module) -> bool:
    """Whether a layer normalises, so that its weight is a scale that starts at one."""
    return isinstance(layer, _NormBase | nn.LayerNorm | nn.GroupNorm | nn.RMSNorm)
