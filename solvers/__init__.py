"""Sparse nonnegative CP decomposition: arrays in, factors out.

Every name is imported when it is first used: a process that needs `sparse_ncp.solvers.errors` alone loads no numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparse_ncp.solvers import metrics, studies, synthetic
    from sparse_ncp.solvers.bcd.loop import solve, sweeps
    from sparse_ncp.solvers.bcd.resamples import assess_stability
    from sparse_ncp.solvers.bcd.result import Result
    from sparse_ncp.solvers.bcd.state import Clock, History, State
    from sparse_ncp.solvers.diagnostics.diagnose import Diagnostics, diagnose
    from sparse_ncp.solvers.diagnostics.stability import Stability
    from sparse_ncp.solvers.errors import AdviceWarning, InvalidInput
    from sparse_ncp.solvers.memory import MemoryEstimate, estimate_memory
    from sparse_ncp.solvers.methods import METHODS, Method
    from sparse_ncp.solvers.settings import Settings, Stop
    from sparse_ncp.solvers.tensor.threads import available_cores
    from sparse_ncp.solvers.tensor.validation import clip
    from sparse_ncp.solvers.zeros import ZeroFibres, find_zero_fibres

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
    "Stability",
    "State",
    "Stop",
    "ZeroFibres",
    "assess_stability",
    "available_cores",
    "clip",
    "diagnose",
    "estimate_memory",
    "find_zero_fibres",
    "metrics",
    "solve",
    "studies",
    "sweeps",
    "synthetic",
]

_MODULES = {
    "bcd.loop": ("solve", "sweeps"),
    "bcd.resamples": ("assess_stability",),
    "bcd.result": ("Result",),
    "bcd.state": ("Clock", "History", "State"),
    "diagnostics.diagnose": ("Diagnostics", "diagnose"),
    "errors": ("AdviceWarning", "InvalidInput"),
    "memory": ("MemoryEstimate", "estimate_memory"),
    "methods": ("METHODS", "Method"),
    "settings": ("Settings", "Stop"),
    "diagnostics.stability": ("Stability",),
    "tensor.threads": ("available_cores",),
    "tensor.validation": ("clip",),
    "zeros": ("ZeroFibres", "find_zero_fibres"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


if not TYPE_CHECKING:  # a type checker would take any name for known otherwise

    def __getattr__(name: str) -> object:
        if name in ("metrics", "studies", "synthetic"):
            return import_module(f"sparse_ncp.solvers.{name}")
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'sparse_ncp.solvers' has no attribute {name!r}")
        value = getattr(import_module(f"sparse_ncp.solvers.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
