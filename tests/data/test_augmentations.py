"""Augmentations: what they do to a picture, and that they are a part of the loop."""

import pytest
import torch

import bayesrule as br
from bayesrule.data import augmentations
from bayesrule.data.augmentations import AugMix, Crops, Flips
from bayesrule.data.batches import Batch
from bayesrule.data.scaling import Scaling

MODEL = br.models.mlp(64, 10, hidden=(8,))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def pictures(n=200, c=2, h=8, w=6):
    return torch.rand(n, c, h, w, generator=generator(1))


def test_flips_turn_every_other_picture():
    x = pictures()
    found = Flips().of(x, generator())
    turned = (found - x.flip(3)).abs().amax((1, 2, 3)) == 0
    same = (found - x).abs().amax((1, 2, 3)) == 0
    assert bool((turned ^ same).all())
    assert 60 <= int(turned.sum()) <= 140  # of 200 at ½: beyond five standard deviations


def test_crops_are_shifts_by_whole_pixels_over_black():
    x = pictures()
    found = Crops(padding=2).of(x, generator())
    padded = torch.nn.functional.pad(x, (2, 2, 2, 2))
    seen = set()
    for before, after in zip(padded, found, strict=True):
        fits = [(i, j) for i in range(5) for j in range(5) if torch.equal(before[:, i : i + 8, j : j + 6], after)]
        assert len(fits) == 1
        seen |= set(fits)
    assert len(seen) == 25  # each has probability 1 − (24/25)^200 of being seen: all of them but once in 140 seeds


def test_augmix_stays_a_picture_and_often_near():
    x = pictures(400, 1, 12, 12)
    found = AugMix().of(x, generator())
    assert 0 <= float(found.min()) <= float(found.max()) <= 1
    change = (found - x).abs().mean((1, 2, 3))
    assert bool((change > 0).float().mean() > 0.9)
    weak = AugMix(strength=0.1).of(x, generator())
    assert float((weak - x).abs().mean()) < float(change.mean())


@pytest.mark.parametrize("kind", augmentations.AVAILABLE)
def test_a_chain_is_a_function_of_its_seed_and_keeps_units(kind):
    x = pictures(9, 1, 8, 8)
    data = br.data.standardize((x.flatten(1), torch.arange(9)))
    chain = augmentations.choose(kind, (1, 8, 8))
    batch = data.all()
    found = augmentations.augmented(batch, chain, data.scaling, generator(5))
    assert found.x.shape == batch.x.shape
    assert found.y is batch.y
    assert torch.equal(found.x, augmentations.augmented(batch, chain, data.scaling, generator(5)).x)
    plain = augmentations.augmented(Batch(x.flatten(1), batch.y), chain, Scaling(), generator(5))
    assert torch.allclose(data.scaling.inputs.inverse(found.x), plain.x, atol=1e-5)


def cut(progress):
    if progress.step == 9:
        raise InterruptedError


def fit(out=None, callbacks=(), **options):
    x, y = br.data.digits()
    chain = (Flips((1, 8, 8)), AugMix((1, 8, 8)))
    options = {"method": "map", "epochs": 4, "batch_size": 20, "augment": chain, **options}
    return br.fit(MODEL, (x[:100], y[:100]), out=out, callbacks=callbacks, seed=3, val=0, **options)


def test_a_fit_that_is_cut_resumes_to_the_bit(tmp_path):
    whole = fit()
    with pytest.raises(InterruptedError):
        fit(br.training.Folder(tmp_path, interval=0), [cut])
    x, y = br.data.digits()
    again = br.resume(tmp_path, MODEL, (x[:100], y[:100]))
    assert torch.equal(again.predict(x).probs, whole.predict(x).probs)
    assert not torch.equal(fit(augment=None).predict(x).probs, whole.predict(x).probs)
    assert again.info["n"] == 100
    assert [one["name"] for one in again.info["augment"]] == ["flips", "augmix"]


def test_every_step_sees_other_variants(monkeypatch):
    seen = []
    real = augmentations.augmented
    monkeypatch.setattr(augmentations, "augmented", lambda *a: seen.append(real(*a)) or seen[-1])
    fit(epochs=2, batch_size=100, augment=Crops((1, 8, 8)))
    first, second = (batch.x.sum(1).sort().values for batch in seen)
    assert not torch.equal(first, second)


def test_a_fit_does_not_go_on_to_the_mode_of_pictures_as_they_are():
    found = fit(epochs=None)
    assert "converged" not in found.info.get("diagnostics", {})


def test_what_is_refused():
    with pytest.raises(ValueError, match="unknown augmentation 'flip': did you mean 'flips'"):
        fit(augment="flip")
    with pytest.raises(ValueError, match=r"flips is for pictures \[N, C, H, W\], but each input is of shape \[64\]"):
        fit(augment="flips")
    with pytest.raises(ValueError, match="augment is not for hmc"):
        fit(method="hmc", augment=Flips((1, 8, 8)))
    with pytest.raises(ValueError, match="augment is not for auto, which draws its examples by itself"):
        fit(method="auto", augment=Flips((1, 8, 8)))
    with pytest.raises(ValueError, match="augment is for training, but epochs is 0"):
        fit(method="laplace", epochs=0, augment=Flips((1, 8, 8)))
    with pytest.raises(ValueError, match="padding must be at least 1"):
        Crops(padding=0)
    with pytest.raises(ValueError, match="strength must be above 0"):
        AugMix(strength=0)
    with pytest.raises(TypeError, match="augment must be names or augmentations, not int"):
        augmentations.choose([3])
    with pytest.raises(ValueError, match=r"augmix is for pixels in \[0, 1\]"):
        AugMix().check(255 * pictures())
