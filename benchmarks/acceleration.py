"""Time that compression saves on the way to the same objective, at beta = 0.5 and over several seeds.

    python -m benchmarks.acceleration [W3 W4 E3 E4] [--seeds 5] [--seconds 30]

The exact run goes on until its stopping rule holds, then so does the accelerated one. An exact run that is not done
after the given seconds is stopped there, and the accelerated one where it has come as far.
"""

import argparse
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from benchmarks.tensors import BY_NAME, Case
from sparse_ncp.solvers import Settings, solve, sweeps
from sparse_ncp.solvers.tensor.products import Float64

BETA = 0.5
RECOMMENDED: Mapping[str, Any] = {"preset": "recommended"}
# On E3 and E4 a compressed tensor is of no use: the ratio shows what finding that out costs on E3, and what single
# precision gains on E4.
CONTESTANTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "W3": {"recommended": RECOMMENDED},
    "W4": {"recommended": RECOMMENDED, "the paper's apg": {"method": "apg", "accelerate": "auto"}},
    "E3": {"recommended": RECOMMENDED},
    "E4": {"recommended": RECOMMENDED},
}


@dataclass(frozen=True)
class Gain:
    """Return the ratio of the exact run's seconds to the accelerated one's, and the ratio of their objectives."""

    sooner: float
    objective: float


def gain(X: Float64, fields: Mapping[str, Any], seconds: float) -> Gain:
    stop = {**fields.get("stop", {}), "max_seconds": seconds}
    exact = solve(X, Settings.model_validate({**fields, "accelerate": "none", "stop": stop}))
    fast = Settings.model_validate(fields)
    if exact.stop_reason == "max_seconds":
        for state in sweeps(X, fast):
            if state.history.objective[-1] <= exact.objective:
                break
        fast = fast.model_copy(update={"stop": fast.stop.model_copy(update={"max_iterations": state.iteration})})
    result = solve(X, fast)
    return Gain(exact.seconds / result.seconds, result.objective / exact.objective)


def measure(case: Case, seeds: int, seconds: float) -> dict[str, Gain]:
    """Return the medians over the seeds."""
    X = case.make()
    medians = {}
    for name, fields in CONTESTANTS[case.name].items():
        runs = [
            gain(X, {"rank": case.rank, "beta": BETA, "seed": seed, **fields}, seconds)
            for seed in tqdm(range(seeds), desc=f"{case.name} {name}")
        ]
        medians[f"{case.name}, {name}"] = Gain(
            statistics.median(run.sooner for run in runs), statistics.median(run.objective for run in runs)
        )
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("tensors", nargs="*", default=list(BY_NAME))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30)
    asked = parser.parse_args()
    for tensor in asked.tensors:
        for name, found in measure(BY_NAME[tensor], asked.seeds, asked.seconds).items():
            print(f"{name}: {found.sooner:.2f} times sooner, objective {found.objective:.5f} of the exact run's")


if __name__ == "__main__":
    main()
