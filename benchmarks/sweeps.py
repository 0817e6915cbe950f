"""Milliseconds per sweep of every method, beside two bare numpy products and tensorly, in one interleaved run.

    python -m benchmarks.sweeps [W3 W4 E3 E4] [--rounds 20]

The table is printed and written to benchmarks/results.md.
"""

import argparse
import math
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np
import tensorly.decomposition
from tqdm import tqdm

from benchmarks.tensors import CASES, Case
from solvers import METHODS, Settings, sweeps
from solvers.arrays import Float64
from solvers.parallel import available_cores

RESULTS = Path(__file__).with_name("results.md")
WARM_UP = 2
TENSORLY = {
    "tensorly MU": tensorly.decomposition.non_negative_parafac,
    "tensorly HALS": tensorly.decomposition.non_negative_parafac_hals,
}
# Each of tensorly's rounds is timed as the difference of two runs of these many iterations.
SHORT, LONG = 1, 3


def method_times(X: Float64, rank: int, method: str) -> Iterator[float]:
    """Seconds of one sweep after another, by the solver's own clock, without end."""
    settings = Settings(rank=rank, method=method, stop={"tolerance": 0.0, "max_iterations": 10**9})
    before = 0.0
    for state in sweeps(X, settings):
        yield state.seconds - before
        before = state.seconds


def product_times(X: Float64, rank: int) -> Iterator[float]:
    """Seconds of `Kt @ X.T` and `At @ X` for the contiguous split where they are cheapest, with BLAS's threads."""
    random = np.random.default_rng(0)
    pairs = []
    for cut in range(1, X.ndim):
        matrix = X.reshape(math.prod(X.shape[:cut]), -1)
        At, Kt = (random.random((rank, length)) for length in matrix.shape)
        pairs.append((matrix, At, Kt))
    cheapest = min(pairs, key=lambda pair: min(_pair_seconds(*pair) for _ in range(3)))
    while True:
        yield _pair_seconds(*cheapest)


def _pair_seconds(matrix: Float64, At: Float64, Kt: Float64) -> float:
    return _seconds(lambda: (Kt @ matrix.T, At @ matrix))


def tensorly_times(X: Float64, rank: int, decompose: Callable[..., object]) -> Iterator[float]:
    def run(iterations: int) -> float:
        return _seconds(lambda: decompose(X, rank, n_iter_max=iterations, tol=0, init="random", random_state=0))

    while True:
        yield (run(LONG) - run(SHORT)) / (LONG - SHORT)


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def measure(case: Case, rounds: int) -> dict[str, float]:
    """Median milliseconds per contestant; every round gives each of them one turn. Tensorly, slow, gets three turns."""
    X = case.make()
    clocks = {"two products": product_times(X, case.rank)}
    clocks |= {method: method_times(X, case.rank, method) for method in METHODS}
    peers = {name: tensorly_times(X, case.rank, decompose) for name, decompose in TENSORLY.items()}
    taken: dict[str, list[float]] = {name: [] for name in (*clocks, *peers)}
    for turn in tqdm(range(WARM_UP + rounds), desc=case.name):
        turns = clocks | peers if turn in range(WARM_UP, WARM_UP + 3) else clocks
        for name, clock in turns.items():
            seconds = next(clock)
            if turn >= WARM_UP:
                taken[name].append(1000 * seconds)
    return {name: statistics.median(times) for name, times in taken.items()}


def table(results: dict[str, dict[str, float]]) -> str:
    lines = ["| | " + " | ".join(results) + " |", "|---" * (len(results) + 1) + "|"]
    for name in next(iter(results.values())):
        cells = [f"{times[name]:.3g} ({times[name] / times['two products']:.2f})" for times in results.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def machine() -> str:
    versions = ", ".join(f"{package} {version(package)}" for package in ("numpy", "scipy", "numba", "tensorly"))
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    processor = names[0].split(":")[1].strip() if names else platform.processor()
    return f"{processor}, {available_cores()} threads, Python {platform.python_version()}, {versions}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    names = [case.name for case in CASES]
    parser.add_argument("tensors", nargs="*", help=f"of {', '.join(names)}; all by default")
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    if unknown := set(asked.tensors) - set(names):
        parser.error(f"unknown tensor {', '.join(unknown)}; choose from {', '.join(names)}")
    results = {c.name: measure(c, asked.rounds) for c in CASES if c.name in (asked.tensors or names)}
    report = (
        "# Milliseconds per sweep\n\n"
        f"Medians of {asked.rounds} interleaved rounds by `make bench`; in brackets the ratio to *two products*: the "
        "cheapest pair of\nbare numpy products `Kt @ X.T` and `At @ X` over the contiguous splits, with BLAS's own "
        f"threads.\n\n{machine()}\n\n{table(results)}\n"
    )
    print(report)
    RESULTS.write_text(report)


if __name__ == "__main__":
    main()
