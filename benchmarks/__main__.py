"""The whole benchmark: `make bench`, or for a part of it

    python -m benchmarks [W3 W4 E3 E4] [--rounds 20] [--seconds 8] [--seeds 5]

The tables are printed and written to benchmarks/results.md, each as soon as it is there.
"""

import argparse
from collections import ChainMap
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import acceleration, convergence, footprint, report, sweeps
from benchmarks.tensors import BY_NAME, Case

RESULTS = Path(__file__).with_name("results.md")
SPARSE = ("W3", "W4")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("tensors", nargs="*", help=f"of {', '.join(BY_NAME)}; all by default")
    parser.add_argument("--rounds", type=int, default=20, help="turns of every contestant per tensor")
    parser.add_argument("--seconds", type=float, default=8, help="per run to convergence; 0 leaves these runs out")
    parser.add_argument("--seeds", type=int, default=5, help="of the runs with and without acceleration; 0 for none")
    asked = parser.parse_args()
    if unknown := set(asked.tensors) - set(BY_NAME):
        parser.error(f"unknown tensor {', '.join(unknown)}; choose from {', '.join(BY_NAME)}")
    cases = [BY_NAME[name] for name in asked.tensors or BY_NAME]
    text = report.title()
    for section in sections(cases, asked.rounds, asked.seconds, asked.seeds):
        text += f"\n\n{section}"
        RESULTS.write_text(f"{text}\n")
    print(text)


def sections(cases: Sequence[Case], rounds: int, seconds: float, seeds: int) -> Iterator[str]:
    yield report.sweep_table({case.name: sweeps.measure(case, rounds) for case in cases})
    yield report.memory_table({case.name: footprint.extra_megabytes(case) for case in cases})
    if seconds > 0:
        yield report.error_table({case.name: convergence.to_relative_error(case, seconds) for case in cases})
        sparse = [case for case in cases if case.name in SPARSE]
        yield report.objective_table({case.name: convergence.to_objective(case, 2 * seconds) for case in sparse})
    if seeds > 0:
        gains = [acceleration.measure(case, seeds, seconds=30) for case in cases]
        yield report.gain_table(dict(ChainMap(*reversed(gains))))


if __name__ == "__main__":
    main()
