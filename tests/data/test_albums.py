"""Pictures of a user's own: how files become numbers, and what is refused before it costs memory."""

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from bayesrule.data import albums, load_set
from bayesrule.models import default_for

SQUARE = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)


def saved(path, pixels, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(path, **options)
    return path


def test_pixels_are_those_of_the_files_in_the_order_of_their_names(tmp_path):
    saved(tmp_path / "b.png", SQUARE)
    saved(tmp_path / "a" / "z.PNG", SQUARE[::-1])
    (tmp_path / ".hidden.png").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("no picture")
    album = albums.read_album(tmp_path)
    assert album.names == ("a/z.PNG", "b.png")
    assert torch.equal(album.x[1], torch.from_numpy(SQUARE).movedim(2, 0) / 255)
    assert torch.equal(album.x[0], album.x[1].flip(1))


def test_grey_files_have_one_channel_and_one_in_colour_makes_all_so(tmp_path):
    saved(tmp_path / "a.png", SQUARE[:, :, 0])
    saved(tmp_path / "b.jpg", SQUARE[:, :, 0])
    assert albums.read_album(tmp_path).x.shape == (2, 1, 4, 4)
    saved(tmp_path / "c.png", SQUARE)
    x = albums.read_album(tmp_path).x
    assert x.shape == (3, 3, 4, 4)
    assert torch.equal(x[0, 0], x[0, 2])


def test_a_camera_that_was_held_upright(tmp_path):
    wide = np.zeros((4, 8, 3))
    wide[:, 6:] = 255
    turned = Image.Exif()
    turned[albums.TURNED] = 6  # to be turned by 90 degrees clockwise: the right is the bottom
    saved(tmp_path / "a.png", wide, exif=turned)
    x = albums.read_album(tmp_path).x
    assert x.shape == (1, 3, 8, 4)
    assert bool((x[0, :, 6:] == 1).all())
    assert float(x[0, :, :6].max()) == 0


def test_all_sizes_become_squares_from_the_middle(tmp_path):
    wide = np.zeros((4, 12, 3))
    wide[:, 4:8] = 255
    saved(tmp_path / "a.png", wide)
    saved(tmp_path / "b.png", SQUARE)
    x = albums.read_album(tmp_path, size=2).x
    assert x.shape == (2, 3, 2, 2)
    assert float(x[0].min()) > 0.9  # of the dark sides no more than an edge
    with pytest.raises(ValueError, match=r"1 of 2 are 12 x 4 pixels and b.png is 4 x 4: --size 64 makes squares"):
        albums.read_album(tmp_path)


def test_a_preview_is_small_and_of_the_file_itself(tmp_path):
    import io

    saved(tmp_path / "a.jpg", np.zeros((90, 60, 3)))
    image = Image.open(io.BytesIO(albums.preview(tmp_path / "a.jpg", side=30)))
    assert (image.format, image.size) == ("PNG", (20, 30))


@pytest.mark.parametrize("shape", [(5, 4, 6), (5, 1, 4, 6), (5, 4, 6, 1), (5, 3, 4, 6), (5, 4, 6, 3)])
def test_arrays(shape, tmp_path):
    array = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    np.savez_compressed(tmp_path / "pool.npz", X=array)
    album = albums.read_album(tmp_path / "pool.npz")
    assert album.names == ("0", "1", "2", "3", "4")
    assert album.x.shape == (5, 3 if 3 in shape[1:] else 1, 4, 6)
    assert float(album.x.sum()) == pytest.approx(array.sum() / 255, rel=1e-5)


def test_labels_of_folders_and_of_a_table(tmp_path):
    for name in ("cat/1.png", "dog/2.png", "new/3.png", "4.png"):
        saved(tmp_path / name, SQUARE)
    album = albums.read_album(tmp_path)
    assert album.names == ("4.png", "cat/1.png", "dog/2.png", "new/3.png")
    assert albums.known_labels(album, ("cat", "dog")) == [None, "cat", "dog", None]
    table = pd.DataFrame({"file": ["4.png", "dog/2.png", "cat/1.png"], "label": ["dog", "wolf", None]})
    table.to_csv(tmp_path / "known.csv", index=False)
    assert albums.known_labels(album, ("cat", "dog"), tmp_path / "known.csv") == ["dog", "cat", "wolf", None]


def test_a_table_that_names_other_files(tmp_path):
    saved(tmp_path / "a.png", SQUARE)
    album = albums.read_album(tmp_path)
    for names, message in ((["b.png"], "unknown file 'b.png'.*'a.png'"), (["a.png"] * 2, "'a.png' is there twice")):
        pd.DataFrame({"file": names, "label": "cat"}).to_csv(tmp_path / "known.csv", index=False)
        with pytest.raises(ValueError, match=message):
            albums.known_labels(album, ("cat",), tmp_path / "known.csv")


def test_what_takes_too_much_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    for name in ("a.png", "b.png"):
        saved(tmp_path / name, SQUARE)
    np.savez_compressed(tmp_path / "pool.npz", X=np.zeros((1000, 8, 8), np.uint8))
    monkeypatch.setattr(albums, "_pixels", None)
    monkeypatch.setattr(np, "load", None)
    with pytest.raises(ValueError, match=r"must fit in 0.0 GB, but take 0.0 GB as numbers: make them smaller \(--size"):
        albums.read_album(tmp_path, most=2 * 48 * 4 - 1)
    with pytest.raises(ValueError, match=r"must fit in 0\.0 GB"):
        albums.read_album(tmp_path / "pool.npz", most=60_000)


def bomb(folder):
    saved(folder / "a.png", np.zeros((40, 40)))


def broken(folder):
    data = saved(folder / "a.jpg", np.random.default_rng(0).integers(0, 256, (10, 10, 3))).read_bytes()
    (folder / "a.jpg").write_bytes(data[:-60])


def deep(folder):
    Image.fromarray(np.zeros((4, 4), np.uint16)).save(folder / "a.png")


BAD_FILES = {
    "cannot be read as a picture .*repair it, or take it away": broken,
    "must have pixels of 8 bits, got the mode I": deep,
    "decompression bomb": bomb,
}


@pytest.mark.parametrize("message", BAD_FILES)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_files_that_are_refused(message, tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    BAD_FILES[message](tmp_path)
    with pytest.raises(ValueError, match=message):
        albums.read_album(tmp_path)


BAD_ARRAYS = {
    "it must have an array X, but has Z.npy": {"Z": np.zeros((2, 3, 3))},
    r"must be pictures \[N, H, W\], .* got float64 \[2, 9\]": {"X": np.zeros((2, 9))},
    "must be bytes or numbers in .0, 1., but they are from 0 to 7": {"X": np.linspace(0, 7, 18).reshape(2, 3, 3)},
    "from nan to nan": {"X": np.full((2, 3, 3), np.nan)},
    "Object arrays cannot be loaded": {"X": np.array([[["a"]], [[None]]], dtype=object)},
}


@pytest.mark.parametrize("message", BAD_ARRAYS)
def test_arrays_that_are_refused(message, tmp_path):
    np.savez(tmp_path / "pool.npz", **BAD_ARRAYS[message])
    with pytest.raises(ValueError, match=message):
        albums.read_album(tmp_path / "pool.npz")


def test_other_arrays_that_are_refused(tmp_path):
    (tmp_path / "pool.npz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"pool.npz cannot be read: File is not a zip file"):
        albums.read_album(tmp_path / "pool.npz")
    with pytest.raises(ValueError, match="size is for files of pictures"):
        albums.read_album(tmp_path / "pool.npz", size=8)


def test_pictures_that_are_no_squares_have_a_network():
    from dataclasses import replace

    wide = replace(load_set("digits"), image_shape=(1, 30, 40), test=(torch.zeros(2, 1, 30, 40), torch.zeros(2)))
    assert default_for(wide)["name"] == "mlp"
