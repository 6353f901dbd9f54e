"""What the defaults promise, measured. The slow ones need the official data files or a quiet machine."""

import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

import bayesrule as br
from bayesrule.data import load, standardize

needs_data = pytest.mark.skipif("BAYESRULE_DATA" not in os.environ, reason="set BAYESRULE_DATA to the official files")


def fitted(split, method, seed=0):
    x, y = split.train
    data = standardize((x, y)) if split.kind == "reals" else (x, y)
    return br.fit(br.models.build(br.models.default_for(split), seed=seed), data, method, seed=seed)


def test_digits_at_the_first_try():
    """80/20 split, defaults: every method at least 96 % accurate, ensemble and SWAG with less NLL than MAP."""
    split = load("digits")
    scores = {m: br.evaluate(fitted(split, m), split.test, bootstrap=0) for m in br.methods.available()}
    assert {m: s["accuracy"] for m, s in scores.items() if s["accuracy"] < 0.96} == {}
    assert scores["ensemble"]["nll"] < scores["map"]["nll"]
    assert scores["swag"]["nll"] < scores["map"]["nll"]


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_intervals_on_concrete_cover(seed):
    """Split 0, defaults: 90 % intervals hold 85 to 95 % of the test targets, and the noise is part of them."""
    split = load("uci/concrete", split=0)
    posterior = fitted(split, "ensemble", seed)
    scores = br.evaluate(posterior, split.test, bootstrap=0)
    prediction = posterior.predict(split.test[0])
    assert 0.85 <= scores["coverage_90"] <= 0.95
    noise = float(posterior.likelihood.noise) * float(posterior.context.scaling.targets.scale)
    assert bool((prediction.std >= 0.999 * noise).all())


@pytest.mark.slow
def test_the_import_costs_little_more_than_torch():
    """Import times of torch alone and of bayesrule, interleaved: the ratio of medians is at most 1.25."""
    times = {"torch": [], "bayesrule": []}
    for _ in range(9):
        for name, measured in times.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", f"import {name}"], check=True)
            measured.append(time.perf_counter() - start)
    assert statistics.median(times["bayesrule"]) <= 1.25 * statistics.median(times["torch"])


@pytest.mark.slow
def test_few_packages_come_along(tmp_path):
    """`pip install bayesrule` brings at most 25 packages beyond torch and torch's own."""
    root = Path(__file__).parent.parent

    def resolved(*what):
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--dry-run",
            "--ignore-installed",
            "--quiet",
            "--report",
            "-",
        ]
        command += ["-c", str(root / "constraints.txt"), *what]
        report = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return {re.sub(r"[-_.]+", "-", name).lower() for name in re.findall(r'"name": "([^"]+)",\s+"version"', report)}

    beyond = resolved(str(root)) - resolved("torch") - {"bayesrule"}
    assert 5 < len(beyond) <= 25, sorted(beyond)
