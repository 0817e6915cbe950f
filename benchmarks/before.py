"""Seconds to 1 % of the best relative error (β = 0), compared with another version of the solvers.

    python -m benchmarks.before [W3 W4 E3 E4] --python OTHER/.venv/bin/python [--sparse]

With `--sparse`, the recommended setting at β = 0.5 instead: seconds until it stops, and the objective there.

The other version is whatever that Python imports as `solvers`, with its folder's parent's parent as working directory.
For every seed both run in turn, each in a process of its own, on the very same tensor. What the other does not know of
the settings is left out, and methods that it does not have. *Best* is the method with the lowest median.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from tqdm import tqdm

from benchmarks.convergence import BETA, NEAR
from benchmarks.report import markdown
from benchmarks.tensors import BY_NAME

HERE = Path(__file__).parents[1]
FIELDS = {"init": "random_scaled", "rescale": True, "extrapolate": True, "stop": {"tolerance": 0.0}}
SETTLED = {"criterion": "relative_objective", "tolerance": 1e-6, "patience": 5}
CONTESTANTS: dict[str, dict[str, Any]] = {
    "anls-bpp": {"method": "anls-bpp", **FIELDS},
    "anls-hybrid": {"method": "anls-hybrid", **FIELDS},
    "hals": {"method": "hals", **FIELDS},
    "hals, 3 passes": {"method": "hals", "inner_passes": 3, **FIELDS},
    # Its first phase ends where it would stop.
    "anls-bpp, auto": {"method": "anls-bpp", **FIELDS, "accelerate": "auto", "stop": SETTLED},
}
SPARSE_CONTESTANTS: dict[str, dict[str, Any]] = {
    "recommended": {},
    "of it, one start, nothing put back": {"starts": 1, "regrow": False},
}
# Likewise: prints, per contestant, the seconds of a run with the recommended setting, and its objective.
SPARSE_SCRIPT = f"""
import json, sys
import numpy as np
from sparse_ncp.solvers import Settings, solve
path, contestants, rank, seed, limit = json.loads(sys.argv[1])
X, found = np.load(path), {{}}
for name, fields in contestants.items():
    asked = {{"beta": {BETA}, "seed": seed, "stop": {{"max_seconds": limit}}, "diagnose": False, **fields}}
    known = {{field: value for field, value in asked.items() if field in Settings.model_fields}}
    result = solve(X, Settings.recommended(rank, **known))
    found[name] = [result.history.seconds[-1], result.objective]
print(json.dumps(found))
"""
# Runs in either version: prints, per contestant, the exact relative errors and the seconds up to them.
SCRIPT = """
import json, sys
import numpy as np
from sparse_ncp.solvers import METHODS, Settings, solve
path, contestants, rank, seed, limit = json.loads(sys.argv[1])
X, found = np.load(path), {}
for name, fields in contestants.items():
    known = {field: value for field, value in fields.items() if field in Settings.model_fields}
    if known["method"] not in METHODS:
        continue
    stop = {**known.pop("stop"), "max_seconds": limit}
    more = {"diagnose": False} if "diagnose" in Settings.model_fields else {}
    result = solve(X, Settings(rank=rank, seed=seed, stop=stop, **more, **known))
    first = max(result.compressed_iterations, getattr(result, "single_iterations", 0), 1) - 1
    found[name] = [result.history.relative_error[first:], result.history.seconds[first:]]
print(json.dumps(found))
"""

Run: TypeAlias = dict[str, tuple[Sequence[float], Sequence[float]]]


def run(script: str, python: Path, *asked: object) -> Any:
    """Run the script in a process of its own and return its output."""
    folder = HERE if python == Path(sys.executable) else python.parents[2]
    command = [str(python), "-W", "ignore", "-c", script, json.dumps(asked)]
    answer = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(answer.stdout)


def seconds_to(run: Run, name: str, target: float) -> float:
    """Return when a run came that close to the best value; infinity if it never did."""
    errors, seconds = run[name]
    return next((at for error, at in zip(errors, seconds, strict=True) if error <= target), math.inf)


def best(runs: Sequence[Run], target: float) -> tuple[float, str]:
    """Return the lowest median over the seeds, and its method."""
    return min((statistics.median(seconds_to(run, name, target) for run in runs), name) for name in runs[0])


def in_turn(name: str, other: Path, seeds: int, script: str, what: object, limit: float) -> tuple[list[Any], list[Any]]:
    """Run the script for every seed with the other version and with this one."""
    case, before, now = BY_NAME[name], list[Any](), list[Any]()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "tensor.npy")
        np.save(path, case.make())
        for seed in tqdm(range(seeds), desc=name):
            for found, python in ((before, other), (now, Path(sys.executable))):
                found.append(run(script, python, path, what, case.rank, seed, limit))
    return before, now


def compare(name: str, other: Path, seeds: int, limit: float) -> list[list[str]]:
    """Return a table row with the other version and this one."""
    runs: tuple[list[Run], list[Run]] = in_turn(name, other, seeds, SCRIPT, CONTESTANTS, limit)
    lowest = min(min(errors) for found in runs for run in found for errors, _ in run.values())
    before, now = (best(found, NEAR * lowest) for found in runs)
    figures = (f"{seconds:.3f} ({method})" for seconds, method in (before, now))
    return [[name, *figures, f"{before[0] / now[0]:.2f}"]]


def compare_sparse(name: str, other: Path, seeds: int, limit: float) -> list[list[str]]:
    """Return the rows of the recommended settings: medians, and the worst ratio of objectives over the seeds."""
    runs = in_turn(name, other, seeds, SPARSE_SCRIPT, SPARSE_CONTESTANTS, limit)
    rows = []
    for contestant in SPARSE_CONTESTANTS:
        before, now = ([found[contestant] for found in version] for version in runs)
        seconds = [statistics.median(taken for taken, _ in found) for found in (before, now)]
        highest = max(ours / theirs for (_, theirs), (_, ours) in zip(before, now, strict=True))
        figures = (f"{taken:.3f}" for taken in seconds)
        rows.append([f"{name}, {contestant}", *figures, f"{seconds[0] / seconds[1]:.2f}", f"{highest:.6f}"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("tensors", nargs="*", default=list(BY_NAME))
    parser.add_argument("--python", type=Path, required=True, help="of the other version's virtual environment")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of every run")
    parser.add_argument("--sparse", action="store_true", help=f"the recommended setting at beta = {BETA}")
    asked = parser.parse_args()
    rows_of = compare_sparse if asked.sparse else compare
    rows = [row for name in asked.tensors for row in rows_of(name, asked.python.absolute(), asked.seeds, asked.seconds)]
    heads = ["tensor", "before, s", "now, s", "times sooner"]
    print(markdown([*heads, "objective now / before, highest"] if asked.sparse else heads, rows))


if __name__ == "__main__":
    main()
