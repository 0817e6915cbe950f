"""Every refusal leaves in one shape, RFC 9457 problem+json; this table says which exception becomes which answer."""

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import NamedTuple

import redis.exceptions
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.routing import Match

from app.request_id import HEADER
from app.security import HEADERS
from app.turned_away import NoKey, TooFast, TurnedAway, UnknownHost, UnknownKey
from app.validation import FieldProblem, field_problems
from solvers import InvalidInput
from worker import errors
from worker.logs import subject

MEDIA_TYPE = "application/problem+json"
# Where nothing better is known: Redis may be back soon, a job may end.
RETRY_SECONDS: Mapping[int, int] = {429: 10, 503: 2}
log = logging.getLogger("ncp.problems")


class Kind(NamedTuple):
    """What a caller may rely on: the status and the last word of the problem's `type`."""

    status: int
    word: str
    remedy: str | None = None


class TooLarge(Exception):
    """More bytes than a tensor may have here."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"The tensor is over the limit of {limit} bytes.")


class UnsupportedMedia(Exception):
    """A body in a form that the route does not read."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.remedy = remedy


class Forbidden(Exception):
    """Not for this caller."""


class Problem(BaseModel):
    """An RFC 9457 problem: what was refused, why, and what to do about it."""

    type: str = Field(description="names the kind of problem; stable, for programs")
    title: str = Field(description="the HTTP status in words")
    status: int
    detail: str = Field(description="what is wrong, for people")
    remedy: str | None = Field(None, description="what to do about it")
    errors: list[FieldProblem] = Field([], description="one entry per refused field")
    request_id: str = Field(description="quote it when asking the operator; the log has it too")


ASK = "send Authorization: Bearer KEY; the operator makes a key with ncp keys create NAME"
BUSY = "try again after Retry-After seconds"
TABLE: Mapping[type[Exception], Kind] = {
    errors.NotFound: Kind(404, "not-found", "list your own with GET on the collection"),
    errors.InUse: Kind(409, "in-use", "cancel the jobs that need it, or wait until they have finished"),
    errors.StillLive: Kind(409, "still-live", "cancel the job first, or wait until it has finished"),
    errors.NotYet: Kind(409, "not-yet", "ask again after the first checkpoint; GET the job shows its progress"),
    errors.KeyReused: Kind(422, "key-reused", "send the same body again, or choose a new Idempotency-Key"),
    errors.BadTensor: Kind(422, "bad-tensor"),
    errors.DoesNotFit: Kind(422, "does-not-fit"),
    InvalidInput: Kind(422, "does-not-fit"),
    TooLarge: Kind(413, "too-large", "send a smaller tensor, or ask the operator for a higher limit"),
    UnsupportedMedia: Kind(415, "unsupported-media"),
    Forbidden: Kind(403, "forbidden", "ask from the server's own machine, or with an admin's key"),
    ClientDisconnect: Kind(400, "disconnected"),  # read by nobody; it keeps a lost client out of the error log
    NoKey: Kind(401, "no-key", ASK),
    UnknownKey: Kind(401, "unknown-key", ASK),
    UnknownHost: Kind(421, "unknown-host", "call it localhost or 127.0.0.1, or let the operator set NCP_ALLOWED_HOSTS"),
    TooFast: Kind(429, "too-fast", BUSY),
    errors.TooManyJobs: Kind(429, "too-many-jobs", "wait until one has ended, or cancel one"),
    errors.QuotaReached: Kind(409, "quota-reached", "delete tensors or jobs that you no longer need"),
    errors.StoreFull: Kind(507, "store-full", "delete tensors or jobs that are no longer needed"),
    errors.Unavailable: Kind(503, "unavailable", BUSY),
    redis.exceptions.ConnectionError: Kind(503, "unavailable", BUSY),
    redis.exceptions.TimeoutError: Kind(503, "unavailable", BUSY),
}
ABSENT_REMEDIES: Mapping[str, str] = {
    "mode": "count from 1 to the order of the job's tensor",
    "factors": "submit the job again: it ended before its first checkpoint",
}
PLAIN_REMEDIES: Mapping[int, str] = {
    400: "check the request against /docs",
    404: "see /docs for what there is",
    405: "use a method named in the Allow header",
    412: "leave If-Match out, or name the ETag that a HEAD request tells",
    413: "send less",
    416: "ask for a range within the length named in Content-Range",
}


def install(app: FastAPI) -> None:
    """Let every exception of the table, and every other one, leave as a problem."""
    for kind in TABLE:
        app.add_exception_handler(kind, _known)
    app.add_exception_handler(HTTPException, _plain)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Exception, _unexpected)


def problem(
    status: int,
    word: str,
    detail: str,
    remedy: str | None = None,
    fields: list[FieldProblem] | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """The answer. The request id is in the header too, also where no middleware can add it any more."""
    content = Problem(
        type=f"urn:sparse-ncp:problem:{word}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        remedy=remedy,
        errors=fields or [],
        request_id=subject().request_id or "-",
    )
    retry = {"Retry-After": str(RETRY_SECONDS[status])} if status in RETRY_SECONDS else {}
    known = {**HEADERS, HEADER: content.request_id, **retry}
    return JSONResponse(content.model_dump(), status, {**known, **(headers or {})}, MEDIA_TYPE)


def _known(request: Request, error: Exception) -> JSONResponse:
    return told(error)


def told(error: Exception) -> JSONResponse:
    """The answer to an exception of the table."""
    kind = next(TABLE[known] for known in type(error).__mro__ if known in TABLE)
    if kind.status >= 500:
        log.warning("%s: %s", type(error).__name__, error)
    if isinstance(error, errors.Refused | InvalidInput):
        refused = FieldProblem(field=error.field, problem=error.problem, remedy=error.remedy)
        return problem(kind.status, kind.word, f"{error.field}: {error.problem}", error.remedy, [refused])
    detail = "The record store does not answer." if kind.status == 503 else _sentence(error)
    fields = [_absent(error)] if isinstance(error, errors.NotFound) else []
    headers = error.headers if isinstance(error, TurnedAway) else None
    return problem(kind.status, kind.word, detail, getattr(error, "remedy", kind.remedy), fields, headers)


def _absent(error: errors.NotFound) -> FieldProblem:
    remedy = ABSENT_REMEDIES.get(error.field, "name one of your own")
    return FieldProblem(field=error.field, problem=str(error), remedy=remedy)


def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    fields = field_problems(error.errors(), error.body)
    detail = "; ".join(f"{field.field}: {field.problem}" for field in fields)
    return problem(422, "invalid", detail, "correct the fields named in errors", fields)


def _plain(request: Request, error: Exception) -> JSONResponse:
    """What the framework refuses by itself: unknown paths, methods, ranges, unreadable bodies."""
    assert isinstance(error, HTTPException)
    word = HTTPStatus(error.status_code).phrase.lower().replace(" ", "-")
    headers = {"Allow": _allowed(request)} if error.status_code == 405 else error.headers
    return problem(error.status_code, word, error.detail, PLAIN_REMEDIES.get(error.status_code), None, headers)


def _allowed(request: Request) -> str:
    """The methods of every route on this path; the framework names those of the first one only."""
    routes = [route for route in request.app.state.routes if route.matches(request.scope)[0] is not Match.NONE]
    return ", ".join(sorted({method for route in routes for method in route.methods}))


def _unexpected(request: Request, error: Exception) -> JSONResponse:
    """Nothing of the failure leaves the house: the log has it, under the request id."""
    return problem(500, "failure", "The server failed.", "tell the operator this request_id; the log has the rest")


def _sentence(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return f"{text[0].upper()}{text[1:].removesuffix('.')}."
