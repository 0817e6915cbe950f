"""Processor time of sweeps and of skinny products on one thread, compared with BLAS.

    python -m benchmarks.one_thread [W3 W4 E3 E4] [--rounds 8]

Every round gives each contestant one turn; the tables have medians.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks.report import markdown
from benchmarks.tensors import BY_NAME, Case
from sparse_ncp.solvers import METHODS, Settings, State, sweeps
from sparse_ncp.solvers.tensor.gemm.blocks import Blocks, Split
from sparse_ncp.solvers.tensor.gemm.skinny import gemm_for
from sparse_ncp.solvers.tensor.products import Float64
from sparse_ncp.solvers.tensor.threads import Threads, single_threaded_blas

RANKS = (8, 10, 20, 40, 64)
MATRICES = {"1000 × 10000": (1000, 10_000), "639 × 2520": (639, 2520)}
SETTINGS: dict[str, dict[str, Any]] = {
    **{method: {"method": method} for method in METHODS},
    "hals, rescaled": {"method": "hals", "rescale": True},
    "anls-bpp, plain l1, rescaled": {"method": "anls-bpp", "penalty": "l1", "rescale": True},
}
WARM_UP = 2


def medians(contestants: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median seconds of this thread, per contestant."""
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, work in contestants.items():
            started = time.thread_time()
            work()
            taken[name].append(time.thread_time() - started)
    return {name: statistics.median(times) for name, times in taken.items()}


def sweep_ratios(case: Case, rounds: int) -> dict[str, float]:
    """Return sweeps with several settings, as multiples of the two products of the same thread."""
    X, random = case.make(), np.random.default_rng(0)
    cut = min(range(1, X.ndim), key=lambda cut: math.prod(X.shape[:cut]) + math.prod(X.shape[cut:]))
    matrix = X.reshape(math.prod(X.shape[:cut]), -1)
    At, Kt = (random.random((case.rank, length)) for length in matrix.shape)
    endless = {"tolerance": 0.0, "max_iterations": 10**9}
    contestants: dict[str, Callable[[], object]] = {"two products": lambda: (Kt @ matrix.T, At @ matrix)}
    for name, fields in SETTINGS.items():
        states = sweeps(X, Settings.model_validate({"rank": case.rank, "stop": endless, **fields}), threads=1)
        for _ in islice(states, WARM_UP):
            pass
        contestants[name] = partial(_advance, states)
    found = medians(contestants, rounds)
    return {name: seconds / found["two products"] for name, seconds in found.items()}


def _advance(states: Iterator[State]) -> State:
    return next(states)


def product_rates(matrix: Float64, rank: int, rounds: int) -> dict[str, float]:
    """Return GFLOP/s along and across, by BLAS and by our kernel."""
    rows, columns = matrix.shape
    random = np.random.default_rng(0)
    A, K = random.random((rows, rank)), random.random((columns, rank))
    At, Kt = np.ascontiguousarray(A.T), np.ascontiguousarray(K.T)
    with Threads(1) as pool:
        thin = gemm_for(Blocks(matrix, Split(0, 1)), pool)
        contestants: dict[str, Callable[[], object]] = {
            "along: BLAS": lambda: Kt @ matrix.T,
            "along: kernel": lambda: thin.contract_outer(K),
            "across: BLAS": lambda: At @ matrix,
            "across: kernel": lambda: thin.contract_inner(A),
        }
        found = medians(contestants, rounds)
    return {name: 2e-9 * matrix.size * rank / seconds for name, seconds in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("tensors", nargs="*", default=list(BY_NAME))
    parser.add_argument("--rounds", type=int, default=8)
    asked = parser.parse_args()
    with single_threaded_blas():
        rates = []
        for name, shape in tqdm(MATRICES.items(), desc="products"):
            matrix = np.random.default_rng(1).random(shape)
            for rank in RANKS:
                found = product_rates(matrix, rank, asked.rounds)
                rates.append([name, str(rank), *(f"{rate:.1f}" for rate in found.values())])
        print(markdown(["entries", "R", *found], rates))
        ratios = {name: sweep_ratios(BY_NAME[name], asked.rounds) for name in tqdm(asked.tensors, desc="sweeps")}
    rows = [[name, *(f"{found[name]:.2f}" for found in ratios.values())] for name in SETTINGS]
    print(markdown(["", *ratios], rows))


if __name__ == "__main__":
    main()
