"""A real API on a free port, its callers, and the small acts that many tests begin with."""

import io
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx
import numpy as np
from fastapi import FastAPI, Request
from numpy.typing import NDArray

from sparse_ncp.app.auth.api_keys import ApiKeys
from sparse_ncp.app.auth.authenticate import Caller, Identify, local_caller
from sparse_ncp.app.main import create_app
from sparse_ncp.app.server.http.api import Server, uvicorn_config
from sparse_ncp.app.server.http.connection_limits import raise_file_limit
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.owner_limits import Limits
from tests.support.stack import wait_for

OWNER = "X-Test-Owner"


class Api(NamedTuple):
    address: str
    app: FastAPI
    server: Server


def owner_by_header(configuration: Configuration) -> Identify:
    """For tests that are not about keys: everybody is who they say they are."""

    def identify(request: Request) -> Caller:
        owner = request.headers.get(OWNER, "local")
        return local_caller(configuration).model_copy(update={"owner": owner, "admin": False})

    return identify


@contextmanager
def running_api(
    configuration: Configuration, extend: Callable[[FastAPI], None] = lambda app: None, keys: bool = False
) -> Iterator[Api]:
    """Ready when the context begins; ended as SIGTERM ends it. With `keys` it asks for them, as a real one does."""
    app = create_app(configuration, None if keys else owner_by_header(configuration))
    extend(app)
    config = uvicorn_config(app, configuration, raise_file_limit())
    config.port = 0
    server = Server(config, app)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for(lambda: server.started or not thread.is_alive(), what="the API")
        port = server.servers[0].sockets[0].getsockname()[1]
        yield Api(f"http://127.0.0.1:{port}", app, server)
    finally:
        server.should_exit = True
        thread.join(20)
    assert not thread.is_alive(), "the API did not end"


@contextmanager
def http_client(address: str, owner: str = "local") -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, timeout=30, headers={OWNER: owner}, trust_env=False) as made:
        yield made


def npy(array: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def planted(*shape: int, rank: int = 3, seed: int = 1) -> NDArray[np.float64]:
    """A nonnegative tensor of that rank with a little noise."""
    random = np.random.default_rng(seed)
    factors = [random.random((length, rank)) for length in shape]
    letters = "abcdefgh"[: len(shape)]
    exact = np.einsum(",".join(f"{letter}r" for letter in letters) + f"->{letters}", *factors)
    return np.asarray(exact + 0.01 * random.random(shape), np.float64)


def read_factors(content: bytes) -> list[Any]:
    """The factors in a downloaded `factors.npz`."""
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        modes = sum(name.startswith("A") for name in arrays.files)
        return [arrays[f"A{mode}"] for mode in range(1, modes + 1)]


def upload(lab: httpx.Client, array: NDArray[Any], name: str | None = None) -> dict[str, Any]:
    answer = lab.post("/v1/tensors", content=npy(array), params={"name": name} if name else None)
    assert answer.status_code == 201, answer.text
    record: dict[str, Any] = answer.json()
    return record


def submit(lab: httpx.Client, tensor_id: str, **fields: Any) -> dict[str, Any]:
    answer = lab.post("/v1/jobs", json={"tensor_id": tensor_id, "rank": 3, "method": "hals", **fields})
    assert answer.status_code == 202, answer.text
    job: dict[str, Any] = answer.json()
    return job


def finished(lab: httpx.Client, job_id: str, seconds: float = 60) -> dict[str, Any]:
    """The job once it has ended."""

    def look() -> dict[str, Any] | None:
        job: dict[str, Any] = lab.get(f"/v1/jobs/{job_id}").json()
        return job if job["finished_at"] else None

    return wait_for(look, seconds, f"job {job_id}")


def refused(answer: httpx.Response, status: int, word: str | None = None) -> dict[str, Any]:
    """The problem in a refusal, checked for what every refusal promises."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = json.loads(answer.content)
    assert problem["status"] == status
    assert problem["request_id"] == answer.headers["x-request-id"]
    assert problem["title"]
    assert problem["detail"]
    assert "Traceback" not in answer.text
    assert ".py" not in answer.text
    if word is not None:
        assert problem["type"] == f"urn:sparse-ncp:problem:{word}"
    return problem


class Sent(NamedTuple):
    id: str
    kind: str
    content: dict[str, Any]


def events(lab: httpx.Client, job_id: str, after: str | None = None) -> Iterator[Sent]:
    """The events of one connection, until the server ends it."""
    headers = {"Last-Event-ID": after} if after else {}
    with lab.stream("GET", f"/v1/jobs/{job_id}/events", headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield from parsed(answer)


def parsed(answer: httpx.Response) -> Iterator[Sent]:
    fields: dict[str, str] = {}
    for line in answer.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "id" in fields:
            yield Sent(fields["id"], fields["event"], json.loads(fields["data"]))
            fields = {}
        else:
            fields = {}


@contextmanager
def holder(address: str, secret: str | None) -> Iterator[httpx.Client]:
    """Yield a client that sends this key, or no key for None."""
    headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
    with httpx.Client(base_url=address, timeout=30, headers=headers, trust_env=False) as made:
        yield made


@contextmanager
def new_holder(
    configuration: Configuration, address: str, name: str, admin: bool = False, **limits: float | None
) -> Iterator[httpx.Client]:
    """Yield a client with a new key."""
    secret = ApiKeys(configuration.data).create(name, admin, Limits.model_validate(limits))
    with holder(address, secret) as made:
        yield made
