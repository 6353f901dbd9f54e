import json

import pytest
import torch
from torch import nn

from bayesrule.data import Split, load_set
from bayesrule.models import ACTIVATIONS, build, choose_device, default_for, dropout_cnn, lenet5, mlp, resnet, unet

MLP = {"name": "mlp", "inputs": 4, "outputs": 2, "hidden": [8], "activation": "tanh", "dropout": 0.1}
RESNET = {"name": "resnet", "channels": 1, "outputs": 10, "blocks": 1, "width": 4}
UNET = {"name": "unet", "channels": 1, "outputs": 3, "width": 4, "levels": 2}
LENET = {"name": "lenet5", "channels": 1, "side": 28, "outputs": 10}


@pytest.mark.parametrize("spec", [MLP, LENET, RESNET, UNET])
def test_build_is_a_function_of_the_seed(spec):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    a, b, c = build(spec, seed=1), build(json.loads(json.dumps(spec)), seed=1), build(spec, seed=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    assert not any(torch.equal(p, q) for p, q in zip(a.parameters(), c.parameters(), strict=True))
    assert all(hasattr(m, "reset_parameters") for m in a.modules() if list(m.parameters(recurse=False)))


@pytest.mark.parametrize(
    ("cuda", "mps", "expected"), [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")]
)
def test_auto_is_the_quickest_device_that_there_is(cuda, mps, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert choose_device("auto").type == expected


def test_a_device_that_is_not_there_is_refused():
    for name in ("warp", "meta", "cuda:99", "cpu:x", ""):
        with pytest.raises(ValueError, match="device must be auto or one of this machine's, cpu"):
            build(MLP, device=name)
    assert next(build(MLP, device=torch.device("cpu")).parameters()).device.type == "cpu"


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_mlp(activation):
    net = mlp(12, 3, hidden=(5, 6), activation=activation, dropout=0.5)
    assert net(torch.randn(2, 3, 2, 2)).shape == net(torch.randn(2, 12)).shape == (2, 3)
    assert sum(isinstance(m, nn.Dropout) for m in net) == 2
    assert len(mlp(2, 1, hidden=())) == 2


@pytest.mark.parametrize(("channels", "side", "size"), [(1, 28, 44426), (3, 32, 62006), (1, 16, None), (2, 29, None)])
def test_lenet5(channels, side, size):
    net = lenet5(channels, side, 10)
    assert net(torch.randn(2, channels, side, side)).shape == (2, 10)
    assert size in (None, sum(p.numel() for p in net.parameters()))


def test_dropout_cnn():
    net = dropout_cnn(3, 20, 4, rate=0.3)
    assert net(torch.randn(2, 3, 20, 20)).shape == (2, 4)
    assert [m.p for m in net if isinstance(m, nn.Dropout | nn.Dropout2d)] == [0.3] * 3


@pytest.mark.parametrize(("levels", "height", "width"), [(1, 5, 7), (2, 8, 12), (4, 16, 32)])
def test_a_unet_has_outputs_for_each_pixel(levels, height, width):
    assert unet(2, 3, width=2, levels=levels)(torch.randn(2, 2, height, width)).shape == (2, 3, height, width)


def test_a_unet_refuses_pictures_that_cannot_be_halved():
    with pytest.raises(ValueError, match="multiples of 4 for 3 levels, got 16 x 18: pad or crop"):
        unet(1, 3)(torch.zeros(1, 1, 16, 18))


@pytest.mark.parametrize(("blocks", "side"), [(1, 8), (3, 32)])
def test_residual_networks(blocks, side):
    net = resnet(3, 10, blocks, width=4)
    assert net(torch.randn(2, 3, side, side)).shape == (2, 10)
    layers = [m for m in net.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(layers) == 6 * blocks + 2 + 2  # two of which are shortcuts
    with pytest.raises(ValueError, match="blocks must be whole and at least 1, got 0"):
        resnet(3, 10, blocks=0)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({}, r"spec must have a 'name', one of mlp, lenet5, resnet, tabular, mean-field, dropout-cnn, unet, got \{\}"),
        ({"name": "lenet"}, "unknown model 'lenet': did you mean 'lenet5'"),
        ({**MLP, "widths": 1}, "unknown setting of mlp 'widths'"),
        ({"name": "lenet5", "side": 28}, "spec of lenet5 must have channels, outputs"),
        ({**MLP, "inputs": 0}, "inputs must be whole and at least 1, got 0"),
        ({**MLP, "hidden": [True]}, "hidden must be whole and at least 1, got True"),
        ({**MLP, "outputs": 1.5}, "outputs must be whole and at least 1, got 1.5"),
        ({**MLP, "activation": "rely"}, "unknown activation 'rely': did you mean 'relu'"),
        ({**MLP, "dropout": 1}, "dropout must be a probability.* got 1"),
        ({**LENET, "name": "dropout-cnn", "rate": 1.0}, "rate must be a probability above 0 and below 1, got 1.0"),
        ({**LENET, "side": 15}, "side must be at least 16 pixels.* got 15"),
    ],
)
def test_errors(spec, message):
    with pytest.raises(ValueError, match=message):
        build(spec)


def pictures(c, side, flat=False):
    x = torch.rand(5, c, side, side)
    pair = x.flatten(1) if flat else x, torch.arange(5)
    return Split("p", "classes", "", pair, classes=tuple("abcde"), image_shape=(c, side, side))


@pytest.mark.parametrize(
    ("split", "name"),
    [(pictures(1, 28), "lenet5"), (pictures(3, 32), "lenet5"), (pictures(1, 8), "mlp"), (pictures(1, 28, True), "mlp")],
)
def test_default_for_pictures(split, name):
    spec = default_for(split)
    assert spec["name"] == name
    assert build(spec)(split.test[0]).shape == (5, 5)


@pytest.mark.parametrize("name", ["moons", "and", "sine", "gap"])
def test_default_for_embedded(name):
    split = load_set(name)
    assert build(default_for(split))(split.test[0]).shape == (len(split.test[1]), len(split.classes) or 1)
