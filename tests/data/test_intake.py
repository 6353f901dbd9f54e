import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from bayesrule.data import Arrays, Loader, as_data, as_inputs, load, standardize


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
        (lambda: as_data((1, 2, 3)), "got tuple of 3"),
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
    x, y = load("sine").train
    a = standardize((x, y))
    b = standardize(DataLoader(TensorDataset(x, y), batch_size=7, shuffle=True, drop_last=True))
    assert a.fingerprint() == b.fingerprint()


def test_importing_data_needs_only_torch_and_numpy():
    code = (
        "import sys, torch, numpy; before = set(sys.modules); import bayesrule.data, bayesrule.models;"
        "print({'pandas', 'sklearn', 'pyarrow', 'scipy'} & (set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
