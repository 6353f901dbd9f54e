import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from bayesrule import files
from bayesrule.files import FileError

plain = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=5)
trees = st.recursive(
    plain,
    lambda t: (
        st.lists(t, max_size=3) | st.lists(t, max_size=3).map(tuple) | st.dictionaries(st.text() | st.integers(), t)
    ),
    max_leaves=8,
)


@given(trees)
def test_plain_trees_come_back_equal(tmp_path_factory, tree):
    path = tmp_path_factory.mktemp("trees") / "t.safetensors"
    files.save(path, tree, "tree")
    back = files.load(path, "tree")
    assert back == tree
    assert type(back) is type(tree)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
@pytest.mark.parametrize("shape", [(), (0,), (3, 2)])
def test_tensors_come_back_to_the_bit(tmp_path, dtype, shape):
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(0)).mul(9).to(dtype)
    files.save(tmp_path / "t", {"a": [tensor, tensor.T if tensor.ndim == 2 else tensor]}, "tree")
    a, b = files.load(tmp_path / "t", "tree")["a"]
    assert a.dtype == dtype
    assert torch.equal(a, tensor)
    assert torch.equal(b, tensor.T if tensor.ndim == 2 else tensor)


def test_what_is_no_tree_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(TypeError, match="not object"):
        files.save(tmp_path / "t", {"a": object()}, "tree")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "good.safetensors"
    files.save(path, {"w": torch.arange(100.0), "n": 3}, "posterior")
    return path


def test_every_truncation_is_refused(good):
    content = good.read_bytes()
    for size in range(0, len(content), 37):
        good.write_bytes(content[:size])
        with pytest.raises(FileError, match=r"complete|format"):
            files.load(good, "posterior")


def test_any_flipped_byte_is_refused(good):
    content = bytearray(good.read_bytes())
    for at in [*range(8, len(content) - 400, 5), *range(len(content) - 400, len(content), 13)]:
        changed = bytearray(content)
        changed[at] ^= 1
        good.write_bytes(bytes(changed))
        try:
            tree = files.load(good, "posterior")
        except FileError:
            continue
        assert torch.equal(tree["w"], torch.arange(100.0))  # a byte of padding
        assert tree["n"] == 3


def test_foreign_and_wrong_files_are_named(tmp_path, good):
    save_file({"w": torch.zeros(2)}, tmp_path / "foreign")
    (tmp_path / "text").write_text("hello")
    for name, match in [
        ("foreign", "not a file of this library"),
        ("text", "not a complete"),
        ("none", "no such file"),
    ]:
        with pytest.raises(FileError, match=match):
            files.load(tmp_path / name, "posterior")
    with pytest.raises(FileError, match="holds a posterior, not a checkpoint"):
        files.load(good, "checkpoint")


def test_a_failed_write_leaves_the_old_file_and_no_litter(good, monkeypatch):
    before = good.read_bytes()

    def fail(*args):
        raise OSError("disk full")

    monkeypatch.setattr(files.os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        files.save(good, {"w": torch.zeros(3)}, "posterior")
    assert good.read_bytes() == before
    assert [p.name for p in good.parent.iterdir()] == [good.name]


def test_metadata_is_json_that_people_can_read(good):
    header = good.read_bytes()
    size = int.from_bytes(header[:8], "little")
    metadata = json.loads(header[8 : 8 + size])["__metadata__"]
    assert metadata["kind"] == "posterior"
    assert json.loads(metadata["tree"])["dict"][1] == ["n", 3]
