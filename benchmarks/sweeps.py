"""Milliseconds per sweep of every method, compared with two numpy products and tensorly, in interleaved rounds."""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import tensorly.decomposition
from tqdm import tqdm

from benchmarks.quiet import Calibration, seconds_of
from benchmarks.tensors import Case
from sparse_ncp.solvers import METHODS, Settings, sweeps
from sparse_ncp.solvers.tensor.products import Float64

WARM_UP = 3
# Rounds that may be repeated because the machine was not quiet, as a multiple of the rounds asked for; and how long to
# wait for quiet, per tensor.
PATIENCE = 2
WAIT_SECONDS = 30.0
# Before every turn: threaded BLAS keeps its threads spinning after a product, on the next one's cores. After 0.05 s
# the method that followed the two products still took half as long again.
SETTLE_SECONDS = 0.2
# Sweeps of a turn after its first, which wakes the cores and fills the caches: these follow each other as in a run.
FOLLOWING = 5
TENSORLY = {
    "tensorly MU": tensorly.decomposition.non_negative_parafac,
    "tensorly HALS": tensorly.decomposition.non_negative_parafac_hals,
}
# Each of tensorly's rounds is the difference of two runs, one some iterations longer; slow, it gets few rounds.
TENSORLY_ROUNDS, TENSORLY_SECONDS = 5, 60.0
MORE_ITERATIONS, LARGE_TENSOR, FEWER_ITERATIONS = 5, 20_000_000, 1


@dataclass(frozen=True)
class Sweeps:
    """Milliseconds per contestant, and the number of disturbed rounds behind them."""

    median: Mapping[str, float]
    first: Mapping[str, float]  # after a pause, the median
    fastest: Mapping[str, float]
    rounds: int
    disturbed: int


def measure(case: Case, rounds: int) -> Sweeps:
    """Give each contestant one turn per round, and repeat disturbed rounds while time permits."""
    X = case.make()
    clocks = {"two products": product_times(X, case.rank)}
    clocks |= {method: method_times(X, case.rank, method) for method in METHODS}
    clocks["hals in float32"] = method_times(X, case.rank, "hals", precision="float32")
    for clock in clocks.values():
        for _ in range(WARM_UP):
            next(clock)
    turns, disturbed = _rounds(case.name, clocks, rounds, 1 + FOLLOWING, spare=PATIENCE * rounds)
    peers = {name: tensorly_times(X, case.rank, decompose) for name, decompose in TENSORLY.items()}
    slow, _ = _rounds(f"{case.name} tensorly", peers, TENSORLY_ROUNDS, 1, spare=0, limit=TENSORLY_SECONDS)
    following = {name: [statistics.median(turn[1:]) for turn in taken] for name, taken in turns.items()}
    following |= {name: [turn[0] for turn in taken] for name, taken in slow.items()}
    return Sweeps(
        median={name: 1000 * statistics.median(times) for name, times in following.items()},
        first={name: 1000 * statistics.median(turn[0] for turn in taken) for name, taken in turns.items()},
        fastest={name: 1000 * min(map(min, taken)) for name, taken in turns.items()},
        rounds=rounds,
        disturbed=disturbed,
    )


def _rounds(
    name: str, clocks: Mapping[str, Iterator[float]], rounds: int, per_turn: int, spare: int, limit: float = math.inf
) -> tuple[dict[str, list[list[float]]], int]:
    """Seconds of the sweeps of every turn per contestant, and how many rounds were disturbed; `spare` are repeated.

    No round begins after the limit in seconds, but for the first.
    """
    calibration, disturbed, wait = Calibration(), 0, WAIT_SECONDS
    end = time.perf_counter() + limit
    kept: list[dict[str, list[float]]] = []
    with tqdm(total=rounds, desc=name) as bar:
        while not kept or (len(kept) < rounds and time.perf_counter() < end):
            wait = max(0.0, wait - calibration.wait(wait))
            quiet = calibration.is_quiet()
            times = {name: _turn(clock, per_turn) for name, clock in clocks.items()}
            quiet = calibration.is_quiet() and quiet
            if not quiet and spare > 0:
                spare -= 1
                continue
            kept.append(times)
            disturbed += not quiet
            bar.update()
    return {name: [times[name] for times in kept] for name in clocks}, disturbed


def _turn(clock: Iterator[float], count: int) -> list[float]:
    time.sleep(SETTLE_SECONDS)
    return [next(clock) for _ in range(count)]


def method_times(X: Float64, rank: int, method: str, **fields: object) -> Iterator[float]:
    """Yield the seconds of one sweep after another, by the solver's own clock."""
    stop = {"tolerance": 0.0, "max_iterations": 10**9}
    before = 0.0
    for state in sweeps(X, Settings.model_validate({"rank": rank, "method": method, "stop": stop, **fields})):
        yield state.seconds - before
        before = state.seconds


def product_times(X: Float64, rank: int) -> Iterator[float]:
    """Return the seconds of `Kt @ X.T` and `At @ X` for the cheapest contiguous split, with BLAS's threads."""
    random = np.random.default_rng(0)
    pairs = []
    for cut in range(1, X.ndim):
        matrix = X.reshape(math.prod(X.shape[:cut]), -1)
        At, Kt = (random.random((rank, length)) for length in matrix.shape)
        pairs.append((matrix, At, Kt))
    cheapest = min(pairs, key=lambda pair: min(_pair_seconds(*pair) for _ in range(5)))
    while True:
        yield _pair_seconds(*cheapest)


def _pair_seconds(matrix: Float64, At: Float64, Kt: Float64) -> float:
    return seconds_of(lambda: (Kt @ matrix.T, At @ matrix))


def tensorly_times(X: Float64, rank: int, decompose: Callable[..., object]) -> Iterator[float]:
    """Return the seconds per iteration, without the fixed costs of a run."""
    more = MORE_ITERATIONS if X.size < LARGE_TENSOR else FEWER_ITERATIONS

    def run(iterations: int) -> float:
        return seconds_of(lambda: decompose(X, rank, n_iter_max=iterations, tol=0, init="random", random_state=0))

    while True:
        yield (run(1 + more) - run(1)) / more
