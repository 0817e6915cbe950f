"""How close runs from any seed come to the best known objective, on real tensors with several sparsities.

    python -m benchmarks.starts [kinetic IL2 …] [--seeds 5] [--data FOLDER] [--output benchmarks/starts.md]

The tensors are those that installed packages bring along, and every .npy file of the folder given. The best objective
known is the lowest of all runs in the table and of a brute force over many starts.
"""

import argparse
import gzip
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.image
import numpy as np
import tensorly.datasets
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.report import machine, markdown
from sparse_ncp.solvers import Settings, solve
from sparse_ncp.solvers.bcd.result import Resolved
from sparse_ncp.solvers.tensor.products import Float64

SPARSITIES = (0.003, 0.02, 0.1)
BRUTE_FORCE = 30
PATH = (0.0, 0.1, 0.3, 1.0)  # of the wanted β, one run after the other
PLAIN: Mapping[str, Any] = {"regrow": False, "starts": 1, "extrapolate": False}
RANK = 8  # of tensors that are not in this file
SAMPLES = Path(matplotlib.get_data_path()) / "sample_data"


@dataclass(frozen=True)
class Run:
    tensor: str
    sparsity: float
    contestant: str
    objective: float
    components: int
    seconds: float


def photograph() -> NDArray[Any]:
    """Return an image as height × width × colour."""
    return np.asarray(matplotlib.image.imread(SAMPLES / "grace_hopper.jpg")[::6, ::6], np.float64)


def scan() -> NDArray[Any]:
    """Return a slice of a head from magnetic resonance imaging, 256 × 256."""
    with gzip.open(SAMPLES / "s1045.ima.gz") as content:
        return np.frombuffer(content.read(), ">u2").reshape(256, 256).astype(np.float64)


def patches(picture: NDArray[Any]) -> NDArray[Any]:
    """Cut an image into tiles of 8 × 8, stacked along a new mode."""
    rows, columns = (length // 8 for length in picture.shape)
    cut = picture[: 8 * rows, : 8 * columns].reshape(rows, 8, columns, 8)
    return cut.transpose(0, 2, 1, 3).reshape(-1, 8, 8)


def elevation() -> NDArray[Any]:
    with np.load(SAMPLES / "jacksboro_fault_dem.npz") as content:
        return np.asarray(content["elevation"], np.float64)


TENSORS: Mapping[str, tuple[int, Callable[[], NDArray[Any]]]] = {
    "kinetic": (8, lambda: tensorly.datasets.load_kinetic().tensor),
    "IL2": (8, lambda: tensorly.datasets.load_IL2data().tensor),
    "covid19": (8, lambda: tensorly.datasets.load_covid19_serology().tensor),
    "indian pines": (10, lambda: tensorly.datasets.load_indian_pines().tensor[::4, ::4, ::2]),
    "photograph": (12, photograph),
    "its patches": (10, lambda: patches(np.asarray(matplotlib.image.imread(SAMPLES / "grace_hopper.jpg")).mean(2))),
    "scan patches": (12, lambda: patches(scan())),
    "elevation patches": (10, lambda: patches(elevation())),
}


def nonnegative(tensor: NDArray[Any]) -> Float64:
    return np.maximum(0.0, np.nan_to_num(np.asarray(tensor, np.float64), nan=0.0))


def by_path(X: Float64, rank: int, weights: Resolved, seed: int) -> Any:
    """Run at increasing β, each time from the factors of the run before."""
    factors = None
    for share in PATH:
        beta = tuple(share * beta for beta in weights.beta)
        result = solve(
            X,
            Settings.recommended(rank, alpha=weights.alpha, beta=beta, seed=seed, **PLAIN),
            initial=factors,
            threads=1,
        )
        factors = result.factors
    return result


def contestants(X: Float64, rank: int, sparsity: float) -> Mapping[str, Callable[[int], Any]]:
    """A way to compute a result from a seed."""

    def asked(seed: int, **fields: Any) -> Settings:
        return Settings.recommended(rank, sparsity=sparsity, seed=seed, **fields)

    weights = solve(X, asked(0, **PLAIN, stop={"max_iterations": 1})).resolved
    return {
        "recommended": lambda seed: solve(X, asked(seed), threads=1),
        "one plain start": lambda seed: solve(X, asked(seed, **PLAIN), threads=1),
        "nndsvd": lambda seed: solve(X, asked(seed, **PLAIN, init="nndsvd"), threads=1),
        "path over β": lambda seed: by_path(X, rank, weights, seed),
    }


def measure(name: str, rank: int, X: Float64, sparsity: float, seeds: int) -> Iterator[Run]:
    for contestant, run in contestants(X, rank, sparsity).items():
        for seed in tqdm(range(seeds), desc=f"{name} {sparsity} {contestant}", leave=False):
            started = time.process_time()
            result = run(seed)
            taken = time.process_time() - started
            components = int((result.weights > 0).sum())
            yield Run(name, sparsity, contestant, result.objective, components, taken)
    brute = solve(X, Settings.recommended(rank, sparsity=sparsity, seed=10**6, starts=BRUTE_FORCE), threads=1)
    yield Run(name, sparsity, "brute force", brute.objective, int((brute.weights > 0).sum()), 0.0)


def table(runs: Sequence[Run]) -> str:
    """Return one line per tensor and sparsity, and the summary above it."""
    cases = list(dict.fromkeys((run.tensor, run.sparsity) for run in runs))
    names = [name for name in dict.fromkeys(run.contestant for run in runs) if name != "brute force"]
    ratios: dict[str, list[float]] = {name: [] for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    totals = dict.fromkeys(names, 0.0)
    rows = []
    for case in cases:
        here = [run for run in runs if (run.tensor, run.sparsity) == case]
        best = min(here, key=lambda run: run.objective)
        plain = statistics.mean(run.seconds for run in here if run.contestant == "one plain start")
        row = [case[0], f"{case[1]:g}", f"{best.objective:.4g} ({best.components})"]
        for name in names:
            found = [run.objective / best.objective for run in here if run.contestant == name]
            ratios[name] += found
            times[name] += [run.seconds / plain for run in here if run.contestant == name]
            totals[name] += sum(run.seconds for run in here if run.contestant == name)
            row.append(f"{statistics.median(found):.3f} / {max(found):.3f}")
        rows.append(row)
    summary = [
        [
            name,
            *(f"{100 * np.mean(np.array(ratios[name]) < limit):.0f} %" for limit in (1.01, 1.02, 1.05)),
            f"{max(ratios[name]):.3f}",
            f"{statistics.median(times[name]):.2f}",
            f"{totals[name] / totals['one plain start']:.2f}",
        ]
        for name in names
    ]
    heads = ["", "within 1 %", "within 2 %", "within 5 %", "worst", "time, median", "time, in all"]
    each = ["tensor", "sparsity", "best known (components)", *names]
    return markdown(heads, summary) + "\n\n## Each case: median / worst over the seeds\n\n" + markdown(each, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("tensors", nargs="*", help=f"of {', '.join(TENSORS)}; all by default")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data", type=Path, help="a folder with more tensors, as .npy files")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("starts.md"))
    asked = parser.parse_args()
    if unknown := set(asked.tensors) - set(TENSORS):
        parser.error(f"unknown tensor {', '.join(unknown)}; choose from {', '.join(TENSORS)}")
    cases = {name: TENSORS[name] for name in asked.tensors or TENSORS}
    for path in sorted(asked.data.glob("*.npy")) if asked.data else ():
        cases[path.stem] = (RANK, partial(np.load, path))
    runs: list[Run] = []
    for name, (rank, load) in cases.items():
        for sparsity in SPARSITIES:
            runs += measure(name, rank, nonnegative(load()), sparsity, asked.seeds)
            asked.output.write_text(report(runs, asked.seeds))
    print(asked.output.read_text())


def report(runs: Sequence[Run], seeds: int) -> str:
    return (
        "# From any seed\n\n"
        f"By `python -m benchmarks.starts` on {machine()}; {seeds} seeds each.\n\n"
        "The objective of a run over the best one known: the lowest of all runs here and of a brute force over\n"
        f"{BRUTE_FORCE} starts. Times are processor seconds over those of one plain start, which is the recommended\n"
        "setting with `starts=1`, `regrow=False`, `extrapolate=False`; nndsvd and the path over β (0, β/10, β/3, β,\n"
        "each from the factors of the one before) are plain as well.\n\n" + table(runs) + "\n"
    )


if __name__ == "__main__":
    main()
