"""Small acts that many tests begin with."""

import io
import secrets
from datetime import UTC, datetime
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from tests.stack import wait_for
from worker.contract import TERMINAL, Job, JobRequest, Progress, TensorRecord
from worker.records import Records
from worker.store import Store


def npy(array: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def random_tensor(*shape: int, seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).random(shape)


def put(records: Records, store: Store, array: NDArray[Any], owner: str = "local") -> TensorRecord:
    """Upload a tensor as the API does."""
    with store.upload() as upload:
        upload.write(npy(array))
        sha256, facts = upload.keep()
        record = TensorRecord(
            id=secrets.token_hex(8),
            owner=owner,
            name=None,
            shape=facts.shape,
            dtype=facts.dtype,
            nbytes=upload.nbytes,
            sha256=sha256,
            min=facts.min,
            max=facts.max,
            norm=facts.norm,
            created_at=datetime.now(UTC),
        )
        records.add_tensor(record)
    return record


def request(tensor: TensorRecord, **fields: Any) -> JobRequest:
    return JobRequest.model_validate({"rank": 2, "method": "hals", **fields, "tensor_id": tensor.id})


def row(iteration: int) -> Progress:
    return Progress(iteration=iteration, objective=1 / 3, relative_error=0.1, fit=1 - 0.1, seconds=iteration * 0.01)


def ended(records: Records, job: Job, seconds: float = 60) -> Job:
    """The job once it has ended."""
    return wait_for(
        lambda: found if (found := records.job(job.owner, job.id)).state in TERMINAL else None,
        seconds,
        f"job {job.id} to end",
    )


def reached(records: Records, job: Job, iteration: int) -> Progress:
    """Its progress, once it has published this iteration."""
    return wait_for(
        lambda: found if (found := records.job(job.owner, job.id).progress) and found.iteration >= iteration else None,
        what=f"iteration {iteration}",
    )


def job_process(worker_pid: int) -> psutil.Process:
    """The process that computes: a child of the worker's only pool child."""

    def look() -> psutil.Process | None:
        children = [job for child in psutil.Process(worker_pid).children() for job in child.children()]
        return children[0] if children else None

    return wait_for(look, what="the job's process")


def same_bits(found: list[Any], expected: list[Any]) -> bool:
    return len(found) == len(expected) and all(
        A.dtype == B.dtype and A.shape == B.shape and A.tobytes() == B.tobytes()
        for A, B in zip(found, expected, strict=True)
    )
