"""Learning for life: one task after another, without forgetting, and whether the world has changed."""

from bayesrule.lifelong import benchmarks, memory, streams, tables
from bayesrule.lifelong.base import Past, Strategy
from bayesrule.lifelong.drift import DriftReport, Watch, load_watch, watch
from bayesrule.lifelong.generative import Generative
from bayesrule.lifelong.inducing import InducingPoints
from bayesrule.lifelong.memory import Memory
from bayesrule.lifelong.running import run
from bayesrule.lifelong.scores import Result
from bayesrule.lifelong.strategies import (
    AVAILABLE,
    Coreset,
    Finetune,
    Functions,
    Joint,
    MemoryOnly,
    Replay,
    Sequential,
    Weighted,
)
from bayesrule.lifelong.streams import Chapter, Stream
from bayesrule.lifelong.synaptic import SynapticIntelligence

__all__ = [
    "AVAILABLE",
    "Chapter",
    "Coreset",
    "DriftReport",
    "Finetune",
    "Functions",
    "Generative",
    "InducingPoints",
    "Joint",
    "Memory",
    "MemoryOnly",
    "Past",
    "Replay",
    "Result",
    "Sequential",
    "Strategy",
    "Stream",
    "SynapticIntelligence",
    "Watch",
    "Weighted",
    "benchmarks",
    "load_watch",
    "memory",
    "run",
    "streams",
    "tables",
    "watch",
]
