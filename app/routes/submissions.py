"""Submissions that come at the same time, made together: they share a thread, a round trip and a flush to the disk."""

import asyncio

from starlette.concurrency import run_in_threadpool

from sparse_ncp.worker.operations.jobs import JobOperations
from sparse_ncp.worker.records.jobs import Submission, Submitted

# At most so many together: a few milliseconds in which Redis serves nobody else.
TOGETHER = 32


class Submissions:
    """Submits jobs. What comes while others are being written waits for their end, and is then written together."""

    def __init__(self, jobs: JobOperations) -> None:
        self._jobs = jobs
        self._waiting: list[tuple[Submission, asyncio.Future[Submitted | Exception]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def submit(self, submission: Submission) -> Submitted:
        """As `JobOperations.submit`. One that names further files is admitted by itself: reading them may take long."""
        request = submission.request
        if request.initial or request.mask or request.fixed:
            return await run_in_threadpool(self._jobs.submit, *submission)
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append((submission, answer))
        if self._writing is None:
            self._writing = asyncio.create_task(self._drain())
        outcome: Submitted | Exception = await answer
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def _drain(self) -> None:
        """Until nobody waits."""
        try:
            while self._waiting:
                together, self._waiting = self._waiting[:TOGETHER], self._waiting[TOGETHER:]
                outcomes = await self._outcomes([submission for submission, _ in together])
                for (_, answer), outcome in zip(together, outcomes, strict=True):
                    if not answer.cancelled():
                        answer.set_result(outcome)
        finally:
            self._writing = None

    async def _outcomes(self, submissions: list[Submission]) -> list[Submitted | Exception]:
        try:
            return await asyncio.to_thread(self._jobs.submit_many, submissions)
        except Exception as error:  # that of all: Redis is away, and each who waits is told
            return [error] * len(submissions)
