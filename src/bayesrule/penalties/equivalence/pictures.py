"""Pictures of priors and of what they come from."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bayesrule.penalties.equivalence.beliefs import Answer, prior_of
from bayesrule.penalties.equivalence.implied import Implied
from bayesrule.penalties.equivalence.lines import Place, locate, reach
from bayesrule.penalties.equivalence.radial import Radial
from bayesrule.penalties.equivalence.verdicts import Verdict
from bayesrule.penalties.functions import GroupLasso, Penalty, penalty
from bayesrule.penalties.translations import PointMass, Translation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = 8.0  # nats below the highest density at which a picture ends


def plot_prior(prior: Implied) -> Figure:
    """The density of one weight, and its logarithm.

    >>> from bayesrule import penalties
    >>> from bayesrule.penalties import translations
    >>> plot_prior(prior_of(penalties.L2(0.5), translations.Gaussian(0.1)))
    <Figure size ...>
    """
    figure, (left, right) = _panels(2)
    x = _window(prior.exponent)
    _density(left, prior, x)
    right.plot(x, prior.log_density(x))
    right.set(xlabel="w", title="log α")
    return figure


def plot_belief(
    given: Penalty | Callable[..., Any], family: Translation, answer: Answer | None = None, points: int = 16384
) -> Figure:
    """r, A_ν at up to three values of ν, and α, of the prior or the completed one: what `prior_of` does, in pictures.

    ``answer``: what `prior_of` gave, where it is known already.

    >>> from bayesrule import penalties
    >>> from bayesrule.penalties import translations
    >>> plot_belief(penalties.L2(0.5), translations.Gaussian((0.1, 2.0)))
    <Figure size ...>
    """
    r = penalty(given)
    if answer is None:
        answer = prior_of(r, family, points)
    figure, (first, second, third) = _panels(3)
    scales = sorted({family.scales[0], family.scales[len(family.scales) // 2], family.scales[-1]})
    one = _of_one(r)
    x = _window(lambda x: -one(x, scales[0]))
    for nu in scales:
        label = None if isinstance(family, PointMass) else f"ν = {nu:.3g}"
        first.plot(x, one(x, nu), label=label)
        if not isinstance(r, GroupLasso):
            _exponent(second, r, family, nu, x, label, points)
    first.set(xlabel="μ", title="r(μ, ν)")
    second.set(xlabel="w", title=r"$A_\nu(w)$")
    prior = answer.completed if isinstance(answer, Verdict) else answer
    if prior is None:
        third.text(0.5, 0.5, "no prior", ha="center", va="center", transform=third.transAxes)
        third.set(xticks=[], yticks=[])
    else:
        _density(third, prior, x)
    if isinstance(answer, Verdict):
        third.set_title("α, once completed" if prior is not None else answer.reason)
    if len(scales) > 1:
        first.legend(fontsize=8, frameon=False)
    return figure


def _of_one(r: Penalty) -> Callable[[Tensor, float], Tensor]:
    """r of one weight; of a group, that of one weight while the others are zero."""
    if isinstance(r, GroupLasso):
        return lambda x, nu: r.factor * x.abs()
    return r


def _exponent(
    axes: Axes, r: Penalty, family: Translation, nu: float, x: Tensor, label: str | None, points: int
) -> None:
    if not isinstance(family, PointMass):
        family = replace(family, scale=nu)
    try:
        found = prior_of(r, family, points)
    except ValueError:  # at this ν alone too little is seen
        return
    if isinstance(found, Implied):
        axes.plot(x, found.exponent(x), label=label)
    elif isinstance(found, Verdict) and not axes.texts:
        axes.text(0.5, 0.5, found.reason, ha="center", va="center", transform=axes.transAxes)


def _density(axes: Axes, prior: Implied | Radial, x: Tensor) -> None:
    values = prior.density(x) if isinstance(prior, Implied) else prior.log_density(x[:, None]).exp()
    axes.fill_between(x, values, alpha=0.25)
    axes.plot(x, values)
    axes.set(xlabel="w", title="α(w)", ylim=(0, None))


def _window(function: Callable[[Tensor], Tensor]) -> Tensor:
    place = locate(function)
    half = reach(function, place.centre, SHOWN)
    if not math.isfinite(place.width):
        place = Place(0.0, 1.0)
    half = min(half, 20 * place.width)
    return torch.linspace(place.centre - half, place.centre + half, 501, dtype=torch.float64)


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.4 * count, 3.0), layout="constrained")
    FigureCanvasAgg(figure)
    panels = [figure.add_subplot(1, count, index + 1) for index in range(count)]
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.2)
    return figure, panels
