"""Fits of two processes that were not given the same: what each of them says, and that both go on after it."""

import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import bayesrule as br
from bayesrule import processes
from bayesrule.methods import BBB, MAP

sys.path.insert(0, str(Path(__file__).parent.parent / "spine"))
from networks import mlp

sys.path.insert(0, str(Path(__file__).parent))
from learn import examples, model


@dataclass(frozen=True)
class OwnStart(MAP):
    """A method that starts from noise of each process's own."""

    name: ClassVar[str] = "own-start"

    def start(self, task, plan, noise):
        with torch.no_grad():
            for p in task.model.parameters():
                p.add_(torch.randn(p.shape, generator=noise.own))
        return super().start(task, plan, noise)


class Stop(Exception):
    """What ends a fit in the middle."""


def stop(progress):
    if progress.step == 3:
        raise Stop


def cases(rank, out):
    """What is given to `fit` by name: the network, the data, the method and the rest."""
    x, y = examples()
    shard = slice(20 * rank, 20 * rank + 20)
    return {
        "train, other inputs": {"train": (x + rank, y)},
        "train, other labels": {"train": (x, (y + rank) % 2)},
        "train, a shard each": {"train": (x[shard], y[shard]), "batch_size": 8, "epochs": 2},
        "train, broken in one": {"train": (x, y if rank == 0 else y[:7])},
        "first batch": {"train": loader(x, y, rank)},
        "seed": {"seed": rank},
        "epochs": {"epochs": 1 + rank},
        "method": {"method": BBB() if rank else MAP()},
        "method, a field": {"method": MAP(lr=0.1 + rank)},
        "prior": {"prior": br.priors.Gaussian(1.0 + rank)},
        "val": {"val": (x[: 10 + rank], y[: 10 + rank])},
        "val, broken in one": {"val": (x, y if rank == 0 else y[:7])},
        "model": {"model": mlp(2) if rank else model()},
        "start": {"method": OwnStart()},
        "out, in use by the first": {"out": out / ("used" if rank == 0 else "free")},
    }


def loader(x, y, rank):
    data = TensorDataset(x, y)
    sampler = DistributedSampler(data, num_replicas=2, rank=rank)
    return DataLoader(data, batch_size=10, sampler=sampler, collate_fn=torch.utils.data.default_collate)


def words(run):
    """What a run says if it fails."""
    try:
        run()
    except (ValueError, RuntimeError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def fit(**given):
    options = {"model": model(), "train": examples(), "method": MAP(), "epochs": 1, "val": 0} | given
    return br.fit(**options)


def starts(rank):
    """Fits whose networks are other ones in each process, on labels and on reals, with buffers of their own."""
    x, _ = examples()
    found = {}
    for name in ("own", "alike"):
        torch.manual_seed(rank if name == "own" else 0)
        network = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2)).eval()
        network[1].running_mean.add_(rank if name == "own" else 0)
        before = [t.clone() for t in network.state_dict().values()]
        found[name] = [
            fit(model=network, method=method).state() for method in ("map", "ivon", "laplace", br.methods.Ensemble(2))
        ]
        real = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        found[name].append(fit(model=real, train=(x, 2 * x[:, 0]), method="map").likelihood.unknowns())
        assert all(torch.equal(a, b) for a, b in zip(before, network.state_dict().values(), strict=True))
    return found


def resumed(out):
    """A fit of two that is cut and resumed, one that is not cut, and what is left for one process alone."""
    whole = fit(method="ivon", epochs=3).state()
    for name in ("resumed", "left"):
        folder = br.training.Folder(out / name, interval=0.0)
        with suppress(Stop):
            fit(method="ivon", epochs=3, out=folder, callbacks=[stop])
    elsewhere = out / "resumed" if processes.rank() == 0 else out / "nowhere"
    lost = words(lambda: br.resume(elsewhere, model(), examples()))
    posterior = br.resume(out / "resumed", model(), examples())
    again = br.resume(out / "resumed", model(), examples())  # finished
    lost_again = words(lambda: br.resume(elsewhere, model(), examples()))
    return {"whole": whole, "resumed": posterior.state(), "again": again.state(), "lost": [lost, lost_again]}


def disagreements(out):
    """All of it, in one process group, so that an error that was not met by all would spoil what comes after it."""
    rank = processes.rank()
    found = {"starts": starts(rank), "words": {}}
    (out / "used").mkdir(exist_ok=True)
    (out / "used" / "posterior.safetensors").touch()
    for name, given in cases(rank, out).items():
        found["words"][name] = words(lambda given=given: fit(**given))
    return found | resumed(out)
