"""Data: what users give, embedded sets, official file formats and tables; batches and scaling.

Importing this package needs torch and numpy only; pandas, scikit-learn and pyarrow are imported where they are used.
"""

from bayesrule.data import inputs
from bayesrule.data.batches import Arrays, Batch, Data, Loader
from bayesrule.data.catalog import Entry, load, names
from bayesrule.data.embedded import and_gate, digits, gap, moons, sine
from bayesrule.data.inputs import Inputs
from bayesrule.data.intake import as_data, as_inputs, standardize
from bayesrule.data.scaling import Affine, Scaling
from bayesrule.data.splits import Kind, Pair, Split
from bayesrule.data.tables import Schema, load_table, read_table

__all__ = [
    "Affine",
    "Arrays",
    "Batch",
    "Data",
    "Entry",
    "Inputs",
    "Kind",
    "Loader",
    "Pair",
    "Scaling",
    "Schema",
    "Split",
    "and_gate",
    "as_data",
    "as_inputs",
    "digits",
    "gap",
    "inputs",
    "load",
    "load_table",
    "moons",
    "names",
    "read_table",
    "sine",
    "standardize",
]
