"""How much sooner a compressed tensor brings a run to the same objective: W4, beta = 0.5, from several seeds.

    python -m benchmarks.acceleration [--seeds 5] [--seconds 30] [--tensor W4]

The exact run goes on until its stopping rule holds, then so does the accelerated one. An exact run that is not done
after the given seconds is stopped there, and the accelerated one where it has come as far.
"""

import argparse
import statistics
from collections.abc import Mapping
from typing import Any

from tqdm import tqdm

from benchmarks.tensors import BY_NAME
from solvers import Settings, solve, sweeps
from solvers.arrays import Float64

BETA = 0.5
CONTESTANTS: Mapping[str, Mapping[str, Any]] = {
    "recommended": {"preset": "recommended"},
    "the paper's apg": {"method": "apg", "accelerate": "auto"},
}


def gain(X: Float64, fields: Mapping[str, Any], seconds: float) -> tuple[float, float]:
    """The exact run's seconds over the accelerated one's, and the accelerated objective over the exact one's."""
    stop = {**fields.get("stop", {}), "max_seconds": seconds}
    exact = solve(X, Settings.model_validate({**fields, "accelerate": "none", "stop": stop}))
    fast = Settings.model_validate(fields)
    if exact.stop_reason == "max_seconds":
        for state in sweeps(X, fast):
            if state.history.objective[-1] <= exact.objective:
                break
        fast = fast.model_copy(update={"stop": fast.stop.model_copy(update={"max_iterations": state.iteration})})
    result = solve(X, fast)
    return exact.seconds / result.seconds, result.objective / exact.objective


def measure(tensor: str, seeds: int, seconds: float) -> dict[str, tuple[float, float]]:
    """Medians over the seeds."""
    case = BY_NAME[tensor]
    X = case.make()
    medians = {}
    for name, fields in CONTESTANTS.items():
        runs = [
            gain(X, {"rank": case.rank, "beta": BETA, "seed": seed, **fields}, seconds)
            for seed in tqdm(range(seeds), desc=f"{tensor} {name}")
        ]
        medians[name] = statistics.median(run[0] for run in runs), statistics.median(run[1] for run in runs)
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tensor", choices=BY_NAME, default="W4")
    parser.add_argument("--seconds", type=float, default=30)
    asked = parser.parse_args()
    for name, (sooner, worse) in measure(asked.tensor, asked.seeds, asked.seconds).items():
        print(f"{name}: {sooner:.1f} times sooner, objective {worse:.5f} of the exact run's")


if __name__ == "__main__":
    main()
