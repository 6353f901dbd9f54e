"""The way of a fit is short: what it enters, how often it copies the module and checks the data."""

import copy
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.data import batches

PACKAGE = str(Path(br.__file__).parent)


def data(n=48):
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(0))
    return x, x[:, :3].argmax(1)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def entered(run):
    """The functions of the package that a call enters, by file; comprehensions and lambdas are part of a function."""
    found = set()

    def profile(frame, event, arg):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and not code.co_name.startswith("<"):
            found.add((code.co_filename, code.co_firstlineno))

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return found


def test_a_fit_with_ivon_enters_few_functions():
    """169 in 30 files once; a bound, not an aim: less is better, and more is a detour.

    Two files are the price of priors and posteriors that speak precision: `Prior.mean_field` and `Diagonal`. Three
    functions, once a fit, are that of arrays which stay untouched, outputs to learn from, and batches of one.
    Two more files, and fifteen functions, are that of deviations which are learnt: their start is seen on labels that
    the network draws. Four functions see at the end whether the fit is better than its start. One, in a file of its
    own, sees whether the fit is long enough to settle how wide the prior is.
    Ten, in a file of their own, are that of a temperature that follows the size of the network.
    Seven more are that of weights of examples, of outputs in parts, and of steps that no prior believes.
    Four are that of logits that held-out data may rescale in three ways, of a prior that is open by layer, too, and of
    a temperature that counts each target.
    Eleven are that of parameters of which each process holds a share, two of tokens that do not count, one of
    predictions that are traced; two more files are theirs.
    Fifteen, in a file of their own, are that of a step which shares one vector and may be compiled into fewer passes;
    four, in a file of their own, that of fits which are prepared here and learnt elsewhere, as members of an ensemble.
    """
    network, examples = model(), data()
    found = entered(lambda: br.fit(network, examples, method="ivon", epochs=2))
    files = {file for file, _ in found}
    assert len(found) <= 197
    assert len(files) <= 33


@pytest.mark.parametrize(
    ("method", "most"),
    [
        ("map", 3),  # the task's, the learner's, the posterior's
        ("ivon", 3),
        ("ensemble", 13),  # the task's, one to draw starts in, and two for each of five members; the mixture's
    ],
)
def test_how_often_the_module_is_copied(monkeypatch, method, most):
    copied = Counter()
    plain = copy.deepcopy

    def counting(thing, memo=None, *rest):
        copied[type(thing)] += isinstance(thing, nn.Module)
        return plain(thing, memo, *rest)

    monkeypatch.setattr(copy, "deepcopy", counting)
    br.fit(model(), data(), method, epochs=1)
    assert sum(copied.values()) <= most


def test_data_are_checked_once(monkeypatch):
    checked = Counter()
    plain = batches.check_finite

    def counting(name, t):
        checked[name] += 1
        plain(name, t)

    monkeypatch.setattr(batches, "check_finite", counting)
    br.fit(model(), data(), "ivon", epochs=1)
    assert checked == {"X": 1, "y": 1}


def test_data_that_the_models_dtype_cannot_hold_are_refused():
    x, y = data()
    x = x.double()
    x[3, 1] = 1e300
    with pytest.raises(ValueError, match=r"X must be finite.* row 3, column 1"):
        br.fit(model(), (x, y), "map", epochs=1)
