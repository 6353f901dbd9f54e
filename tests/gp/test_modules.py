"""Any module: the two ways agree, and with dense matrices of torch's own gradients."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import bayesrule as br


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.gru, self.head = nn.Embedding(7, 3), nn.GRU(3, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.gru(self.words(x))[0][:, -1])


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.head = nn.Linear(3, 3), nn.Linear(3, 3)
        self.head.weight = self.one.weight
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.head(torch.tanh(self.one(torch.tanh(self.one(x))) * self.scale))


def frozen():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 3))
    model[0].requires_grad_(False)
    return model


def pictures():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3))
    model(torch.randn(20, 1, 5, 5))  # running statistics
    return model


MODULES = {
    "recurrent": (Recurrent, lambda n: torch.randint(7, (n, 4))),
    "shared": (Shared, lambda n: torch.randn(n, 3)),
    "frozen": (frozen, lambda n: torch.randn(n, 3)),
    "pictures": (pictures, lambda n: torch.randn(n, 1, 5, 5)),
}


def by_hand(model, x, y, new):
    """Σ and the mean of the outputs by torch.autograd on a copy in eval mode."""
    weights = [p for p in model.parameters() if p.requires_grad]
    model.eval()

    def jacobian(x):
        rows = [torch.autograd.grad(f, weights, retain_graph=True, allow_unused=True) for f in model(x).flatten()]
        flat = [
            torch.cat([torch.zeros(0).double(), *(_full(g, w) for g, w in zip(row, weights, strict=True))])
            for row in rows
        ]
        return torch.stack(flat).reshape(len(x), 3, -1)

    j, p = jacobian(x), model(x).softmax(1).detach()
    hessian = p.diag_embed() - p[:, :, None] * p[:, None]
    covariance = torch.linalg.inv(torch.einsum("ncp,ncd,ndq->pq", j, hessian, j) + torch.eye(j.shape[2]).double())
    here = torch.cat([w.detach().flatten() for w in weights])
    centre = torch.cat([_centre(model, w) for w in weights])
    slope = nn.functional.one_hot(y, 3).double() - p
    step = covariance @ (torch.einsum("ncp,nc->p", j, slope) - (here - centre))
    k = jacobian(new)
    return model(new).detach() + k @ step, torch.einsum("ncp,pq,ndq->ncd", k, covariance, k)


def _full(gradient, weight):
    return torch.zeros_like(weight).flatten() if gradient is None else gradient.flatten()


def _centre(model, weight):
    """Weights of norms lie at one under the default prior mean."""
    norm = any(isinstance(m, nn.BatchNorm2d) and m.weight is weight for m in model.modules())
    return torch.full_like(weight.detach(), float(norm)).flatten()


@pytest.mark.parametrize("name", MODULES)
def test_any_module(name):
    torch.manual_seed(0)
    make, draw = MODULES[name]
    model, x, new = make().double(), draw(9), draw(4)
    x, new = (t.double() if t.is_floating_point() else t for t in (x, new))
    y = torch.randint(3, (9,))
    model.train()
    gps = [br.gp.from_network(model, (x, y), prior=br.priors.Gaussian(1.0), solve=s) for s in ("primal", "dual")]
    mean, covariance = by_hand(model, x, y, new)
    for gp in gps:
        found = gp.posterior(new)
        assert_close(found.mean, mean, rtol=1e-8, atol=1e-8)
        assert_close(found.covariance, covariance, rtol=1e-8, atol=1e-8)
    assert gps[0].log_marginal_likelihood() == pytest.approx(gps[1].log_marginal_likelihood(), rel=1e-10)
