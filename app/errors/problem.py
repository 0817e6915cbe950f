"""Problem details (RFC 9457, application/problem+json), the format of all error responses."""

from collections.abc import Mapping
from http import HTTPStatus

from pydantic import BaseModel, Field
from starlette.responses import JSONResponse

from sparse_ncp.app.responses import REQUEST_ID_HEADER, SECURITY_HEADERS
from sparse_ncp.worker.logs import log_context

MEDIA_TYPE = "application/problem+json"
# Retry-After where nothing better is known: Redis may be back soon, a job may end.
RETRY_SECONDS: Mapping[int, int] = {429: 10, 503: 2, 504: 2}


class FieldProblem(BaseModel):
    """One refused field."""

    field: str = Field(description="where: dots lead inwards, modes and other list entries count from 1")
    problem: str
    remedy: str


class Problem(BaseModel):
    """An RFC 9457 problem: what was refused, why, and what to do about it."""

    type: str = Field(description="names the kind of problem; stable, for programs")
    title: str = Field(description="the HTTP status in words")
    status: int
    detail: str = Field(description="what is wrong, for people")
    remedy: str | None = Field(None, description="what to do about it")
    errors: list[FieldProblem] = Field([], description="one entry per refused field")
    request_id: str = Field(description="quote it when asking the operator; the log has it too")


def problem(
    status: int,
    word: str,
    detail: str,
    remedy: str | None = None,
    fields: list[FieldProblem] | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """Return a problem as a response. It has all headers, since some are sent without the middleware."""
    content = Problem(
        type=f"urn:sparse-ncp:problem:{word}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        remedy=remedy,
        errors=fields or [],
        request_id=log_context().request_id or "-",
    )
    retry = {"Retry-After": str(RETRY_SECONDS[status])} if status in RETRY_SECONDS else {}
    known = {**SECURITY_HEADERS, REQUEST_ID_HEADER: content.request_id, **retry}
    return JSONResponse(content.model_dump(), status, {**known, **(headers or {})}, MEDIA_TYPE)
