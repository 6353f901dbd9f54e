"""What a process of test_writers.py does: it fits into one directory after the other, together with a rival."""

import hashlib

import torch
from networks import classes, mlp

import bayesrule as br


def fit_each(folders, seed, start, told):
    """Fit into each directory once all rivals are ready; tell the outcome: the posterior's digest, or the refusal."""
    torch.set_num_threads(1)
    for folder in folders:
        start.wait(timeout=300)
        try:
            posterior = br.fit(mlp(), classes(), br.methods.MAP(), epochs=2, batch_size=16, seed=seed, out=folder)
        except FileExistsError as error:
            told.send(("refused", str(error)))
        except BaseException as error:
            told.send(("broken", repr(error)))
        else:
            told.send(("done", digest(posterior)))
    told.close()


def digest(posterior):
    """Of a posterior's weights."""
    weights = torch.cat([w.flatten() for w in posterior.state()["states"][0].values()])
    return hashlib.sha256(weights.numpy().tobytes()).hexdigest()


def hold(folder, told):
    """Take the lock of a directory and wait to be killed."""
    with br.locks.held(folder):
        told.send("held")
        told.poll(300)
