"""On a real accelerator: fit, predict, save there, load here, and the other way round."""

import pytest
import torch
from networks import classes, mlp

import bayesrule as br
from bayesrule.methods import IVON, MAP, SWAG, VOGN, Ensemble, Laplace, MCDropout

METHODS = [MAP(), IVON(), VOGN(), SWAG(rank=3, snapshots=4), MCDropout(), Ensemble(members=2), Laplace()]


def name_of_accelerator():
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else None


NAME = name_of_accelerator()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(NAME is None, reason="no accelerator: torch sees neither cuda nor mps"),
]


def fit(method, device):
    return br.fit(mlp().to(device), classes(), method, epochs=3, batch_size=16)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize("there", [True, False], ids=["there to here", "here to there"])
def test_a_posterior_goes_from_device_to_device(method, there, tmp_path):
    devices = (NAME, "cpu") if there else ("cpu", NAME)
    x = classes(seed=1)[0]
    posterior = fit(method, devices[0])
    prediction = posterior.predict(x, samples=512)
    assert prediction.probs.device.type == devices[0]
    posterior.save(tmp_path / "p")
    other = br.load(tmp_path / "p", mlp(seed=1).to(devices[1])).predict(x, samples=512)
    assert other.probs.device.type == devices[1]
    # Noise differs from device to device: the two are averages over other draws of the same posterior.
    tolerance = 1e-4 if method.name in ("map", "ensemble", "laplace") else 0.05
    torch.testing.assert_close(other.probs.cpu(), prediction.probs.cpu(), atol=tolerance, rtol=0)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_the_same_seed_gives_the_same_posterior(method):
    x = classes(seed=1)[0]
    first, second = (fit(method, NAME).predict(x).probs for _ in range(2))
    torch.testing.assert_close(first, second, atol=1e-5, rtol=0)
