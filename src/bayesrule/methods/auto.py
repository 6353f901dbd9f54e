"""Many candidates at once, each weighed by what it says of data that it has not seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from bayesrule import modules, seeds
from bayesrule.data import Arrays, Batch, inputs, splits
from bayesrule.files import Tree
from bayesrule.likelihoods import Likelihood
from bayesrule.methods.base import Logs, Method, Needs, Plan, context
from bayesrule.methods.candidates import Candidate
from bayesrule.methods.gradient import GradientLearner, Trained
from bayesrule.methods.teams import Team
from bayesrule.models import Tabular
from bayesrule.modules import Parameters
from bayesrule.optim import Group
from bayesrule.posteriors import Particles, Posterior, calibrate, match, most_probable, seats, stacked
from bayesrule.priors import scales
from bayesrule.seeds import Noise
from bayesrule.task import Task, units

LINEAR, NETWORK = "linear", "network"  # children of a module whose outputs add up
EFFECTS, EMBEDDING = "effects", "network.embedding"  # what categories add to the one, and their inputs of the other
WIDE = 10.0  # deviation of a bias that nobody has an idea of
MOST = 2**32  # bytes of networks that are trained side by side
WHOLE = 2  # networks of each candidate that see all data
MANY = 20_000  # examples from which on two networks of each candidate, a tenth held out from each, are enough


@dataclass(frozen=True)
class Auto(Method):
    """q(w) = Σ_c π_c 1/J Σ_j δ(w − w_cj): candidates c, each J networks that have seen all data.

    Beside them each candidate has K networks that a fold of the data was held out from. The predictions of the held-out
    examples, each by networks that have not seen it, decide the weights π (stacking; Yao et al. 2018) and what is
    unknown of the likelihood, such as noise. Every network is at the mode of its candidate's posterior given what it
    has seen. All are trained side by side: as products of stacked matrices, or by `torch.vmap` where it can run the
    module. They start from weights that are drawn anew.

    Candidates are beliefs about the size of the weights: deviation s/√fan-in, biases s, for each s in ``scales``. For a
    module whose outputs are those of its children ``linear`` and ``network`` added up, as of `br.models.tabular`, that
    is for its network. For each s in ``columns`` there is one more whose weights from an input to the first layer come
    and go together, so that inputs that do not matter are left out (automatic relevance). And there are candidates
    without the network: weights N(0, s²) of the linear part for each s of ``ridges``, double exponential ones of
    deviation s, which prefer few large weights to many small ones, for each s of ``lassos``, and a constant. With as
    many columns as rows there are these alone, and weights of heavy tails, p(w) ∝ (1 + |w|/s)^−2, for each s of
    ``paretos``; noise is then learnt from the held-out examples, since weights of so many columns fit any noise. A
    prior that the user gives is the only belief then.

    ``folds``: K; None is 5, or 2 with a tenth of the data held out from each where there are more than 20 000 examples.
    ``whole``: J; None is 2, or 0 for more than 20 000 examples, and 0 is that the K networks are the posterior's.
    ``networks``: how many the posterior holds; candidates have their share of them. ``lr``: Adam's learning rate after
    the warm-up.
    """

    name: ClassVar[str] = "auto"
    summary: ClassVar[str] = "candidates from a constant to a large network, weighed by data they have not seen"
    weighs: ClassVar[bool] = True
    scales: tuple[float, ...] = (1.2, 2.7, 5.0)
    columns: tuple[float, ...] = (1.2, 2.7, 5.0)
    ridges: tuple[float, ...] = (0.1, 0.7)
    lassos: tuple[float, ...] = (0.03, 0.2)
    paretos: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1)
    folds: int | None = None
    whole: int | None = None
    networks: int = 30
    lr: float = 1e-2

    def __post_init__(self) -> None:
        for name in ("scales", "columns", "ridges", "lassos", "paretos"):
            values = tuple(getattr(self, name))
            if not all(math.isfinite(value) and value > 0 for value in values):
                raise ValueError(f"{name} must be positive and finite deviations, not {values}")
            object.__setattr__(self, name, values)
        if not self.scales:
            raise ValueError("scales must hold at least one deviation, not none")
        for name, value, least in (("folds", self.folds, 2), ("whole", self.whole, 0), ("networks", self.networks, 1)):
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
        whole = self.whole
        if whole is None:
            whole = 0 if n > MANY else WHOLE
        return AutoLearner(replace(self, whole=whole), task, plan, noise, found, fold)

    def candidates(self, task: Task) -> list[Candidate]:
        """What is tried on a task where nobody says which prior."""
        by_rule = scales.scales("fan-in", task.model)
        parts = {name for name, _ in task.model.named_children()}
        if not {LINEAR, NETWORK} <= parts <= {LINEAR, EFFECTS, NETWORK}:
            return [Candidate(f"scale {s:g}", {name: s * d for name, d in by_rule.items()}) for s in self.scales]
        weights = modules.parameters(task.model)
        columns = weights[f"{LINEAR}.weight"].shape[1]
        wide = columns >= task.data.n
        off = dict.fromkeys(by_rule, 0.0)
        bias = {name: WIDE for name in by_rule if name == f"{LINEAR}.bias"}
        direct = [name for name in (f"{LINEAR}.weight", f"{EFFECTS}.weight") if name in by_rule]
        found = [Candidate("constant", off | bias)]
        found += [Candidate(f"ridge {s:g}", off | dict.fromkeys(direct, s) | bias) for s in self.ridges]
        found += [Candidate(f"lasso {s:g}", off | dict.fromkeys(direct, s) | bias, "laplace") for s in self.lassos]
        if wide:  # so many columns leave a network no rows to learn from
            for s in self.paretos:
                found.append(Candidate(f"pareto {s:g}", off | dict.fromkeys(direct, s) | bias, "pareto"))
            return found
        rest = {f"{LINEAR}.weight": 1.0} | bias
        if f"{EFFECTS}.weight" in by_rule:
            rest |= {f"{EFFECTS}.weight": 0.3, f"{EMBEDDING}.weight": 1.0}
        inner = {name: d for name, d in by_rule.items() if name.startswith(f"{NETWORK}.") and name not in rest}
        for s in self.scales:
            found.append(Candidate(f"network {s:g}", rest | {name: s * d for name, d in inner.items()}))
        first = next((name for name in inner if weights[name].ndim == 2 and weights[name].shape[1] >= columns), None)
        for s in self.columns if first else ():
            found.append(Candidate(f"columns {s:g}", rest | {name: s * d for name, d in inner.items()}, columns=first))
        return found

    def needs(self, task: Task, epochs: int) -> Needs:
        """Nothing: what is held out, the method holds out itself, and its candidates are its priors."""
        return Needs("none", own_batches=True, prior=False)


class Judgement(NamedTuple):
    """What C candidates say of n examples that they have not seen.

    ``outputs`` [C, n, ...], targets ``y``, how often each example counts, ``weight``, and ``log_probs`` [C, n] of y,
    each under its own candidate's likelihood; ``weights`` [C] of the candidates.
    """

    outputs: Tensor
    y: Tensor
    weight: Tensor | None
    log_probs: Tensor
    weights: Tensor

    def log_prob_of_stack(self) -> Callable[[Likelihood], Tensor]:
        """log Σ_c π_c p(y_i|f_c(x_i)) of every example, as a function of the likelihood that they share."""
        return _log_prob_of(self.outputs, self.y, self.weights.log(), self.weight)


def _log_prob_of(
    outputs: Tensor, y: Tensor, log_weights: Tensor, weight: Tensor | None
) -> Callable[[Likelihood], Tensor]:
    """That of a mixture of outputs [C, n, ...]; examples count as often as their weight says."""
    used = [c for c, weight in enumerate(log_weights) if weight > -math.inf]

    def log_prob(likelihood: Likelihood) -> Tensor:
        each = [log_weights[c] + likelihood.log_prob(outputs[c], y) for c in used]
        mixture = torch.stack(each).logsumexp(0)
        return mixture if weight is None else mixture * weight.to(mixture) / weight.mean()

    return log_prob


class AutoLearner(GradientLearner):
    """All networks side by side, those of one candidate next to each other: K with a fold held out, J without.

    ``candidates`` None: there is one, which believes what the user does. ``fold``: of each example, the number of the
    networks that it is held out from, or −1.
    """

    def __init__(
        self, method: Auto, task: Task, plan: Plan, noise: Noise, candidates: list[Candidate] | None, fold: Tensor
    ) -> None:
        self.method, self.candidates, self.fold = method, candidates, fold
        self.folds = int(fold.max()) + 1
        self.whole = method.whole or 0
        self.each = self.folds + self.whole  # networks of a candidate
        self.noise_unseen = candidates is not None and all(_does_without(c, NETWORK) for c in candidates)
        self.count = self.each * (1 if candidates is None else len(candidates))
        _check_memory(self.count, task)
        self.mean_weight = task.data.total / task.data.n
        self.teams = _teams(task, candidates, self.each, noise)
        self.own_fold = torch.arange(self.each).repeat(self.count // self.each)
        weight = None if task.data.weight is None else task.data.weight.cpu()
        held = torch.bincount(fold + 1, weight, minlength=self.each + 1)[1:]
        seen = (task.data.total - held)[self.own_fold]
        # η/N of every network. The task has tempered its own prior for a cold posterior, but not those of candidates.
        eta = task.temperature if candidates is None else task.temperature * task.prior_power
        self.weight = (eta / seen).to(task.device, modules.dtype_of(task.model))
        unknowns = {name: torch.stack([u] * self.count) for name, u in task.likelihood.unknowns().items()}
        network = nn.ModuleList([team.stack for team in self.teams])
        super().__init__(task, plan, network, [Trained.by(Group(lr=method.lr), network.parameters())], unknowns)

    def objective(self, batch: Batch) -> tuple[Tensor, Logs]:
        """Σ over networks of mean −log p(y|f) over the examples that each may see; under the user's own prior also of
        −(η/N) log p(w). Noise that weights could fit away is learnt from the other examples.

        The loop's batch says how many examples to take. Which, is drawn here: their numbers tell who may see them.
        """
        assert isinstance(self.task.data, Arrays)
        index = torch.randint(self.task.data.n, (len(batch.y),))  # on the CPU, where the data are
        some = self.task.data.take(index).all().to(self.task.device)
        outputs = [team.outputs(some.x) for team in self.teams]
        visible = self.fold[index] != self.own_fold[:, None]
        nll = self._nll(outputs, some, visible, self._noise())
        loss = nll.sum()
        if self.noise_unseen:
            loss = loss + self._nll([f.detach() for f in outputs], some, ~visible, self.unknowns).sum()
        if self.candidates is None:
            loss = loss + (self.weight * self.teams[0].penalties()).sum()
        return loss, {"loss": nll.detach().mean()}

    def _nll(self, outputs: list[Tensor], some: Batch, which: Tensor, unknowns: Parameters) -> Tensor:
        """Mean −log p(y|f) [M] of every network over the examples that count for it, ``which`` [M, B]."""
        parts = zip(outputs, self._parts(unknowns), strict=True)
        log_probs = torch.cat([team.log_probs(f, some.y, own) for f, (team, own) in parts])
        if some.weight is not None:
            log_probs = log_probs * (some.weight / self.mean_weight).to(log_probs)
        mask = which.to(log_probs)
        return -(log_probs * mask).sum(1) / mask.sum(1).clamp(min=1)

    def _noise(self) -> Parameters:
        """The unknowns of the likelihood [M, ...] as the networks are trained under them.

        Where they are learnt from unseen examples, networks that see all have the mean of their candidate's others.
        """
        if not self.noise_unseen:
            return self.unknowns
        found = {}
        for name, u in self.unknowns.items():
            each = u.detach().view(-1, self.each, *u.shape[1:])
            mean = each[:, : self.folds].mean(1, keepdim=True)
            found[name] = torch.cat([each[:, : self.folds], *[mean] * self.whole], 1).flatten(0, 1)
        return found

    def backward(self, batch: Batch) -> Logs:
        """Gradients of the likelihood and of the prior."""
        logs = super().backward(batch)
        for team, own in self._parts({"weight": self.weight}):
            if team.beliefs is not None:
                team.beliefs.add_slopes(team.stack.tensors(), own["weight"])
        return logs

    def _parts(self, tensors: Parameters) -> Iterator[tuple[Team, Parameters]]:
        """Teams with their own part of tensors [M, ...] of all networks."""
        start = 0
        for team in self.teams:
            yield team, {name: t[start : start + team.count] for name, t in tensors.items()}
            start += team.count

    def posterior(self) -> Posterior:
        """All networks alike: what each is worth takes a pass over the data."""
        unknowns = {name: u.detach().mean(0) for name, u in self._noise().items()}
        return self._particles(range(self.count), self.task.likelihood.with_unknowns(unknowns))

    @torch.no_grad()
    def conclude(self, held: Batch | None) -> Posterior:
        """Candidates weighed by their densities of the examples that were held out from them."""
        judged = self.judged()
        chosen = seats(judged.weights, self.method.networks)
        own = range(self.folds, self.each) if self.whole else range(self.folds)
        several = [c * self.each + own[k % len(own)] for c, count in enumerate(chosen) for k in range(count)]
        log_prob = judged.log_prob_of_stack()
        likelihood, calibration = calibrate(most_probable(self.task.likelihood, log_prob), log_prob)
        posterior = self._particles(several, likelihood, candidates=self.told(judged))
        if self.whole:  # not the networks by which noise was settled: they may be wrong, and sure of it
            self.check_sound(posterior)
        if calibration["tried"]:
            posterior = posterior.with_context(info=posterior.info | {"calibration": calibration})
        return posterior if held is None else match(posterior, held)

    @torch.no_grad()
    def judged(self) -> Judgement:
        """What the candidates say of examples that they have not seen, and so what each should count."""
        outputs, y, weight = self._unseen()
        log_probs = torch.stack([self._own_likelihood(c, f, y, weight).log_prob(f, y) for c, f in enumerate(outputs)])
        return Judgement(outputs, y, weight, log_probs, stacked(log_probs, weight))

    def told(self, judged: Judgement) -> list[dict[str, Any]]:
        """Name, weight and mean NLL of what was held out, in the user's units, of every candidate."""
        log_probs, weight = judged.log_probs, judged.weight
        times = torch.ones_like(log_probs[0]) if weight is None else weight.to(log_probs)
        means = log_probs @ times / times.sum()
        told = zip(self._names(), judged.weights.tolist(), (units(self.task) - means).tolist(), strict=True)
        return [{"name": name, "weight": weight, "held_out_nll": nll} for name, weight, nll in told]

    def _names(self) -> list[str]:
        return [candidate.name for candidate in self.candidates] if self.candidates else ["the prior given"]

    def _unseen(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Outputs [C, n, ...] of every candidate at examples that its networks have not seen, y and weights there."""
        assert isinstance(self.task.data, Arrays)
        outputs, targets, weights = [], [], []
        for k in range(self.folds):
            rows = self.task.data.take((self.fold == k).nonzero()[:, 0])
            for batch in rows.ordered(inputs.block(rows.x)):
                batch = batch.to(self.task.device)
                outputs.append(torch.cat([team.outputs_without(k, batch.x) for team in self.teams]))
                targets.append(batch.y)
                if batch.weight is not None:
                    weights.append(batch.weight)
        return torch.cat(outputs, 1).double(), torch.cat(targets), torch.cat(weights) if weights else None

    def _own_likelihood(self, c: int, outputs: Tensor, y: Tensor, weight: Tensor | None) -> Likelihood:
        """The likelihood of one candidate: its networks' unknowns, settled on what they have not seen."""
        own = slice(c * self.each, (c + 1) * self.each)
        started = self.task.likelihood.with_unknowns({n: u.detach()[own].mean(0) for n, u in self._noise().items()})
        return most_probable(started, _log_prob_of(outputs[None], y, outputs.new_zeros(1), weight))

    def state_dict(self) -> Tree:
        """That of all networks, and what is held out from which."""
        return super().state_dict() | {"fold": self.fold}

    def load_state_dict(self, state: Tree) -> None:
        """Undo `state_dict`."""
        super().load_state_dict(state)
        self.fold = state["fold"].cpu()

    def _particles(self, several: Iterable[int], likelihood: Likelihood, **found: Any) -> Particles:
        whole = [(team, m) for team in self.teams for m in range(team.count)]
        networks = [team.whole(m) for team, m in (whole[index] for index in several)]
        if isinstance(self.task.model, Tabular):
            _meet_strangers(networks, self.task.model.categories)
        return Particles(networks, context(self.task, likelihood, **found))


def _teams(task: Task, candidates: list[Candidate] | None, folds: int, noise: Noise) -> list[Team]:
    """Candidates without a network and those with one, apart: the first need a small part of the work."""
    if candidates is None:
        return [Team(task, None, folds, noise)]
    lean = [c for c in candidates if _does_without(c, NETWORK)]
    full = [c for c in candidates if not _does_without(c, NETWORK)]
    teams = []
    if lean:
        teams.append(Team(task, lean, folds, noise, without=NETWORK))
    if full:
        teams.append(Team(task, full, folds, noise))
    return teams


def _meet_strangers(networks: list[Parameters], categories: Sequence[int]) -> None:
    """Let each network take a category that it does not know for one that it knows, drawn at random, in place.

    What a new category may be like is told by how the known ones differ; the mean of them would be too sure of itself.
    """
    generator = torch.Generator().manual_seed(0)
    stranger = 0
    for count in categories:
        for network in networks:
            like = stranger + 1 + int(torch.randint(count, (), generator=generator))
            for name in (f"{EFFECTS}.weight", f"{EMBEDDING}.weight"):
                network[name][stranger] = network[name][like]
        stranger += 1 + count


def _does_without(candidate: Candidate, child: str) -> bool:
    """Whether all weights of a child are zero."""
    own = [deviation for name, deviation in candidate.scales.items() if name.startswith(f"{child}.")]
    return bool(own) and not any(own)


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
