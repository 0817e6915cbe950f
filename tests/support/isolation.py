"""Try every operation of the OpenAPI document on another owner's things.

A new route whose parameter or body has a new name must be described here; until then it is a
complaint, so no route can be forgotten.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
# Headers that say nothing of what was asked for.
VARYING = {"date", "x-request-id", "content-length", "ratelimit"}
# Parameters that name nothing of anybody's, with a value to send.
HARMLESS = {
    "mode": "1",
    "plot": "convergence",
    "format": "csv",
    "scale": "unit",
    "order": None,
    "zeros": None,
    "after": "0",
    "state": "succeeded",
    "method": "hals",
    "limit": "500",
    "cursor": "999999999",
    "name": "mine",
    "fix": "1:0",
    "max": "8",
    "follow": "false",
    "Last-Event-ID": None,
    "Repr-Digest": None,
}


@dataclass(frozen=True)
class Things:
    """Values for the parameters of routes: an owner's own things, or things that never existed."""

    tensor_id: str
    job_id: str
    study_id: str
    owner: str
    sha256: str
    idempotency_key: str
    content: bytes

    def named(self, parameter: str) -> str | None:
        name = {"other": "job_id"}.get(parameter, parameter.lower().replace("-", "_"))
        found: str | None = vars(self).get(name)
        return found


@dataclass(frozen=True)
class Operation:
    method: str
    path: str
    parameters: tuple[tuple[str, str], ...]  # where, name
    body: bool
    documented: bool

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def names_a_thing(self) -> bool:
        return any(where == "path" and name not in HARMLESS for where, name in self.parameters)


def operations(document: dict[str, Any]) -> list[Operation]:
    """All methods on every path, those that are not documented too."""
    found = []
    for path, documented in document["paths"].items():
        everything = [parameter for operation in documented.values() for parameter in operation.get("parameters", [])]
        in_path = {(parameter["in"], parameter["name"]) for parameter in everything if parameter["in"] == "path"}
        for method in METHODS:
            operation = documented.get("get" if method == "HEAD" else method.lower(), {})
            own = {(parameter["in"], parameter["name"]) for parameter in operation.get("parameters", [])}
            found.append(
                Operation(method, path, tuple(sorted(in_path | own)), "requestBody" in operation, bool(operation))
            )
    return found


def unknown(operation: Operation) -> list[str]:
    """Return the parameters of an operation that this module cannot fill yet."""
    known = {"tensor_id", "job_id", "study_id", "owner", "sha256", "other", "Idempotency-Key", *HARMLESS}
    names = [name for _, name in operation.parameters if name not in known]
    return names + (["body"] if operation.body and str(operation) not in BODIES else [])


def _job(tensor_id: str, **fields: Any) -> bytes:
    return json.dumps({"tensor_id": tensor_id, "rank": 2, "method": "hals", **fields}).encode()


def _jobs(theirs: Things, mine: Things) -> list[bytes]:
    """All the ways in which a job can name something."""
    return [
        _job(theirs.tensor_id),
        _job(mine.tensor_id, initial={"job_id": theirs.job_id}),
        _job(mine.tensor_id, mask={"tensor_id": theirs.tensor_id}),
        _job(mine.tensor_id, fixed={"job_id": theirs.job_id, "modes": [1]}),
    ]


def _study(tensor_id: str, **fields: Any) -> bytes:
    grid = {"kind": "compare", "ranks": [2], "methods": ["hals"], "betas": [0.0], "repeats": 1}
    return json.dumps({"tensor_id": tensor_id, **grid, **fields}).encode()


def _studies(theirs: Things, mine: Things) -> list[bytes]:
    return [
        _study(theirs.tensor_id),
        _study(mine.tensor_id, reference={"tensor_id": theirs.tensor_id, "mode": 1}),
        _study(mine.tensor_id, initial={"job_id": theirs.job_id}),
        _study(mine.tensor_id, mask={"tensor_id": theirs.tensor_id}),
        _study(mine.tensor_id, fixed={"job_id": theirs.job_id, "modes": [1]}),
    ]


BODIES: dict[str, Callable[[Things, Things], list[bytes]]] = {
    "POST /v1/tensors": lambda theirs, _: [theirs.content],
    "POST /v1/jobs": _jobs,
    "POST /v1/jobs/estimate": _jobs,
    "POST /v1/studies": _studies,
    "PATCH /v1/jobs/{job_id}": lambda *_: [b'{"name": "mine"}'],
    "PATCH /v1/tensors/{tensor_id}": lambda *_: [b'{"name": "mine"}'],
    "POST /v1/session": lambda *_: [b'{"key": "mine"}'],
    "PUT /v1/tensors/{tensor_id}/axes": lambda *_: [b'[{"name": "mine", "values": [1, 2]}]'],
}


def requests(operation: Operation, theirs: Things, mine: Things) -> Iterator[dict[str, Any]]:
    """The operation, with everything that can be named naming theirs."""
    path = operation.path
    query: dict[str, str] = {}
    headers: dict[str, str] = {}
    for where, name in operation.parameters:
        value = theirs.named(name) or HARMLESS.get(name)
        if name == "format" and "/plots/" in operation.path:
            value = "png"
        if name == "plot" and "/studies/" in operation.path:
            value = "objective"
        if value is None:
            continue
        if where == "path":
            path = path.replace(f"{{{name}}}", value)
        else:
            (query if where == "query" else headers)[name] = value
    bodies = BODIES[str(operation)](theirs, mine) if operation.body else [b""]
    if operation.body and operation.path != "/v1/tensors":
        headers["Content-Type"] = "application/json"
    for filters in [query, {}] if query and "other" not in query else [query]:  # which is required
        for body in bodies:
            yield {"method": operation.method, "url": path, "params": filters, "headers": headers, "content": body}


def blank(answer: httpx.Response, things: Things) -> tuple[int, frozenset[tuple[str, str]], str]:
    """An answer without what names the thing that was asked for, and without what is never the same."""
    text = re.sub(r'"request_id":"[^"]*"', "", answer.text)
    for name in (things.tensor_id, things.job_id, things.study_id, things.owner, things.sha256):
        text = text.replace(name, "…")
    headers = frozenset((name, value) for name, value in answer.headers.items() if name not in VARYING)
    return answer.status_code, headers, text


def seen_by(caller: httpx.Client, document: dict[str, Any], own: Things) -> dict[str, tuple[int, str]]:
    """Return all that an owner can read of their own."""
    seen = {}
    for operation in operations(document):
        shared = "/admin/" in operation.path or not operation.path.startswith("/v1/")
        if operation.method == "GET" and operation.documented and not shared and not unknown(operation):
            for request in requests(operation, own, own):
                answer = caller.request(**request)
                seen[f"{operation} {request['params']}"] = answer.status_code, answer.text
    return seen


def complaints(
    document: dict[str, Any],
    owner: tuple[httpx.Client, list[Things]],
    stranger: tuple[httpx.Client, Things],
    never: Things,
) -> list[str]:
    """Yield each way in which the stranger could read or change the owner's things."""
    (caller, things), (other, mine) = owner, stranger
    whole = things[0]
    before = seen_by(caller, document, whole), _states(caller)
    found = []
    for operation in operations(document):
        if lacking := unknown(operation):
            found.append(f"{operation}: describe in tests/support/isolation.py how to fill {', '.join(lacking)}")
            continue
        for theirs in things:
            found += [f"{operation}: {complaint}" for complaint in _tried(operation, other, theirs, mine, never)]
    if (seen_by(caller, document, whole), _states(caller)) != before:
        found.append("something of the owner's was changed")
    return found


def _tried(operation: Operation, other: httpx.Client, theirs: Things, mine: Things, never: Things) -> Iterator[str]:
    pairs = zip(requests(operation, theirs, mine), requests(operation, never, mine), strict=True)
    for asked, control in pairs:
        answer, expected = other.request(**asked), other.request(**control)
        if operation.names_a_thing and answer.status_code not in (404, 405):
            yield f"answers {answer.status_code}"
        if answer.status_code >= 400 and blank(answer, theirs) != blank(expected, never):
            yield f"differs from what never existed: {answer.text} | {expected.text}"
        sent = f"{asked['url']} {asked['params']} {asked['content']!r}"
        reported = answer.text + str(answer.headers.raw)
        secrets = (theirs.tensor_id, theirs.job_id, theirs.study_id, theirs.owner, theirs.idempotency_key)
        yield from (f"reveals {secret}" for secret in secrets if secret in reported and secret not in sent)


def _states(caller: httpx.Client) -> list[tuple[str, str, bool]]:
    jobs = caller.get("/v1/jobs").json()["items"]
    return [(job["id"], job["state"], job["cancel_requested"]) for job in jobs]
