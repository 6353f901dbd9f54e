"""Files that were edited and given a new checksum: refused, or as good as before."""

import copy
import json
import random
import re

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import nn

import bayesrule as br
from bayesrule import files
from bayesrule.files import FileError
from bayesrule.methods import BBB, IVON, MAP, SWAG, Ensemble, Laplace, MCDropout

METHODS = {
    "particles": MAP(),
    "dropout": MCDropout(),
    "mixture of particles": Ensemble(2),
    "mixture of gaussians": Ensemble(2, IVON()),
    "diagonal": BBB(),
    "low rank": SWAG(rank=2, snapshots=3),
    "kronecker": Laplace("all", "kronecker"),
    "dense": Laplace("all", "dense", tune="nothing", predictive="weights"),
    "low-rank tangent": Laplace("all", "lowrank", tune="nothing"),
    "subset": Laplace("3", "kronecker", tune="nothing"),
}


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4, affine=False), nn.Tanh(), nn.Linear(4, 1))


def table(n=40):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 2, generator=generator)
    return x, 3 + x[:, 0] + 0.1 * torch.randn(n, generator=generator)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A file of each kind."""
    folder = tmp_path_factory.mktemp("posteriors")
    for name, method in METHODS.items():
        model = network()
        if name == "low rank":  # swag with BatchNorm is a set of networks
            model = nn.Sequential(model[0], model[2], model[3])
        br.fit(model, br.data.standardize(table()), method, epochs=3).save(folder / name)
    return folder


def model_of(name, seed):
    whole = network(seed)
    return nn.Sequential(whole[0], whole[2], whole[3]) if name == "low rank" else whole


def spots(tree, path=()):
    """Every place in a tree, as (parent, key) from its root."""
    if isinstance(tree, dict):
        for key in tree:
            yield (*path, key)
            yield from spots(tree[key], (*path, key))
    elif isinstance(tree, list | tuple):
        for index, value in enumerate(tree):
            yield (*path, index)
            yield from spots(value, (*path, index))


def replaced(tree, path, edit):
    """A copy of the tree with the value at a path edited."""
    if not path:
        return edit(tree)
    key, *rest = path
    if isinstance(tree, dict):
        return {k: replaced(v, rest, edit) if k == key else v for k, v in tree.items()}
    return type(tree)(replaced(v, rest, edit) if i == key else v for i, v in enumerate(tree))


def edits_of(value):
    """What can be done to a value by whom does not know, or does."""
    common = [lambda v: None, lambda v: {}, lambda v: [v], lambda v: "text", lambda v: -1.0, lambda v: float("nan")]
    if isinstance(value, torch.Tensor):
        shapes = [lambda t: t[None], lambda t: t.flatten()[:-1], lambda t: t.reshape(-1), lambda t: t.mT.contiguous()]
        shapes = shapes if value.ndim >= 2 else [lambda t: t[None], lambda t: t.reshape(-1)[:-1]]
        dtypes = [torch.Tensor.double, torch.Tensor.half, torch.Tensor.long, torch.Tensor.bool, torch.Tensor.cfloat]
        values = [lambda t: t * float("nan"), lambda t: t * 0 - float("inf"), lambda t: -t, torch.zeros_like]
        return common + shapes + [lambda t, f=f: f(t) for f in dtypes] + values
    if isinstance(value, dict) and value:
        first = next(iter(value))
        return [
            *common,
            lambda d: {k: v for k, v in d.items() if k != first},
            lambda d: {f"{k}x" if k == first else k: v for k, v in d.items()},
            lambda d: dict(reversed(d.items())),
            lambda d: d | {"more": 1},
        ]
    if isinstance(value, list | tuple) and value:
        swap = tuple if isinstance(value, list) else list
        return [*common, lambda v: v[1:], lambda v: (*v, v[0]), lambda v: v[::-1], swap]
    if isinstance(value, str):
        names = ("gaussian", "linearised", "particles", "dropout", "mixture", "diagonal", "categorical", "bernoulli")
        return [*common, str.upper, *(lambda v, name=name: name for name in names)]
    if isinstance(value, bool):
        return [*common, lambda v: not v]
    return [*common, lambda v: -v - 1 if isinstance(v, int | float) else 0, lambda v: True]


def at(tree, path):
    for key in path:
        tree = tree[key]
    return tree


def same(one, other):
    """Whether two trees are the same, to the bit."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one.nan_to_num(), other.nan_to_num())
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and type(one) is type(other):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def mutated(tree, chooser):
    """One edit somewhere, half of the time where the posterior itself is; whether it is of numbers alone."""
    paths = list(spots(tree))
    if chooser.random() < 0.7:
        paths = [path for path in paths if path[0] != "info"]
    path = chooser.choice(paths)
    before = at(tree, path)
    while True:
        edit = chooser.choice(edits_of(before))
        try:
            after = edit(before)
        except (RuntimeError, TypeError):
            continue
        if same(after, before):
            continue
        return replaced(tree, path, lambda value, after=after: after), files.layout(before) == files.layout(after), path


@pytest.mark.filterwarnings("ignore:Casting complex")  # of what is refused right after
@pytest.mark.parametrize("resealed", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_edited_and_checksummed_again(written, tmp_path, name, resealed):
    """25 edits of each of ten files, of one place; then of that place and of what the file says of itself."""
    chooser = random.Random(f"{name} {resealed}")
    whole = files.load(written / name, "posterior")
    x, path = table(5)[0], tmp_path / "edited"
    wanted = br.load(written / name, model_of(name, 1)).predict(x)
    refused = 0
    for _ in range(25):
        tree, numbers, where = mutated(whole, chooser)
        if resealed and isinstance(tree, dict) and "layout" in tree:
            tree = files.sealed({key: value for key, value in tree.items() if key != "layout"})
        files.save(path, tree, "posterior")
        try:
            found = br.load(path, model_of(name, 1))
        except FileError:
            refused += 1
            continue
        if not resealed:
            assert numbers, where
        if not numbers and not resealed:
            assert torch.equal(found.predict(x).mean, wanted.mean), where
        # nothing comes from the module that the caller has
        again = br.load(path, model_of(name, 2))
        assert same(found.state(), again.state()), where
        try:
            first = found.predict(x)
        except (ValueError, RuntimeError):  # such as a scaling of inputs of another width
            continue
        assert torch.equal(first.mean, again.predict(x).mean), where
        assert first.std.isfinite().all(), where
    assert refused >= 10


@pytest.mark.parametrize("name", METHODS)
def test_edits_of_what_is_below_the_tree(written, tmp_path, name):
    """The names of tensors in the skeleton, its kinds of values, and the tensors themselves."""
    chooser = random.Random(name)
    with safe_open(written / name, framework="pt") as file:
        metadata, tensors = file.metadata(), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    x, path = table(5)[0], tmp_path / "edited"
    wanted = br.load(written / name, model_of(name, 1)).predict(x)
    words = list(re.finditer(r'"(tensor|dict|list|tuple)": ("\d+")?', metadata["tree"]))
    for _ in range(15):
        skeleton, own = metadata["tree"], dict(tensors)
        word = chooser.choice(words)
        if chooser.random() < 0.5:
            new = chooser.choice(['"tensor": "0"', '"dict": ', '"list": ', '"tuple": ', '"code": ', '"tensor": "x"'])
            skeleton = skeleton[: word.start()] + new + skeleton[word.end() :]
        else:
            key = chooser.choice(list(own))
            own[key] = chooser.choice([lambda t: t[None], lambda t: t.double().contiguous() + 0, lambda t: t[:0]])(
                own[key].reshape(-1) if not own[key].ndim else own[key]
            ).contiguous()
            if chooser.random() < 0.3:
                del own[key]
        digest = files._digest("posterior", skeleton, own)
        path.write_bytes(save(own, metadata | {"tree": skeleton, "sha256": digest}))
        try:
            found = br.load(path, model_of(name, 2))
        except FileError:
            continue
        assert torch.equal(found.predict(x).mean, wanted.mean)


@pytest.mark.parametrize("name", ["particles", "diagonal", "subset", "dropout", "mixture of particles"])
def test_what_is_missing_is_never_taken_from_the_callers_module(written, tmp_path, name):
    """Each tensor of the state in turn, with the file's own word of its layout made to fit."""
    tree = files.load(written / name, "posterior")
    del tree["layout"]
    for path in spots(tree["state"]):
        value = at(tree["state"], path)
        parent = at(tree["state"], path[:-1])
        if not isinstance(value, torch.Tensor) or not isinstance(parent, dict) or "beside" in path:
            continue
        without = {key: v for key, v in parent.items() if key != path[-1]}
        edited = tree | {"state": replaced(tree["state"], path[:-1], lambda d, new=without: new)}
        files.save(tmp_path / "edited", files.sealed(edited), "posterior")
        with pytest.raises(FileError):
            br.load(tmp_path / "edited", model_of(name, 1))


@pytest.mark.parametrize(
    ("name", "path", "edit", "says"),
    [
        ("diagonal", ("state", "precision", "fields", "values"), torch.neg, "not positive|negative"),
        ("diagonal", ("state", "precision", "fields", "values"), lambda v: v * float("nan"), "NaN"),
        ("diagonal", ("state", "mean"), lambda d: dict(reversed(d.items())), "model's order"),
        ("dense", ("state", "precision", "fields", "matrix"), torch.neg, "not positive|negative"),
        ("particles", ("state", "states"), lambda v: [], "at least one network"),
        ("particles", ("likelihood", "fields", "noise"), torch.neg, "noise must be positive"),
        ("particles", ("scaling", "targets", "scale"), torch.neg, "scale finite and positive"),
        ("particles", ("scaling",), lambda v: {"inputs": v["inputs"]}, "how inputs and targets were scaled"),
        ("dropout", ("state", "rate"), lambda v: 1.5, "between 0 and 1"),
        ("mixture of particles", ("state", "components"), lambda v: [], "at least one component"),
        ("low-rank tangent", ("kind",), lambda v: "gaussian", "is not one of kind 'gaussian'"),
        ("kronecker", ("state", "precision"), lambda v: v | {"name": "unheard"}, "unknown structure"),
    ],
)
def test_each_absurdity_is_named(written, tmp_path, name, path, edit, says):
    tree = files.load(written / name, "posterior")
    del tree["layout"]
    files.save(tmp_path / "edited", files.sealed(replaced(tree, path, edit)), "posterior")
    with pytest.raises(FileError, match=says):
        br.load(tmp_path / "edited", model_of(name, 1))


def test_a_checkpoint_that_was_edited(tmp_path):
    """The same for a run that is to be resumed."""

    class Cut(Exception):
        pass

    def cut(progress):
        if progress.step == 5:
            raise Cut

    data = br.data.standardize(table())
    with pytest.raises(Cut):
        br.fit(network(), data, IVON(), epochs=3, callbacks=[cut], out=br.training.Folder(tmp_path, interval=0))
    path = tmp_path / "checkpoint.safetensors"
    whole, chooser = files.load(path, "checkpoint"), random.Random(0)
    for _ in range(40):
        tree, numbers, where = mutated(copy.copy(whole), chooser)
        files.save(path, tree, "checkpoint")
        if numbers:
            continue
        with pytest.raises(FileError):
            br.resume(tmp_path, network(), data)
        assert json.dumps(where)
