"""A trained network as a Gaussian process: kernel, uncertainty, marginal likelihood, and relevance of examples.

After Khan, Immer, Abedi and Korzepa, *Approximate inference turns deep networks into Gaussian processes* (2019).
"""

from bayesrule.gp.influence import Influence, delete, generalisation, influence
from bayesrule.gp.iterates import iterate
from bayesrule.gp.network import NetworkGP, Outputs, from_network
from bayesrule.gp.pictures import plot_fit, plot_kernel
from bayesrule.gp.relevance import Relevance, relevance

__all__ = [
    "Influence",
    "NetworkGP",
    "Outputs",
    "Relevance",
    "delete",
    "from_network",
    "generalisation",
    "influence",
    "iterate",
    "plot_fit",
    "plot_kernel",
    "relevance",
]
