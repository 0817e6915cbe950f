"""`python -m tests.chaos --minutes 5 --seed 7`: attack a server at random, then audit it; exit 1 on a complaint."""

import argparse
import random
import secrets
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from tests.chaos.attacks import Attacks
from tests.chaos.audit import all_ended, audit, cleaned_up, states
from tests.chaos.crowds import Crowds
from tests.chaos.greedy import Greedy
from tests.chaos.jobs import OWNERS, Jobs
from tests.chaos.machine import Machine
from tests.chaos.modest import Modest
from tests.chaos.server import ChaosServer

# Jobs that wait or run at any time: enough to keep two workers busy and a queue behind them.
LIVE_JOBS = 5
PAUSES_SECONDS = (0.3, 2.5)
REPORT_SECONDS = 60.0
LOG_LINES = 200


def main() -> int:
    asked = _asked()
    print(f"seed {asked.seed}, {asked.minutes:g} minutes", flush=True)
    with tempfile.TemporaryDirectory(prefix="ncp-chaos-") as folder:
        machine = Machine(Path(folder))
        print("skipped:", ", ".join(machine.skipped) or "nothing", flush=True)
        with ExitStack() as ends:
            ends.callback(machine.end)
            server = ChaosServer(Path(folder), machine)
            ends.callback(server.stop)
            try:
                return _run(server, random.Random(asked.seed), 60 * asked.minutes, asked.seed)
            except Exception:  # what the server says of itself goes with its folder
                print("".join(server.running.log.read_text().splitlines(keepends=True)[-LOG_LINES:]), flush=True)
                raise


def _run(server: ChaosServer, dice: random.Random, seconds: float, seed: int) -> int:
    jobs = Jobs(server, dice)
    attacks = Attacks(server, jobs, dice)
    greedy, crowds, modest = Greedy(attacks, jobs, dice), Crowds(server, jobs, dice), Modest(server, jobs)
    modest.start()
    done = _attack(attacks, greedy, crowds, jobs, dice, seconds)
    complaints = [*modest.end(), *greedy.complaints]
    print(
        "attacks:",
        ", ".join(f"{count} × {name}" for name, count in sorted(done.items())),
        f"= {done.total()}",
        flush=True,
    )
    print(f"modest owner: {modest}", flush=True)
    greedy.end()
    all_ended(server, jobs)
    crowds.end()
    complaints += crowds.complaints
    print("jobs:", ", ".join(f"{count} {state}" for state, count in states(server, jobs).items()), flush=True)
    print(
        f"studies: {len(greedy.studies)} at the end; requests in crowds by status: {dict(crowds.answers)}", flush=True
    )
    print("cleanup:", ", ".join(cleaned_up(server)) or "nothing was left to it", flush=True)
    complaints += audit(server, jobs, greedy, dice)
    for complaint in complaints:
        print("COMPLAINT", complaint)
    print(f"{len(jobs.accepted)} jobs accepted; seed {seed}; {len(complaints)} complaints", flush=True)
    return 1 if complaints else 0


def _attack(
    attacks: Attacks, greedy: Greedy, crowds: Crowds, jobs: Jobs, dice: random.Random, seconds: float
) -> Counter[str]:
    named, done = {**attacks.named(), **greedy.named(), **crowds.named()}, Counter[str]()
    weights = [weight for weight, _ in named.values()]
    started = time.monotonic()
    reported = started
    while time.monotonic() < started + seconds:
        if time.monotonic() > reported + REPORT_SECONDS:
            reported = time.monotonic()
            print(
                f"{(reported - started) / 60:.0f} minutes, {done.total()} attacks, {len(jobs.accepted)} jobs",
                flush=True,
            )
        attacks.server.keep_other_worker()
        greedy.keep_long_jobs()
        while sum(job.owner in OWNERS for job in jobs.live()) < LIVE_JOBS:
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
