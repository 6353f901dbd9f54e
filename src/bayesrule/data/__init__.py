"""Data: what users give, embedded sets, official file formats and tables; batches and scaling.

Importing this package needs torch and numpy only; pandas, scikit-learn and pyarrow are imported where they are used.
"""

from bayesrule.data import augmentations, inputs, shifts
from bayesrule.data.batches import Arrays, Batch, Data
from bayesrule.data.catalog import NAMES, TABLES, CatalogEntry, load_set, names
from bayesrule.data.columns import AnswerColumn, CategoryColumn, Column, DateColumn
from bayesrule.data.embedded import and_gate, digits, gap, moons, sine
from bayesrule.data.inputs import Inputs
from bayesrule.data.intake import as_data, as_inputs, standardize
from bayesrule.data.loaders import Loader
from bayesrule.data.outsiders import without_class, without_range
from bayesrule.data.reading import fingerprint, read_table
from bayesrule.data.scaling import Affine, Scaling
from bayesrule.data.splits import Kind, Pair, Split, cut, hold_out, spare
from bayesrule.data.tables import Schema, load_table

__all__ = [
    "NAMES",
    "TABLES",
    "Affine",
    "AnswerColumn",
    "Arrays",
    "Batch",
    "CatalogEntry",
    "CategoryColumn",
    "Column",
    "Data",
    "DateColumn",
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
    "augmentations",
    "cut",
    "digits",
    "fingerprint",
    "gap",
    "hold_out",
    "inputs",
    "load_set",
    "load_table",
    "moons",
    "names",
    "read_table",
    "shifts",
    "sine",
    "spare",
    "standardize",
    "without_class",
    "without_range",
]
