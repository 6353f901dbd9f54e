"""The architectures of the experiments, by name.

A *spec* is plain data, ``{"name": "mlp", "inputs": 64, "outputs": 10}``, so that a run can rebuild its network from
JSON. The networks are plain torch modules; every submodule with parameters has ``reset_parameters``.
"""

from bayesrule.models.architectures import (
    ACTIVATIONS,
    MODELS,
    Embedded,
    MeanFieldNet,
    Tabular,
    UNet,
    dropout_cnn,
    learnt_where,
    lenet5,
    mlp,
    resnet,
    tabular,
    unet,
)
from bayesrule.models.devices import choose_device
from bayesrule.models.heads import MultiHead
from bayesrule.models.specs import Spec, build, default_for

__all__ = [
    "ACTIVATIONS",
    "MODELS",
    "Embedded",
    "MeanFieldNet",
    "MultiHead",
    "Spec",
    "Tabular",
    "UNet",
    "build",
    "choose_device",
    "default_for",
    "dropout_cnn",
    "learnt_where",
    "lenet5",
    "mlp",
    "resnet",
    "tabular",
    "unet",
]
