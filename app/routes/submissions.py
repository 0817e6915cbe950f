"""Concurrent submissions, made in batches: a batch shares one thread, one round trip and one flush to the disk."""

import asyncio
from collections.abc import Sequence

from starlette.concurrency import run_in_threadpool

from sparse_ncp.worker.operations.jobs import JobOperations
from sparse_ncp.worker.records.jobs import Submission, Submitted

# Jobs per batch: Redis is busy with one for a few milliseconds, and serves no other client meanwhile.
TOGETHER = 32


class Submissions:
    """Submit jobs in batches: those that arrive while a batch is written form the next one."""

    def __init__(self, jobs: JobOperations) -> None:
        self._jobs = jobs
        self._waiting: list[tuple[Submission, asyncio.Future[Submitted | Exception]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def submit(self, submission: Submission) -> Submitted:
        """Submit one job, as `JobOperations.submit` does.

        A job that names further files is submitted by itself, because reading them may take long.
        """
        request = submission.request
        if request.initial or request.mask or request.fixed:
            owner, body, key, limits, request_id, *_ = submission
            return await run_in_threadpool(self._jobs.submit, owner, body, key, limits, request_id)
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append((submission, answer))
        if self._writing is None:
            self._writing = asyncio.create_task(self._drain())
        outcome: Submitted | Exception = await answer
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def _drain(self) -> None:
        """Drain the queue, one batch at a time."""
        try:
            while self._waiting:
                together, self._waiting = self._waiting[:TOGETHER], self._waiting[TOGETHER:]
                outcomes: Sequence[Submitted | Exception]
                try:
                    outcomes = await asyncio.to_thread(
                        self._jobs.submit_many, [submission for submission, _ in together]
                    )
                except Exception as error:  # Redis is unavailable: every caller in the batch gets this error
                    outcomes = [error] * len(together)
                for (_, answer), outcome in zip(together, outcomes, strict=True):
                    if not answer.cancelled():
                        answer.set_result(outcome)
        finally:
            self._writing = None
