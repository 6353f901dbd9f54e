import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from torch.utils.data import DataLoader, TensorDataset

from bayesrule.data import Arrays, Loader, as_data, as_inputs, load_set, standardize


@pytest.mark.parametrize(
    ("y", "dtype"),
    [
        (np.array([1, 2], np.int8), torch.int64),
        (np.array([True, False]), torch.int64),
        (np.array([1, 2], np.uint32), torch.int64),
        (np.array([1, 2], np.float32), torch.float32),
        (np.array([1, 2], ">f8"), torch.float64),
        (np.array([1, 2], np.longdouble), torch.float64),
        ([1, 2], torch.int64),
        (torch.tensor([1, 2], dtype=torch.int32), torch.int64),
        (torch.tensor([1, 2], dtype=torch.float16), torch.float16),
        (pd.Series([1, 2]), torch.int64),
        (pd.Series([True, 3], dtype=object), torch.int64),
        (pd.Series([1.0, 2.0]), torch.float64),
    ],
)
def test_dtype_of_targets(y, dtype):
    assert as_data((np.ones((2, 1)), y)).all().y.dtype == dtype


def test_inputs_of_every_kind():
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [True, False]})  # numpy makes this an object array
    assert as_inputs(frame).tolist() == [[1, 1], [2, 0]]
    assert as_inputs(np.eye(4)[::-1, ::2]).shape == (4, 2)
    assert as_inputs(np.broadcast_to(np.float32(1), (3, 2))).dtype == torch.float32  # read-only
    assert as_inputs({"a": [[1, 2]], 0: frame["a"][:1]})["0"].shape == (1,)
    assert [part.shape for part in as_inputs((np.ones((2, 3)), [1, 2]))] == [(2, 3), (2,)]
    assert not as_inputs(torch.ones(2, requires_grad=True)).requires_grad


def test_sources():
    x, y = torch.ones(3, 2), torch.arange(3)
    assert isinstance(as_data(TensorDataset(x, y)), Arrays)
    assert isinstance(as_data(DataLoader(TensorDataset(x, y))), Loader)
    data = as_data([x, y])
    assert as_data(data) is data


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: as_data(np.ones(3)), r"train must be a pair \(X, y\).* got ndarray"),
        (lambda: as_data((1, 2, 3, 4)), "got tuple of 4"),
        (lambda: as_data(([[1.0, "red"]], [1])), r"X column 1 must hold numbers, got .*'red'.* row 0\).*bayesrule fit"),
        (lambda: as_data((pd.DataFrame({"a": [1], "b": ["x"]}), [1])), "X column 1 must hold numbers, got 'x'"),
        (lambda: as_data((np.array([["1"]]), [1])), "X column 0 must hold numbers, got .*'1'"),
        (lambda: as_data(([[1.0]], ["cat"])), "y must hold numbers, got .*'cat'.*return_inverse"),
        (lambda: as_data(([[1.0]], [None])), "y must hold numbers, got None"),
        (lambda: as_data(([[1.0]], np.array(["2020-01-01"], "M8[D]"))), "y must hold numbers.*datetime64"),
        (lambda: as_data((np.ones((1, 2, 2), complex), [1])), r"X column \(0, 0\) must hold numbers.*complex"),
        (lambda: as_data((object(), [1])), "X must hold numbers, got .*object"),
        (lambda: as_data(([[1.0], [1.0, 2.0]], [1, 2])), "X must be an array of numbers with rows of one length"),
        (lambda: as_data(([[1.0]], 3)), "got the single number 3"),
        (lambda: as_inputs([]), "at least one example, got none"),
        (lambda: as_inputs([[np.nan]]), "X must be finite"),
        (lambda: as_inputs(3.0), "first dimension"),
        (lambda: standardize(([[1.0]], [1.0]), targets="none"), "unknown targets 'none': .*Valid: auto, keep"),
        (lambda: standardize(standardize(([[1.0]], [1.0]))), "standardized already: pass the raw data"),
        (lambda: standardize((([1.0], [1.0]), [1.0])), "one array to be standardized, got a tuple"),
    ],
)
def test_errors(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_standardize_features_and_targets():
    x, y = 3 + 5 * torch.randn(50, 2), 100 * torch.rand(50)
    data = standardize((torch.cat([x, torch.full((50, 1), 0.1)], 1), y))
    assert torch.allclose(data.x.mean(0), torch.zeros(3), atol=1e-6)
    assert torch.allclose(data.x.std(0, correction=0), torch.tensor([1.0, 1.0, 0.0]))
    assert torch.allclose(data.scaling.targets.inverse(data.y), y, atol=1e-4)
    assert data.scaling.inputs.scale[2] == 1
    assert data.x.dtype == torch.float32
    assert data.fingerprint() != Arrays(data.x, data.y).fingerprint()
    assert standardize((x, y), targets="keep").scaling.targets is None


def test_standardize_pictures_per_channel():
    data = standardize((torch.randn(9, 3, 4, 4) * torch.tensor([1.0, 2, 3])[:, None, None], torch.arange(9)))
    assert data.scaling.inputs.loc.shape == (3, 1, 1)
    assert torch.allclose(data.x.mean((0, 2, 3)), torch.zeros(3), atol=1e-6)
    assert data.scaling.targets is None


def test_labels_and_indices_are_not_scaled():
    data = standardize((torch.arange(4), torch.tensor([0.0, 1, 1, 0])))
    assert data.scaling.inputs is None
    assert data.scaling.targets is None


def test_standardize_reads_loaders():
    x, y = load_set("sine").train
    a = standardize((x, y))
    b = standardize(DataLoader(TensorDataset(x, y), batch_size=7, shuffle=True, drop_last=True))
    assert a.fingerprint() == b.fingerprint()


@pytest.mark.slow  # tests/test_architecture.py asks for more
def test_importing_data_needs_only_torch_and_numpy():
    code = (
        "import sys, torch, numpy; before = set(sys.modules); import bayesrule.data, bayesrule.models;"
        "print({'pandas', 'sklearn', 'pyarrow', 'scipy'} & (set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


DENSE = torch.eye(3)
UNUSABLE = {
    "masked": (
        np.ma.masked_array(np.eye(3), np.eye(3) == 1),
        ValueError,
        r"3 of 9 are masked, the first in row 0, column 0",
    ),
    "masked rows": ([np.ma.masked_array([1.0, 2.0], [False, True])] * 2, ValueError, r"2 of 4 are masked.* column 1"),
    "sparse": (lambda: DENSE.to_sparse(), TypeError, r"must be a dense array.*sparse_coo.*to_dense\(\)"),
    "compressed": (lambda: DENSE.to_sparse_csr(), TypeError, r"must be a dense array.*sparse_csr"),
    "scipy": (scipy.sparse.eye(3), TypeError, r"must be a dense array, got a sparse dia.*toarray\(\)"),
    "meta": (DENSE.to("meta"), TypeError, "must be a dense array.*on the meta device"),
    "nested": (lambda: torch.nested.nested_tensor([DENSE, DENSE[:2]]), TypeError, "must be a dense array.*nested"),
    "uint64": (
        np.array([1, 2, 2**63], np.uint64),
        ValueError,
        r"must fit into int64, got 9223372036854775808 in row 2",
    ),
    "uint64 tensor": (
        torch.tensor([2**63 + 5], dtype=torch.uint64),
        ValueError,
        "must fit into int64, got 9223372036854775813",
    ),
    "large objects": (np.array([1, 10**30], object), ValueError, "whole numbers that fit into int64"),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", ["X", "y"])
@pytest.mark.parametrize(("array", "error", "message"), UNUSABLE.values(), ids=list(UNUSABLE))
def test_what_would_be_read_wrong_is_refused(array, error, message, name):
    if callable(array):
        array = array()
    with pytest.raises(error, match=f"{name} {message}" if message.startswith("must") else f"{name} .*{message}"):
        as_data((array, [1.0, 2.0, 3.0]) if name == "X" else (np.zeros((3, 1)), array))
    if name == "X":
        with pytest.raises(error, match=message):
            as_inputs(array)


def test_complex_targets_are_refused_wherever_they_come_from():
    x, y = torch.zeros(4, 1), torch.ones(4, dtype=torch.complex64)
    for train in ((x, y), TensorDataset(x, y)):
        with pytest.raises(TypeError, match=r"y must hold real numbers, got torch\.complex64"):
            as_data(train)
    with pytest.raises(TypeError, match=r"y must hold real numbers, got torch\.complex64"):
        next(Loader(DataLoader(TensorDataset(x, y), batch_size=2)).ordered(2))
    with pytest.raises(TypeError, match="y must hold numbers"):
        as_data((x, y.numpy()))


def test_sparse_batches_of_a_loader_are_refused():
    loader = DataLoader(
        TensorDataset(torch.eye(4), torch.arange(4)),
        2,
        collate_fn=lambda pairs: (torch.eye(2).to_sparse(), torch.arange(2)),
    )
    with pytest.raises(TypeError, match="X must be a dense array"):
        next(Loader(loader).ordered(2))


def test_masks_that_hide_nothing_and_small_unsigned_numbers_are_read():
    data = as_data((np.ma.masked_array(np.eye(2)), np.array([1, 2**63 - 1], np.uint64)))
    assert torch.equal(data.x, torch.eye(2, dtype=torch.float64))
    assert data.y.tolist() == [1, 2**63 - 1]
    assert as_inputs(torch.tensor([[1, 2]], dtype=torch.uint16)).dtype == torch.int64
