"""Seconds to come close to the best value: of the relative error without a penalty, of the objective with one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from benchmarks.tensors import Case
from sparse_ncp.solvers import METHODS, Result, Settings, solve
from sparse_ncp.solvers.tensor.products import Float64

NEAR = 1.01
BETA = 0.5
START: Mapping[str, Any] = {"init": "random_scaled"}
ENDLESS: Mapping[str, Any] = {"tolerance": 0.0}
PLAIN: Mapping[str, Mapping[str, Any]] = {
    **{method: {"method": method, "stop": ENDLESS, **START} for method in METHODS},
    # Its first phase ends where it would stop.
    "anls-bpp, accelerated": {"method": "anls-bpp", "accelerate": "auto", **START},
}
SPARSE: Mapping[str, Mapping[str, Any]] = {
    "recommended": {"preset": "recommended"},
    "recommended, exact sweeps only": {"preset": "recommended", "accelerate": "none"},
    "the paper's apg, accelerated": {"method": "apg", "accelerate": "auto"},
    "the paper's apg": {"method": "apg"},
    "the paper's hals": {"method": "hals"},
    "the paper's anls-bpp, plain l1": {"method": "anls-bpp", "penalty": "l1"},
}


@dataclass(frozen=True)
class Approach:
    """When a run came close to the best value, if it did, and its final value and number of components."""

    seconds: float | None
    above: float
    components: int


def to_relative_error(case: Case, limit: float) -> dict[str, Approach]:
    results = _run(case, PLAIN, limit, beta=0.0)
    return _approaches(results, {name: result.history.relative_error for name, result in results.items()})


def to_objective(case: Case, limit: float) -> dict[str, Approach]:
    results = _run(case, SPARSE, limit, beta=BETA)
    return _approaches(results, {name: result.history.objective for name, result in results.items()})


def _run(case: Case, contestants: Mapping[str, Mapping[str, Any]], limit: float, beta: float) -> dict[str, Result]:
    X: Float64 = case.make()
    results = {}
    for name, fields in tqdm(contestants.items(), desc=f"{case.name} beta {beta:g}"):
        stop = {**fields.get("stop", {}), "max_seconds": limit}
        settings = Settings.model_validate({"rank": case.rank, "beta": beta, **fields, "stop": stop})
        results[name] = solve(X, settings)
    return results


def _approaches(results: Mapping[str, Result], values: Mapping[str, Sequence[float]]) -> dict[str, Approach]:
    """Find when each run came close to the best value; of an accelerated run only the exact values count."""
    best = min(series[-1] for series in values.values())
    approaches = {}
    for name, result in results.items():
        approximate = max(result.compressed_iterations, result.single_iterations)
        exact = range(max(0, approximate - 1), result.iterations)
        place = next((k for k in exact if values[name][k] <= NEAR * best), None)
        approaches[name] = Approach(
            seconds=None if place is None else result.history.seconds[place],
            above=values[name][-1] / best - 1,
            components=result.nonzero_components.all_modes,
        )
    return approaches
