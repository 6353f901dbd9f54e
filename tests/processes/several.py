"""Three fits one after the other, a block that fails in one process alone, one that ends late in one, and a fit."""

import sys
import time
from pathlib import Path

import torch

import bayesrule as br
from bayesrule import processes

sys.path.insert(0, str(Path(__file__).parent))
from learn import examples, model


def main(out):
    x, y = examples()
    network = model()
    first = br.fit(network, (x[:20], y[:20]), "bbb", epochs=1, val=0)
    second = br.fit(network, (x[20:], y[20:]), "map", prior=first, epochs=2, val=0)
    third = br.fit(network, (x[20:], y[20:]), "bbb", prior=first, epochs=1, val=0)
    assert processes.count() == 1  # each group ends with its fit
    error, number = None, None
    try:
        with processes.joined():
            number = processes.rank()
            if number == 1:
                raise KeyError("in one process alone")
            processes.any_of(True)
    except (KeyError, RuntimeError) as caught:
        error = type(caught).__name__
    with processes.joined():
        if processes.rank() == 0:
            time.sleep(0.5)
            (Path(out) / "written at the end").touch()
    waited = (Path(out) / "written at the end").exists()
    fourth = br.fit(network, (x, y), "map", epochs=1, val=0)
    states = [posterior.state() for posterior in (first, second, third, fourth)]
    torch.save({"states": states, "error": error, "waited": waited}, Path(out) / f"several-{number}.pt")
