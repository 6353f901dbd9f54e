"""From the arguments of a fit to objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from bayesrule import likelihoods, methods, naming, priors, temperatures
from bayesrule.data import Data, as_data, augmentations
from bayesrule.data.augmentations import Augmentation
from bayesrule.likelihoods import Likelihood
from bayesrule.methods import Method
from bayesrule.posteriors import Posterior
from bayesrule.priors import Prior
from bayesrule.temperatures import Tempering
from bayesrule.training.past import continue_from
from bayesrule.training.settings import DATA, FitSettings, default_batch_size, default_temperature


def prepared(
    model: nn.Module,
    train: Any,
    method: str | Method,
    likelihood: str | Likelihood | None = None,
    prior: str | float | Prior | Posterior | None = None,
    temperature: Tempering | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    val: Any = None,
    autocast: str | None = None,
    output: str | int | None = None,
    augment: str | Augmentation | Sequence[str | Augmentation] | None = None,
) -> tuple[nn.Module, Data, FitSettings]:
    """The module that is trained, its data, and the settings, with what `fit` takes where nobody says."""
    data = as_data(train)
    scaling = None
    chosen = naming.choose("method", method, methods.AVAILABLE, Method)
    if temperature is None:
        temperature = default_temperature(chosen, prior)
    if isinstance(prior, Posterior):
        model, data, likelihood, prior = continue_from(prior, model, data, likelihood)
        scaling = data.scaling
    if batch_size is None:
        batch_size = default_batch_size(data.n)
    to_convergence = epochs is None
    if epochs is None:
        epochs = chosen.default_epochs(data.steps(batch_size))
    settings = FitSettings(
        chosen,
        None if likelihood is None else likelihoods.choose(likelihood),
        None if prior is None else priors.choose(prior),
        temperatures.choose(temperature),
        epochs,
        batch_size,
        seed,
        val if val is None or isinstance(val, int | float) else DATA,
        autocast,
        scaling,
        to_convergence,
        output,
        () if augment is None else augmentations.choose(augment),
    )
    return model, data, settings
