"""Memory that a run takes in addition to the tensor."""

import tracemalloc

from benchmarks.tensors import Case
from sparse_ncp.solvers import Settings, solve


def extra_megabytes(case: Case) -> dict[str, float]:
    """Return the peak of numpy's allocations during a few sweeps, exact and with a compressed tensor."""
    X = case.make()
    peaks = {}
    for name, accelerate in (("exact sweeps", "none"), ("compressed first", "compress")):
        settings = Settings.recommended(case.rank, beta=0.5, accelerate=accelerate, stop={"max_iterations": 3})
        solve(X[:2, :2, :2], settings)  # what numba and BLAS load once is not this run's
        tracemalloc.start()
        solve(X, settings)
        peaks[name] = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
    return peaks
