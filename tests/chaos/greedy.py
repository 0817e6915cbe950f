"""An owner who takes all there is: long jobs, large studies, submissions up to each limit; and what is done to them."""

import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count

import redis

from sparse_ncp.solvers import METHODS
from sparse_ncp.worker.contract import TERMINAL, JobRequest
from sparse_ncp.worker.errors import QuotaReached, StoreUnavailable, TooManyJobs, TooManyRuns, Unavailable
from sparse_ncp.worker.operations.studies import StudyOperations
from sparse_ncp.worker.owner_limits import Limits
from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.records.redis.connection import connect
from sparse_ncp.worker.study_contract import CompareRequest
from tests.chaos.attacks import Attacks
from tests.chaos.jobs import GREEDY, LONG_PLACE, Accepted, Jobs, delete_once
from tests.support.stack import wait_for

# More than there are workers: some of them are paused at any time.
LONG_JOBS = 4
# Some turns.
TURNS_ITERATIONS = 4000
LIVE_STUDIES = 2
STUDY_RUNS = 400
# The room that is left before a limit, and submissions after which it must be full, though some have ended meanwhile.
CROWD = 4
ROOM_BYTES = 100_000
MOST_SUBMISSIONS = 60
YIELD_SECONDS = 6.0
ENDED_SECONDS = 120.0


class Greedy:
    def __init__(self, attacks: Attacks, jobs: Jobs, dice: random.Random) -> None:
        self._attacks = attacks
        self._server = attacks.server
        self._jobs = jobs
        self._dice = dice
        self._numbers = count()
        self._operations = StudyOperations(self._server.records, self._server.store, self._server.configuration)
        self.studies: list[str] = []
        self.complaints: list[str] = []

    def named(self) -> Mapping[str, tuple[int, Callable[[], bool]]]:
        """Each with its weight, as in `Attacks`."""
        return {
            "paused job cancelled": (2, self.cancel_paused),
            "paused job deleted": (3, self.delete_paused),
            "job killed as it gives way": (3, self.kill_yielding),
            "study submitted": (3, self.submit_study),
            "study cancelled": (2, self.cancel_study),
            "study deleted": (2, self.delete_study),
            "limit of jobs reached": (1, lambda: self._exhaust(Limits(live_jobs=LONG_JOBS + CROWD))),
            "quota reached": (2, self.exhaust_quota),
        }

    def keep_long_jobs(self) -> None:
        """Submit jobs of several turns, and jobs that never end by themselves, as long as there are few of them."""
        while sum(job.is_long for job in self._jobs.live()) < LONG_JOBS:
            stop = {"max_iterations": self._dice.choice((TURNS_ITERATIONS, 10**7)), "tolerance": 0}
            self._jobs.add(GREEDY, LONG_PLACE, self._request(LONG_PLACE, rank=8, stop=stop), is_long=True)

    def end(self) -> None:
        """Cancel what would never end, and wait for the studies."""
        for job in self._jobs.live():
            if job.is_long:
                self._jobs.cancel_one(job)
        for study in self._live_studies():
            self._jobs.persistently(lambda: self._server.records.studies.cancel(GREEDY, study))  # noqa: B023
        wait_for(lambda: not self._live_studies(), ENDED_SECONDS, "every study to end")

    def delete_all(self) -> None:
        """Delete the studies that are left."""
        for study in self.studies:
            self._operations.delete(GREEDY, study)
        self.studies.clear()

    # Paused jobs

    def cancel_paused(self) -> bool:
        paused = self._paused()
        if paused:
            self._jobs.cancel_one(self._dice.choice(paused))
        return bool(paused)

    def delete_paused(self) -> bool:
        """Cancel it and delete it at once."""
        paused = self._paused()
        if not paused:
            return False
        job = self._dice.choice(paused)
        self._jobs.cancel_one(job)
        self._jobs.delete_ended(job)
        return True

    def kill_yielding(self) -> bool:
        """Kill a job within the moment in which one of them saves its state to give way."""
        deadline = time.monotonic() + YIELD_SECONDS
        with suppress(redis.RedisError), connect(self._server.configuration) as client:
            while time.monotonic() < deadline:
                if client.exists(keys.YIELDING):
                    return self._attacks.kill_job()
                time.sleep(0.01)
        return False

    def _paused(self) -> list[Accepted]:
        return [job for job in self._jobs.live() if job.is_long and job.is_paused]

    # Studies

    def submit_study(self) -> bool:
        """Submit one of many runs, small ones that share a process or larger ones that do not."""
        if len(self._live_studies()) >= LIVE_STUDIES:
            return False
        request = CompareRequest.model_validate(
            {
                "kind": "compare",
                "tensor_id": self._jobs.tensor_id(GREEDY, self._dice.choice((1, LONG_PLACE))),
                "ranks": [2, 3],
                "methods": self._dice.sample(list(METHODS), 2),
                "repeats": STUDY_RUNS // 4,
                "diagnose": False,
                "stop": {"max_iterations": 20, "tolerance": 0},
            }
        )
        key, limits = f"study {next(self._numbers)}", Limits(live_runs=LIVE_STUDIES * STUDY_RUNS)
        study, _ = self._jobs.persistently(lambda: self._operations.submit(GREEDY, request, key, limits))
        self.studies.append(study.id)
        try:
            self._operations.submit(GREEDY, request, f"{key} again", Limits(live_runs=STUDY_RUNS - 1))
            self.complaints.append(f"a study was accepted beyond the limit of runs, beside {study.id}")
        except (TooManyRuns, Unavailable, StoreUnavailable):
            pass
        return True

    def cancel_study(self) -> bool:
        live = self._live_studies()
        if live:
            study = self._dice.choice(live)
            self._jobs.persistently(lambda: self._server.records.studies.cancel(GREEDY, study))
        return bool(live)

    def delete_study(self) -> bool:
        """Delete one that has ended, perhaps while its last runs are still being written."""
        live = self._live_studies()
        ended = [study for study in self.studies if study not in live]
        if not ended:
            return False
        study = self._dice.choice(ended)
        self._jobs.persistently(lambda: delete_once(lambda: self._operations.delete(GREEDY, study)))
        self.studies.remove(study)
        return True

    def _live_studies(self) -> list[str]:
        find = self._server.records.studies.find
        return self._jobs.persistently(lambda: [one for one in self.studies if find(one).state not in TERMINAL])

    # Limits

    def exhaust_quota(self) -> bool:
        """Submit until the results of one more would not fit."""
        usage = self._jobs.persistently(lambda: self._server.records.stats.usage(GREEDY))
        return self._exhaust(Limits(stored_bytes=usage.stored_bytes + usage.reserved_bytes + ROOM_BYTES))

    def _exhaust(self, limits: Limits) -> bool:
        for _ in range(MOST_SUBMISSIONS):
            try:
                self._jobs.add(GREEDY, 1, self._request(1, rank=2, stop={"max_iterations": 10}), limits=limits)
            except (TooManyJobs, QuotaReached):
                return True
        self.complaints.append(f"{MOST_SUBMISSIONS} jobs were accepted with {limits.given}")
        return True

    def _request(self, place: int, **fields: object) -> JobRequest:
        """Return a request for a job that begins otherwise than the one before."""
        given = {"method": self._dice.choice(list(METHODS)), "seed": self._dice.randrange(1000), "accelerate": "none"}
        return JobRequest.model_validate({"tensor_id": self._jobs.tensor_id(GREEDY, place), **given, **fields})
