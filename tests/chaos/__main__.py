"""`python -m tests.chaos --minutes 5 --seed 7`: attack a real server at random, then audit it; 1 on a complaint."""

import argparse
import random
import secrets
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.chaos.attacks import Attacks
from tests.chaos.audit import all_ended, audit, states
from tests.chaos.house import House
from tests.chaos.jobs import Jobs

# Jobs that wait or run at any time: enough to keep two workers busy and a queue behind them.
LIVE_JOBS = 5
PAUSES_SECONDS = (0.3, 2.5)


def main() -> int:
    asked = _asked()
    print(f"seed {asked.seed}, {asked.minutes:g} minutes", flush=True)
    with tempfile.TemporaryDirectory(prefix="ncp-chaos-") as folder:
        house = House(Path(folder))
        try:
            return _run(house, random.Random(asked.seed), 60 * asked.minutes, asked.seed)
        finally:
            house.stop()


def _run(house: House, dice: random.Random, seconds: float, seed: int) -> int:
    jobs = Jobs(house, dice)
    done = _attack(Attacks(house, jobs, dice), jobs, dice, seconds)
    print(
        "attacks:",
        ", ".join(f"{count} × {name}" for name, count in sorted(done.items())),
        f"= {done.total()}",
        flush=True,
    )
    all_ended(house, jobs)
    print("jobs:", ", ".join(f"{count} {state}" for state, count in states(house, jobs).items()), flush=True)
    complaints = list(audit(house, jobs))
    for complaint in complaints:
        print("COMPLAINT", complaint)
    print(f"{len(jobs.accepted)} jobs accepted; seed {seed}; {len(complaints)} complaints", flush=True)
    return 1 if complaints else 0


def _attack(attacks: Attacks, jobs: Jobs, dice: random.Random, seconds: float) -> Counter[str]:
    named, done = attacks.named(), Counter[str]()
    weights = [weight for weight, _ in named.values()]
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        while len(jobs.live()) < LIVE_JOBS:
            jobs.submit()
        time.sleep(dice.uniform(*PAUSES_SECONDS))
        name = dice.choices(list(named), weights)[0]
        if named[name][1]():
            done[name] += 1
    return done


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
