"""Fuzzing at length: `make fuzz`, or `python -m tests.fuzz --uploads 20000 --seed 1`."""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

from tests.fuzz.attack import attack
from tests.fuzz.document import contradictions
from tests.support.stack import Server, server


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__)
    parser.add_argument("--uploads", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first upload")
    parser.add_argument("--examples", type=int, default=100, help="requests per operation of the API; 0 for none")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    complaints = _uploads(range(asked.first, asked.first + asked.uploads), asked.seed)
    if asked.examples:
        complaints += _requests(asked.examples, asked.seed)
    for complaint in complaints[:50]:
        print(complaint)
    print(f"{len(complaints)} complaints")
    return 1 if complaints else 0


def _uploads(numbers: range, seed: int) -> list[str]:
    started = time.perf_counter()
    with _server() as running, tqdm(total=len(numbers), unit="upload") as bar:
        verdict = attack(running, seed, numbers, bar.update)
    print(f"{len(numbers)} uploads from seed {seed} in {time.perf_counter() - started:.0f} s")
    print("answers: " + ", ".join(f"{status} {count}" for status, count in sorted(verdict.statuses.items())))
    print("memory of the API (MB): " + " ".join(f"{rss / 1e6:.0f}" for rss in verdict.memory))
    return verdict.complaints


def _requests(examples: int, seed: int) -> list[str]:
    print(f"schemathesis, {examples} requests per operation", flush=True)
    with _server() as running:
        found = contradictions(running, running.data.parent, examples, seed)
    return [found] if found else []


@contextmanager
def _server() -> Iterator[Server]:
    quiet = {"min_free_bytes": 0, "log_level": "warning"}
    with tempfile.TemporaryDirectory(prefix="ncp-fuzz-") as folder, server(Path(folder), **quiet) as running:
        yield running


if __name__ == "__main__":
    sys.exit(main())
