"""Names that a server needs besides the public ones of `sparse_ncp.solvers`.

`sparse_ncp.worker` and `sparse_ncp.app` import from here and from `sparse_ncp.solvers`, never from the modules below,
so that those can change without the server. Every name is imported when it is first used.

Arrays and types
    `Array`, `Float64`, `Booleans`: arrays of floating-point numbers, of doubles, and of truth values.
    `MethodName`, `Missing`, `Mode`, `Negative`, `Number`, `NotNegative`, `Positive`, `Resamples`, `Seconds`, `Share`,
    `Whole`, `Exclude`, `Zeros`: field types of requests.
Preparing a run
    `RECOMMENDED`, `move_defaults`: the recommended settings, and how a request takes them over.
    `check_fixed`, `check_mask`, `check_norm`, `check_stability`, `given_weights`, `per_mode`, `rank_advice`: the checks
    that a run makes at its start.
    `mask_of_readings`: the mask without zeros that look missing; `without_zero_fibres` is for zeros that were found.
    `Exclusion`: the indices that settings leave out; `check_mode` checks the mode of the samples. `describe_indices`,
    `exclude_with`: name indices in messages, and as text that can be pasted into settings.
    `MIN_ORDER`, `MAX_ORDER`: how many modes a tensor may have.
    `working_precision`: the precision in which a tensor is decomposed.
Scanning a tensor
    `scan` makes one pass over all entries and returns a `Scan`, with an `Occurrence` for each kind of special entry.
    `CHUNK`, `CHUNKS_PER_RUN`: how many entries it takes at a time. `OnProgress`: called with the fraction done.
    `split_into_regions`, `contiguous_runs`: cut a tensor into contiguous parts.
The progress of a run
    `Phase`, `PreparationStep`, `Resolved`, `StartOutcome`, `StopReason`: the parts of a `State` and of a `Result`.
Computing
    `Threads`, `single_threaded_blas`: threads that do not change the bits of a result.
    `excluded_rows`: the rows of excluded indices for a fitted model; `NO_ROWS` before they are known. `index_itself`
    names an index without labels.
    `khatri_rao`: the product of a model's factors. `machine_signature`: what the last bits depend on.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparse_ncp.solvers.bcd.excluded import excluded_rows
    from sparse_ncp.solvers.bcd.penalties import given_weights, per_mode
    from sparse_ncp.solvers.bcd.problem import rank_advice
    from sparse_ncp.solvers.bcd.result import Resolved
    from sparse_ncp.solvers.bcd.starts.initial import check_fixed
    from sparse_ncp.solvers.bcd.starts.search import StartOutcome
    from sparse_ncp.solvers.bcd.state import NO_ROWS, Phase, PreparationStep, StopReason
    from sparse_ncp.solvers.bcd.warnings import index_itself
    from sparse_ncp.solvers.diagnostics.stability import check_stability
    from sparse_ncp.solvers.machine import machine_signature
    from sparse_ncp.solvers.settings import (
        RECOMMENDED,
        Exclude,
        MethodName,
        Mode,
        NotNegative,
        Number,
        Positive,
        Resamples,
        Seconds,
        Share,
        Whole,
        move_defaults,
    )
    from sparse_ncp.solvers.tensor.exclusion import Exclusion, exclude_with
    from sparse_ncp.solvers.tensor.gemm.out_of_core import contiguous_runs
    from sparse_ncp.solvers.tensor.products import Array, Float64, khatri_rao
    from sparse_ncp.solvers.tensor.scan import (
        CHUNK,
        CHUNKS_PER_RUN,
        Booleans,
        Occurrence,
        OnProgress,
        Scan,
        scan,
        split_into_regions,
    )
    from sparse_ncp.solvers.tensor.threads import Threads, single_threaded_blas
    from sparse_ncp.solvers.tensor.validation import (
        MAX_ORDER,
        MIN_ORDER,
        Missing,
        Negative,
        check_mask,
        check_mode,
        check_norm,
        describe_indices,
        working_precision,
    )
    from sparse_ncp.solvers.zeros import Zeros, mask_of_readings, without_zero_fibres

__all__ = [
    "CHUNK",
    "CHUNKS_PER_RUN",
    "MAX_ORDER",
    "MIN_ORDER",
    "NO_ROWS",
    "RECOMMENDED",
    "Array",
    "Booleans",
    "Exclude",
    "Exclusion",
    "Float64",
    "MethodName",
    "Missing",
    "Mode",
    "Negative",
    "NotNegative",
    "Number",
    "Occurrence",
    "OnProgress",
    "Phase",
    "Positive",
    "PreparationStep",
    "Resamples",
    "Resolved",
    "Scan",
    "Seconds",
    "Share",
    "StartOutcome",
    "StopReason",
    "Threads",
    "Whole",
    "Zeros",
    "check_fixed",
    "check_mask",
    "check_mode",
    "check_norm",
    "check_stability",
    "contiguous_runs",
    "describe_indices",
    "exclude_with",
    "excluded_rows",
    "given_weights",
    "index_itself",
    "khatri_rao",
    "machine_signature",
    "mask_of_readings",
    "move_defaults",
    "per_mode",
    "rank_advice",
    "scan",
    "single_threaded_blas",
    "split_into_regions",
    "without_zero_fibres",
    "working_precision",
]

_MODULES = {
    "bcd.warnings": ("index_itself",),
    "bcd.excluded": ("excluded_rows",),
    "bcd.problem": ("rank_advice",),
    "bcd.result": ("Resolved",),
    "bcd.starts.search": ("StartOutcome",),
    "bcd.starts.initial": ("check_fixed",),
    "bcd.state": ("NO_ROWS", "Phase", "PreparationStep", "StopReason"),
    "bcd.penalties": ("given_weights", "per_mode"),
    "machine": ("machine_signature",),
    "settings": (
        "RECOMMENDED",
        "Exclude",
        "MethodName",
        "Mode",
        "NotNegative",
        "Number",
        "Positive",
        "Resamples",
        "Seconds",
        "Share",
        "Whole",
        "move_defaults",
    ),
    "diagnostics.stability": ("check_stability",),
    "tensor.products": ("Array", "Float64", "khatri_rao"),
    "tensor.scan": (
        "CHUNK",
        "CHUNKS_PER_RUN",
        "Booleans",
        "Occurrence",
        "Scan",
        "OnProgress",
        "split_into_regions",
        "scan",
    ),
    "tensor.exclusion": ("Exclusion", "exclude_with"),
    "tensor.gemm.out_of_core": ("contiguous_runs",),
    "tensor.threads": ("Threads", "single_threaded_blas"),
    "tensor.validation": (
        "MAX_ORDER",
        "MIN_ORDER",
        "Missing",
        "Negative",
        "check_mask",
        "check_mode",
        "check_norm",
        "describe_indices",
        "working_precision",
    ),
    "zeros": ("Zeros", "mask_of_readings", "without_zero_fibres"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


if not TYPE_CHECKING:  # a type checker would accept any name otherwise

    def __getattr__(name: str) -> object:
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'sparse_ncp.solvers.runtime' has no attribute {name!r}")
        value = getattr(import_module(f"sparse_ncp.solvers.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
