import gzip
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bayesrule.data import load_set, names
from bayesrule.data.cifar import read_cifar10
from bayesrule.data.idx import pictures, read_idx
from bayesrule.data.uci import read_uci

CODES = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}
random = np.random.default_rng(0)


def idx_bytes(array):
    code = CODES[array.dtype.str[1:]]
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write_pictures(folder, part, n=5, side=28, pack=True):
    folder.mkdir(parents=True, exist_ok=True)
    images, labels = random.integers(0, 256, (n, side, side), np.uint8), np.arange(n, dtype=np.uint8)
    for array, kind in ((images, "images-idx3"), (labels, "labels-idx1")):
        raw = idx_bytes(array)
        (folder / f"{part}-{kind}-ubyte{'.gz' if pack else ''}").write_bytes(gzip.compress(raw) if pack else raw)
    return images, labels


@given(array=st.sampled_from(sorted(CODES)).flatmap(lambda t: hnp.arrays(t, hnp.array_shapes(min_side=0))))
def test_idx_round_trip(tmp_path_factory, array):
    path = tmp_path_factory.mktemp("idx") / "a"
    path.write_bytes(idx_bytes(array))
    np.testing.assert_array_equal(read_idx(path), array)
    assert read_idx(path).dtype == array.dtype


WHOLE = idx_bytes(np.arange(6, dtype=np.int16).reshape(2, 3))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "not an idx file: it starts with nothing"),
        (b"\x89PNG", "not an idx file: it starts with 89 50 4e 47"),
        (b"\0\0\x0a\1\0\0\0\0", "not an idx file"),
        (b"\0\0\x08\0", "not an idx file"),
        (WHOLE[:9], "truncated: its header needs 12 bytes, it has 9"),
        (WHOLE[:-1], r"truncated: shape \(2, 3\) needs 24 bytes, it has 23"),
        (WHOLE + b"0", r"too long: shape \(2, 3\) needs 24 bytes, it has 25"),
    ],
)
def test_idx_errors(tmp_path, raw, message):
    (tmp_path / "a").write_bytes(raw)
    with pytest.raises(ValueError, match=message):
        read_idx(tmp_path / "a")


PACKED = gzip.compress(WHOLE, mtime=0)  # the time would be part of the tests' names


@pytest.mark.parametrize("raw", [b"no gzip", PACKED[:-9], PACKED[:10] + b"\xff" * 30])
def test_damaged_gzip(tmp_path, raw):
    (tmp_path / "a.gz").write_bytes(raw)
    with pytest.raises(ValueError, match="damaged or not a gzip file"):
        read_idx(tmp_path / "a")


@pytest.mark.parametrize("pack", [True, False])
def test_pictures(tmp_path, pack):
    images, labels = write_pictures(tmp_path, "train", pack=pack)
    x, y = pictures(tmp_path, "train")
    assert torch.equal((x[:, 0] * 255).round().byte(), torch.from_numpy(images))
    assert (x.dtype, y.tolist()) == (torch.float32, labels.tolist())


def test_pictures_without_their_labels(tmp_path):
    write_pictures(tmp_path, "t10k", pack=False)
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros(4, np.uint8)))
    with pytest.raises(ValueError, match=r"N labels, got uint8\[5, 28, 28\] and uint8\[4\]"):
        pictures(tmp_path, "t10k")


def test_mnist_like_sets(tmp_path, monkeypatch):
    monkeypatch.setenv("BAYESRULE_DATA", str(tmp_path))
    write_pictures(tmp_path / "MNIST/raw", "t10k", 3)
    with pytest.raises(ValueError, match=r"mnist has no training examples .* there is no .*train-images-idx3-ubyte"):
        _ = load_set("mnist").train
    write_pictures(tmp_path / "MNIST/raw", "train", 7)
    mnist = load_set("mnist")
    assert mnist.ood is None
    assert (mnist.train[0].shape, mnist.test[0].shape, mnist.image_shape) == (
        (7, 1, 28, 28),
        (3, 1, 28, 28),
        (1, 28, 28),
    )
    write_pictures(tmp_path / "FashionMNIST/raw", "t10k", 4)
    assert load_set("mnist").ood.shape == (4, 1, 28, 28)
    assert torch.equal(load_set("fashion-mnist").ood, mnist.test[0])
    write_pictures(tmp_path / "notMNIST/raw", "t10k", 4)
    assert load_set("notmnist").training is None
    missing = {entry.name: entry.missing for entry in names()}
    assert missing["digits"] == missing["mnist"] == missing["notmnist"] == ""
    assert str(tmp_path / "KMNIST/raw/t10k-images-idx3-ubyte") in missing["kmnist"]


def write_cifar(folder, n=2):
    folder.mkdir(parents=True)
    for i, name in enumerate([*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]):
        records = random.integers(0, 256, (n, 3073), np.uint8)
        records[:, 0] = i
        raw = records.tobytes()
        (folder / (name + ".gz" if i % 2 else name)).write_bytes(gzip.compress(raw) if i % 2 else raw)
    return records


def test_cifar10(tmp_path):
    records = write_cifar(tmp_path / "cifar-10-batches-bin")
    split = load_set("cifar10", data_dir=tmp_path)
    assert split.train[0].shape == (10, 3, 32, 32)
    assert split.train[1].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert split.test[0][1, 2, 0, 5] == torch.tensor(records[1, 1 + 2048 + 5] / 255, dtype=torch.float32)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "got 0 bytes"),
        (b"\0" * 3074, "records of 3073 bytes, got 3074 bytes, 1 too many"),
        (b"\x0b" * 3073, "labels 0 to 9, got 11"),
    ],
)
def test_cifar10_errors(tmp_path, raw, message):
    (tmp_path / "a.bin").write_bytes(raw)
    with pytest.raises(ValueError, match=message):
        read_cifar10(tmp_path / "a.bin")


UCI = {
    "data": "1 2 3\n4 5 6\n7 8 9\n",
    "index_features": "0\n2\n",
    "index_target": "1\n",
    "n_splits": "2\n",
    "index_train_0": "0\n1\n",
    "index_test_0": "2\n",
    "index_train_1": "2\n1\n",
    "index_test_1": "0\n",
}


def write_uci(folder, **changes):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (UCI | changes).items():
        (folder / f"{name}.txt").write_text(text)


def test_uci(tmp_path):
    write_uci(tmp_path / "UCI_Datasets/bostonHousing/data")
    split = load_set("uci/boston", data_dir=tmp_path, split=1)
    assert (split.kind, [t.tolist() for t in split.train]) == ("reals", [[[7, 9], [4, 6]], [8, 5]])
    assert [t.tolist() for t in split.test] == [[[1, 3]], [2]]


@pytest.mark.parametrize(
    ("changes", "split", "message"),
    [
        ({}, 2, "split must be between 0 and 1 .* got 2"),
        ({"data": "1 x 3\n"}, 0, "data.txt must be a table of numbers"),
        ({"data": "1 2 3\n4 5\n"}, 0, "data.txt must be a table of numbers"),
        ({"index_test_0": "3\n"}, 0, "index_test_0.txt must hold whole numbers from 0 to 2, got 3 to 3"),
        ({"index_test_0": "0\n1\n"}, 0, r"must not test on training rows, got 2 such: \[0, 1\]"),
        ({"index_target": "1\n2\n"}, 0, r"index_target.txt must name one column, got \[1, 2\]"),
    ],
)
def test_uci_errors(tmp_path, changes, split, message):
    write_uci(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        read_uci(tmp_path, split)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("mnist", "MNIST/raw/t10k-images-idx3-ubyte"),
        ("cifar10", "cifar-10-batches-bin/data_batch_1.bin"),
        ("uci/yacht", "UCI_Datasets/yacht/data/data.txt"),
    ],
)
def test_absent_files(tmp_path, monkeypatch, name, path):
    with pytest.raises(FileNotFoundError, match=f"looked for {tmp_path / path}.*set data_dir or .BAYESRULE_DATA"):
        load_set(name, data_dir=tmp_path)
    monkeypatch.delenv("BAYESRULE_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match=f"{name} is read from files.*set data_dir or .BAYESRULE_DATA"):
        load_set(name)
    assert "set data_dir or $BAYESRULE_DATA" in {entry.name: entry.missing for entry in names()}[name]


def test_unknown_names_and_splits():
    with pytest.raises(ValueError, match="unknown data set 'uci/yatch': did you mean 'uci/yacht'"):
        load_set("uci/yatch")
    with pytest.raises(ValueError, match="split must be 0 for digits, got 3"):
        load_set("digits", split=3)


@pytest.mark.parametrize("kind", ["idx", "cifar"])
def test_a_small_file_that_unpacks_to_too_much_is_not_unpacked(tmp_path, monkeypatch, kind):
    """No more than the header says, or the format holds, is read."""
    monkeypatch.setattr("bayesrule.data.cifar.MOST", 10)
    header = bytes([0, 0, 8, 1, 0, 0, 0, 3]) if kind == "idx" else b""
    path = tmp_path / "file"
    with gzip.open(tmp_path / "file.gz", "wb", compresslevel=1) as file:
        file.write(header)
        file.write(bytes(5 * 10**6))
    asked = []
    plain = gzip.GzipFile.read

    def watched(self, size=-1):
        asked.append(size)
        return plain(self, size)

    monkeypatch.setattr(gzip.GzipFile, "read", watched)
    read, most, says = (read_idx, 2000, "too long") if kind == "idx" else (read_cifar10, 40_000, "at most 10")
    with pytest.raises(ValueError, match=says):
        read(path)
    assert all(0 <= size <= most for size in asked)
