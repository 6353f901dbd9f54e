import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayesrule.data import Affine, Scaling

numbers = st.floats(-1e6, 1e6)


@given(values=st.lists(numbers, min_size=1), loc=numbers, scale=st.floats(1e-3, 1e6))
def test_round_trip(values, loc, scale):
    affine, t = Affine(loc, scale), torch.tensor(values, dtype=torch.float64)
    there = affine.forward(t)
    size = 1e-14 * (abs(loc) + t.abs().max())
    assert torch.allclose(affine.inverse(there), t, atol=float(size), rtol=1e-14)
    assert torch.allclose(there * scale + loc, t, atol=float(size), rtol=1e-14)


def test_dtypes():
    affine = Affine(torch.tensor([1.0]), 2.0)
    assert affine.forward(torch.ones(3, 1)).dtype == torch.float32
    assert affine.inverse(torch.ones(3, 1, dtype=torch.float16)).dtype == torch.float16
    assert affine.forward(torch.tensor([[2]])).tolist() == [[0.5]]


@pytest.mark.parametrize(("loc", "scale"), [(0, 0), (0, -1), (0, float("nan")), (float("inf"), 1)])
def test_refused(loc, scale):
    with pytest.raises(ValueError, match=r"scale finite and positive, got loc=.* and scale="):
        Affine(loc, scale)


def test_state():
    scaling = Scaling(Affine(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])), None)
    again = Scaling.from_state(scaling.state())
    assert again.targets is None
    assert torch.equal(again.inputs.loc, scaling.inputs.loc)
    assert torch.equal(again.inputs.scale, scaling.inputs.scale)
