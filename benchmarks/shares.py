"""Where the processor time of a sweep is spent, by method and tensor, on one thread.

    python -m benchmarks.shares [W3 W4 E3 E4] [--sweeps 20]

Processor time of one thread hardly feels what else the machine does.
"""

import argparse
import cProfile
import pstats
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from benchmarks.report import markdown
from benchmarks.tensors import BY_NAME, Case
from sparse_ncp.solvers import METHODS, Settings, State, sweeps
from sparse_ncp.solvers.tensor.products import Float64

# Which functions, by file or folder and name, make up a share; each of them calls none of the others.
PARTS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "products": (("products.py", "contract_inner"), ("products.py", "contract_outer")),
    "tree": (("products.py", "row_products"), ("tree.py", "_contract_components")),
    "update": (("methods", "update"), ("methods", "plain")),
}
WARM_UP = 3


def shares(case: Case, X: Float64, method: str, count: int) -> list[str]:
    """Return the milliseconds of a sweep and the percentage of each part; the rest is Grams, objective and loop."""
    stop = {"tolerance": 0.0, "max_iterations": 10**9}
    states = sweeps(X, Settings.model_validate({"rank": case.rank, "method": method, "stop": stop}), threads=1)
    _advance(states, WARM_UP)
    profile = cProfile.Profile(time.thread_time)
    profile.runcall(_advance, states, count)
    taken = _cumulative(profile)
    total = taken["loop.py", "_iterate"]
    parts = [100 * sum(taken.get(place, 0.0) for place in places) / total for places in PARTS.values()]
    return [f"{1000 * total / count:.1f}", *(f"{part:.0f}" for part in parts), f"{100 - sum(parts):.0f}"]


def _advance(states: Iterator[State], count: int) -> None:
    for _ in islice(states, count):
        pass


def _cumulative(profile: cProfile.Profile) -> dict[tuple[str, str], float]:
    taken: dict[tuple[str, str], float] = {}
    for (file, _, name), (_, _, _, cumulative, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        path = Path(file)
        for place in (path.name, path.parent.name):
            taken[place, name] = taken.get((place, name), 0.0) + cumulative
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("tensors", nargs="*", default=list(BY_NAME))
    parser.add_argument("--sweeps", type=int, default=20)
    asked = parser.parse_args()
    rows = []
    for case in (BY_NAME[name] for name in asked.tensors):
        X = case.make()
        rows += [[case.name, method, *shares(case, X, method, asked.sweeps)] for method in METHODS]
    head = ["", "", "ms of one thread", *(f"{part} %" for part in PARTS), "rest %"]
    print(markdown(head, rows))


if __name__ == "__main__":
    main()
