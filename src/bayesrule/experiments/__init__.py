"""A folder for each document that this library implements, and in it a file for each figure or table.

================  ===================================================================================
``active``        Gal 2017, Kirsch 2019, Bickford Smith 2023, active learning
``book``          Book 2020, Training Bayesian neural networks
``gaussian``      Romijnders, Approximating the parameter posterior
``large``         Shen et al. 2024, adapters and a language model
``laplace``       Immer et al. 2021 and Daxberger et al. 2021, Laplace's method
``mean_field``    Huix et al. 2022, inference of overparameterized networks
``penalties``     Wolinski, Charpiat and Ollivier, penalties as priors
``principles``    Khan, Deep learning with Bayesian principles
``trust``         Ovadia et al. 2019, Hendrycks et al. 2020 and Hein et al. 2019, shift and strangers
================  ===================================================================================
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

from bayesrule.experiments.active import active_features, active_mnist, active_moons, repeated_mnist
from bayesrule.experiments.base import Claim, Result, Setting
from bayesrule.experiments.book import (
    adam_landscape,
    and_perceptron,
    group_plateau,
    groups,
    initial_sigma,
    kl_weights,
    lr_schedules,
    noise_confidence,
    optimizers,
    path_derivative,
    sgd_landscape,
)
from bayesrule.experiments.figures import png
from bayesrule.experiments.gaussian import sigma_pull
from bayesrule.experiments.laplace import laplace_structures
from bayesrule.experiments.large import lora
from bayesrule.experiments.mean_field import (
    cold_posterior,
    collapse,
    langevin_hmc,
    limit_functional,
    temperature_cifar,
    temperature_mnist,
)
from bayesrule.experiments.penalties import penalty_table, prior_gallery
from bayesrule.experiments.principles import (
    bandit,
    better_fit,
    dnn2gp_kernels,
    dnn2gp_regression,
    dnn2gp_tuning,
    flat_minima,
    fromp_against_ewc,
    learning_rule,
    leave_one_out,
    more_accurate_posterior,
    relevance,
    segmentation,
    sequential_bayes,
    toy_lifelong,
)
from bayesrule.experiments.trust import ood_mnist, shift_cifar, shift_mnist

EXPERIMENTS: dict[str, Callable[[Setting], Result]] = {
    "active-features": active_features.run,
    "active-mnist": active_mnist.run,
    "active-moons": active_moons.run,
    "adam-landscape": adam_landscape.run,
    "and-perceptron": and_perceptron.run,
    "bandit": bandit.run,
    "better-fit": better_fit.run,
    "cold-posterior": cold_posterior.run,
    "collapse": collapse.run,
    "dnn2gp-kernels": dnn2gp_kernels.run,
    "dnn2gp-regression": dnn2gp_regression.run,
    "dnn2gp-tuning": dnn2gp_tuning.run,
    "flat-minima": flat_minima.run,
    "fromp-against-ewc": fromp_against_ewc.run,
    "group-plateau": group_plateau.run,
    "initial-sigma": initial_sigma.run,
    "kl-weights": kl_weights.run,
    "langevin-hmc": langevin_hmc.run,
    "laplace-structures": laplace_structures.run,
    "learning-rule": learning_rule.run,
    "leave-one-out": leave_one_out.run,
    "limit-functional": limit_functional.run,
    "lora": lora.run,
    "lr-schedules": lr_schedules.run,
    "mean-and-sigma-groups": groups.run,
    "more-accurate-posterior": more_accurate_posterior.run,
    "noise-confidence": noise_confidence.run,
    "ood-mnist": ood_mnist.run,
    "optimizers": optimizers.run,
    "path-derivative": path_derivative.run,
    "penalty-table": penalty_table.run,
    "prior-gallery": prior_gallery.run,
    "relevance": relevance.run,
    "repeated-mnist": repeated_mnist.run,
    "segmentation": segmentation.run,
    "sequential-bayes": sequential_bayes.run,
    "sgd-landscape": sgd_landscape.run,
    "shift-cifar": shift_cifar.run,
    "shift-mnist": shift_mnist.run,
    "sigma-pull": sigma_pull.run,
    "temperature-cifar": temperature_cifar.run,
    "temperature-mnist": temperature_mnist.run,
    "toy-lifelong": toy_lifelong.run,
}


def about(name: str) -> str:
    """An experiment in a line.

    >>> about("path-derivative")
    'The path derivative against the total one: ...'
    """
    module = inspect.getmodule(EXPERIMENTS[name])
    return (inspect.getdoc(module) or "").splitlines()[0]


__all__ = ["EXPERIMENTS", "Claim", "Result", "Setting", "about", "png"]
