"""Sparse nonnegative CP decomposition: arrays in, factors out."""

from solvers import metrics, synthetic
from solvers.door import clip
from solvers.errors import AdviceWarning, InvalidInput
from solvers.frame import solve, sweeps
from solvers.memory import MemoryEstimate, estimate_memory
from solvers.methods import METHODS, Method
from solvers.result import Result
from solvers.settings import Settings, Stop
from solvers.state import Earlier, History, State

__all__ = [
    "METHODS",
    "AdviceWarning",
    "Earlier",
    "History",
    "InvalidInput",
    "MemoryEstimate",
    "Method",
    "Result",
    "Settings",
    "State",
    "Stop",
    "clip",
    "estimate_memory",
    "metrics",
    "solve",
    "sweeps",
    "synthetic",
]
