"""What a process of test_training.py does while it waits to be killed."""

import time

import torch
from networks import classes, mlp

import bayesrule as br


def fit(method, out, steps):
    """Train slowly, save each step, and tell its number through the connection ``steps``."""
    torch.set_num_threads(1)

    def tell(progress):
        steps.send(progress.step)
        time.sleep(0.005)

    folder = br.training.Folder(out, interval=0.0)
    br.fit(mlp(), classes(), method, epochs=20, batch_size=16, out=folder, callbacks=[tell])
