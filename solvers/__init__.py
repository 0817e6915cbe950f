"""Sparse nonnegative CP decomposition: arrays in, factors out.

Every name is imported when it is first used: a process that asks only for `solvers.errors` or its cores loads no numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from solvers import metrics, studies, synthetic
    from solvers.bcd.loop import solve, sweeps
    from solvers.bcd.result import Result
    from solvers.bcd.state import Clock, History, State
    from solvers.diagnostics import Diagnostics, diagnose
    from solvers.errors import AdviceWarning, InvalidInput
    from solvers.memory import MemoryEstimate, estimate_memory
    from solvers.methods import METHODS, Method
    from solvers.settings import Settings, Stop
    from solvers.tensor.threads import available_cores
    from solvers.tensor.validation import clip

__all__ = [
    "METHODS",
    "AdviceWarning",
    "Clock",
    "Diagnostics",
    "History",
    "InvalidInput",
    "MemoryEstimate",
    "Method",
    "Result",
    "Settings",
    "State",
    "Stop",
    "available_cores",
    "clip",
    "diagnose",
    "estimate_memory",
    "metrics",
    "solve",
    "studies",
    "sweeps",
    "synthetic",
]

_MODULES = {
    "bcd.loop": ("solve", "sweeps"),
    "bcd.result": ("Result",),
    "bcd.state": ("Clock", "History", "State"),
    "diagnostics": ("Diagnostics", "diagnose"),
    "errors": ("AdviceWarning", "InvalidInput"),
    "memory": ("MemoryEstimate", "estimate_memory"),
    "methods": ("METHODS", "Method"),
    "settings": ("Settings", "Stop"),
    "tensor.threads": ("available_cores",),
    "tensor.validation": ("clip",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


if not TYPE_CHECKING:  # a type checker would take any name for known otherwise

    def __getattr__(name: str) -> object:
        if name in ("metrics", "studies", "synthetic"):
            return import_module(f"solvers.{name}")
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'solvers' has no attribute {name!r}")
        value = getattr(import_module(f"solvers.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
