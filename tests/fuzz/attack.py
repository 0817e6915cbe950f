"""Send damaged uploads to a real server, judge each response, then look for leftovers."""

import http.client
import json
import random
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import psutil

from sparse_ncp.worker.records.redis.connection import connect
from tests.fuzz.contents import content
from tests.fuzz.oracle import observed, tensor_in
from tests.fuzz.requests import Sent, sent
from tests.support.processes import configuration_of, part
from tests.support.stack import Server, wait_for

ANSWER_SECONDS = 20.0
# Between two looks at the memory of the API.
LOOK_EVERY = 500
# By then allocators, thread pools and caches have their size.
WARM_SHARE = 0.25
FLAT_BYTES = 32 << 20


@dataclass
class Verdict:
    """Outcome of the uploads; `complaints` should be empty."""

    statuses: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)

    @property
    def growth_bytes(self) -> int:
        """Growth of the memory of the API since the server was warm."""
        return self.memory[-1] - self.memory[int(len(self.memory) * WARM_SHARE)] if self.memory else 0


def case(seed: int, number: int) -> Sent:
    """Return the upload for two numbers; it is always the same, so that a complaint can be reproduced."""
    choice = random.Random(f"{seed} {number}")
    return sent(content(choice), choice)


def attack(running: Server, seed: int, numbers: range, on_step: Callable[[], object] = lambda: None) -> Verdict:
    verdict = Verdict()
    api = part(running, "api")
    with Wire(running.address) as wire:
        for number in numbers:
            attempt = case(seed, number)
            status, answer = wire.send(attempt)
            verdict.statuses[str(status or "cut off")] += 1
            verdict.complaints += [f"case {number}: {complaint}" for complaint in _judged(attempt, status, answer)]
            if status == 201:
                wire.delete(f"/v1/tensors/{answer['id']}")
            if number % LOOK_EVERY == 0:
                verdict.memory.append(api.memory_info().rss)
            on_step()
    verdict.memory.append(api.memory_info().rss)
    verdict.complaints += _left(running, api)
    if verdict.growth_bytes > FLAT_BYTES:
        verdict.complaints.append(f"the memory of the API grew by {verdict.growth_bytes:,} bytes")
    return verdict


def _judged(attempt: Sent, status: int | None, answer: dict[str, Any]) -> Iterator[str]:
    if status is None:
        if not attempt.closes:
            yield "got no answer"
        return
    if status >= 500 or status not in (201, 400, 413, 415, 422):
        yield f"answered with {status}"
    if status >= 400 and not attempt.closes and not (answer.get("detail") and answer.get("request_id")):
        yield f"{status} is no problem that names what is wrong: {answer}"
    if attempt.tensor is None or status not in (201, 422) or _refused_for_its_query(answer):
        return
    expected = tensor_in(attempt.tensor)
    if (expected is None) != (status == 422):
        yield f"{status}, but numpy reads {None if expected is None else (expected.dtype, expected.shape)}: {answer}"
    elif expected is not None and not _same(answer, expected):
        yield f"the record {answer} is not of {expected.dtype} {expected.shape}"


def _refused_for_its_query(answer: dict[str, Any]) -> bool:
    return any(wrong["field"] in ("name", "x") for wrong in answer.get("errors", []))


def _same(answer: dict[str, Any], expected: "np.ndarray[Any, Any]") -> bool:
    shape, norm = tuple(answer["shape"]), float(np.linalg.norm(observed(expected)))
    close = bool(np.isclose(answer["norm"], norm, 1e-9))
    return shape == expected.shape and answer["dtype"] == expected.dtype.name and close


def _left(running: Server, api: psutil.Process) -> Iterator[str]:
    """Wait until no slow client is left, then check that every file and record is gone."""
    uploads = running.data / "uploads"
    with suppress(TimeoutError):
        wait_for(lambda: not list(uploads.iterdir()), what="the last uploads to be given up")
    for folder in ("uploads", "tensors", "jobs"):
        files = [path for path in (running.data / folder).rglob("*") if path.is_file() and path.name != ".lock"]
        yield from (f"{path.relative_to(running.data)} is left" for path in files)
    with connect(configuration_of(running)) as client:
        yield from (f"key {key} is left" for key in client.scan_iter("ncp:tensor*"))
        yield from (f"key {key} is left" for key in client.scan_iter("ncp:content*"))
    opened = [file.path for file in api.open_files() if str(running.data / "uploads") in file.path]
    yield from (f"{path} is still open" for path in opened)


class Wire:
    """Send raw bytes, which no library may correct on the way."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._place = (str(parts.hostname), int(parts.port or 80))
        self._socket: socket.socket | None = None

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def send(self, attempt: Sent) -> tuple[int | None, dict[str, Any]]:
        """Return status and body of the response; None if the connection ended without one."""
        try:
            return self._exchange(attempt)
        except (OSError, http.client.HTTPException):
            self._close()
            return None, {}

    def delete(self, path: str) -> None:
        status, _ = self.send(Sent(f"DELETE {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode(), None, False))
        assert status == 204, status

    def _exchange(self, attempt: Sent) -> tuple[int | None, dict[str, Any]]:
        connection = self._socket or socket.create_connection(self._place, ANSWER_SECONDS)
        self._socket = connection
        connection.sendall(attempt.wire)
        if attempt.closes:
            connection.shutdown(socket.SHUT_WR)
        with http.client.HTTPResponse(connection) as answer:
            answer.begin()
            body = answer.read()
            if attempt.closes or answer.will_close:
                self._close()
            return answer.status, _json(answer.headers.get_content_type(), body)

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None


def _json(kind: str, body: bytes) -> dict[str, Any]:
    if not kind.endswith("json"):
        return {}
    found: dict[str, Any] = json.loads(body)
    return found
