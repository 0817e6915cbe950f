"""Jobs without HTTP: submit, wait, compare with an undisturbed run."""

import io
import itertools
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from sparse_ncp.solvers import Result, Settings, solve
from sparse_ncp.worker.broker import wake_worker
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.contract import TERMINAL, Job, JobRequest, Progress, TensorRecord
from sparse_ncp.worker.execution.reaper import Reaper
from sparse_ncp.worker.operations.jobs import JobOperations
from sparse_ncp.worker.operations.tensors import TensorOperations
from sparse_ncp.worker.owner_limits import UNLIMITED, Limits
from sparse_ncp.worker.records.claims import ExecutionRecords
from sparse_ncp.worker.records.jobs import Submission, Submitted
from sparse_ncp.worker.records.records import Records
from sparse_ncp.worker.store.local import LocalStore
from tests.support.stack import wait_for

# Long enough to be met on the way (some seconds), with a checkpoint every few iterations.
LONG: dict[str, Any] = {"rank": 8, "method": "apg", "stop": {"max_iterations": 1500, "tolerance": 0}}
# Three times as long: several checkpoints are written, an outage passes.
LONGER: dict[str, Any] = {**LONG, "stop": {"max_iterations": 5000, "tolerance": 0}}
# Runs until it is cancelled.
ENDLESS: dict[str, Any] = {**LONG, "stop": {"max_iterations": 10**6, "tolerance": 0}}


def npy(array: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def random_tensor(*shape: int, seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).random(shape)


def put(records: ExecutionRecords, store: LocalStore, array: NDArray[Any], owner: str = "local") -> TensorRecord:
    """Upload a tensor as the API does."""
    with store.upload() as upload:
        upload.write(npy(array))
        return TensorOperations(records, store).keep(upload, owner)


def request(tensor: TensorRecord, **fields: Any) -> JobRequest:
    return JobRequest.model_validate({"rank": 2, "method": "hals", **fields, "tensor_id": tensor.id})


def queue_job(
    records: Records, owner: str, asked: JobRequest, key: str | None = None, limits: Limits = UNLIMITED
) -> Submitted:
    """Queue a job that is not checked, without waking a worker."""
    (outcome,) = records.jobs.submit_many([Submission(owner, asked, key, limits)])
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def row(iteration: int) -> Progress:
    return Progress(iteration=iteration, objective=1 / 3, relative_error=0.1, fit=1 - 0.1, seconds=iteration * 0.01)


def ended(records: ExecutionRecords, job: Job, seconds: float = 60) -> Job:
    """The job once it has ended."""
    return wait_for(
        lambda: found if (found := records.jobs.get(job.owner, job.id)).state in TERMINAL else None,
        seconds,
        f"job {job.id} to end",
    )


def reached(records: ExecutionRecords, job: Job, iteration: int, seconds: float = 60) -> Progress:
    """Its progress, once it has published this iteration."""
    return wait_for(
        lambda: (
            found if (found := records.jobs.get(job.owner, job.id).progress) and found.iteration >= iteration else None
        ),
        seconds,
        f"iteration {iteration}",
    )


def job_process(worker_pid: int) -> psutil.Process:
    """The process that computes: a child of the worker's only pool child."""

    def look() -> psutil.Process | None:
        children = [job for child in psutil.Process(worker_pid).children() for job in child.children()]
        return children[0] if children else None

    return wait_for(look, what="the job's process")


def calm_reaper(configuration: Configuration, name: str = "reaper") -> Reaper:
    """One that has seen Redis for longer than a lease, without a gap: it takes back what it finds."""
    reaper, until = Reaper(configuration, name), time.monotonic() + 1.2 * configuration.lease_seconds

    def seen() -> bool:
        reaper.reap()
        return time.monotonic() > until

    wait_for(seen, what="a lease")
    return reaper


def same_bits(found: list[Any], expected: list[Any]) -> bool:
    return len(found) == len(expected) and all(
        A.dtype == B.dtype and A.shape == B.shape and A.tobytes() == B.tobytes()
        for A, B in zip(found, expected, strict=True)
    )


TENSOR = random_tensor(40, 40, 40)
# Every sweep takes several seconds: a thousand passes over one long factor.
SLOW_TENSOR = random_tensor(4000, 20, 20)


@cache
def undisturbed(settings: str) -> Result:
    """Return the result of `solve()` for these settings (as JSON)."""
    return solve(TENSOR, Settings.model_validate_json(settings))


class Backend:
    """One Redis, one store, one worker at a time."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.records = ExecutionRecords.of(configuration)
        self.store = LocalStore(configuration.data)
        self.jobs = JobOperations(self.records, self.store, configuration)
        self.tensor = put(self.records, self.store, TENSOR)

    def submit(self, **fields: object) -> Job:
        job, _ = queue_job(self.records, "local", request(self.tensor, **fields))
        wake_worker(self.configuration)
        return job

    def now(self, job: Job) -> Job:
        return self.records.jobs.get("local", job.id)

    def solved(self, **fields: object) -> list[np.ndarray]:
        return list(undisturbed(request(self.tensor, **fields).settings().model_dump_json()).factors)

    def folder(self, job: Job) -> Path:
        return self.store.root / "jobs" / job.id

    def checkpointed(self, job: Job) -> Path:
        """The state in its first checkpoint, once that is published."""
        published = self.folder(job)
        found = wait_for(lambda: next(published.glob("checkpoint-*/manifest.json"), None), what="a checkpoint")
        return found.with_name("state")

    def published_once(self, job: Job) -> bool:
        """Every iteration was published exactly once, in order, with time that never runs back."""
        rows = self.jobs.history("local", job.id)
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
        assert self.published_once(done)
        rows = self.jobs.history("local", done.id)
        assert tuple(row.objective for row in rows) == expected.history.objective
        assert tuple(row.relative_error for row in rows) == expected.history.relative_error
        for phase, count in (("compressed", expected.compressed_iterations), ("single", expected.single_iterations)):
            # The last of them is exact.
            assert [row.phase == phase for row in rows] == [row.iteration < count for row in rows]
        return done


def submit_slow(backend: Backend, rank: int = 60, **stop: float) -> Job:
    tensor = put(backend.records, backend.store, SLOW_TENSOR)
    stop = {"tolerance": 0, **stop}
    asked = request(tensor, rank=rank, method="apg", inner_passes=1000, diagnose=False, stop=stop)
    job, _ = queue_job(backend.records, "local", asked)
    wake_worker(backend.configuration)
    return job
