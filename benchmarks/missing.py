"""The cost of missing entries: time of a sweep, and sweeps to convergence.

    python -m benchmarks.missing [--rounds 20] [--seeds 3] [--output benchmarks/missing.md]

All contestants of a rank sweep in turn, in one process and on one thread, so that whatever slows the machine slows all;
the time is the processor's, of the fastest round.
"""

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from tqdm import tqdm

from benchmarks.report import machine, markdown
from sparse_ncp.solvers import Settings, Stop, solve, sweeps, synthetic
from sparse_ncp.solvers.tensor.products import Array, Float64
from sparse_ncp.solvers.tensor.scan import Booleans

SHAPE, RANKS = (200, 100, 100), (5, 10, 20)
SMALLER, SMALLER_RANK = (100, 60, 50), 8
METHOD = {"method": "anls-bpp", "penalty": "l1", "rescale": True, "init": "random_scaled", "missing": "nan"}
STOP = Stop(criterion="relative_objective", tolerance=1e-6, patience=5)
Pattern = Callable[[tuple[int, ...], np.random.Generator], Booleans]


def band(share: float) -> Pattern:
    """Return a diagonal band of the last two modes, equal along the first, like scatter in fluorescence."""

    def missing(shape: tuple[int, ...], random: np.random.Generator) -> Booleans:
        _, rows, columns = shape
        distance = np.abs(np.arange(rows)[:, None] / rows - np.arange(columns) / columns)
        return np.broadcast_to(distance <= np.quantile(distance, share), shape)

    return missing


def fibres(share: float) -> Pattern:
    return lambda shape, random: np.broadcast_to(random.random((shape[0], 1, shape[2])) < share, shape)


def scattered(share: float) -> Pattern:
    return lambda shape, random: random.random(shape) < share


def both(one: Pattern, other: Pattern) -> Pattern:
    return lambda shape, random: one(shape, random) | other(shape, random)


PATTERNS: Mapping[str, Pattern | None] = {
    "complete": None,
    "bands, 5 %": band(0.05),
    "bands, 20 %": band(0.2),
    "bands, 50 %": band(0.5),
    "fibres, 20 %": fibres(0.2),
    "fibres, 50 %": fibres(0.5),
    "bands, 20 %, and 0.1 % scattered": both(band(0.2), scattered(0.001)),
    "bands, 20 %, and 0.5 % scattered": both(band(0.2), scattered(0.005)),
    "scattered, 1 %": scattered(0.01),
    "scattered, 20 %": scattered(0.2),
    "scattered, 50 %": scattered(0.5),
}


def with_gaps(X: Float64, pattern: Pattern | None) -> Array:
    if pattern is None:
        return X
    return np.where(pattern(X.shape, np.random.default_rng(0)), np.nan, X)


def milliseconds(rank: int, rounds: int) -> dict[str, float]:
    """Return the time of the fastest sweep with each pattern."""
    X = synthetic.planted(SHAPE, rank, snr_db=30).tensor
    endless = Settings(rank=rank, **METHOD, stop={"max_iterations": rounds + 2, "tolerance": 0.0})
    runs = {name: sweeps(with_gaps(X, pattern), endless, threads=1) for name, pattern in PATTERNS.items()}
    fastest = dict.fromkeys(runs, np.inf)
    for number in tqdm(range(rounds + 2), desc=f"rank {rank}"):
        for name, run in runs.items():
            started = time.process_time()
            next(run)
            if number > 1:  # the first ones prepare the tensor and warm up
                fastest[name] = min(fastest[name], 1e3 * (time.process_time() - started))
    return fastest


def sweeps_to_convergence(seeds: int) -> dict[str, int]:
    """Return the sweeps to convergence, summed over the seeds."""
    X = synthetic.planted(SMALLER, SMALLER_RANK, snr_db=30).tensor
    counts = {}
    for name, pattern in tqdm(PATTERNS.items(), desc="to convergence"):
        Y = with_gaps(X, pattern)
        runs = (
            solve(Y, Settings(rank=SMALLER_RANK, **METHOD, seed=seed, stop=STOP), threads=1) for seed in range(seeds)
        )
        counts[name] = sum(run.iterations for run in runs)
    return counts


def table(taken: Mapping[int, Mapping[str, float]], counts: Mapping[str, int]) -> str:
    rows = []
    for name in PATTERNS:
        cells = [f"{of[name]:.1f} ({of[name] / of['complete']:.2f})" for of in taken.values()]
        rows.append([name, *cells, f"{counts[name]} ({counts[name] / counts['complete']:.2f})"])
    shape, smaller = ("×".join(map(str, lengths)) for lengths in (SHAPE, SMALLER))
    return (
        f"# Missing entries\n\nBy `python -m benchmarks.missing` on {machine()}. Milliseconds of one processor for "
        f"a sweep of ANLS-BPP over {shape},\nthe fastest of all rounds, in brackets the ratio to the complete tensor. "
        f"Last column: sweeps to convergence over {smaller},\nrank {SMALLER_RANK}, summed over the seeds.\n\n"
        + markdown(["missing", *(f"rank {rank}" for rank in taken), "sweeps"], rows)
        + "\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=20, help="sweeps of every contestant")
    parser.add_argument("--seeds", type=int, default=3, help="of the runs to convergence")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("missing.md"))
    asked = parser.parse_args()
    taken = {rank: milliseconds(rank, asked.rounds) for rank in RANKS}
    text = table(taken, sweeps_to_convergence(asked.seeds))
    print(text)
    asked.output.write_text(text)


if __name__ == "__main__":
    main()
