"""VON, VOGN and IVON take the steps of the Bayesian learning rule on a diagonal Gaussian.

q(w) = N(m, 1/s) with s = N(h + δ), the loss N·(mean of nll) and the conjugate prior N(0, 1/(Nδ)): the rule is

    s ← (1 − ρ)s + ρN(ĥ + δ)        h ← (1 − ρ)h + ρĥ,  ρ = 1 − β₂
    m ← m − ρN(ĝ + δm)/s            m ← m − ρ(ĝ + δm)/(h + δ)

on the left in the precision, on the right as the optimisers have it. They have two things beyond the rule:

- the rate of the means, α = lr·(h₀ + δ), is ρ only if lr is so chosen;
- the second-order correction of VON and IVON adds ½(Δs)²/s to the precision: `Rule(positive=True)`.
"""

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bayesrule.families import DiagonalGaussian, Estimator, Loss
from bayesrule.optim import IVON, VOGN, VON
from bayesrule.rule import Rule

N, M, D = 200, 12, 4  # examples that count, examples in the batch, weights
H0, DECAY, RHO, STEPS = 0.5, 0.3, 0.1, 4
CORRECTED = ("von", "ivon")


@dataclass(frozen=True)
class SameNoise(DiagonalGaussian):
    """A diagonal Gaussian that draws the noise it is told."""

    noise: torch.Tensor | None = None

    def _noise(self, natural, n, generator):
        assert n == 1
        return self.noise[None]


class Both:
    """An optimiser of a logistic regression, and the rule beside it, step by step on the same noise."""

    def __init__(self, kind, rate=1.0, positive=None):
        torch.manual_seed(0)
        self.kind, self.model = kind, nn.Linear(D, 1, bias=False, dtype=torch.float64)
        self.x, self.y = self.inputs(), torch.randint(2, (M,), dtype=torch.float64)
        lr = rate * RHO / (H0 + DECAY)  # so that α = rate·ρ
        extra = {"model": self.model} if kind == "vogn" else {}
        settings = {"weight_decay": DECAY, "betas": (0.0, 1 - RHO), "hess_init": H0, **extra}
        self.optimizer = {"von": VON, "vogn": VOGN, "ivon": IVON}[kind](self.model.parameters(), lr, N, **settings)
        self.positive = kind in CORRECTED if positive is None else positive

    def inputs(self):
        """Any for IVON and VOGN; for VON one number each, so that the Hessian is diagonal and its estimate exact."""
        x = torch.randn(M, D, dtype=torch.float64)
        return x * F.one_hot(torch.arange(M) % D, D) if self.kind == "von" else x

    def state(self):
        """m and s of the optimiser."""
        (mean,), (deviation,) = self.optimizer.means.values(), self.optimizer.deviations.values()
        return mean[0].clone(), deviation[0].pow(-2)

    def step(self):
        """One step of the optimiser; m and s before it, after it, and where the rule leads from there."""
        before = self.state()
        with self.optimizer.sampled():
            w = self.model.weight.detach()[0].clone()
            nll = F.binary_cross_entropy_with_logits(self.model(self.x)[:, 0], self.y)
            nll.backward(create_graph=self.optimizer.twice)
        self.optimizer.step()
        return before, self.state(), self.by_the_rule(before, w)

    def by_the_rule(self, before, w):
        mean, precision = before
        family = SameNoise((w - mean) * precision.sqrt())
        prior = family.of(torch.zeros_like(mean), 1 / (N * DECAY))
        how = Estimator("reparam" if self.kind == "ivon" else "bonnet-price", samples=1)
        rule = Rule(family, self.loss(), prior, how, rate=RHO, positive=self.positive)
        mean, variance = family.mean_and_variance(rule.step(rule.start(family.of(mean, 1 / precision))).natural)
        return mean, 1 / variance

    def loss(self):
        """N·(mean of nll), with the curvature that each of them takes for its Hessian."""

        def value(w):
            logits = w @ self.x.T
            return N * F.binary_cross_entropy_with_logits(logits, self.y.expand_as(logits), reduction="none").mean(1)

        def squares(w):
            slopes = ((w @ self.x.T).sigmoid() - self.y)[:, :, None] * self.x
            return N * slopes.square().mean(1)

        return Loss(value, curvature=squares if self.kind == "vogn" else None)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["von", "vogn", "ivon"])
def test_a_step_is_one_of_the_rule(kind):
    both = Both(kind)
    for _ in range(STEPS):
        before, after, rule = both.step()
        close(after, rule)
        assert (after[0] - before[0]).abs().min() > 1e-4


@pytest.mark.parametrize("kind", ["von", "vogn", "ivon"])
def test_the_rate_of_the_means_scales_their_step_alone(kind):
    both = Both(kind, rate=3.0)
    for _ in range(STEPS):
        (mean, _), after, rule = both.step()
        close(after, (mean + 3.0 * (rule[0] - mean), rule[1]))


@pytest.mark.parametrize("kind", CORRECTED)
def test_the_correction_is_what_von_and_ivon_have_beyond_the_plain_rule(kind):
    both = Both(kind, positive=False)
    for _ in range(STEPS):
        (mean, precision), after, plain = both.step()
        correction = (plain[1] - precision).square() / (2 * precision)
        assert correction.max() > 1e-3 * precision.min()
        corrected = plain[1] + correction
        close(after, (mean + (plain[0] - mean) * plain[1] / corrected, corrected))


def test_vogn_needs_no_correction_since_squares_are_not_negative():
    both = Both("vogn", positive=True)
    _, after, corrected = both.step()
    assert (corrected[1] > after[1]).all()
