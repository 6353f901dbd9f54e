"""Defaults on tables with wrong labels: what is predicted must be worth more than the shares of the classes.

A network that is free enough learns wrong labels by heart and is then sure and wrong, which costs more than knowing
nothing: only the prior holds it back. A prior that is too wide is seen here and hardly anywhere else, since accuracy
stays; the default one is settled from the data.
"""

import functools

import pytest
import torch
from covering import chosen

import bayesrule as br
from bayesrule.data import standardize
from bayesrule.models import build
from bayesrule.priors import Gaussian

CLASSES, INPUTS, ROWS, TESTED, FLIPPED = 3, 8, 200, 1000, 0.2
NETWORKS = {"50 units": [50], "128 and 128 units, as for any table of classes": [128, 128]}
NARROW, USUAL = NETWORKS
UNREGULARISED = {"mle"}  # no prior: nothing holds it back
HELD_BACK = {"laplace", "mc-dropout", "dropout-ensemble", "bbb"}  # by their width or masks, whatever the prior
MARGIN = 0.05  # nats by which the default must be better than a prior that is far too wide
QUICK = {("map", NARROW), ("laplace", USUAL)}  # the others are a minute together
SAMPLERS = {name for name, kind in br.methods.AVAILABLE.items() if kind.sampler}  # an hour each on such networks
METHODS = sorted(set(br.methods.available()) - UNREGULARISED - SAMPLERS)


def noisy_table(seed):
    """Rows to train and to test on: a linear rule of three classes, and a fifth of all labels wrong."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS + TESTED, INPUTS, generator=generator)
    right = (x @ torch.randn(INPUTS, CLASSES, generator=generator)).argmax(1)
    other = (right + torch.randint(1, CLASSES, right.shape, generator=generator)) % CLASSES
    y = torch.where(torch.rand(len(x), generator=generator) < FLIPPED, other, right)
    return (x[:ROWS], y[:ROWS]), (x[ROWS:], y[ROWS:])


@functools.cache
def gain(method, network, scale=None, seed=0):
    """By how much the NLL of a fit, all else at its default, is below that of the classes' shares in training."""
    train, test = noisy_table(seed)
    shares = torch.bincount(train[1], minlength=CLASSES) / ROWS
    base_rate = float(-shares.log()[test[1]].mean())
    model = build({"name": "mlp", "inputs": INPUTS, "outputs": CLASSES, "hidden": NETWORKS[network]}, seed)
    prior = None if scale is None else Gaussian(scale)
    posterior = br.fit(model, standardize(train), method, prior=prior, seed=seed)
    return base_rate - br.evaluate(posterior, test, bootstrap=0, seed=seed)["nll"]


def cases(network):
    """A case for each method."""
    for method in METHODS:
        marks = [] if (method, network) in QUICK else [pytest.mark.slow]
        yield pytest.param(method, network, marks=marks)


@pytest.mark.parametrize(("method", "network"), [*cases(NARROW), *cases(USUAL)])
def test_defaults_beat_the_shares_of_the_classes_where_labels_are_wrong(method, network):
    assert gain(method, network) > 0


@pytest.mark.parametrize("method", chosen(METHODS, now=["map"]))
def test_a_prior_that_is_far_too_wide_would_be_noticed(method):
    """N(0, 100²) in the place of the default; an error is noticed as well."""
    try:
        found = gain(method, NARROW, scale=100.0)
    except FloatingPointError:
        return
    assert found < gain(method, NARROW) - MARGIN
    if method not in HELD_BACK:
        assert found < 0
