"""Chains over the weights of a network, step by step of the loop: trained, warmed up, watched."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bayesrule import modules
from bayesrule.data import Arrays, Batch
from bayesrule.files import Tree
from bayesrule.methods import sampling_limits, soundness
from bayesrule.methods.base import Learner, Logs, Plan
from bayesrule.methods.draws import Draws
from bayesrule.methods.expansion import some_of
from bayesrule.methods.log_posterior import LogPosterior
from bayesrule.methods.tally import Tally
from bayesrule.optim import Group, schedule
from bayesrule.posteriors import Posterior, match
from bayesrule.samplers import State, Target, began, normal
from bayesrule.samplers.convergence import MIXED, ess_bulk, r_hat
from bayesrule.seeds import Noise
from bayesrule.starts import reinitialise
from bayesrule.task import Task

if TYPE_CHECKING:
    from bayesrule.methods.sampling import Sampler

ADAM_STEPS = 20  # in one step of the loop that sees all data
PIECE = 512  # examples of a step of Adam where the loop gives all of them at once
JUDGES = 1000  # examples that stand for all in the log posterior of draws by mini-batches
APART = 1.1  # R̂ from which on it is worth a warning
HALVINGS, TRIED = 20, 0.6  # of a step that is too long, and the acceptance that ends them
WILD, TAME = 10.0, 0.1  # variances of the energy for each weight that say nothing of a density, and that do
ACCEPTED = 0.1  # share of accepted proposals below which a chain says nothing


class SamplingLearner(Learner):
    """Chains side by side: trained, warmed up, and then watched.

    The length of each part is in the proportion that the method's fields say, whatever the length of the fit.
    """

    def __init__(self, method: Sampler, task: Task, plan: Plan, noise: Noise) -> None:
        self.method, self.task, self.plan, self.noise = method, task, plan, noise
        sampling_limits.check(method, task)
        self.density = LogPosterior(task, method.chains, min(method.processes, method.chains))
        if self.density.total < 2:
            raise ValueError(f"{method.name} needs two weights or more, and the model has one: take method 'laplace'")
        self.kernel = method.kernel()
        self.trained, self.warmed = _parts(method, plan)
        self.at = method.kept(plan.steps - self.warmed)
        self.rows = nn.Parameter(self._starts())
        self.momentum = torch.zeros_like(self.rows)
        self.optimizer = Group(lr=method.lr).build([self.rows])
        self.schedule = schedule("cosine")
        self.tuner = method.tuner(self.rows.detach(), task)
        taught = self.density.taught()
        if taught is not None:  # which may be narrower by far than any first step
            self.tuner.deviation = taught[1].expand_as(self.rows).clone()
        self.tally = Tally.none(self.rows.detach())
        self.passes = method.passes(task, plan, noise)
        # A density by the mini-batch of a step would tell of the batch rather than of the draw.
        self.judge = None if method.full_batch else self.density.of(_judges(task))
        self.draws = Draws(self.density)
        self.steps, self.transitions = 0, 0
        self.began: Tensor | None = None  # the loss of the first step

    def _starts(self) -> Tensor:
        """The module's own weights, and others that are drawn anew, the same in all processes.

        From a prior that earlier data have taught, or else as the module draws them.
        """
        rows = [self.density.start(self.task.model)]
        taught = self.density.taught()
        for _ in range(1, self.method.chains):
            if taught is not None:
                rows.append(torch.addcmul(taught[0], taught[1], normal(taught[0], self.noise.shared)))
                continue
            fresh = modules.twin(self.task.model)
            with self.noise.drawn_alike():
                reinitialise(fresh)
            rows.append(self.density.start(fresh))
        return torch.stack(rows)

    def step(self, batch: Batch) -> Logs:
        """Some steps of Adam, or the transitions from one draw to the next."""
        advance = self._train if self.steps < self.trained else self._sample
        value = advance(batch)
        self.steps += 1
        loss = -value.mean() * self.task.weight
        self._check_finite(loss)
        if self.began is None:
            self.began = loss
        penalty = -self.density.log_prior(self.rows.detach()[:, : self.density.size])[0].mean() * self.task.weight
        return {"loss": loss, "nll": loss - penalty, "penalty": penalty}

    # ---- training ----------------------------------------------------------------------------------------------------

    def _train(self, batch: Batch) -> Tensor:
        """Adam on −log p(w, u|D) of all networks; log densities at the last step."""
        batches = [batch]
        if self.method.full_batch:
            batches = list(_pieces(batch))
        value = self.rows.new_zeros(self.method.chains)
        for done, piece in enumerate(batches):
            rate = self.schedule((self.steps + (done + 0.5) / len(batches)) / self.trained, self.plan.history)
            for group in self.optimizer.param_groups:
                group["lr"] = self.method.lr * rate
            value, slope = self.density.of(piece)(self.rows.detach())
            self.rows.grad = -slope
            self.optimizer.step()
        return value

    # ---- sampling ----------------------------------------------------------------------------------------------------

    def _sample(self, batch: Batch) -> Tensor:
        """Transitions up to the next draw, which is kept once the warm-up is over."""
        target = self.density.of_all(batch) if self.method.full_batch else self.density.of(self._seen(batch))
        if not self.transitions:
            self.momentum = self.kernel.momentum(self.rows.detach(), self.noise.shared)
        state = self._state(target)
        warm = self.steps < self.warmed
        each = self.method.thin if self.method.full_batch else 1
        for number in range(each):
            state = self._move(state, target, warm, number / each)
        with torch.no_grad():
            self.rows.copy_(state.position)
        self.momentum = state.momentum
        if not warm and self.steps + 1 - self.warmed in self.at:
            self.draws.add(state.position, state.value if self.judge is None else self.judge(state.position)[0])
        return state.value

    def _state(self, target: Target) -> State:
        position = self.rows.detach().clone()
        if self.method.full_batch:
            return began(position, self.momentum, target)
        none = torch.zeros_like(position)  # kernels of mini-batches ask for the gradient themselves
        return State(position, none[:, 0], none, self.momentum)

    def _move(self, state: State, target: Target, warm: bool, within: float) -> State:
        """One transition, and what is learnt of it."""
        if warm:
            scales = self.tuner.scales(None)
        else:
            scales = self.tuner.scales((self.steps - self.warmed + within) / (self.plan.steps - self.warmed))
        state, told = self.kernel.move(state, scales, target, self.noise.shared, self.transitions)
        self.transitions += 1
        if warm:
            done = (self.steps - self.trained + within) / (self.warmed - self.trained)
            self.tuner.observe(state, told, done)
        else:
            self.tally.add(told)
        return state

    def _seen(self, batch: Batch) -> Batch:
        """The batch that transitions follow: the loop's, or one of the method's own order."""
        if self.passes is None:
            return batch
        return self.passes.batch(self.steps - self.trained)

    def _check_finite(self, loss: Tensor) -> None:
        """On a CPU, where a look is free: an error that knows of steps."""
        if self.task.device.type not in modules.SYNCHRONOUS or bool(loss.isfinite()):
            return
        if self.steps <= self.trained:
            raise FloatingPointError(f"training went astray before the chains began: lower lr={self.method.lr:g}")
        name, value = self.method.rate()
        shorter = "" if value is None else f" {name}={value / 10:.3g} in the place of"
        now = "" if value is None else f"={value:g}"
        raise FloatingPointError(f"the chains of {self.method.name} went to infinity: try{shorter} {name}{now}")

    # ---- the end -----------------------------------------------------------------------------------------------------

    def posterior(self) -> Posterior:
        """The draws so far; before there is one, the networks as they stand."""
        return self.draws.posterior(self.rows.detach())

    def conclude(self, held: Batch | None) -> Posterior:
        """The draws, and how well the chains have mixed."""
        if not self.draws:
            warnings.warn(
                f"{self.method.name} was stopped before its first draw: the posterior is the {len(self.rows)} networks "
                "as they stood, and no sample",
                stacklevel=8,  # where `br.fit` was called
            )
        found = self._diagnostics()
        self._check_accepted(found)
        self._check_energy(found)
        worst = found["r_hat"]
        if worst is not None and worst > APART:
            warnings.warn(
                f"chains have not mixed: R̂ of the log posterior is {worst:.2f} after {len(self.draws)} draws of each, "
                f"and should be below {MIXED}. Give more draws, more thinning or a longer warm-up; what it means for "
                "predictions is told by br.evaluate.chains(posterior, x)",
                stacklevel=8,  # where `br.fit` was called
            )
        posterior = self.draws.posterior(self.rows.detach(), **found)
        if self.began is not None:
            soundness.check(self.task, self.plan.batch_size, float(self.began), math.inf, lambda: posterior)
        return posterior if held is None else match(posterior, held)

    def _check_accepted(self, found: dict[str, Any]) -> None:
        """Refuse a step of the user's own that hardly any proposal survives, with one to try; warn of a tuned one."""
        accepted = found.get("acceptance")
        if accepted is None or sum(accepted) / len(accepted) >= ACCEPTED:
            return
        rate = f"{self.method.name} accepted {sum(accepted) / len(accepted):.1%} of its proposals"
        name, value = self.method.rate()
        if value is not None:
            raise FloatingPointError(
                f"{rate} at {name}={value:g}, so that its chains stand still: try {name}={self._shorter(value):.2g}"
            )
        warnings.warn(f"{rate}: its chains stand still; give a longer warm_up, or a {name}", stacklevel=9)

    def _check_energy(self, found: dict[str, Any]) -> None:
        """Refuse a step of the user's own, without a test, that the energy does not survive, with one to try.

        Its squared error grows like the sixth power of the step, as long as steps do not lead to infinity.
        """
        variances, (name, value) = found.get("energy_variance"), self.method.rate()
        if variances is None or value is None:
            return
        variance, diverged = sum(variances) / len(variances), sum(found["divergences"])
        if variance <= WILD and diverged <= ACCEPTED * self.tally.count * len(variances):
            return
        factor = 0.1 if diverged else (TAME / variance) ** (1 / 6)
        raise FloatingPointError(
            f"{diverged} steps of {self.method.name} went beyond all bounds at {name}={value:g}, and the energy of the "
            f"others changed by {variance:.2g} in the mean square for each weight, so that its draws are of another "
            f"density: try {name}={factor * value:.2g}"
        )

    def _shorter(self, step: float) -> float:
        """A step that is accepted from where the chains stand, found by halving."""
        target = self.density.of(self.task.data.all().to(self.task.device))
        state = began(self.rows.detach(), self.momentum, target)
        scales = self.tuner.scales(1.0)
        for _ in range(HALVINGS):
            step /= 2
            scales = scales._replace(step=torch.full_like(scales.step, step))
            _, told = self.kernel.move(state, scales, target, self.noise.shared, 0)
            if float(told.acceptance.mean()) > TRIED:
                break
        return step

    def _diagnostics(self) -> dict[str, Any]:
        """What the chains tell of themselves, as plain numbers: of every chain, in its order."""
        scales = self.tuner.scales(1.0)
        values = self.draws.log_posterior() if self.draws else torch.zeros_like(self.rows[:, :1])
        found: dict[str, Any] = {
            "chains": self.method.chains,
            "draws": len(self.draws),
            "way": self.density.networks.way,
            "r_hat": _number(r_hat(values)),
            "ess": _number(ess_bulk(values)),
        }
        if self.tally.count:
            found |= self.method.told(self.tally, self.density.total)
            found["step"] = [float(f"{step:.4g}") for step in scales.step.tolist()]
        if modules.has_batch_norm(self.task.model):
            found["batch_norm"] = "statistics as the module has them: chains run it in eval mode"
        return found

    def state_dict(self) -> Tree:
        """Chains, what they are tuned to, what they have told, and the draws."""
        return {
            "rows": self.rows,
            "momentum": self.momentum,
            "optimizer": self.optimizer.state_dict(),
            "tuner": self.tuner.state_dict(),
            "tally": self.tally.tree(),
            "passes": None if self.passes is None else self.passes.seed,
            **self.draws.tree(),
            "steps": self.steps,
            "transitions": self.transitions,
            "began": self.began,
        }

    def load_state_dict(self, state: Tree) -> None:
        """Undo `state_dict`."""
        device = self.rows.device
        with torch.no_grad():
            self.rows.copy_(state["rows"])
        self.momentum = state["momentum"].to(device, copy=True)
        self.optimizer.load_state_dict(state["optimizer"])
        self.tuner.load_state_dict(state["tuner"])
        self.tally.restore(state["tally"])
        if self.passes is not None:
            self.passes.seed = state["passes"]
        self.draws.restore(state, device)
        self.steps, self.transitions, self.began = state["steps"], state["transitions"], state["began"]


def _parts(method: Sampler, plan: Plan) -> tuple[int, int]:
    """The step at which training is over, and that at which the warm-up is: in proportion to what the fields say."""
    lengths = method.lengths()
    total = sum(lengths)
    trained = plan.steps * lengths[0] // total
    warmed = plan.steps * (lengths[0] + lengths[1]) // total
    return trained, min(warmed, max(plan.steps - 1, 0))


def _pieces(batch: Batch) -> Iterator[Batch]:
    """The whole of a batch in parts, again and again, for as many steps of Adam as one step of the loop has."""
    parts = [batch]
    if len(batch.y) > PIECE:
        parts = [batch.take(index) for index in torch.arange(len(batch.y)).tensor_split(len(batch.y) // PIECE)]
    for _ in range(math.ceil(ADAM_STEPS / len(parts))):
        yield from parts


def _number(value: Tensor) -> float | None:
    """As JSON knows it."""
    return round(float(value), 4) if bool(value.isfinite()) else None


def _judges(task: Task) -> Batch:
    """Examples that stand for all; of those behind a loader the first, since a pass over all may outlast the fit."""
    if isinstance(task.data, Arrays):
        return some_of(task, JUDGES)
    return next(task.ordered(JUDGES))
