"""What each process of test_processes.py does: learn, and write what it has learnt to a file of its own.

Started as a script it goes on with `several` and a command line, as each start of Python with torch takes seconds.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

import bayesrule as br
from bayesrule import processes
from bayesrule.methods import BBB, HMC, IVON, LMC, MALA, MAP, MCLMC, OGN, SGHMC, SGLD, SWAG, VOGN, Ensemble, Laplace

sys.path.insert(0, str(Path(__file__).parent.parent / "spine"))
from networks import batch_norm, classes, mlp
from test_methods import METHODS as ROWS

LONG = {"map": MAP(), "ogn": OGN(), "vogn": VOGN(), "ivon": IVON(), "bbb": BBB()}
TABLE = {name: method for name, (method, _) in ROWS.items()} | {
    "fresh means": BBB(initial_mean="kaiming"),
    "sampled labels": Laplace("all", "diagonal", labels="sampled", tune_every=1),
    "newton": Laplace("all", "kronecker", newton=2),
    "newton, sampled labels": Laplace("all", labels="sampled", newton=2),
    "ensemble of swag": Ensemble(2, SWAG(rank=2, snapshots=3)),
}
REALS = ("map", "laplace", "ivon", "multi-swag", "newton")
NORMS = ("swag", "ensemble of swag", "ivon", "newton")

SHORT = {"chains": 2, "draws": 3, "warm_up": 3, "thin": 2, "training": 2}
SAMPLERS = {
    "hmc": HMC(**SHORT, leaps=4),
    "mala": MALA(**SHORT),
    "lmc": LMC(**SHORT),
    "mclmc": MCLMC(**SHORT),
    "sgld": SGLD(**SHORT, precondition=True, sampling_lr=0.05),
    "sghmc": SGHMC(**SHORT, sampling_lr=0.05),
    "sghmc, there and back": SGHMC(**SHORT, sampling_lr=0.05, symmetric=True),
}


def examples():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=generator)
    return x, x.sum(1).gt(0).long()


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2)).eval()


def noise():
    """The first draw of the weights in this process."""
    network = model()
    with br.optim.IVON(network.parameters(), lr=0.1, ess=40).sampled():
        return network[0].weight.detach().clone()


def two_dtypes():
    """Parameters of two dtypes, which processes have to average in one order."""
    single, double = (torch.nn.Parameter(torch.ones(3, dtype=dtype)) for dtype in (torch.float32, torch.float64))
    optimizer = br.optim.IVON([single, double], lr=0.1, ess=40)
    for _ in range(3):
        with optimizer.sampled():
            (single.double() * double).square().sum().backward()
        optimizer.step()
    return [single.detach(), double.detach()]


def table():
    """Every row of the conformance table on three epochs of three steps; some with noise to learn, or a BatchNorm."""
    x, y = classes()
    fit = {"epochs": 3, "batch_size": 16}
    found = {f"table: {name}": br.fit(mlp(), (x, y), method, **fit).state() for name, method in TABLE.items()}
    reals = {"likelihood": "gaussian", "val": (x, x[:, 0])}
    for name in REALS:
        found[f"reals: {name}"] = br.fit(mlp(1), (x, x[:, 0]), TABLE[name], **fit, **reals).state()
    for name in NORMS:
        torch.manual_seed(0)
        found[f"batch norm: {name}"] = br.fit(batch_norm(), (x, y), TABLE[name], **fit).state()
    return found


def sampled():
    """The chains of every sampler; of those that see all data also on an odd number of examples, which no two share."""
    x, y = examples()
    found = {}
    for name, method in SAMPLERS.items():
        network = model().double()
        found[f"sampled: {name}"] = br.fit(network, (x.double(), y), method, batch_size=20, prior=1.0).state()
        if method.full_batch:
            odd, untrained = (x[:39].double(), y[:39]), replace(method, warm_start="none")
            found[f"sampled, odd: {name}"] = br.fit(network, odd, untrained, prior=1.0).state()
    return found


def settled():
    """How wide the prior is, and the weights under it."""
    x, y = classes(60)
    posterior = br.fit(mlp(), (x, y), MAP(), epochs=300, batch_size=10)
    assert posterior.info["prior"]["settled"]["scale"] is not None
    return [posterior.info["prior"], posterior.state()]


def main(out):
    torch.set_num_threads(1)
    with processes.joined():
        found = {}
        for name, method in LONG.items():
            network = model()
            network[1].weight.requires_grad_(False)
            network[1].bias.requires_grad_(False)  # its statistics stay, so that batches in parts are batches
            posterior = br.fit(network, examples(), method, epochs=10, batch_size=20, val=0)
            found[name] = posterior.state()
        found["noise"], found["two dtypes"] = noise(), two_dtypes()
        found |= sampled()
        if processes.count() > 1:
            from differ import disagreements  # which imports from here

            found |= table() | {"settled": settled()}
            found["differ"] = disagreements(Path(out))
        torch.save(found, Path(out) / f"{processes.count()}-{processes.rank()}.pt")


if __name__ == "__main__":
    main(sys.argv[1])
    sys.path.insert(0, str(Path(__file__).parent))
    import several

    several.main(sys.argv[1])
    from bayesrule.cli import main as command

    os.chdir(sys.argv[1])
    sys.exit(command(["fit", "moons", "--method", "ivon", "--epochs", "3", "--out", "r"]))
