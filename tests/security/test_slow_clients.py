"""A client that does not send or read is disconnected soon; one that is only slow is served."""

import hashlib
import itertools
import json
import os
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from sparse_ncp.app.server.http.connection import LARGE_BODY
from sparse_ncp.worker.operations.receiving import CHUNK
from sparse_ncp.worker.store.tensors import Upload
from tests.support.api import Api, http_client, npy, planted, running_api, submit, upload
from tests.support.raw_http import connected, exchanged, until_closed
from tests.support.stack import embedded_redis, wait_for

SLOW = 0.5
MEGABYTES = 64


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with (
        embedded_redis(tmp_path_factory.mktemp("slow"), slow_seconds=SLOW, min_free_bytes=1) as made,
        running_api(made) as api_,
    ):
        yield api_


@pytest.fixture
def caller(running: Api) -> Iterator[httpx.Client]:
    with http_client(running.address) as made:
        yield made


def refusal(received: bytes) -> tuple[int, dict[str, object]]:
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head
    assert b"connection: close" in head.lower()
    return int(head.split()[1]), json.loads(body)


def dripped(connection: socket.socket, drops: Iterator[bytes], seconds: float = 20) -> bytes:
    """Send a drop every tenth of a second until an answer comes."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if select.select([connection], [], [], 0.1)[0]:
            return until_closed(connection)
        connection.sendall(next(drops))
    raise TimeoutError("the server waits for a client that drips")


def test_a_header_that_never_ends_is_refused(running: Api) -> None:
    with connected(running) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\n")
        status, reported = refusal(dripped(connection, (b"X-%d: drop\r\n" % n for n in itertools.count())))
    assert (status, reported["type"]) == (408, "urn:sparse-ncp:problem:too-slow")
    assert reported["remedy"]


def test_a_connection_on_which_nothing_comes_is_closed_without_a_word(running: Api) -> None:
    with connected(running) as connection:
        assert until_closed(connection) == b""


def test_a_second_request_that_never_ends_is_refused_too(running: Api) -> None:
    with connected(running) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_for(lambda: b"alive" in connection.recv(1 << 16, socket.MSG_PEEK), 5, "the first answer")
        connection.recv(1 << 16)
        connection.sendall(b"GET /heal")
        assert refusal(until_closed(connection))[0] == 408


@pytest.mark.parametrize(
    ("path", "length"), [("/v1/jobs", 100_000), ("/v1/tensors", 100_000), ("/v1/tensors", 10 * LARGE_BODY)]
)
def test_a_body_that_drips_is_refused_and_leaves_nothing(running: Api, path: str, length: int) -> None:
    with connected(running) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/{'json' if 'jobs' in path else 'x'}\r\n"
        connection.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode())
        status, _ = refusal(dripped(connection, itertools.repeat(b" ")))
    assert status == 408
    uploads = running.app.state.store.root / "uploads"
    wait_for(lambda: not list(uploads.iterdir()), 5, "the begun upload to go")


def test_a_connection_is_closed_when_nothing_follows_a_refused_body(running: Api) -> None:
    with connected(running) as connection:
        connection.sendall(b"POST /v1/nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n")
        wait_for(lambda: b"404" in connection.recv(1 << 16, socket.MSG_PEEK), 5, "the refusal")
        connection.sendall(b"body.")
        assert b"404" in until_closed(connection)


@pytest.mark.parametrize("side", [40, 52], ids=["chunked", "large"])
def test_a_slow_but_steady_upload_arrives(
    running: Api, caller: httpx.Client, side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written as it comes, so that it holds its reservation."""
    content, write = npy(planted(side, side, side)), Upload.write
    writes: list[int] = []

    def count_and_write(upload: Upload, chunk: memoryview) -> None:
        writes.append(len(chunk))
        write(upload, chunk)

    monkeypatch.setattr(Upload, "write", count_and_write)
    monkeypatch.setattr("sparse_ncp.worker.operations.receiving.RENEWAL_SECONDS", SLOW / 2)

    def steady() -> Iterator[bytes]:
        piece = 64 << 10
        for start in range(0, len(content), piece):
            time.sleep(SLOW / 3)  # the pace is what is tested: over the time limit in all, never below the least rate
            yield content[start : start + piece]

    headers = {"Content-Length": str(len(content))} if len(content) >= LARGE_BODY else {}  # else it is chunked
    answer = caller.post("/v1/tensors", content=steady(), headers=headers)
    assert answer.status_code == 201
    assert answer.json()["sha256"] == hashlib.sha256(content).hexdigest()
    assert answer.elapsed.total_seconds() > SLOW
    assert len(writes) > 1 + len(content) // CHUNK


def test_a_reader_that_does_not_read_is_cut_off(running: Api, caller: httpx.Client) -> None:
    tensor = upload(caller, np.ones((MEGABYTES, 1 << 17)))
    open_before = open_files(running)
    with connected(running, receive_buffer=4096) as connection:
        connection.sendall(f"GET /v1/tensors/{tensor['id']}/content HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        wait_for(lambda: open_files(running) > open_before, 5, "the download to begin")
        wait_for(lambda: open_files(running) == open_before, 20, "the download to be given up")
        assert len(until_closed(connection)) < tensor["nbytes"]
    reported = caller.get("/metrics").text
    assert 'ncp_slow_clients_total{at="reading"}' in reported


def test_a_reader_that_left_is_not_read_for(running: Api, caller: httpx.Client) -> None:
    tensor = upload(caller, np.ones((MEGABYTES, 1 << 17)))
    before = bytes_read()
    with connected(running, receive_buffer=4096) as connection:
        connection.sendall(f"GET /v1/tensors/{tensor['id']}/content HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        wait_for(lambda: open_files(running), 5, "the download to begin")
    wait_for(lambda: not open_files(running), 5, "the file to be closed")
    assert bytes_read() - before < tensor["nbytes"] / 2


def bytes_read() -> int:
    """Return the bytes read so far by this process, in which the API runs as a thread."""
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])


def open_files(running: Api) -> int:
    """Return how many tensors this process has open, in which the API runs as a thread; maps do not count."""
    tensors = str(running.app.state.configuration.data / "tensors")
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            found += os.readlink(descriptor).startswith(tensors)
        except FileNotFoundError:
            continue
    return found


def test_a_watcher_of_a_quiet_job_is_not_slow(running: Api, caller: httpx.Client) -> None:
    job = submit(caller, upload(caller, planted(3, 3))["id"])
    started = time.monotonic()
    with caller.stream("GET", f"/v1/jobs/{job['id']}/events") as stream:
        lines = stream.iter_lines()
        next(lines)
        wait_for(lambda: time.monotonic() - started > 3 * SLOW, what="a few time limits to pass")
        caller.post(f"/v1/jobs/{job['id']}/cancel")
        assert "event: end" in list(lines)


def test_a_large_header_is_refused(running: Api) -> None:
    endless = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * (40 << 10)
    status, reported = refusal(exchanged(running, endless))
    assert (status, reported["type"]) == (431, "urn:sparse-ncp:problem:header-too-large")
    assert refusal(exchanged(running, b"GET /" + b"x" * (40 << 10)))[0] == 431


@pytest.mark.parametrize("endless", [b"5;name=", b"0\r\nX-Trailer: "])
def test_what_stands_around_a_body_is_bounded_too(running: Api, endless: bytes) -> None:
    head = b"POST /v1/tensors HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n"
    with connected(running) as connection:
        connection.sendall(head + endless)
        assert refusal(dripped(connection, itertools.repeat(b"x" * (16 << 10))))[0] == 431


@pytest.mark.parametrize(
    "request_",
    [b"no request at all\r\n\r\n", b"GET /healthz HTTP/1.1\r\nContent-Length: many\r\n\r\n", b"\x16\x03\x01\x02"],
)
def test_what_is_no_http_is_refused_as_a_problem(running: Api, request_: bytes) -> None:
    status, reported = refusal(exchanged(running, request_))
    assert (status, reported["status"], reported["remedy"] is not None) == (400, 400, True)


def test_a_refused_body_is_not_read_for_ever(running: Api) -> None:
    with connected(running) as connection:
        connection.sendall(b"POST /v1/nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000000\r\n\r\n")
        wait_for(lambda: b" 404 " in connection.recv(1 << 16, socket.MSG_PEEK), 5, "the refusal")
        wait_for(lambda: not _takes(connection), 20, "the connection to be closed")


def _takes(connection: socket.socket) -> bool:
    try:
        connection.sendall(bytes(1 << 16))
    except OSError:
        return False
    return True
