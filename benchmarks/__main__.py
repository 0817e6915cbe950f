"""The whole benchmark: `make bench`, or for a part of it

    python -m benchmarks [W3 W4 E3 E4] [--rounds 20] [--seconds 8] [--seeds 5]

The tables are printed and written to benchmarks/results.md.
"""

import argparse
from collections import ChainMap
from pathlib import Path

from benchmarks import acceleration, convergence, footprint, report, sweeps
from benchmarks.tensors import BY_NAME

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
    sparse = [case for case in cases if case.name in SPARSE]
    sections = [report.sweep_table({case.name: sweeps.measure(case, asked.rounds) for case in cases})]
    sections.append(report.memory_table({case.name: footprint.extra_megabytes(case) for case in cases}))
    if asked.seconds > 0:
        errors = {case.name: convergence.to_relative_error(case, asked.seconds) for case in cases}
        objectives = {case.name: convergence.to_objective(case, 2 * asked.seconds) for case in sparse}
        sections += [report.error_table(errors), report.objective_table(objectives)]
    if asked.seeds > 0:
        gains = [acceleration.measure(case, asked.seeds, seconds=30) for case in cases]
        sections.append(report.gain_table(dict(ChainMap(*reversed(gains)))))
    text = "\n\n".join([report.title(), *sections]) + "\n"
    print(text)
    RESULTS.write_text(text)


if __name__ == "__main__":
    main()
