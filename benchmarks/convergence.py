"""Seconds to come near the best: of the relative error without a penalty, of the objective with one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from benchmarks.tensors import Case
from solvers import METHODS, Result, Settings, solve
from solvers.arrays import Float64

NEAR = 1.01
BETA = 0.5
PLAIN: Mapping[str, Mapping[str, Any]] = {method: {"method": method, "init": "random_scaled"} for method in METHODS}
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
    """When a run came near the best value, if it did; where it ended, and with how many components."""

    seconds: float | None
    above: float
    components: int


def to_relative_error(case: Case, limit: float) -> dict[str, Approach]:
    results = _run(case, {name: {**fields, "stop": _until(limit)} for name, fields in PLAIN.items()}, beta=0.0)
    return _approaches(results, {name: result.history.relative_error for name, result in results.items()})


def to_objective(case: Case, limit: float) -> dict[str, Approach]:
    contestants = {name: {**fields, "stop": {"max_seconds": limit}} for name, fields in SPARSE.items()}
    results = _run(case, contestants, beta=BETA)
    return _approaches(results, {name: result.history.objective for name, result in results.items()})


def _until(limit: float) -> Mapping[str, float]:
    return {"tolerance": 0.0, "max_seconds": limit}


def _run(case: Case, contestants: Mapping[str, Mapping[str, Any]], beta: float) -> dict[str, Result]:
    X: Float64 = case.make()
    return {
        name: solve(X, Settings.model_validate({"rank": case.rank, "beta": beta, **fields}))
        for name, fields in tqdm(contestants.items(), desc=f"{case.name} beta {beta:g}")
    }


def _approaches(results: Mapping[str, Result], values: Mapping[str, Sequence[float]]) -> dict[str, Approach]:
    best = min(series[-1] for series in values.values())
    approaches = {}
    for name, result in results.items():
        near = (k for k, value in enumerate(values[name]) if value <= NEAR * best)
        place = next(near, None)
        approaches[name] = Approach(
            seconds=None if place is None else result.history.seconds[place],
            above=values[name][-1] / best - 1,
            components=result.nonzero_components.all_modes,
        )
    return approaches
