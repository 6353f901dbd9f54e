"""What each sampler does in a funnel and between two modes, in the plane: `benchmarks/shapes.py` tells it in full.

Limits are 4.5 standard errors between 100 chains, beyond which a right share lies once in 50 000 runs, and wide ones of
what chains that fail do.
"""

import importlib.util
import sys
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("shapes", Path(__file__).parents[2] / "benchmarks/shapes.py")
shapes = importlib.util.module_from_spec(SPEC)
sys.modules["shapes"] = shapes  # dataclasses look their module up
SPEC.loader.exec_module(shapes)

LIMIT = 4.5
BEYOND = 0.1587  # the mass of a normal density beyond one deviation
LENGTHS = {"warm": 100, "draws": 150}
ROWS = [(name, seed) for name in shapes.SAMPLERS for seed in range(3)]
QUICK = ("hmc", 0)
each = pytest.mark.parametrize(
    ("name", "seed"), [row if row == QUICK else pytest.param(*row, marks=pytest.mark.slow) for row in ROWS]
)


def off(found, name, wanted):
    """By how many standard errors a figure is too large."""
    return (found[name] - wanted) / found[f"{name}, standard error"]


def drawn(name, half, seed):
    """A short run between two modes."""
    return shapes.modes_drawn(shapes.SAMPLERS[name], half, **LENGTHS, seed=seed)


@each
def test_in_a_funnel(name, seed):
    """None of them is right about both ends; R̂ tells of all, and divergences of those that know an energy."""
    found = shapes.in_funnel(*shapes.funnel_drawn(shapes.SAMPLERS[name], **LENGTHS, seed=seed))
    assert found["r_hat"] > 1.01
    assert (found["diverged"] > 0.01) == (name in ("lmc", "mala", "hmc"))
    if name == "lmc":  # out of the neck, where its steps are too long, beyond all bounds
        assert found["largest |v|"] > 1e3
    if name == "mclmc":  # whose direction the gradient turns, however steep: only slow to go round
        assert abs(off(found, "neck", BEYOND)) < LIMIT
    if name in ("sgld", "sghmc"):  # steps that are stable in the mouth are thrown out of the neck
        assert off(found, "neck", BEYOND) < -LIMIT
    if name == "sghmc":
        assert off(found, "mouth", BEYOND) > LIMIT


BIAS = {"lmc": 0.4, "mclmc": 0.08, "sgld": 0.02, "sghmc": 0.01}


@each
def test_between_modes_that_are_near(name, seed):
    """Chains go to and fro, and the density is right up to what steps without a test add."""
    found = shapes.between_modes(drawn(name, shapes.NEAR, seed), shapes.NEAR)
    assert found["crossings"] > 5
    assert found["r_hat"] < 1.2
    for way in ("variance along", "variance across"):
        assert abs(found[way] - 1) < LIMIT * found[f"{way}, standard error"] + BIAS.get(name, 0.0)


@each
def test_between_modes_that_are_far(name, seed):
    """No chain leaves the mode that it began in, which R̂ tells; about its own mode each is right."""
    found = shapes.between_modes(drawn(name, shapes.FAR, seed), shapes.FAR)
    assert found["crossings"] == 0
    assert found["r_hat"] > 1.5
    assert abs(found["variance across"] - 1) < (LIMIT * found["variance across, standard error"] + BIAS.get(name, 0.0))
