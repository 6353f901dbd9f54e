"""Shifts: known cases by hand, determinism, sizes and channels, and what is refused."""

import numpy as np
import pytest
import torch
from scipy import fft, ndimage

from bayesrule.data import corruptions, shifts
from bayesrule.data.batches import Batch
from bayesrule.data.shifts import Corruption, Group, Missing, Noise, Range, Roll, Rotation, Tilt

KINDS = ["rotation", "roll", *corruptions.KINDS]


def pictures(n=6, c=1, h=28, w=28, seed=0):
    x = torch.rand(n, c, h, w, generator=torch.Generator().manual_seed(seed))
    return Batch(x, torch.arange(n))


def rows(n=400, f=3, seed=0):
    x = torch.randn(n, f, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Batch(x, torch.arange(n))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("c", "h", "w"), [(1, 28, 28), (3, 9, 15), (2, 40, 33)])
def test_every_shift_of_pictures_takes_any_size_and_is_a_function_of_the_seed(kind, c, h, w):
    batch, shift = pictures(3, c, h, w), shifts.choose(kind)
    before = batch.x.clone()
    assert shift.at(batch, 0).x is batch.x
    for severity in (shift.severities[1], shift.severities[-1]):
        found = shift.at(batch, severity, seed=3)
        assert found.x.shape == batch.x.shape
        assert found.x.dtype == batch.x.dtype
        assert 0 <= float(found.x.min()) <= float(found.x.max()) <= 1
        assert torch.equal(found.x, shift.at(batch, severity, seed=3).x)
        assert not torch.equal(found.x, batch.x)
    assert torch.equal(batch.x, before)


@pytest.mark.parametrize("kind", corruptions.KINDS)
def test_corruptions_get_stronger(kind):
    digits, shift = pictures(64, 1, 32, 32), Corruption(kind=kind)
    smooth = Batch(corruptions.smoothed(digits.x, 1.5), digits.y)  # as pictures are: neighbours are alike
    far = [float((shift.at(smooth, s).x - smooth.x).abs().mean()) for s in range(6)]
    assert far[0] == 0
    assert far[1] > 0
    assert far[5] > 1.2 * far[1]


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_quarter_turns_are_exact(turns):
    batch = pictures()
    found = Rotation(severities=(0, 90 * turns)).at(batch, 90 * turns).x
    assert torch.allclose(found, torch.rot90(batch.x, turns, (2, 3)), atol=1e-5)


def test_a_rotation_is_scipys():
    smooth = corruptions.smoothed(pictures(1, h=41, w=41).x, 3.0)
    found = Rotation().at(Batch(smooth, torch.zeros(1)), 30).x[0, 0].numpy()
    wanted = ndimage.rotate(smooth[0, 0].numpy(), 30, reshape=False, order=1)
    assert np.abs(found - wanted)[10:31, 10:31].max() < 1e-4  # away from edges, which differ in what lies outside


def test_rows_of_pixels_are_pictures_where_their_shape_is_known():
    batch = pictures(4, 1, 8, 8)
    flat = Batch(batch.x.flatten(1), batch.y)
    assert torch.equal(Roll(shape=(1, 8, 8)).at(flat, 2).x, batch.x.roll(2, 3).flatten(1))


def test_a_blur_is_scipys():
    batch = pictures(1, h=32, w=32)
    found = Corruption(kind="gaussian-blur").at(batch, 5).x[0, 0].numpy()
    wanted = ndimage.gaussian_filter(batch.x[0, 0].numpy().astype(float), 1.0, mode="nearest", truncate=3.0)
    assert found == pytest.approx(wanted, abs=1e-5)


def test_jpeg_is_the_rounding_of_cosine_coefficients():
    batch = pictures(1, h=16, w=8)
    found = Corruption(kind="jpeg").at(batch, 4).x[0, 0].double().numpy()  # quality 50: the table of the standard
    whole = batch.x[0, 0].double().numpy() * 255 - 128
    wanted = np.empty_like(whole)
    for top in (0, 8):
        steps = np.array(corruptions.LUMINANCE)
        block = np.round(fft.dctn(whole[top : top + 8], norm="ortho") / steps) * steps
        wanted[top : top + 8] = fft.idctn(block, norm="ortho")
    assert found == pytest.approx(((wanted + 128) / 255).clip(0, 1), abs=1e-5)


def test_noise_has_the_deviation_it_says():
    grey = Batch(torch.full((50, 1, 32, 32), 0.5), torch.zeros(50))
    found = Corruption(kind="gaussian-noise").at(grey, 3).x - 0.5
    # 51 200 draws: the standard error of a deviation is 0.0003 of it in relative terms; five of them
    assert float(found.std()) == pytest.approx(0.08, rel=0.016)
    shot = Corruption(kind="shot-noise").at(grey, 5).x - 0.5
    assert float(shot.std()) == pytest.approx(0.1, rel=0.02)  # sqrt(25)/50


def test_missing_cells_are_nested_and_as_many_as_said():
    batch = rows()
    lost = [(Missing().at(batch, s).x != batch.x) for s in (0.2, 0.5)]
    assert bool((lost[0] <= lost[1]).all())
    assert abs(float(lost[1].double().mean()) - 0.5) < 5 * 0.5 / 1200**0.5  # 1200 cells, five standard errors
    assert torch.equal(Missing().at(batch, 1.0).x, batch.x.median(0).values.expand(400, 3))


def test_noise_of_a_table_is_in_deviations_of_its_columns():
    batch = Batch(rows(4000).x * torch.tensor([1.0, 10.0, 0.0]), torch.arange(4000))
    moved = Noise().at(batch, 0.5).x - batch.x
    assert moved.std(0)[:2] == pytest.approx(0.5 * batch.x.std(0)[:2], rel=0.06)
    assert bool((moved[:, 2] == 0).all())


def test_a_tilt_moves_the_mean_by_its_severity():
    batch = rows(20_000)
    found = Tilt(column=1).at(batch, 1.0)
    # of N(0, 1) tilted by exp(s·z) the mean is s and the others stay; y goes with its row
    assert found.x.mean(0).tolist() == pytest.approx([0, 1, 0], abs=0.05)
    assert torch.equal(batch.x[found.y], found.x)
    assert torch.equal(Tilt().at(batch, 1.0).x, Tilt().at(batch, 1.0).x)


def test_a_range_keeps_the_far_rows():
    batch = rows(100)
    found = Range(column=0).at(batch, 0.75)
    assert len(found.y) == 25
    assert float(found.x[:, 0].min()) >= float(batch.x[:, 0].sort().values[75])
    assert torch.equal(batch.x[found.y], found.x)


def test_a_group_is_home_or_elsewhere():
    x = torch.tensor([[0.0, 5.0], [1.0, 6.0], [0.0, 7.0]])
    batch, shift = Batch(x, torch.arange(3)), Group(column=0, value=1.0)
    assert shift.at(batch, 0).y.tolist() == [0, 2]
    assert shift.at(batch, 1).y.tolist() == [1]
    with pytest.raises(ValueError, match="no row is in it; values there: 5, 6, 7"):
        Group(column=1, value=2.0).at(batch, 1)
    with pytest.raises(ValueError, match="column of group must be from 0 to 1: got 2"):
        Group(column=2).at(batch, 1)


def test_what_is_refused():
    with pytest.raises(ValueError, match="unknown shift 'rotatoin': did you mean 'rotation'"):
        shifts.choose("rotatoin")
    with pytest.raises(ValueError, match="unknown corruption 'fogg': did you mean 'fog'"):
        Corruption(kind="fogg")
    with pytest.raises(TypeError, match="shift must be a name or a Shift, not int"):
        shifts.choose(3)
    with pytest.raises(ValueError, match="severities must grow from 0"):
        Rotation(severities=(15, 30))
    with pytest.raises(ValueError, match=r"pictures \[N, C, H, W\], but each input is of shape \[64\]"):
        Rotation().at(Batch(torch.zeros(2, 64), torch.zeros(2)), 15)
    with pytest.raises(ValueError, match="pictures of another size"):
        Rotation(shape=(1, 28, 28)).at(pictures(h=8, w=8), 15)
    with pytest.raises(ValueError, match=r"pixels in \[0, 1\], but they are from"):
        Rotation().at(Batch(pictures().x * 255, torch.zeros(6)), 15)
    with pytest.raises(TypeError, match="floats in"):
        Rotation().at(Batch((pictures().x * 255).byte(), torch.zeros(6)), 15)
    with pytest.raises(TypeError, match="one tensor of pictures, not of a dict"):
        Roll().at(Batch({"a": pictures().x}, torch.zeros(6)), 2)
    with pytest.raises(ValueError, match=r"by whole pixels: got a severity of 1\.5"):
        Roll().at(pictures(), 1.5)
    with pytest.raises(ValueError, match="fog has severities 0 to 5: got 6"):
        Corruption(kind="fog").at(pictures(), 6)
    with pytest.raises(ValueError, match=r"rows of real numbers \[N, F\], not of torch\.float32 of shape"):
        Tilt().at(pictures(), 1)
