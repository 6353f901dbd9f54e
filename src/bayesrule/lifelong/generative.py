"""Classes as Gaussians in the features of a network: Bayes' rule in closed form, class by class."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from bayesrule import modules
from bayesrule.data import Inputs, inputs
from bayesrule.lifelong.base import Past, Strategy, divided
from bayesrule.lifelong.fits import Fits, network_of
from bayesrule.lifelong.streams import Chapter, Heads
from bayesrule.methods import MAP
from bayesrule.modules import outputs_of
from bayesrule.posteriors import Context, Particles, Posterior
from bayesrule.priors import Gaussian

MEAN_WORTH = 0.1  # κ₀: how many examples the prior of a class's mean is worth
LEAST_SPREAD = 1e-6  # of features that are all constant
COLDEST, HOTTEST = 1.0, 1e4  # between which the temperature is looked for
HALVINGS = 40


class ClassGaussians(nn.Module):
    """log p(φ(x), c | D) / T for each class c: outputs of which a softmax is p(c | x, D).

    φ(x) is what the linear layer number ``depth`` (from 0) of a network is given. A class is Gaussian in it,
    φ | c ~ N(μ_c, Σ_c), with a normal–inverse-Wishart prior, Σ_c ~ IW(D + 1 + w, w s² I), μ_c | Σ_c ~ N(m₀, Σ_c/κ₀),
    which is worth w examples (``worth``) of the variance s². Means and covariances are integrated out: p(φ | c, D) is a
    Student t, p(c | D) = (n_c + 1)/(n + C). All that is kept of the data is n_c, mean and scatter matrix of each class.

    >>> model = ClassGaussians(nn.Sequential(nn.Linear(2, 3)), depth=0, features=2, classes=3)
    >>> model.observe(torch.tensor([[0.0, 1.0], [1.0, 0.0], [5.0, 5.0]]), torch.tensor([0, 0, 2]))
    >>> model.count, model.mean[0]
    (tensor([2., 0., 1.]), tensor([0.5000, 0.5000]))
    """

    def __init__(self, network: nn.Module, depth: int, features: int, classes: int, worth: float = 100.0) -> None:
        super().__init__()
        self.network, self.depth, self.worth = network, depth, worth
        like = modules.dtype_of(network)
        self.count: Tensor
        self.mean: Tensor
        self.scatter: Tensor
        self.centre: Tensor
        self.spread: Tensor
        self.temperature: Tensor
        self.register_buffer("count", torch.zeros(classes, dtype=like))
        self.register_buffer("mean", torch.zeros(classes, features, dtype=like))
        self.register_buffer("scatter", torch.zeros(classes, features, features, dtype=like))
        self.register_buffer("centre", torch.zeros(features, dtype=like))
        self.register_buffer("spread", torch.ones((), dtype=like))
        self.register_buffer("temperature", torch.ones((), dtype=like))

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        """[B, C]."""
        return self.log_joint(self.features(*args, **kwargs)) / self.temperature

    def features(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        """φ(x), [B, D]."""
        found: list[Tensor] = []
        handle = layer_at(self.network, self.depth).register_forward_pre_hook(lambda _, given: found.append(given[0]))
        try:
            self.network(*args, **kwargs)
        finally:
            handle.remove()
        return found[0].flatten(1)

    def begin(self, features: Tensor, y: Tensor) -> None:
        """Set the prior's centre and variance by the first examples: their mean, and the mean variance in a class."""
        within = [features[y == label].var(0, correction=0) for label in sorted(set(y.tolist()))]
        self.centre.copy_(features.mean(0))
        self.spread.copy_(torch.stack(within).mean().clamp(min=LEAST_SPREAD))

    def observe(self, features: Tensor, y: Tensor) -> None:
        """Add examples: counts, means and scatter matrices of all examples so far, whatever their order."""
        for label in sorted(set(y.tolist())):
            own = features[y == label].double()
            before, added = float(self.count[label]), len(own)
            centre = own.mean(0)
            away = centre - self.mean[label].double()
            total = before + added
            scatter = (own - centre).T @ (own - centre) + before * added / total * torch.outer(away, away)
            self.scatter[label] += scatter.to(self.scatter)
            self.mean[label] += (away * added / total).to(self.mean)
            self.count[label] = total

    def log_joint(self, features: Tensor) -> Tensor:
        """log p(φ, c | D), [B, C], before it is tempered."""
        width = features.shape[1]
        count, mean, centre = self.count.double(), self.mean.double(), self.centre.double()
        worth = MEAN_WORTH + count
        location = (MEAN_WORTH * centre + count[:, None] * mean) / worth[:, None]
        away = mean - centre
        shape = self.scatter.double() + self.worth * self.spread.double() * torch.eye(width).to(count)
        shape = shape + (MEAN_WORTH * count / worth)[:, None, None] * away[:, :, None] * away[:, None, :]
        degrees = self.worth + 2 + count
        scale = shape * ((worth + 1) / (worth * degrees))[:, None, None]
        found = log_student(features, location.to(features), torch.linalg.cholesky(scale), degrees)
        return found + ((count + 1).log() - (count.sum() + len(count)).log()).to(found)

    def settle(self, x: Inputs, y: Tensor) -> None:
        """The temperature at which examples that were not observed are most probable, at least 1.

        Features are no Gaussians, and densities of many of them are far too sure. As log p is convex in 1/T, its
        derivative Σ_i (f_i(y_i) − Σ_c p_c f_i(c)) is halved to zero.
        """
        self.temperature.fill_(1.0)
        f = outputs_of(self, x).double()
        own = f.gather(1, y[:, None]).sum()
        low, high = math.log(COLDEST), math.log(HOTTEST)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            expected = ((f / math.exp(middle)).softmax(1) * f).sum()
            low, high = (low, middle) if own > expected else (middle, high)
        self.temperature.fill_(math.exp((low + high) / 2))


def log_student(x: Tensor, location: Tensor, root: Tensor, degrees: Tensor) -> Tensor:
    """log t_v(x; m, S), [B, C], of C Student distributions in D dimensions; ``root``: Cholesky factors of S, [C, D, D].

    >>> one = torch.ones(1, dtype=torch.float64)
    >>> log_student(torch.zeros(1, 1).double(), torch.zeros(1, 1).double(), torch.ones(1, 1, 1).double(), one).exp()
    tensor([[0.3183]], dtype=torch.float64)
    """
    width = x.shape[1]
    away = (x - location[:, None]).mT  # [C, D, B]
    square = torch.linalg.solve_triangular(root.to(x), away, upper=False).square().sum(1)  # [C, B]
    volume = root.diagonal(dim1=1, dim2=2).log().sum(1)
    constant = torch.lgamma((degrees + width) / 2) - torch.lgamma(degrees / 2)
    constant = constant - 0.5 * width * (math.pi * degrees).log() - volume
    tail = 0.5 * (degrees + width)[:, None].to(x) * torch.log1p(square / degrees[:, None].to(x))
    return (constant[:, None].to(x) - tail).T


def layer_at(network: nn.Module, depth: int) -> nn.Linear:
    """The linear layer of that number, in the order of the network's modules."""
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    if not 0 <= depth < len(layers):
        raise ValueError(f"depth must be from 0 to {len(layers) - 1}, the network's linear layers, not {depth}")
    return layers[depth]


@dataclass(frozen=True)
class Generative(Strategy):
    """Bayes' rule in closed form, class by class, in features that were learnt on the first task: see `ClassGaussians`.

    The network is trained on the first task and then stays. A class is told from others that it was never seen beside
    by its own density, so nothing is forgotten, and tasks in any order give one posterior. Examples that are kept are
    left out of it, and settle the temperature.

    ``points``: kept of a task. ``depth``: features are what this linear layer is given, 1 the one after the first
    hidden layer. ``worth``: how many examples the prior of a class's covariance is worth. ``lr``, ``scale``: of the
    network's training, as of `Finetune`.
    """

    name: ClassVar[str] = "generative"
    summary: ClassVar[str] = "classes as Gaussians in features of the first task"
    heads: ClassVar[Heads | None] = "one"
    points: int = 200
    rule: str = "random"
    depth: int = 1
    worth: float = 100.0
    lr: float = 1e-3
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not self.worth > 0:
            raise ValueError(f"worth must be positive, not {self.worth}")
        if self.depth < 0:
            raise ValueError(f"depth must be at least 0, not {self.depth}")

    def learn(self, past: Past, chapter: Chapter, fits: Fits) -> Past:
        """One fit for the first task; then sums over the examples."""
        if chapter.train[1].is_floating_point():
            raise ValueError(f"generative is for classes, but {chapter.name!r} has numbers for targets: take 'replay'")
        model = self._first(chapter, fits) if past.posterior is None else self._known(past.posterior)
        part, (x, y) = divided(self.rule, self.points, model.network, chapter, fits)
        features = _features(model, x)
        if past.posterior is None:
            model.begin(features, y)
        model.observe(features, y)
        kept = past.memory.with_part(part)
        model.settle(*kept.together())
        return Past(Particles.of([model], Context(model, fits.likelihood)), memory=kept)

    def _first(self, chapter: Chapter, fits: Fits) -> ClassGaussians:
        """The network after the first task, with no class observed yet."""
        network = network_of(fits(fits.fresh, chapter.train, MAP(self.lr), Gaussian(self.scale)), fits)
        classes = len(outputs_of(network, inputs.take(chapter.train[0], torch.arange(1)))[0])
        width = layer_at(network, self.depth).in_features
        return ClassGaussians(network, self.depth, width, classes, self.worth)

    def _known(self, posterior: Posterior) -> ClassGaussians:
        model = modules.twin(posterior.context.model)
        assert isinstance(model, ClassGaussians)
        return model


class _Features(nn.Module):
    """The features as a module of their own, to go through examples block by block."""

    def __init__(self, model: ClassGaussians) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        """[B, D]."""
        return self.model.features(*args, **kwargs)


def _features(model: ClassGaussians, x: Inputs) -> Tensor:
    return outputs_of(_Features(model), x)
