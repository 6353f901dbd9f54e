"""Many candidates at once, each weighed by what it says of data that it has not seen."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import vmap

from bayesrule import modules, seeds
from bayesrule.data import Arrays, Batch, Inputs, inputs, splits
from bayesrule.files import Tree
from bayesrule.likelihoods import Likelihood
from bayesrule.methods.base import Logs, Method, Needs, Plan, context
from bayesrule.methods.gradient import GradientLearner, Trained
from bayesrule.modules import Parameters
from bayesrule.optim import Group
from bayesrule.posteriors import Particles, Posterior, match, most_probable, seats, stacked
from bayesrule.priors import centres, scales
from bayesrule.seeds import Noise
from bayesrule.starts import reinitialise
from bayesrule.task import Task, units

LINEAR, NETWORK = "linear", "network"  # children of a module whose outputs add up
WIDE = 10.0  # deviation of a bias that nobody has an idea of
MOST = 2**32  # bytes of networks that are trained side by side
MANY = 20_000  # examples from which on two networks of each candidate, and a tenth held out from each, are enough


@dataclass(frozen=True)
class Candidate:
    """One belief about the weights: a deviation by parameter, of normal or of double exponential weights.

    A deviation of zero is a weight that is not there.
    """

    name: str
    deviations: dict[str, float]
    sparse: bool = False


@dataclass(frozen=True)
class Auto(Method):
    """q(w) = Σ_c π_c 1/K Σ_k δ(w − w_ck): candidates c, each K networks that a fold of the data was held out from.

    Every network is at the mode of its candidate's posterior given all other folds. The predictions of the held-out
    examples, each by networks that have not seen it, decide the weights π (stacking; Yao et al. 2018) and what is
    unknown of the likelihood, such as noise. All networks are trained side by side, as one batch of networks where
    `torch.vmap` can run the module. They start from weights that are drawn anew.

    Candidates are beliefs about the size of the weights: deviation s/√fan-in, biases s, for each s in ``scales``. For a
    module whose outputs are those of its children ``linear`` and ``network`` added up, as of `br.models.tabular`, that
    is for its network, and there are candidates without it: weights N(0, s²) of the linear part for each s of
    ``ridges``, double exponential ones of deviation s, which prefer few large weights to many small ones, for each s of
    ``lassos``, and a constant. A prior that the user gives is the only belief then.

    ``folds``: K; None is 5, or 2 with a tenth of the data held out from each where there are more than 20 000 examples.
    ``networks``: how many the posterior holds; candidates have their share of them. ``lr``: Adam's learning rate after
    the warm-up.
    """

    name: ClassVar[str] = "auto"
    summary: ClassVar[str] = "candidates from a constant to a large network, weighed by data they have not seen"
    weighs: ClassVar[bool] = True
    scales: tuple[float, ...] = (0.8, 1.2, 1.8, 2.7, 5.0)
    ridges: tuple[float, ...] = (0.1, 0.7)
    lassos: tuple[float, ...] = (0.03, 0.2)
    folds: int | None = None
    networks: int = 30
    lr: float = 1e-2

    def __post_init__(self) -> None:
        for name in ("scales", "ridges", "lassos"):
            values = tuple(getattr(self, name))
            if not all(math.isfinite(value) and value > 0 for value in values):
                raise ValueError(f"{name} must be positive and finite deviations, not {values}")
            object.__setattr__(self, name, values)
        if not self.scales:
            raise ValueError("scales must hold at least one deviation, not none")
        for name, value, least in (("folds", self.folds, 2), ("networks", self.networks, 1)):
            if value is not None and (not isinstance(value, Integral) or value < least):
                raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")

    def start(self, task: Task, plan: Plan, noise: Noise) -> AutoLearner:
        """All networks of all candidates, each from a start of its own."""
        data, n = _in_memory(task), task.data.n
        if n < 2:
            raise ValueError("auto holds a part of the examples out, and there is only one")
        task = replace(task, data=data)
        strata = data.y.cpu() if data.y.ndim == 1 else torch.zeros(n)
        count = self.folds or (2 if n > MANY else 5)
        share = 0.1 if self.folds is None and n > MANY else 1 / count
        fold = splits.folds(strata, min(count, n), share, noise.integer())
        found = None if task.believed else self.candidates(task)
        return AutoLearner(self, task, plan, noise, found, fold)

    def candidates(self, task: Task) -> list[Candidate]:
        """What is tried on a task where nobody says which prior."""
        by_rule = scales.scales("fan-in", task.model)
        parts = {name for name, _ in task.model.named_children()}
        if parts != {LINEAR, NETWORK}:
            return [Candidate(f"scale {s:g}", {name: s * d for name, d in by_rule.items()}) for s in self.scales]
        off = dict.fromkeys(by_rule, 0.0)
        bias = {name: WIDE for name in by_rule if name == f"{LINEAR}.bias"}
        found = [Candidate("constant", off | bias)]
        for kind, deviations in (("ridge", self.ridges), ("lasso", self.lassos)):
            for s in deviations:
                found.append(Candidate(f"{kind} {s:g}", off | {f"{LINEAR}.weight": s} | bias, kind == "lasso"))
        rows, columns = task.data.n, modules.parameters(task.model)[f"{LINEAR}.weight"].shape[1]
        if columns >= rows:  # so many columns leave a network no rows to learn from
            return found
        for s in self.scales:
            wide = {name: s * d for name, d in by_rule.items() if name.startswith(NETWORK)}
            found.append(Candidate(f"network {s:g}", {f"{LINEAR}.weight": 1.0} | bias | wide))
        return found

    def needs(self, task: Task, epochs: int) -> Needs:
        """Nothing: what is held out, the method holds out itself."""
        return Needs("none")


class Stack(nn.Module):
    """M networks like a module: every parameter and buffer [M, ...]."""

    def __init__(self, states: Sequence[Parameters], trainable: Collection[str]) -> None:
        super().__init__()
        self.names = {name: name.replace(".", "/") for name in states[0]}  # torch allows no dots in a name
        for name, own in self.names.items():
            together = torch.stack([state[name] for state in states])
            if name in trainable:
                self.register_parameter(own, nn.Parameter(together))
            else:
                self.register_buffer(own, together)

    def tensors(self) -> Parameters:
        """All tensors by the names of the module."""
        return {name: getattr(self, own) for name, own in self.names.items()}


class Beliefs:
    """−log p(w) of M networks up to constants, each under its own candidate: Σ_j a_j (w_j − c_j)² + b_j |w_j − c_j|.

    Normal weights of deviation d have a = 1/2d², double exponential ones b = √2/d. ``there`` is 0 for weights that a
    candidate does without.
    """

    def __init__(self, candidates: Sequence[Candidate], folds: int, task: Task) -> None:
        self.centres = centres(task.model)
        self.squares, self.sizes, self.there = {}, {}, {}
        for name, p in modules.parameters(task.model).items():
            deviations = p.new_tensor([c.deviations[name] for c in candidates]).repeat_interleave(folds)
            deviations = deviations.view(-1, *[1] * p.ndim)
            sparse = torch.tensor([c.sparse for c in candidates], device=p.device).repeat_interleave(folds)
            sparse = sparse.view_as(deviations)
            there = deviations > 0
            none = torch.zeros_like(deviations)
            self.squares[name] = torch.where(there & ~sparse, 0.5 / deviations**2, none)
            self.sizes[name] = torch.where(there & sparse, math.sqrt(2) / deviations, none)
            self.there[name] = there.to(p.dtype)

    @torch.no_grad()
    def start(self, weights: Parameters) -> None:
        """Set weights to zero that a candidate does without."""
        for name, there in self.there.items():
            weights[name].mul_(there)

    @torch.no_grad()
    def add_slopes(self, weights: Parameters, factors: Tensor) -> None:
        """Add factors [M] times the gradients of −log p(w) to those that the weights have; zero stays zero.

        In closed form: to differentiate it took a third of the time of a step.
        """
        for name, a in self.squares.items():
            w = weights[name]
            off = w - self.centres[name]
            slope = torch.addcmul(self.sizes[name] * off.sign(), a, off, value=2)
            grad = torch.zeros_like(w) if w.grad is None else w.grad
            w.grad = grad.addcmul_(factors.view_as(a), slope).mul_(self.there[name])


class AutoLearner(GradientLearner):
    """All networks side by side: K of each candidate, those of one candidate next to each other.

    ``candidates`` None: there is one, which believes what the user does. ``fold``: of each example, the number of the
    networks that it is held out from, or −1.
    """

    def __init__(
        self, method: Auto, task: Task, plan: Plan, noise: Noise, candidates: list[Candidate] | None, fold: Tensor
    ) -> None:
        self.method, self.candidates, self.fold = method, candidates, fold
        self.folds = int(fold.max()) + 1
        self.beliefs = Beliefs(candidates, self.folds, task) if candidates else None
        self.count = self.folds * (len(candidates) if candidates else 1)
        _check_memory(self.count, task)
        self.module = modules.training_mode(modules.twin(task.model))
        self.stack = Stack([_start(task, noise) for _ in range(self.count)], modules.parameters(task.model))
        if self.beliefs is not None:
            self.beliefs.start(self.stack.tensors())
        self.at_once = self._runs_at_once(task)
        self.mean_weight = task.data.total / task.data.n
        self.own_fold = torch.arange(self.folds).repeat(self.count // self.folds)
        unknowns = {name: torch.stack([u] * self.count) for name, u in task.likelihood.unknowns().items()}
        group = Group(lr=method.lr)
        super().__init__(task, plan, self.stack, [Trained.by(group, self.stack.parameters())], unknowns)

    def _runs_at_once(self, task: Task) -> bool:
        """Whether `torch.vmap` runs the module as a loop over networks does; statistics of a BatchNorm it does not."""
        if modules.has_batch_norm(self.module):
            return False
        module = modules.shell(self.module).eval()
        x = next(task.ordered(2)).x
        states = self._states()
        try:
            with torch.no_grad(), seeds.untouched(task.device):
                found = vmap(lambda own: modules.call(module, x, own))(states)[0]
                wanted = modules.call(module, x, {name: t[0] for name, t in states.items()})
        except Exception:  # whatever vmap cannot do, the loop can, or says what is wrong
            return False
        return found.shape == wanted.shape and torch.allclose(found, wanted, rtol=1e-3, atol=1e-5)

    def objective(self, batch: Batch) -> tuple[Tensor, Logs]:
        """Σ over networks of mean −log p(y|f) over the examples that each may see; under the user's own prior also of
        −(η/N) log p(w).

        The loop's batch says how many examples to take. Which, is drawn here: their numbers tell who may see them.
        """
        assert isinstance(self.task.data, Arrays)
        index = torch.randint(self.task.data.n, (len(batch.y),))  # on the CPU, where the data are
        some = self.task.data.take(index).all().to(self.task.device)
        log_probs = self._log_probs(self.stack.tensors(), some)
        visible = (self.fold[index] != self.own_fold[:, None]).to(log_probs)
        if some.weight is not None:
            log_probs = log_probs * (some.weight / self.mean_weight).to(log_probs)
        nll = -(log_probs * visible).sum(1) / visible.sum(1).clamp(min=1)
        loss = nll.sum()
        if self.beliefs is None:
            loss = loss + (self._weight() * self._penalty()).sum()
        return loss, {"loss": nll.detach().mean()}

    def backward(self, batch: Batch) -> Logs:
        """Gradients of the likelihood and of the prior."""
        logs = super().backward(batch)
        if self.beliefs is not None:
            self.beliefs.add_slopes(self.stack.tensors(), self._weight())
        return logs

    def _weight(self) -> Tensor:
        """η/N of every network, N the examples that are not held out from it."""
        weight = self.task.data.weight
        held = torch.bincount(self.fold + 1, None if weight is None else weight.cpu(), minlength=self.folds + 1)[1:]
        seen = (self.task.data.total - held)[self.own_fold]
        return (self.task.temperature / seen).to(self.task.device, modules.dtype_of(self.module))

    def _penalty(self) -> Tensor:
        """−log p(w) of every network under the user's prior."""
        trainable, tensors = modules.parameters(self.module), self.stack.tensors()
        own = [{name: tensors[name][m] for name in trainable} for m in range(self.count)]
        return -torch.stack([self.task.prior.log_prob(each) for each in own])

    def _states(self) -> Parameters:
        return {name: t.detach() for name, t in self.stack.tensors().items()}

    def _log_probs(self, weights: Parameters, batch: Batch) -> Tensor:
        """Log p(y|f) of every example under every network, [M, B]."""

        def under(own: Parameters, unknowns: Parameters) -> Tensor:
            outputs = self._outputs(self.module, own, batch.x)
            return self.task.likelihood.with_unknowns(unknowns).log_prob(outputs, batch.y)

        if self.at_once:
            log_probs: Tensor = vmap(under, randomness="different")(weights, self.unknowns)
            return log_probs
        return torch.stack([under(_one(weights, m), _one(self.unknowns, m)) for m in range(self.count)])

    def _outputs(self, module: nn.Module, state: Parameters, x: Inputs) -> Tensor:
        if self.task.autocast is None:
            return modules.call(module, x, state)
        with torch.autocast(self.task.device.type, torch.bfloat16):
            return modules.call(module, x, state).to(modules.dtype_of(module))

    def posterior(self) -> Posterior:
        """All networks alike: what each is worth takes a pass over the data."""
        unknowns = {name: u.detach().mean(0) for name, u in self.unknowns.items()}
        return self._particles(range(self.count), self.task.likelihood.with_unknowns(unknowns))

    @torch.no_grad()
    def conclude(self, held: Batch | None) -> Posterior:
        """Candidates weighed by their densities of the examples that were held out from them."""
        outputs, y, weight = self._unseen()
        log_probs = torch.stack([self._own_likelihood(c, f, y, weight).log_prob(f, y) for c, f in enumerate(outputs)])
        weights = stacked(log_probs, weight)
        chosen = seats(weights, self.method.networks)
        several = [c * self.folds + k % self.folds for c, count in enumerate(chosen) for k in range(count)]
        likelihood = self._most_probable(self.task.likelihood, outputs, y, weights.log(), weight)
        told = zip(self._names(), weights.tolist(), (units(self.task) - log_probs.mean(1)).tolist(), strict=True)
        found = [{"name": name, "weight": weight, "held_out_nll": nll} for name, weight, nll in told]
        posterior = self._particles(several, likelihood, candidates=found)
        return posterior if held is None else match(posterior, held)

    def _names(self) -> list[str]:
        return [candidate.name for candidate in self.candidates] if self.candidates else ["the prior given"]

    def _unseen(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Outputs [C, n, ...] of every candidate at examples that its networks have not seen, y and weights there."""
        assert isinstance(self.task.data, Arrays)
        module = modules.shell(self.module).eval()
        states = self._states()
        outputs, targets, weights = [], [], []
        for k in range(self.folds):
            own = {name: t[k :: self.folds] for name, t in states.items()}
            rows = self.task.data.take((self.fold == k).nonzero()[:, 0])
            for batch in rows.ordered(inputs.block(rows.x)):
                batch = batch.to(self.task.device)
                several = [self._outputs(module, _one(own, c), batch.x) for c in range(self.count // self.folds)]
                outputs.append(torch.stack(several))
                targets.append(batch.y)
                if batch.weight is not None:
                    weights.append(batch.weight)
        return torch.cat(outputs, 1).double(), torch.cat(targets), torch.cat(weights) if weights else None

    def _own_likelihood(self, c: int, outputs: Tensor, y: Tensor, weight: Tensor | None) -> Likelihood:
        """The likelihood of one candidate: its networks' unknowns, settled on what they have not seen."""
        own = slice(c * self.folds, (c + 1) * self.folds)
        started = self.task.likelihood.with_unknowns({n: u.detach()[own].mean(0) for n, u in self.unknowns.items()})
        return self._most_probable(started, outputs[None], y, outputs.new_zeros(1), weight)

    def _most_probable(
        self, likelihood: Likelihood, outputs: Tensor, y: Tensor, log_weights: Tensor, weight: Tensor | None
    ) -> Likelihood:
        """With the unknowns under which the held-out examples are most probable for a mixture of candidates."""
        used = [c for c, weight in enumerate(log_weights) if weight > -math.inf]

        def log_prob(likelihood: Likelihood) -> Tensor:
            each = [log_weights[c] + likelihood.log_prob(outputs[c], y) for c in used]
            mixture = torch.stack(each).logsumexp(0)
            return mixture if weight is None else mixture * weight.to(mixture) / weight.mean()

        return most_probable(likelihood, log_prob)

    def state_dict(self) -> Tree:
        """That of all networks, and what is held out from which."""
        return super().state_dict() | {"fold": self.fold}

    def load_state_dict(self, state: Tree) -> None:
        """Undo `state_dict`."""
        super().load_state_dict(state)
        self.fold = state["fold"].cpu()

    def _particles(self, several: Iterable[int], likelihood: Likelihood, **found: Any) -> Particles:
        states = self._states()
        networks = [modules.copies(_one(states, m)) for m in several]
        return Particles(networks, context(self.task, likelihood, **found))


def _one(tensors: Parameters, m: int) -> Parameters:
    """The tensors of one network."""
    return {name: t[m] for name, t in tensors.items()}


def _start(task: Task, noise: Noise) -> Parameters:
    """Weights that are drawn anew, the same in all processes, and buffers."""
    fresh = modules.twin(task.model)
    with noise.drawn_alike():
        reinitialise(fresh)
    return modules.snapshot(fresh)


def _in_memory(task: Task) -> Arrays:
    """All examples, since they are held out by their number; those behind a loader as it gives them once."""
    if isinstance(task.data, Arrays):
        return task.data
    x, y = task.data.all()
    with torch.no_grad(), seeds.untouched(task.device):
        outputs = task.outputs(task.model, next(task.ordered(1)).x)
    return Arrays(x, task.likelihood.check(outputs.expand(len(y), *outputs.shape[1:]), y), task.data.scaling)


def _check_memory(count: int, task: Task) -> None:
    """Refuse more networks than can be trained side by side."""
    numbers = sum(p.numel() for p in task.parameters().values())
    need = count * numbers * 16  # weights, gradients, and two means of Adam, of four bytes
    if need > MOST:
        raise MemoryError(
            f"auto trains {count} networks of {numbers:,} weights at once, which takes {need / 2**30:.1f} GiB, over "
            f"the limit of {MOST / 2**30:.0f} GiB: give fewer scales or folds, or take method 'ensemble'"
        )
