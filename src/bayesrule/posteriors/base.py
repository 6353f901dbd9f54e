"""The contract of a posterior, and all that follows from it."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from bayesrule import files, likelihoods, modules, showing
from bayesrule.data import Data, Inputs, Loader, Scaling, as_inputs, inputs
from bayesrule.files import Tree
from bayesrule.likelihoods import Likelihood
from bayesrule.naming import from_spec, to_spec, unknown
from bayesrule.posteriors import exporting, guarantees
from bayesrule.posteriors.guarantees import Guarantees
from bayesrule.posteriors.networks import Network, finite, stack
from bayesrule.predictions import Answers, Conformal, Prediction, Selective

if TYPE_CHECKING:
    from typing_extensions import Self

    from bayesrule.priors import Prior

OF_GAUSSIANS = ("mean", "std", "as_prior", "at_mean")
SHOWN = ("temperature", "epochs", "batch_size", "seed", "seconds")  # of a posterior's info, in notebooks
P = TypeVar("P", Conformal, Selective)
KINDS: dict[str, type[Posterior]] = {}  # every kind of posterior that a file can hold


@dataclass(frozen=True, eq=False)
class Context:
    """What a posterior needs beside its own distribution: the module, p(y|f), the data's scaling, and its provenance.

    The module's frozen parameters are those of every network; posteriors of one module share them.
    """

    model: nn.Module
    likelihood: Likelihood
    scaling: Scaling = field(default_factory=Scaling)
    info: dict[str, Any] = field(default_factory=dict)
    guarantees: Guarantees = field(default_factory=Guarantees)


class Posterior(ABC):
    """A distribution over a module's parameters, and so over its outputs.

    A kind of posterior says how to draw `networks`, and its own tensors (`state`, `from_state`). The rest is here.
    """

    kind: ClassVar[str]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "kind" in cls.__dict__:
            KINDS[cls.kind] = cls

    def __init__(self, context: Context) -> None:
        self.context = context
        self.model = modules.twin(context.model).eval().requires_grad_(False)

    if TYPE_CHECKING:
        # What only Gaussians have: `br.fit` cannot say which kind a method will give. See `__getattr__`.
        mean: modules.Parameters

        @property
        def std(self) -> modules.Parameters:
            """The marginal deviation of each parameter, by name."""

        def as_prior(self) -> Prior:
            """This posterior as the prior of what comes next."""

        def at_mean(self, module: nn.Module | None = None) -> nn.Module:
            """A copy of the module with the mean for its weights."""

    else:

        def __getattr__(self, name: str) -> Any:
            hint = ""
            if name in OF_GAUSSIANS:
                hint = ": only Gaussians have, such as those of methods laplace, swag, bbb and ivon"
            raise AttributeError(f"a {type(self).__name__} posterior has no {name!r}{hint}", name=name, obj=self)

    def __repr__(self) -> str:
        about: dict[str, Any] = {}
        if "method" in self.info:  # which a fit has made
            about = {"method": self.info["method"]["name"], "n": self.info["n"]}
        about["likelihood"] = self.likelihood.name
        about["parameters"] = sum(p.numel() for p in modules.parameters(self.context.model).values())
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in about.items())})"

    def _repr_html_(self) -> str:
        """What it is and how it came about, for notebooks."""
        rows: list[tuple[str, Any]] = [(name, self.info[name]) for name in SHOWN if name in self.info]
        rows += self.info.get("diagnostics", {}).items()
        rows += [("promise", promise.says) for promise in self.guarantees]
        return showing.table(rows, repr(self))

    @abstractmethod
    def networks(self, count: int, generator: torch.Generator) -> Iterator[Network]:
        """Draws from the posterior, at most ``count``; each is one function for all inputs, in the network's units.

        For a network f: f(x) joins f(x[:5]) and f(x[5:]), and f(x) again is the same.
        """

    def count(self, samples: int) -> int:
        """How many `networks` there are when ``samples`` are asked for."""
        return samples

    def outputs(self, x: Inputs, samples: int, generator: torch.Generator) -> Tensor:
        """Outputs [S, B, ...] of at most ``samples`` networks, each the same for all of x, in the network's units.

        Columns are joint draws: f_s(x_1), f_s(x_2), … belong to the network s.
        """
        return stack(self.networks(samples, generator), x, self.count(samples))

    def marginals(self, x: Inputs, samples: int, generator: torch.Generator) -> Tensor:
        """Outputs [S, B, ...] whose law is right for every example on its own: all that a prediction asks for.

        They are the `outputs`, unless a kind knows the law in closed form.
        """
        return self.outputs(x, samples, generator)

    @abstractmethod
    def state(self) -> Tree:
        """The distribution itself as a tree of tensors and plain values."""

    @classmethod
    @abstractmethod
    def from_state(cls, state: Tree, context: Context) -> Posterior:
        """Undo `state`."""

    def verify(self) -> None:
        """A `ValueError` for what no fit can have made, or what lacks a part of the module: asked of files."""
        return

    @property
    def likelihood(self) -> Likelihood:
        """p(y|f), with what was learnt of it."""
        return self.context.likelihood

    @property
    def info(self) -> dict[str, Any]:
        """How this posterior came about: method, prior, temperature, data, versions."""
        return self.context.info

    @property
    def guarantees(self) -> Guarantees:
        """What is promised of its predictions: `conformalize`, `selective`."""
        return self.context.guarantees

    def with_context(self, **changes: Any) -> Self:
        """The same distribution in another context: another likelihood, or more in its `info`.

        What was promised of its predictions holds no longer where these change.
        """
        if changes.keys() & {"model", "likelihood", "scaling"}:
            changes = {"guarantees": Guarantees()} | changes
        other = copy.copy(self)
        other.context = replace(self.context, **changes)
        return other

    def to(self, device: torch.device | str) -> Self:
        """The same posterior on another device."""
        model = modules.twin(self.context.model, shared=()).to(device)
        context = replace(self.context, model=model)
        return cast("Self", type(self).from_state(files.moved(self.state(), device), context))

    def predict(self, x: Any, samples: int = 32, seed: int = 0) -> Prediction:
        """What is not known of y at x: the likelihood averaged over ``samples`` networks.

        p(y|x, D) ≈ 1/S Σ_s p(y | f_{w_s}(x)), w_s ~ q. Takes and gives the user's units. ``x`` is what ``X`` of a fit
        may be, or a DataLoader or Dataset, which is read batch by batch in the order of its data set, whatever it
        shuffles; targets in it do not count.
        """
        if samples < 1:
            raise ValueError(f"samples must be at least 1, not {samples}")
        if isinstance(x, Data):
            x = x.raw().x
        if isinstance(x, DataLoader | Dataset):  # the same networks for each batch, since they are drawn by the seed
            parts = [self.predict(part, samples, seed) for part in Loader(x).inputs()]
            return type(parts[0]).cat(parts)
        return self.predictive(as_inputs(x), samples, seed)

    def predictive(self, x: Inputs, samples: int, seed: int) -> Prediction:
        """`predict` of tensors that were checked: what `export` makes a program of."""
        generator = torch.Generator(modules.device_of(self.model)).manual_seed(seed)
        with torch.no_grad():
            prediction = self.mixture(self._scaled(x), samples, generator)
        targets = self.context.scaling.targets
        if targets is None:
            return prediction
        return prediction.rescaled(targets.loc, targets.scale)

    def mixture(self, x: Inputs, samples: int, generator: torch.Generator) -> Prediction:
        """`predict` in the network's units."""
        return self.likelihood.predict(finite(self.marginals(x, samples, generator)))

    def conformalize(
        self, held: Any, level: float = 0.9, groups: Any = None, score: str = "aps", samples: int = 32, seed: int = 0
    ) -> Self:
        """This posterior with a promise: a share ``level`` of `predict_set` or `predict_interval` holds the truth.

        Args:
            held: ``(X, y)`` that no fit has seen, drawn like what will be predicted.
            level: Of new examples, on average over the choice of ``held``.
            groups: The group of each held-out example, a text or whole number; the level then holds in each group.
            score: Of classes: ``"aps"``, or ``"randomised-aps"``, whose sets hold the truth no more often than promised
                and may be empty.
            samples: Networks per prediction, here and in what is promised.
            seed: Of these networks.
        """
        promise = guarantees.conformal(self, held, level, groups, score, samples, seed)
        return self.with_context(guarantees=replace(self.guarantees, conformal=promise))

    def selective(
        self, held: Any, error: float = 0.01, confidence: float = 0.95, samples: int = 32, seed: int = 0
    ) -> Self:
        """This posterior with a promise: of what `predict_or_abstain` answers at most a share ``error`` is wrong.

        The promise holds with probability ``confidence`` over the choice of ``held``, which is as for `conformalize`.
        """
        promise = guarantees.selective(self, held, error, confidence, samples, seed)
        return self.with_context(guarantees=replace(self.guarantees, selective=promise))

    def predict_set(self, x: Any, groups: Any = None) -> Tensor:
        """Classes that hold the true one with the promised probability, as a mask ``[B, C, ...]``."""
        promise = self._promised(self.guarantees.conformal, "conformalize(held, level=0.9)")
        return promise.sets(self.predict(x, promise.samples, promise.seed), groups)

    def predict_interval(self, x: Any, groups: Any = None) -> tuple[Tensor, Tensor]:
        """Lower and upper ends that hold the true number with the promised probability, in the user's units."""
        promise = self._promised(self.guarantees.conformal, "conformalize(held, level=0.9)")
        return promise.intervals(self.predict(x, promise.samples, promise.seed), groups)

    def predict_or_abstain(self, x: Any) -> Answers:
        """Predictions, and which of them are answered, so that of those no more than promised are wrong."""
        promise = self._promised(self.guarantees.selective, "selective(held, error=0.01)")
        return promise.answers(self.predict(x, promise.samples, promise.seed))

    def _promised(self, promise: P | None, how: str) -> P:
        if promise is None:
            raise ValueError(f"the posterior promises nothing of the kind yet: take posterior.{how} first")
        return promise

    def save(self, path: str | Path) -> None:
        """Write the posterior with all that a prediction needs, except the module's code, to one file, atomically."""
        files.save(path, files.sealed(self.tree()), "posterior")

    def export(
        self,
        path: str | Path,
        example: Any = None,
        samples: int = 32,
        seed: int = 0,
        level: float | None = 0.9,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """Write `predict` as one program for any number of examples, which runs without this library.

        It takes inputs in the user's units and gives the tensors of `Prediction.summary`, equal to those of `predict`
        with the same ``samples`` and ``seed``: the same networks. See docs/export.md for what can be exported.

        Args:
            path: Ends in ``.pt2``, for `torch.export.load`, or in ``.onnx``, which needs ``bayesrule[onnx]``.
            example: Inputs as of `predict`, of which the shape and the dtype count; None: as the posterior knows them.
            samples: Networks, as in `predict`.
            seed: Of these networks.
            level: Of the interval of numbers; None: without one.
            about: Plain data to be written beside it, such as the names of columns.
        """
        exporting.export(self, path, example, samples, seed, level, about)

    def tree(self) -> dict[str, Tree]:
        """What `save` writes."""
        promises = self.guarantees.state()
        return {
            "kind": self.kind,
            "state": self.state(),
            "likelihood": to_spec(self.likelihood),
            "scaling": self.context.scaling.state(),
            "info": self.info,
            "signature": modules.signature(self.model),
            "frozen": modules.digests(modules.frozen(self.context.model)),
            **({"guarantees": promises} if promises else {}),
        }

    def inputs(self, x: Any) -> Inputs:
        """The user's inputs, checked, in the network's dtype and scale."""
        return self._scaled(as_inputs(x))

    def _scaled(self, x: Inputs) -> Inputs:
        scaling = self.context.scaling.inputs
        if scaling is not None:
            x = inputs.each(scaling.forward, x)
        return inputs.to(x, modules.dtype_of(self.model), modules.device_of(self.model))


def load(path: str | Path, model: nn.Module) -> Posterior:
    """Read a posterior back onto a module of the same architecture.

    What was frozen in the fit is not in the file: the module must have it. Its other weights do not matter: they all
    are in the file, or it is refused.
    """
    return from_tree(path, files.unsealed(path, files.load(path, "posterior", modules.device_of(model))), model)


def from_tree(path: str | Path, tree: Tree, model: nn.Module) -> Posterior:
    """Undo `Posterior.tree`, which a file at ``path`` holds, onto a module, as `load` does."""
    try:
        return _read(path, tree, model)
    except files.FileError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError, ArithmeticError, AssertionError) as error:
        raise files.FileError(f"{path}: holds no sound posterior: {error}") from error


def _read(path: str | Path, tree: Tree, model: nn.Module) -> Posterior:
    difference = modules.difference(tree["signature"], modules.signature(model))
    if difference:
        raise files.FileError(f"{path}: does not fit the model: {difference}")
    model = modules.picking(modules.twin(model, shared=()), tree["info"].get("output"))
    other = modules.freeze_like(model, tree["frozen"])
    if other is not None:
        raise files.FileError(
            f"{path}: does not fit the model: {other!r} was frozen in the fit, and the model has other values there; "
            "load the frozen weights into the model first, model.load_state_dict(...)"
        )
    if tree["kind"] not in KINDS:
        raise unknown("kind of posterior", tree["kind"], KINDS)
    likelihood = from_spec("likelihood", tree["likelihood"], likelihoods.AVAILABLE)
    likelihood.verify()
    promises = Guarantees.from_state(tree.get("guarantees", {}))
    context = Context(model, likelihood, Scaling.from_state(tree["scaling"]), tree["info"], promises)
    posterior = KINDS[tree["kind"]].from_state(tree["state"], context)
    posterior.verify()
    # What was read says the same as the file: nothing in it was left aside, or taken for something else.
    again = {
        "state": posterior.state(),
        "likelihood": _as_written(likelihood, tree),
        "scaling": context.scaling.state(),
        "guarantees": promises.state(),
    }
    for part, found in again.items():
        if files.layout(found) != files.layout(tree.get(part, {})):
            raise ValueError(f"its {part} is not one of kind {tree['kind']!r}")
    return posterior


def _as_written(likelihood: Likelihood, tree: Tree) -> Tree:
    """A likelihood as a file has it: an older one lacks fields that are newer, and so are at their defaults."""
    spec = to_spec(likelihood)
    known = tree["likelihood"]["fields"]
    return spec | {"fields": {name: value for name, value in spec["fields"].items() if name in known}}
