"""Families of one shape that is moved and stretched: β_{μ,ν}(x) = β((x − μ)/ν)/ν.

| family | shape β | entropy at ν = 1 |
| --- | --- | --- |
| `Gaussian` | N(0, 1) | ½ log 2πe |
| `Laplace` | ½ exp(−abs x) | 1 + log 2 |
| `Uniform` | ½ on [−1, 1] | log 2 |
| `Logistic` | 1/(4 cosh²(x/2)) | 2 |
| `Student` | Student's t with ``df`` degrees of freedom | by digamma |
| `PointMass` | all at 0, no ν | 0 by convention |
| `Density`, `Characteristic`, `Samples` | your own | by quadrature |

``scale`` is ν: a number where it is
fixed; a pair (low, high) where it is trained, or a tuple of more values; a statement about all ν is checked on these.
"""

from __future__ import annotations

from bayesrule.penalties.translations.base import Translation
from bayesrule.penalties.translations.named import Gaussian, Laplace, Logistic, PointMass, Student, Uniform
from bayesrule.penalties.translations.own import Characteristic, Density, Samples

AVAILABLE: dict[str, type[Translation]] = {
    kind.__name__.lower(): kind for kind in (Gaussian, Laplace, Uniform, Logistic, Student)
} | {"point-mass": PointMass}

__all__ = [
    "AVAILABLE",
    "Characteristic",
    "Density",
    "Gaussian",
    "Laplace",
    "Logistic",
    "PointMass",
    "Samples",
    "Student",
    "Translation",
    "Uniform",
]
