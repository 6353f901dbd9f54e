import itertools
import random
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
)

from bayesrule.data import Arrays, Loader, as_data, inputs

sizes = st.integers(1, 60)
seeds = st.integers(0, 2**32)


class Items(Dataset):
    """Item i is (x, i), in a form that `make` gives."""

    def __init__(self, n, make=lambda i: torch.tensor([float(i)])):
        self.n, self.make = n, make

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.make(i), i


def arrays(n):
    return Arrays(torch.arange(float(n))[:, None], torch.arange(n))


def labels(batches):
    return [y.tolist() for _, y in batches]


@pytest.mark.parametrize("make", [arrays, lambda n: Loader(Items(n))], ids=["arrays", "dataset"])
@given(n=sizes, batch_size=sizes, seed=seeds)
def test_an_epoch_has_every_example_once_in_nearly_equal_batches(make, n, batch_size, seed):
    data = make(n)
    got = labels(data.batches(batch_size, seed))
    assert sorted(chain(*got)) == list(range(n))
    assert len(got) == data.steps(batch_size) == -(-n // batch_size)
    assert [len(y) for y in got] == [len(part) for part in np.array_split(range(n), len(got))]
    assert max(map(len, got)) <= batch_size
    assert got == labels(data.batches(batch_size, seed)) == labels(arrays(n).batches(batch_size, seed))
    assert list(chain(*labels(data.ordered(batch_size)))) == list(range(n))


def test_x_and_y_stay_together_and_seeds_differ():
    data = arrays(40)
    assert all(torch.equal(x[:, 0].long(), y) for x, y in data.batches(7, seed=3))
    assert labels(data.batches(7, seed=3)) != labels(data.batches(7, seed=4))


@given(n=sizes, batch_size=sizes, seed=seeds)
def test_every_kind_of_inputs(n, batch_size, seed):
    t = torch.arange(n)
    for x in (t, (t, t.float()), {"a": t, "b": t.float()}):
        data = Arrays(x, t)
        for batch in (*data.batches(batch_size, seed), *data.ordered(batch_size)):
            assert type(batch.x) is type(x)
            assert all(torch.equal(part.long(), batch.y) for _, part in inputs.named(batch.x))
        joined = inputs.join([batch.x for batch in data.ordered(batch_size)])
        assert all(torch.equal(part.long(), t) for _, part in inputs.named(joined))


def test_cast_leaves_whole_numbers():
    x = inputs.to({"i": torch.tensor([1]), "f": torch.tensor([1.0])}, torch.float64)
    assert (x["i"].dtype, x["f"].dtype) == (torch.int64, torch.float64)
    data = Arrays(torch.ones(2), torch.ones(2)).to(torch.float64)
    assert data.x.dtype == data.y.dtype == torch.float64
    assert next(Loader(Items(3)).to(torch.float64).ordered(2)).x.dtype == torch.float64


def loaders():
    data = Items(20, lambda i: torch.randn(1))  # random augmentation
    yield DataLoader(data, batch_size=6, shuffle=True)
    yield DataLoader(data, batch_size=6, shuffle=True, generator=torch.Generator())
    yield DataLoader(data, batch_size=6, sampler=RandomSampler(data, generator=torch.Generator()))
    yield DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data, generator=torch.Generator()), 6, False))
    yield DataLoader(data, batch_size=6, shuffle=True, num_workers=1)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("loader", list(loaders()), ids=["plain", "generator", "sampler", "batch-sampler", "worker"])
def test_a_loader_is_a_function_of_the_seed_and_leaves_the_global_generator(loader):
    data = as_data(loader)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = list(data.batches(99, seed=5))
    assert torch.equal(torch.get_rng_state(), before)
    torch.randn(7)
    again = []
    for batch in data.batches(99, seed=5):
        torch.randn(3)  # what the user draws in between does not matter, nor does it change
        again.append(batch)
    other = list(data.batches(99, seed=6))
    assert all(torch.equal(a.x, b.x) and torch.equal(a.y, b.y) for a, b in zip(first, again, strict=True))
    assert labels(first) != labels(other)
    assert sorted(chain(*labels(first))) == list(range(20))
    assert len(first) == data.steps(99) == 4
    assert labels(data.ordered(8)) == labels(arrays(20).ordered(8))
    assert data.fingerprint() == data.fingerprint()


def test_the_users_draws_between_batches_are_those_without_a_loader():
    data = as_data(DataLoader(Items(4), batch_size=2, shuffle=True))
    torch.manual_seed(0)
    drawn = [torch.randn(1).item() for _ in data.batches(2, seed=9)]
    torch.manual_seed(0)
    assert drawn == [torch.randn(1).item() for _ in range(2)]


def test_dropping_the_last_batch_does_not_change_n():
    data = as_data(DataLoader(Items(10), batch_size=4, drop_last=True))
    assert (data.n, data.steps(1), len(list(data.batches(1, 0)))) == (10, 2, 2)
    assert data.all().y.tolist() == list(range(10))


@pytest.mark.parametrize("stop", [1, 99])
@pytest.mark.parametrize("place", range(1, 4), ids=["generator", "sampler", "batch-sampler"])
def test_the_generator_of_a_loader_is_given_back(place, stop):
    loader = list(loaders())[place]
    owners = (loader, loader.sampler, getattr(loader.batch_sampler, "sampler", None))
    own = next(found for found in (getattr(owner, "generator", None) for owner in owners) if found is not None)
    own.manual_seed(123)
    before = own.get_state()
    epoch = as_data(loader).batches(99, seed=5)
    for _ in zip(range(stop), epoch):  # noqa: B905 (the epoch is left open, as by a user who stops)
        assert torch.equal(own.get_state(), before)
    assert torch.equal(own.get_state(), before)


def test_the_generator_of_a_loader_is_given_back_after_an_error():
    own = torch.Generator().manual_seed(123)
    before = own.get_state()
    data = Items(3, lambda i: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        list(as_data(DataLoader(data, shuffle=True, generator=own)).batches(1, seed=5))
    assert torch.equal(own.get_state(), before)


def test_no_batch_at_all():
    data = as_data(DataLoader(Items(3), batch_size=8, drop_last=True))
    says = "at least one batch, got .* drop_last=True and batch_size=8 .* none of its 3 examples: set drop_last=False"
    for call in (lambda: data.steps(1), lambda: data.batches(1, seed=0)):
        with pytest.raises(ValueError, match=says):
            call()
    assert data.all().y.tolist() == [0, 1, 2]


class Says(list):
    """A batch sampler that is wrong about its length."""

    length = 3

    def __len__(self):
        return self.length


def test_another_number_of_batches_than_the_length_says():
    seen = []
    with pytest.raises(ValueError, match=r"as its length says, 3, got 4 or more: mend the __len__"):
        seen.extend(
            y.item() for _, y in as_data(DataLoader(Items(9), batch_sampler=Says([i] for i in range(9)))).batches(1, 0)
        )
    with pytest.raises(ValueError, match=r"as its length says, 3, got only 2: mend the __len__"):
        seen.extend(y.item() for _, y in as_data(DataLoader(Items(9), batch_sampler=Says([[7], [8]]))).batches(1, 0))
    assert seen == [0, 1, 2, 7, 8]


def test_loader_inputs_of_every_kind():
    x = next(Loader(Items(3, lambda i: (torch.ones(2), float(i)))).ordered(2)).x
    assert isinstance(x, tuple)
    assert [part.shape for part in x] == [(2, 2), (2,)]
    assert next(Loader(Items(3, lambda i: {"a": torch.ones(2)})).ordered(2)).x["a"].shape == (2, 2)
    assert Loader(Items(3, lambda i: {"a": torch.ones(2)})).all().x["a"].shape == (3, 2)


class Stream(IterableDataset):
    def __iter__(self):
        return ((torch.ones(1), i) for i in range(5))


class SizedStream(Stream):
    def __len__(self):
        return 5


def test_streams_need_a_length():
    with pytest.raises(TypeError, match="Stream has no length: give it a __len__ that returns N"):
        as_data(DataLoader(Stream(), batch_size=2))
    for data in (as_data(SizedStream()), as_data(DataLoader(SizedStream(), batch_size=2))):
        assert (data.n, data.steps(2)) == (5, 3)
        assert labels(data.batches(2, seed=0)) == labels(data.ordered(2)) == [[0, 1], [2, 3], [4]]


class Rows(Dataset):
    """Rows of arrays, perhaps augmented; it counts how often each is read."""

    def __init__(self, n=100, changed=None, label=None, augment=None, many=False):
        self.x, self.y = torch.arange(2.0 * n).reshape(n, 2), torch.arange(n) % 3
        if changed is not None:
            self.x[changed] += 1
        if label is not None:
            self.y[label] += 1
        self.augment, self.many, self.reads = augment, many, torch.zeros(n)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        self.reads[index] += 1
        x = self.x[index]
        if self.augment is not None:
            x = x + self.augment()
        return {"a": x, "b": self.x[index]} if self.many else x, self.y[index]


NOISE = {
    "none": None,
    "torch": lambda: torch.rand(()),
    "random": lambda: random.random(),
    "numpy": lambda: np.random.default_rng().random(),
}


@pytest.mark.parametrize("noise", ["none", "torch"])
@pytest.mark.parametrize("wrap", [Loader, lambda rows: Loader(DataLoader(rows, 7, shuffle=True))])
@pytest.mark.parametrize("many", [False, True])
def test_a_fingerprint_is_of_every_row(noise, wrap, many):
    first = Rows(augment=NOISE[noise], many=many)
    known = wrap(first).fingerprint()
    assert wrap(Rows(augment=NOISE[noise], many=many)).fingerprint() == known
    for row in (0, 40, 99):
        assert wrap(Rows(changed=row, augment=NOISE[noise], many=many)).fingerprint() != known
        assert wrap(Rows(label=row, augment=NOISE[noise], many=many)).fingerprint() != known
    assert wrap(Rows(101, augment=NOISE[noise], many=many)).fingerprint() != known
    assert first.reads.max() <= 3  # one pass, and two looks at a few
    assert first.reads.sum() <= 100 + 2 * 32


@pytest.mark.parametrize("noise", ["random", "numpy"])
def test_what_differs_each_time_it_is_read_is_said_and_the_rest_compared(noise):
    def known(**changes):
        with pytest.warns(UserWarning, match=r"^X(\['a'\])? of Rows differ each time they are read.*torch's generator"):
            return Loader(Rows(augment=NOISE[noise], **changes)).fingerprint()

    assert known() == known() == known(changed=40)
    assert known(label=99) != known()
    assert known(n=101) != known()
    assert known(many=True) == known(many=True)
    assert known(many=True, changed=99) != known(many=True)  # the part that is not augmented tells


def test_a_stream_that_goes_on_after_its_length_is_read_up_to_it():
    class Endless(IterableDataset):
        def __init__(self, start=0):
            self.start = start

        def __len__(self):
            return 70

        def __iter__(self):
            for index in itertools.count(self.start):
                assert index < 300
                yield torch.tensor([float(index)]), index % 2

    assert Loader(Endless()).fingerprint() == Loader(Endless()).fingerprint() != Loader(Endless(1)).fingerprint()


def test_fingerprints_tell_contents_apart():
    a = torch.arange(4.0)
    prints = [
        Arrays(x, y).fingerprint()
        for x, y in [(a, a), (a, -a), (-a, a), (a[:, None], a), ((a,), a), ({"a": a}, a), (a.double(), a)]
    ]
    assert len(set(prints)) == len(prints)
    assert Arrays(a.clone(), a).fingerprint() == prints[0]
    assert Arrays(a.bfloat16(), a).fingerprint() != prints[0]
    assert Loader(Items(4)).fingerprint() != Loader(Items(5)).fingerprint()


one = torch.ones(3, 1)
EMPTY = DataLoader(TensorDataset(one[:0], one[:0]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: arrays(3).steps(0), "batch_size must be at least 1, got 0"),
        (lambda: Arrays(one, torch.ones(2)), "same number of examples, got 3 in X and 2 in y"),
        (lambda: Arrays(one[:0], torch.ones(0)), "at least one example, got none"),
        (lambda: Arrays(one, torch.tensor(1)), "one target for each of the 3 examples, got the single number 1"),
        (lambda: Arrays((), one), "first dimension, got no tensors"),
        (lambda: Arrays({"a": torch.tensor(1.0)}, one), r"first dimension, got \{\"X\['a'\]\": None\}"),
        (lambda: Arrays((one, one[:2]), one), r"parts of X .* got \{'X\[0\]': 3, 'X\[1\]': 2\}"),
        (
            lambda: Arrays(torch.tensor([[1.0, float("nan")]]), torch.ones(1)),
            r"X .* 1 of 2 .*\(nan\) in row 0, column 1",
        ),
        (lambda: Arrays(one, torch.tensor([1, 2, float("inf")])), r"y must be finite: 1 of 3 .* \(inf\) in row 2\."),
        (lambda: Arrays((one, one[:, None] / 0), one), r"X\[1\] .* row 0, column \(0, 0\)"),
        (lambda: as_data(Items(0)), "at least one example, got an empty Items"),
        (lambda: as_data(EMPTY), "at least one example"),
        (lambda: as_data(DataLoader(Items(3), batch_size=None)), "batch_size=None: set its batch_size"),
        (lambda: as_data(DataLoader(Items(3), sampler=SubsetRandomSampler([0]))), "torch.utils.data.Subset"),
        (
            lambda: Loader(TensorDataset(one, one, one)).all(),
            r"got list\(Tensor, Tensor, Tensor\): .* \(\(x1, x2\), y\)",
        ),
        (lambda: as_data(TensorDataset(one, one, one)), "two tensors, x and y, got 3"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()


class Strange(Items):
    def __init__(self, item):
        super().__init__(2)
        self.item = item

    def __getitem__(self, i):
        return self.item


@pytest.mark.parametrize(
    ("item", "got"),
    [
        (one, r"Tensor\(\)"),
        ((one, "cat"), r"list\(Tensor, (tuple|list)\)"),
        (("cat", 1), r"list\((tuple|list), Tensor\)"),
        (({"a": "cat"}, 1), r"list\(dict, Tensor\)"),
    ],
)
def test_strange_items(item, got):
    with pytest.raises(ValueError, match=rf"pairs \(x, y\) of tensors, got {got}: put several inputs"):
        Loader(Strange(item)).all()
