"""Shares of many owners on a simulated clock, by the scripts of the server: `python -m benchmarks.fairness`.

50 owners submit 10,000 jobs at once, far shorter than a turn, about as long, and far longer, to 8 workers. Prints the
largest deviation from a fair share in any window of ten turns, and the fraction of the time that was lost to switching.
"""

import argparse
import random
import tempfile
import time
from pathlib import Path

from tests.support.simulation import SimulatedLab
from tests.support.stack import embedded_redis

LENGTHS = ((2, 20), (30, 200), (300, 3000))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--owners", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--weights", type=float, nargs="+", default=[1.0])
    parser.add_argument("--seconds", type=float, default=60.0, help="mean length of a job")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, embedded_redis(Path(folder)) as configuration:
        lab = SimulatedLab(configuration, asked.workers)
        lab.fill(asked.owners, asked.jobs, asked.weights, random.Random(0), LENGTHS, asked.seconds)
        started = time.monotonic()
        lab.run()
        unfairness, windows = lab.unfairness()
        print(f"{len(lab.finished)} jobs in {lab.time / 3600:.1f} simulated hours, {lab.pauses} times one gave way")
        print(f"deviation from a fair share: at most {unfairness:.1%} in {windows} windows of ten turns")
        print(f"lost to switching: {lab.lost_share:.2%}; the simulation took {time.monotonic() - started:.0f} s")
        lab.close()


if __name__ == "__main__":
    main()
