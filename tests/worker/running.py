"""Jobs on a real Redis, store and worker, and what each must come to."""

import itertools
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from solvers import Result, Settings, solve
from tests.stack import wait_for
from tests.worker.lab import ended, put, random_tensor, request, same_bits
from worker.configuration import Configuration
from worker.contract import Job
from worker.records import Records
from worker.store import Store
from worker.wake import wake

# Long enough to be met on the way (some seconds), with a checkpoint every few iterations.
LONG: dict[str, Any] = {"rank": 8, "method": "apg", "stop": {"max_iterations": 1500, "tolerance": 0}}
# Three times as long: several checkpoints are written, an outage passes.
LONGER: dict[str, Any] = {**LONG, "stop": {"max_iterations": 5000, "tolerance": 0}}
# Runs until somebody ends it.
ENDLESS: dict[str, Any] = {**LONG, "stop": {"max_iterations": 10**6, "tolerance": 0}}
TENSOR = random_tensor(40, 40, 40)


@cache
def undisturbed(settings: str) -> Result:
    """What `solve()` gives for these settings (as JSON)."""
    return solve(TENSOR, Settings.model_validate_json(settings))


class Lab:
    """One Redis, one store, one worker at a time."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.records = Records.of(configuration)
        self.store = Store(configuration.data)
        self.tensor = put(self.records, self.store, TENSOR)

    def submit(self, **fields: object) -> Job:
        job, _ = self.records.submit("local", request(self.tensor, **fields))
        wake(self.configuration)
        return job

    def now(self, job: Job) -> Job:
        return self.records.job("local", job.id)

    def solved(self, **fields: object) -> list[np.ndarray]:
        return list(undisturbed(request(self.tensor, **fields).settings().model_dump_json()).factors)

    def folder(self, job: Job) -> Path:
        return self.store.root / "jobs" / job.id

    def checkpointed(self, job: Job) -> Path:
        """Its first checkpoint, once it is there."""
        return wait_for(lambda: next(self.folder(job).glob("checkpoint-*"), None), what="a checkpoint")

    def told_once(self, job: Job) -> bool:
        """Every iteration was published exactly once, in order, with time that never runs back."""
        rows = self.records.history("local", job.id)
        assert job.result is not None
        return [row.iteration for row in rows] == list(range(1, job.result.iterations + 1)) and all(
            before.seconds <= after.seconds for before, after in itertools.pairwise(rows)
        )

    def as_if_nothing_happened(self, job: Job, seconds: float = 90) -> Job:
        """The job once it has ended, with the factors, the history and the events of an undisturbed run."""
        done = ended(self.records, job, seconds)
        assert done.state == "succeeded", done.error
        expected = undisturbed(done.settings.model_dump_json())
        assert same_bits(self.store.job(done.id).factors(), list(expected.factors))
        assert self.told_once(done)
        rows = self.records.history("local", done.id)
        assert tuple(row.objective for row in rows) == expected.history.objective
        assert tuple(row.relative_error for row in rows) == expected.history.relative_error
        compressed = max(0, expected.compressed_iterations - 1)  # the last of them is exact
        assert [row.phase == "compressed" for row in rows] == [row.iteration <= compressed for row in rows]
        return done
