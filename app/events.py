"""The event stream of a job (SSE): every iteration once and in order, whoever connects when."""

import logging
from collections.abc import AsyncIterator
from typing import Annotated

import anyio
from fastapi import APIRouter, Header
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Send

from app.deps import Config, Live, Owner, Records
from app.follow import Follower
from app.refusals import refusals
from worker.contract import TERMINAL
from worker.errors import DoesNotFit
from worker.event_records import START, parse_event_id

# A client that takes nothing for so many keep-alive periods is closed; it may resume where it was.
PATIENCE = 2
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
LastEventId = Annotated[
    str | None,
    Header(alias="Last-Event-ID", pattern="^[0-9]{1,18}-[0-9]{1,18}$", description="resume after the last event seen"),
]
EXAMPLE = 'id: 7-0\nevent: progress\ndata: {"iteration": 7, "objective": 1.5, ..., "phase": "exact"}\n\n'
log = logging.getLogger("ncp.events")
router = APIRouter(prefix="/v1/jobs/{job_id}/events", tags=["jobs"])


@router.get(
    "",
    response_class=StreamingResponse,
    responses={
        200: {"content": {"text/event-stream": {"example": EXAMPLE}}, "description": "progress, state and end events"},
        204: {"description": "You have seen the end: do not connect again"},
        **refusals(404),
    },
)
def watch_job(
    job_id: str, owner: Owner, records: Records, live: Live, config: Config, last_event_id: LastEventId = None
) -> Response:
    """`progress` once per iteration, `state` on changes, `end` last with the job; then the stream ends."""
    job, after = records.job(owner, job_id), last_event_id or START
    if parse_event_id(after)[0] > (job.progress.iteration if job.progress else 0):
        raise DoesNotFit(
            "Last-Event-ID", "this job has had no such event", "send the id of the last event you received"
        )
    if job.state in TERMINAL and not records.events_after(job_id, after, 1):
        return Response(status_code=204)
    follower = Follower(records, live, job_id, after, config.keep_alive_seconds)
    return EventStream(follower.stream(), PATIENCE * config.keep_alive_seconds)


class EventStream(StreamingResponse):
    """Closes a client that has stopped reading, so that it holds neither memory nor a shutdown."""

    def __init__(self, content: AsyncIterator[bytes], patience_seconds: float) -> None:
        super().__init__(content, media_type="text/event-stream", headers=HEADERS)
        self._patience_seconds = patience_seconds

    async def stream_response(self, send: Send) -> None:
        async def timely(message: Message) -> None:
            with anyio.fail_after(self._patience_seconds):
                await send(message)

        try:
            await super().stream_response(timely)
        except TimeoutError:
            log.info("closed a client that reads too slowly")
