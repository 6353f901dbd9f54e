"""What the stored results say of their claims is what the rules of the experiments say of the stored numbers."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from bayesrule.experiments.book import group_plateau, groups, kl_weights, path_derivative
from bayesrule.experiments.laplace import laplace_structures
from bayesrule.experiments.mean_field import (
    cold_posterior,
    collapse,
    langevin_hmc,
    limit_functional,
    temperature_cifar,
    temperature_mnist,
)
from bayesrule.experiments.penalties import penalty_table
from bayesrule.experiments.principles import bandit, dnn2gp_kernels, leave_one_out
from bayesrule.experiments.trials import Outcome
from bayesrule.experiments.trust import shift_mnist

RESULTS = Path(__file__).parents[2] / "docs/results"


def outcomes(data, part="trials"):
    return [Outcome(**trial) for trial in data[part]]


def of_path_derivative(data):
    found = outcomes(data)
    return [path_derivative._training_claim(found, row["data"], row["start"]) for row in data["first"]]


def of_kl_weights(data):
    found = outcomes(data)
    return [*kl_weights._claims(found, "mnist"), *kl_weights._claims(found, "cifar10")]


def of_groups(data):
    return [claim for name, parts in data.items() for claim in groups._turn_claims(outcomes(parts, "turns"), name)]


def of_group_plateau(data):
    found = outcomes(data)
    return [group_plateau._same_claim(found, "mnist"), group_plateau._better_claim(found, "cifar10")]


def of_penalty_table(data):
    rows = [penalty_table.Measured(**row["measured"]) for row in data["table"]]
    return [penalty_table._no_worse(rows), penalty_table._too_strong(rows), penalty_table._cost(rows)]


def of_laplace_structures(data):
    found = {}
    for network in data["networks"]:
        found.setdefault(network["data"], []).append(network)
    return [claim for name, rows in found.items() for claim in laplace_structures.claims_of(rows, name)]


def of_kernels(data):
    return dnn2gp_kernels._claims(data["kernels"], dnn2gp_kernels.QUICK[0])


def of_collapse(data):
    bayes, balanced = data["fits"][::2], data["fits"][1::2]
    judges = collapse._collapse(bayes), collapse._rate(bayes), collapse._kept(balanced)
    return [*judges, collapse._ignored(bayes, balanced)]


def of_limit_functional(data):
    found = []
    for name in limit_functional.LIKELIHOODS:
        own = [row for row in data["gaps"] if row["likelihood"] == name]
        found += [limit_functional._claim(own, name, "neurons", -1), limit_functional._bound(own, name)]
        found.append(limit_functional._claim(own, name, "examples", 1))
    return found


def of_temperature_mnist(data):
    curve, every = data["curve"], [*data["curve"], *data["other_seeds"]]
    found = [temperature_mnist._beside(every, tau) for tau in temperature_mnist.COMPARED]
    return [*found, *temperature_mnist.claims_of(curve)]


def of_temperature_cifar(data):
    return temperature_cifar.claims_of(data["curve"])


def of_bandit(data):
    return bandit.claims_of(data["runs"])


def of_langevin_hmc(data):
    return langevin_hmc.claims_of(data["problems"])


def of_cold_posterior(data):
    return cold_posterior.claims_of(data["fits"])


def of_leave_one_out(data):
    return leave_one_out.claims_of(data)


JUDGED = {
    "leave-one-out": of_leave_one_out,
    "cold-posterior": of_cold_posterior,
    "collapse": of_collapse,
    "langevin-hmc": of_langevin_hmc,
    "limit-functional": of_limit_functional,
    "temperature-mnist": of_temperature_mnist,
    "temperature-cifar": of_temperature_cifar,
    "bandit": of_bandit,
    "dnn2gp-kernels": of_kernels,
    "path-derivative": of_path_derivative,
    "kl-weights": of_kl_weights,
    "mean-and-sigma-groups": of_groups,
    "group-plateau": of_group_plateau,
    "penalty-table": of_penalty_table,
    "laplace-structures": of_laplace_structures,
}


@pytest.mark.parametrize("name", JUDGED)
def test_stored_claims_are_judged_by_the_present_rules(name):
    stored = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    for claim in JUDGED[name](stored["data"]):
        assert asdict(claim) in stored["claims"], claim


def test_stored_curves_of_turned_digits_are_judged_by_the_present_rule():
    """Their means are rounded, so that it is the verdicts that are compared."""
    stored = json.loads((RESULTS / "shift-mnist.json").read_text(encoding="utf-8"))
    data, verdicts = stored["data"], {claim["says"]: claim["held"] for claim in stored["claims"]}
    found = {}
    for name, curves in data["methods"].items():
        found[name] = [{"severities": data["severities"], "curves": curves}]
    for claim in (shift_mnist._below_map(found, "ensemble"), *shift_mnist._singles(found)):
        assert verdicts[claim.says] is claim.held
