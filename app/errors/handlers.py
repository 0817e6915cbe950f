"""Exception handlers: the one table from exception to status, problem type and remedy."""

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import NamedTuple

import redis.exceptions
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.routing import Match

from sparse_ncp.app.errors.exceptions import (
    AuthError,
    Forbidden,
    InvalidCredentials,
    InvalidRequest,
    MissingCredentials,
    NoSignIn,
    RateLimitExceeded,
    SessionEnded,
    TooLarge,
    TooManyStreams,
    UnsupportedMedia,
    UntrustedHost,
)
from sparse_ncp.app.errors.problem import FieldProblem, problem
from sparse_ncp.app.errors.validation import field_problems
from sparse_ncp.app.responses import public_path
from sparse_ncp.solvers import InvalidInput
from sparse_ncp.worker import errors
from sparse_ncp.worker.store.files import is_storage_failure

log = logging.getLogger("ncp.problems")


class ProblemType(NamedTuple):
    """The part of a problem that programs may rely on: the status, and the last word of its `type`."""

    status: int
    word: str
    remedy: str | None = None


ASK = "send Authorization: Bearer KEY; the operator creates a key with ncp keys create NAME"
BUSY = "try again after Retry-After seconds"
CORRECT = "correct the fields named in errors"
PROBLEM_TYPES: Mapping[type[Exception], ProblemType] = {
    errors.NotFound: ProblemType(404, "not-found", "list yours, for example with GET /v1/jobs"),
    errors.LaterRecord: ProblemType(409, "later-release", "ask the operator to install that release again"),
    errors.InUse: ProblemType(409, "in-use", "cancel the jobs that need it, or wait until they have finished"),
    errors.JobNotFinished: ProblemType(409, "still-live", "cancel the job first, or wait until it has finished"),
    errors.StudyNotFinished: ProblemType(409, "still-live", "cancel the study first, or wait until it has finished"),
    errors.PartOfStudy: ProblemType(409, "part-of-study", "delete its study, with all runs"),
    errors.NothingYet: ProblemType(409, "not-yet", "ask again later; GET the study shows its progress"),
    errors.NoFactorsYet: ProblemType(
        409, "not-yet", "ask again after the first checkpoint; GET the job shows its progress"
    ),
    errors.NoDiagnostics: ProblemType(404, "no-diagnostics"),
    errors.NoStability: ProblemType(404, "no-stability"),
    errors.IdempotencyKeyReused: ProblemType(
        422, "key-reused", "send the same body again, or choose a new Idempotency-Key"
    ),
    errors.BadTensor: ProblemType(422, "bad-tensor"),
    errors.InvalidJob: ProblemType(422, "does-not-fit"),
    InvalidInput: ProblemType(422, "does-not-fit"),
    TooLarge: ProblemType(413, "too-large", "send a smaller tensor, or ask the operator for a higher limit"),
    UnsupportedMedia: ProblemType(415, "unsupported-media"),
    Forbidden: ProblemType(403, "forbidden", "ask from the server's own machine, or with an admin's key"),
    ClientDisconnect: ProblemType(400, "disconnected"),  # no client receives it, but it is not logged as an error
    SessionEnded: ProblemType(401, "session-ended", "sign in again, or send a key"),
    NoSignIn: ProblemType(409, "no-sign-in", "call without a key"),
    MissingCredentials: ProblemType(401, "no-key", ASK),
    InvalidCredentials: ProblemType(401, "unknown-key", ASK),
    UntrustedHost: ProblemType(
        421, "unknown-host", "call it localhost or 127.0.0.1, or ask the operator to set NCP_ALLOWED_HOSTS"
    ),
    RateLimitExceeded: ProblemType(429, "too-fast", BUSY),
    TooManyStreams: ProblemType(
        429,
        "too-many-streams",
        "close one, or ask for what is recorded so far with follow=false, as often as you need it",
    ),
    errors.TooManyJobs: ProblemType(429, "too-many-jobs", "wait until one has ended, or cancel one"),
    errors.TooManyLabels: ProblemType(
        409, "quota-reached", "shorten the labels, or delete tensors and jobs that have others"
    ),
    errors.TooManyRuns: ProblemType(
        429, "too-many-runs", "wait until runs have ended, cancel a study, or ask for fewer runs"
    ),
    errors.QuotaReached: ProblemType(409, "quota-reached", "delete tensors or jobs that you no longer need"),
    errors.StoreFull: ProblemType(507, "store-full", "delete tensors or jobs that are no longer needed"),
    errors.StoreUnavailable: ProblemType(503, "store-unavailable", BUSY),
    errors.OutcomeUnknown: ProblemType(
        504,
        "outcome-unknown",
        "look at Location to see whether the change was made, or repeat the request with its Idempotency-Key",
    ),
    errors.WritesRefused: ProblemType(503, "read-only", f"{BUSY}; what is stored can be read meanwhile"),
    errors.RenderingRefused: ProblemType(503, "busy", BUSY),
    errors.RenderingTooLong: ProblemType(
        503, "took-too-long", "request less at once, or ask the operator to raise NCP_RENDER_SECONDS"
    ),
    errors.RenderingTooLarge: ProblemType(
        422,
        "needs-too-much-memory",
        "ask for npz or for one mode as .npy, or ask the operator to raise NCP_RENDER_MEMORY_BYTES",
    ),
    errors.Unavailable: ProblemType(503, "unavailable", BUSY),
    redis.exceptions.ConnectionError: ProblemType(503, "unavailable", BUSY),
    redis.exceptions.TimeoutError: ProblemType(503, "unavailable", BUSY),
}
ABSENT_REMEDIES: Mapping[str, str] = {
    "sample": "choose one of GET /v1/samples",
    "mode": "count from 1 to the order of the job's tensor",
    "plot": "ask for objective, quality, path or components of a comparison, choice or components of a choice",
    "table": "only a comparison has one; GET the study has the advice of a choice",
    "factors": "submit the job again: it ended before its first checkpoint",
}
PLAIN_REMEDIES: Mapping[int, str] = {
    400: "check the request against /docs",
    404: "see /docs for what there is: paths begin with /v1, and none ends in a slash",
    412: "leave If-Match out, or send the ETag of a HEAD request",
    413: "send less",
    416: "ask for a range within the length named in Content-Range",
}


def install(app: FastAPI) -> None:
    """Answer every exception, in the table or not, with a problem."""
    for kind in PROBLEM_TYPES:
        app.add_exception_handler(kind, known_handler)
    app.add_exception_handler(OSError, os_error_handler)
    app.add_exception_handler(HTTPException, http_exception_handler)
    app.add_exception_handler(RequestValidationError, validation_handler)
    app.add_exception_handler(Exception, unexpected_handler)


def known_handler(request: Request, error: Exception) -> JSONResponse:
    response = to_response(error)
    if isinstance(error, errors.OutcomeUnknown):
        path = request.url.path.removesuffix("/cancel")
        collection = {"job": "jobs", "study": "studies", "tensor": "tensors"}
        if error.kind is not None:
            path = public_path(request, f"/v1/{collection[error.kind]}/{error.id}")
        response.headers["Location"] = path
    return response


def os_error_handler(request: Request, error: Exception) -> JSONResponse:
    """Answer a disk that fails while a file is read; every other OSError is unexpected."""
    assert isinstance(error, OSError)
    if not is_storage_failure(error):
        raise error
    return to_response(errors.StoreUnavailable(error.errno, f"the disk cannot be read: {error.strerror}"))


def to_response(error: Exception) -> JSONResponse:
    """Return the response to an exception of the table."""
    kind = next(PROBLEM_TYPES[known] for known in type(error).__mro__ if known in PROBLEM_TYPES)
    if kind.status >= 500 and not isinstance(
        error, errors.RenderingRefused
    ):  # expected under load, so it is not logged
        log.warning("%s: %s", type(error).__name__, error)
    if isinstance(error, InvalidInput):
        fields = field_problems_of(error.problems if isinstance(error, errors.InvalidJob) else [error])
        return problem(kind.status, kind.word, _detail(fields), _remedy(fields), fields)
    detail = "The record store does not answer." if kind.word == "unavailable" else _detail_of(error)
    fields = field_problems_of([error, *error.others]) if isinstance(error, errors.NotFound) else []
    headers = error.headers if isinstance(error, AuthError) else None
    if isinstance(error, errors.RenderingRefused):
        headers = {"Retry-After": str(error.wait_seconds)}
    remedy = getattr(error, "remedy", kind.remedy)
    if isinstance(error, errors.NotFound):
        remedy = ABSENT_REMEDIES.get(error.field, remedy)
    return problem(kind.status, kind.word, detail, remedy, fields, headers)


def _detail_of(error: Exception) -> str:
    """Return the message as a sentence; for an OSError, without its number and file name."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
    return f"{text[0].upper()}{text[1:].removesuffix('.')}."


def field_problems_of(found: Sequence[Exception]) -> list[FieldProblem]:
    """Return one entry for each problem with a field."""
    fields = []
    for error in found:
        if isinstance(error, InvalidInput):
            fields.append(FieldProblem(field=error.field, problem=error.problem, remedy=error.remedy))
        elif isinstance(error, errors.NotFound):
            remedy = ABSENT_REMEDIES.get(error.field, "name one of your own")
            fields.append(FieldProblem(field=error.field, problem=str(error), remedy=remedy))
    return fields


def _detail(fields: Sequence[FieldProblem]) -> str:
    return "; ".join(f"{field.field}: {field.problem}" for field in fields)


def _remedy(fields: Sequence[FieldProblem]) -> str:
    return fields[0].remedy if len(fields) == 1 else CORRECT


def validation_handler(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    fields = field_problems(error.errors(), error.body)
    if isinstance(error, InvalidRequest):
        refused = {field.field for field in fields}
        fields += [field for field in field_problems_of(error.problems) if field.field not in refused]
    return problem(422, "invalid", _detail(fields), _remedy(fields), fields)


def http_exception_handler(request: Request, error: Exception) -> JSONResponse:
    """Answer what the framework refuses: unknown paths, wrong methods, bad ranges, unreadable bodies."""
    assert isinstance(error, HTTPException)
    word = HTTPStatus(error.status_code).phrase.lower().replace(" ", "-")
    headers, remedy = error.headers, PLAIN_REMEDIES.get(error.status_code)
    if error.status_code == 405:
        # The methods of every route on this path, where the framework names those of the first one only. A path that
        # is written out, such as /v1/jobs/estimate, is not taken for the id of a job.
        path = request.scope["path"]
        matching = [route for route in request.app.state.routes if route.matches(request.scope)[0] is not Match.NONE]
        routes = [route for route in matching if route.path == path] or matching
        allowed = ", ".join(sorted({method for route in routes for method in route.methods})) or "GET, HEAD"
        headers, remedy = {"Allow": allowed}, f"use {allowed}"
    return problem(error.status_code, word, error.detail, remedy, None, headers)


def unexpected_handler(request: Request, error: Exception) -> JSONResponse:
    """Answer an unexpected exception without its details, which the log has under the request id."""
    return problem(500, "failure", "The server failed.", "send the operator this request_id; the log has the details")
