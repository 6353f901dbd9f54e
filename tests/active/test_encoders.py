"""Features that are learnt without labels."""

import math

import pytest
import torch
from torch.nn import functional as F

from bayesrule import active
from bayesrule.active import encoders, pools
from bayesrule.active.encoders import SimCLR, Views
from bayesrule.data import load_set

SMALL = SimCLR(features=8, width=4, epochs=2, batch_size=32)


def pictures(count=96, side=12):
    return torch.rand(count, 1, side, side, generator=torch.Generator().manual_seed(3))


def test_the_loss_is_that_of_its_sum():
    """−log e^{z_i·z_j/τ} / Σ_{k≠i} e^{z_i·z_k/τ}, term by term."""
    z = torch.randn(10, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    unit, total = F.normalize(z, dim=1), 0.0
    for i in range(10):
        others = [math.exp(float(unit[i] @ unit[k]) / 0.3) for k in range(10) if k != i]
        total -= math.log(math.exp(float(unit[i] @ unit[(i + 5) % 10]) / 0.3) / sum(others))
    assert float(encoders.contrast(z, 0.3)) == pytest.approx(total / 10, abs=1e-12)


def test_views_shift_by_whole_pixels_where_told():
    x = torch.zeros(200, 1, 9, 9)
    x[:, :, 4, 4] = 1.0
    views = Views(turn=0, scale=0, shear=0, shift=2 / 9, bend=0, light=0).of(x, torch.Generator().manual_seed(0))
    centre = torch.arange(9.0) - 4
    mass = views.sum((1, 2, 3))
    across = (views.sum((1, 2)) * centre).sum(1) / mass
    assert across.abs().max() <= 2 + 1e-4  # up to two ninths of nine pixels
    assert across.std() == pytest.approx(2 / 3**0.5, rel=0.2)  # uniform; 200 of them, four standard errors


@pytest.mark.parametrize("only", ["turn", "scale", "shear", "shift", "bend", "light"])
def test_each_part_of_a_view_changes_pictures(only):
    none = dict.fromkeys(("turn", "scale", "shear", "shift", "bend", "light"), 0.0)
    x, seeded = pictures(4), torch.Generator().manual_seed(1)
    assert torch.allclose(Views(**none).of(x, seeded), x, atol=1e-5)
    assert not torch.allclose(Views(**none | {only: getattr(Views(), only)}).of(x, seeded), x, atol=1e-2)


def test_an_encoder_is_frozen_and_a_function_of_the_seed():
    x, state = pictures(), torch.get_rng_state()
    encoder = SMALL.learn(x, seed=5)
    assert torch.equal(state, torch.get_rng_state())
    assert not any(p.requires_grad for p in encoder.parameters())
    assert not encoder.training
    assert torch.equal(encoder(x), SMALL.learn(x, seed=5)(x))
    assert not torch.equal(encoder(x), SMALL.learn(x, seed=6)(x))
    assert encoder(x[:3]).shape == (3, 8)


def test_an_encoder_is_kept(tmp_path, monkeypatch):
    split = load_set("digits")
    pool, path = pools.of(split), tmp_path / "encoder.safetensors"
    first = encoders.kept(path, pool, SMALL)
    monkeypatch.setattr(SimCLR, "learn", lambda *args: pytest.fail("it has learnt already"))
    again = encoders.kept(path, pool, SMALL)
    assert torch.equal(first(pool.x), again(pool.x))
    with pytest.raises(FileExistsError, match="holds an encoder of another pool, settings or seed"):
        encoders.kept(path, pool, SMALL, seed=1)
    settings = {"start": 10, "batch": 5, "budget": 15, "epochs": 2, "samples": 4}
    result = active.run(split, "batchbald", method="mc-dropout", features=again, **settings)
    assert result.labels == [10, 15]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SMALL.learn(torch.zeros(9, 64)), "x must be pictures"),
        (lambda: SMALL.learn(torch.zeros(40, 1, 4, 4)), "at least 8 pixels a side"),
        (lambda: SMALL.learn(torch.zeros(20, 1, 8, 8)), "batch_size must be at most the 20 pictures, not 32"),
        (lambda: SimCLR(batch_size=1), "batch_size must be at least 2"),
        (lambda: SimCLR(epochs=0), "epochs must be at least 1, not 0"),
        (lambda: SimCLR(temperature=0.0), "temperature must be positive, not 0"),
        (lambda: encoders.kept("e", pools.of((torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]))), SMALL), "pictures only"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.slow
def test_features_of_digits_need_fewer_labels_than_pixels():
    """The same head and 40 random labels, three seeds: features are ahead by more than two standard errors."""
    split = load_set("digits")
    pool = pools.of(split).standardized()
    learnt = SimCLR(width=16, epochs=30, batch_size=128).learn(pool.x.reshape(-1, 1, 8, 8))
    encoder = torch.nn.Sequential(torch.nn.Unflatten(1, (1, 8, 8)), learnt)
    settings = {"method": "mc-dropout", "start": 40, "budget": 40, "epochs": 100, "batch_size": 16, "val": 0}
    gains = []
    for seed in range(3):
        through = active.run(pool, "random", features=encoder, seed=seed, **settings)
        plain = active.run(pool, "random", seed=seed, **settings)
        gains.append(through.accuracy[0] - plain.accuracy[0])
    gains = torch.tensor(gains)
    assert gains.mean() > 2 * gains.std() / 3**0.5
