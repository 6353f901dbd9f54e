"""Programs say what `predict` says, for any number of examples, of every kind of posterior."""

import json
import sys

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule import likelihoods, modules
from bayesrule.data import Affine, Scaling
from bayesrule.posteriors import Context, DistanceAware, Dropout, Gaussian, Linearised, Mixture, Particles
from bayesrule.posteriors.marginals import iterated_root, root
from bayesrule.structures import Blocks, Dense, Diagonal, Kronecker, LowRank

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2 + 30
INPUTS = Affine(torch.full((4,), 30.0), torch.full((4,), 2.0))
FAR = Affine(torch.tensor([1000.0]), torch.tensor([5.0]))
NEAR = dict(rtol=1e-5, atol=1e-5)


def net(outputs):
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, outputs))


def context(module, likelihood, targets=None):
    return Context(module, likelihood, Scaling(INPUTS, targets))


def particles(count, outputs, likelihood, targets=None):
    return Particles.of([net(outputs) for _ in range(count)], context(net(outputs), likelihood, targets))


def kronecker():
    parts = []
    for rows, columns in ((6, 5), (3, 7)):
        a, b = torch.randn(20, columns), torch.randn(20, rows)
        parts.append(Kronecker.of(b.T @ b / 20 + torch.eye(rows), a.T @ a + torch.eye(columns), True))
    return Blocks(parts)


def diagonal(size=51):
    return Diagonal(torch.full((size,), 20.0))


def gaussian(precision, kind=Gaussian, likelihood=None, module=None, targets=None, **more):
    module = module or net(3)
    mean = {name: w.detach() for name, w in modules.parameters(module).items()}
    size = sum(w.numel() for w in mean.values())
    precision = precision or diagonal(size)
    return kind(mean, precision, {}, context(module, likelihood or likelihoods.Categorical(), targets), **more)


def dropout():
    module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 3))
    return Dropout(modules.snapshot(module), 0.1, context(module, likelihoods.Categorical()))


def distant(posterior):
    return DistanceAware.around(posterior, (X - 3, torch.zeros(60, dtype=torch.long)))


def convolution():
    return nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(2, 3))


def known(**about):
    return {name: torch.tensor(value) for name, value in about.items()}


classes, noise = likelihoods.Categorical(), known(noise=[0.3])
bent = likelihoods.Categorical(isotonic=torch.tensor([1.0, 2.0, 1.0, 1.0, 0.5], dtype=torch.float64))
scaled = likelihoods.Categorical(vector=torch.tensor([[1.0, 2.0, 0.5], [0.0, 1.0, 0.0]], dtype=torch.float64))
logs = likelihoods.LogNormal(**noise, **known(loc=[1.0], scale=[0.5]))
QUICK = {
    "particles": lambda: particles(3, 3, classes),
    "linearised, kronecker": lambda: gaussian(kronecker(), Linearised, likelihoods.Gaussian(**known(noise=[0.3] * 3))),
}
KINDS = QUICK | {
    "one network": lambda: particles(1, 3, classes),
    "yes or no": lambda: particles(3, 1, likelihoods.Bernoulli()),
    "classes, a scale of each": lambda: particles(3, 3, scaled),
    "classes, isotonic": lambda: particles(3, 3, bent),
    "reals far from zero": lambda: particles(3, 1, likelihoods.Gaussian(**noise), FAR),
    "heteroscedastic": lambda: particles(3, 2, likelihoods.Heteroscedastic(), FAR),
    "log-normal": lambda: particles(3, 1, logs),
    "student": lambda: particles(3, 1, likelihoods.Student(**noise, **known(freedom=[4.0])), FAR),
    "poisson": lambda: particles(3, 1, likelihoods.Poisson()),
    "negative binomial": lambda: particles(3, 1, likelihoods.NegativeBinomial(**known(dispersion=[0.3]))),
    "gaussian": lambda: gaussian(LowRank(torch.full((51,), 20.0), torch.randn(51, 2))),
    "linearised classes": lambda: gaussian(kronecker(), Linearised),
    "linearised, dense": lambda: gaussian(Dense(torch.eye(51) * 20 + 1), Linearised),
    "linearised, low rank": lambda: gaussian(LowRank(torch.full((51,), 20.0), torch.randn(51, 2)), Linearised),
    "linearised, convolution": lambda: gaussian(None, Linearised, module=convolution()),
    "linearised, yes or no": lambda: gaussian(None, Linearised, likelihoods.Bernoulli(), net(1)),
    "linearised, heteroscedastic": lambda: gaussian(None, Linearised, likelihoods.Heteroscedastic(), net(2), FAR),
    "linearised, probit": lambda: gaussian(diagonal(), Linearised, link="probit"),
    "linearised, bridge": lambda: gaussian(diagonal(), Linearised, link="bridge"),
    "dropout": dropout,
    "mixture": lambda: Mixture([gaussian(diagonal()), particles(2, 3, classes)], context(net(3), classes)),
    "mixture of linearised": lambda: Mixture(
        [gaussian(diagonal(), Linearised), gaussian(diagonal(), Linearised)], context(net(3), classes)
    ),
    "distance-aware": lambda: distant(gaussian(diagonal())),
    "distance-aware, linearised": lambda: distant(gaussian(diagonal(), Linearised)),
}
SEARCHED = ("student", "poisson", "negative binomial")
EACH = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in KINDS]


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def made(name):
    level = None if name in SEARCHED else 0.8
    return KINDS[name](), level


def wanted(posterior, rows, level):
    return posterior.predict(X[:rows], samples=4, seed=3).summary(level)


@pytest.mark.parametrize("name", EACH)
def test_a_program_says_what_predict_says(name, tmp_path):
    posterior, level = made(name)
    before = wanted(posterior, 5, level)
    posterior.export(tmp_path / "p.pt2", samples=4, seed=3, level=level)
    run = torch.export.load(tmp_path / "p.pt2").module()
    for rows in (1, 5, 60):
        torch.testing.assert_close(run(X[:rows]), wanted(posterior, rows, level), **NEAR)
    torch.testing.assert_close(wanted(posterior, 5, level), before, rtol=0, atol=0)  # a trace leaves nothing behind


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in KINDS if name != "particles"])
def test_so_does_onnx(name, tmp_path):
    check_onnx(name, tmp_path)


def test_so_does_onnx_of_particles(tmp_path):
    check_onnx("particles", tmp_path)


def check_onnx(name, folder):
    pytest.importorskip("onnxscript", reason="needs bayesrule[onnx]")
    runtime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    posterior, level = made(name)
    posterior.export(folder / "p.onnx", samples=4, seed=3, level=level, about={"columns": ["a"]})
    session = runtime.InferenceSession(folder / "p.onnx")
    for rows in (1, 5, 60):
        found = session.run(None, {"x": X[:rows].numpy()})
        by_name = {o.name: torch.from_numpy(v) for o, v in zip(session.get_outputs(), found, strict=True)}
        torch.testing.assert_close(by_name, wanted(posterior, rows, level), **NEAR)
    told = json.loads(session.get_modelmeta().custom_metadata_map["bayesrule"])
    assert told["posterior"] == posterior.kind
    assert told["outputs"] == list(by_name)
    assert told["columns"] == ["a"]


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 3)

    def forward(self, left, right):
        return self.layer(left) + right.mean(1, keepdim=True)


def test_inputs_of_several_tensors_and_what_stands_beside_the_program(tmp_path):
    posterior = Particles.of([Two(), Two()], Context(Two(), classes))
    x = {"left": torch.randn(7, 2), "right": torch.randn(7, 5)}
    posterior.export(tmp_path / "p.pt2", example=x)
    told = {"bayesrule.json": ""}
    program = torch.export.load(tmp_path / "p.pt2", extra_files=told)
    torch.testing.assert_close(program.module()(*x.values()), posterior.predict(x).summary(), **NEAR)
    assert json.loads(told["bayesrule.json"])["inputs"] == {
        "left": {"shape": ["batch", 2], "dtype": "float32"},
        "right": {"shape": ["batch", 5], "dtype": "float32"},
    }


class Choosing(nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else -super().forward(x)


class Drawing(nn.Linear):
    def forward(self, x):
        return super().forward(x + torch.randn_like(x))


class Counting(nn.Linear):
    def forward(self, x):
        return super().forward(x.reshape(len(x), -1))


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv1d(1, 2, 3)

    def forward(self, x):
        return self.layer(x[:, None]).mean(2)


@pytest.mark.parametrize(
    ("module", "error"),
    [
        (Choosing, "particles posterior of Choosing cannot become a program.*must not choose by the values"),
        (Counting, r"the number of examples becomes fixed. If the module's forward takes len\(x\), write x.shape\[0\]"),
        (Drawing, "particles posterior of Drawing cannot become a program"),
    ],
)
def test_what_cannot_be_exported_says_why(module, error, tmp_path):
    posterior = Particles.of([module(4, 3)], Context(module(4, 3), classes))
    with pytest.raises(ValueError, match=error):
        posterior.export(tmp_path / "p.pt2")
    assert not list(tmp_path.iterdir())


def test_a_linearised_posterior_of_many_outputs_cannot_be_exported(tmp_path):
    """Its factor of 65 outputs and more is taken example by example, of which a program cannot count them."""
    wide = gaussian(diagonal(65 * 5), Linearised, module=nn.Linear(4, 65))
    assert wide.predict(X[:2]).probs.shape == (2, 65)
    with pytest.raises(ValueError, match="a linearised posterior must give an example at most 64 outputs"):
        wide.export(tmp_path / "p.pt2")
    assert not list(tmp_path.iterdir())
    gaussian(diagonal(65 * 5), module=nn.Linear(4, 65)).export(tmp_path / "p.pt2")  # with drawn weights it can


@pytest.mark.slow
def test_auto_on_a_table_can_be_exported(tmp_path):
    """Candidates of several forms are one kind of posterior: networks with their weights."""
    train = br.data.standardize((X, X[:, 0] + 0.1 * torch.randn(len(X))))
    method = br.methods.Auto(scales=(1.2,), columns=(), lassos=(0.1,), folds=2, whole=1, networks=4)
    posterior = br.fit(br.models.tabular(4, 1, hidden=(4,)), train, method, epochs=2)
    posterior.export(tmp_path / "p.pt2", samples=4, seed=3, level=0.8)
    found = torch.export.load(tmp_path / "p.pt2").module()(X[:7])
    torch.testing.assert_close(found, wanted(posterior, 7, 0.8), **NEAR)


def test_what_is_asked_wrongly(tmp_path, monkeypatch):
    posterior = particles(2, 3, classes)
    with pytest.raises(ValueError, match=r"path must end in .pt2 \(torch.export\) or .onnx, got .*p.onx"):
        posterior.export(tmp_path / "p.onx")
    with pytest.raises(ValueError, match="samples must be at least 1, not 0"):
        posterior.export(tmp_path / "p.pt2", samples=0)
    with pytest.raises(ValueError, match="level must be None for Counts"):
        particles(2, 1, likelihoods.Poisson()).export(tmp_path / "p.pt2")
    with pytest.raises(ValueError, match="example must be given"):
        Particles.of([Deep()], Context(Deep(), classes)).export(tmp_path / "p.pt2")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r"pip install 'bayesrule\[onnx\]'"):
        posterior.export(tmp_path / "p.onnx")


def test_a_root_by_products_is_the_root():
    a = torch.randn(20, 5, 5, dtype=torch.float64)
    whole, singular = a @ a.mT, a[:, :, :2] @ a[:, :, :2].mT
    for covariance in (whole, singular, 1e-12 * whole, torch.zeros_like(whole)):
        found = iterated_root(covariance)
        torch.testing.assert_close(found, root(covariance), rtol=1e-5, atol=1e-6 * float(covariance.abs().max()) ** 0.5)
