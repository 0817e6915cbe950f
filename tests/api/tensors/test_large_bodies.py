"""A large body bypasses the HTTP parser: its bytes arrive, and the connection serves the next request."""

import hashlib
import itertools
import json
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO, NamedTuple

import httpx
import numpy as np
import pytest

from sparse_ncp.app.server.http.connection import LARGE_BODY, Connection
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.errors import StoreFull
from sparse_ncp.worker.operations.receiving import CHUNK
from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.records.redis.connection import connect
from sparse_ncp.worker.store.tensors import Upload
from tests.support.api import Api, http_client, npy, running_api
from tests.support.raw_http import connected, until_closed
from tests.support.stack import embedded_redis, wait_for

PROBE = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(scope="module")
def configuration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Configuration]:
    with embedded_redis(tmp_path_factory.mktemp("bodies"), min_free_bytes=1) as made:
        yield made


@pytest.fixture(scope="module")
def running(configuration: Configuration) -> Iterator[Api]:
    with running_api(configuration) as made:
        yield made


@pytest.fixture
def caller(running: Api) -> Iterator[httpx.Client]:
    with http_client(running.address) as made:
        yield made


def tensor_of(nbytes: int, seed: int = 0) -> bytes:
    """A file of exactly so many bytes."""
    content = npy(np.random.default_rng(seed).random((nbytes // 8 - 16, 1)))
    assert len(content) == nbytes
    return content


def head(length: int, *headers: str) -> bytes:
    lines = ["POST /v1/tensors HTTP/1.1", "Host: x", f"Content-Length: {length}", *headers, "", ""]
    return "\r\n".join(lines).encode()


class Answer(NamedTuple):
    status: int
    content: dict[str, object]


def next_answer(file: BinaryIO) -> Answer:
    """The next response on a connection that stays open."""
    status, length = int(file.readline().split()[1]), 0
    while line := file.readline().strip():
        name, _, value = line.lower().partition(b": ")
        length = int(value) if name == b"content-length" else length
    return Answer(status, json.loads(file.read(length)))


def assert_stored(answer: Answer, content: bytes, caller: httpx.Client) -> None:
    assert answer.status == 201, answer.content
    assert answer.content["sha256"] == hashlib.sha256(content).hexdigest()
    assert caller.get(f"/v1/tensors/{answer.content['id']}/content").content == content


def wait_until_nothing_is_left(configuration: Configuration) -> None:
    uploads = configuration.data / "uploads"
    wait_for(lambda: not list(uploads.iterdir()), 20, "the begun upload to go")
    with connect(configuration) as client:
        wait_for(lambda: not client.hlen(keys.UPLOADS), 20, "its reservation to go")


@pytest.mark.parametrize("nbytes", [LARGE_BODY - 8, LARGE_BODY, CHUNK, 2 * CHUNK, 2 * CHUNK + 8, 5 * CHUNK + 64])
def test_the_same_bytes_arrive(running: Api, caller: httpx.Client, nbytes: int) -> None:
    content = tensor_of(nbytes)
    with connected(running) as connection, connection.makefile("rb") as answers:
        connection.sendall(head(nbytes) + content)
        assert_stored(next_answer(answers), content, caller)


def test_pieces_of_any_size_arrive(running: Api, caller: httpx.Client) -> None:
    content = tensor_of(3 * CHUNK)
    sizes = itertools.cycle([1, 7, 1460, 65_536, 65_537, 300_000, 2 * CHUNK])
    with connected(running) as connection, connection.makefile("rb") as answers:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(head(len(content)))
        sent = 0
        while sent < len(content):
            size = next(sizes)
            connection.sendall(content[sent : sent + size])
            sent += size
        assert_stored(next_answer(answers), content, caller)


def test_hardly_anything_of_it_is_parsed(running: Api, caller: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsing would double the processor time of an upload, and no other test would notice."""
    parsed: list[int] = []
    monkeypatch.setattr(Connection, "on_body", _recorded(Connection.on_body, parsed))
    content = tensor_of(8 * CHUNK)
    assert caller.post("/v1/tensors", content=content).status_code == 201
    assert 0 < sum(parsed) < CHUNK


def _recorded(on_body: object, parsed: list[int]) -> object:
    def recorded(self: Connection, body: bytes) -> None:
        parsed.append(len(body))
        on_body(self, body)  # type: ignore[operator]

    return recorded


def test_requests_before_and_after_it_on_the_connection_are_answered(running: Api, caller: httpx.Client) -> None:
    first, second = tensor_of(2 * CHUNK, seed=1), tensor_of(2 * CHUNK + 8, seed=2)
    with connected(running) as connection, connection.makefile("rb") as answers:
        connection.sendall(head(len(first)) + first)
        assert_stored(next_answer(answers), first, caller)
        connection.sendall(PROBE)
        assert next_answer(answers).status == 200
        connection.sendall(head(len(second)) + second)
        assert_stored(next_answer(answers), second, caller)


def test_pipelined_requests_are_answered_in_turn(running: Api, caller: httpx.Client) -> None:
    first, second = tensor_of(2 * CHUNK, seed=3), tensor_of(2 * CHUNK + 8, seed=4)
    with connected(running) as connection, connection.makefile("rb") as answers:
        requests = PROBE + head(len(first)) + first + head(len(second)) + second + PROBE
        sending = threading.Thread(target=connection.sendall, args=(requests,))
        sending.start()
        assert next_answer(answers).status == 200
        assert_stored(next_answer(answers), first, caller)
        assert_stored(next_answer(answers), second, caller)
        assert next_answer(answers).status == 200
        sending.join()


def test_a_client_that_expects_100_continue_gets_it(running: Api, caller: httpx.Client) -> None:
    content = tensor_of(2 * CHUNK)
    with connected(running) as connection, connection.makefile("rb") as answers:
        connection.sendall(head(len(content), "Expect: 100-continue"))
        assert answers.readline().split()[1] == b"100"
        assert answers.readline() == b"\r\n"
        connection.sendall(content)
        assert_stored(next_answer(answers), content, caller)


def test_a_client_that_leaves_in_the_middle_leaves_nothing(configuration: Configuration, running: Api) -> None:
    content = tensor_of(8 * CHUNK)
    with connected(running) as connection:
        connection.sendall(head(len(content)) + content[: 5 * CHUNK])
        wait_for(lambda: _written(configuration), 10, "the upload to begin")
    wait_until_nothing_is_left(configuration)


def _written(configuration: Configuration) -> int:
    return sum(path.stat().st_size for path in (configuration.data / "uploads").iterdir())


def test_a_refusal_in_the_middle_arrives_and_the_connection_is_used_again(
    configuration: Configuration, running: Api, caller: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = tensor_of(6 * CHUNK)
    with connected(running) as connection, connection.makefile("rb") as answers:
        with monkeypatch.context() as patched:
            patched.setattr(Upload, "write", _fill_the_disk)
            connection.sendall(head(len(content)) + content)
            assert next_answer(answers).status == 507
        wait_until_nothing_is_left(configuration)
        connection.sendall(head(len(content)) + content)
        assert_stored(next_answer(answers), content, caller)


def _fill_the_disk(upload: Upload, chunk: memoryview) -> None:
    upload._writer.write(chunk)
    if upload.nbytes > 4 * CHUNK:
        raise StoreFull(28, "the disk has no room left")


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_no_tensor_is_refused_at_its_start_and_the_connection_closed_soon(
    chunked: bool, running: Api, configuration: Configuration
) -> None:
    """The first bytes show that it is no tensor, so a few of its 300 MB are received."""
    piece, sent = b"%PDF-1.7" + bytes(CHUNK - 8), 0
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 300000000"
    with connected(running) as connection:
        connection.sendall(b"POST /v1/tensors HTTP/1.1\r\nHost: localhost\r\n" + length + b"\r\n\r\n")
        with suppress(OSError):
            while sent < 300_000_000:
                connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
                sent += len(piece)
                piece = bytes(CHUNK)
        assert sent < 32 << 20
        assert b" 422 " in connection.recv(1 << 16)
    wait_until_nothing_is_left(configuration)


def test_a_client_waits_while_the_disk_does(
    running: Api, caller: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most the buffers are received in advance; the kernel holds a few megabytes on either side."""
    content, is_writable, write = tensor_of(64 * CHUNK), threading.Event(), Upload.write

    def wait_and_write(upload: Upload, chunk: memoryview) -> None:
        assert is_writable.wait(60)
        write(upload, chunk)

    monkeypatch.setattr(Upload, "write", wait_and_write)
    with connected(running) as connection, connection.makefile("rb") as answers:
        rest = memoryview(head(len(content)) + content)
        while select.select([], [connection], [], 1)[1]:
            rest = rest[connection.send(rest[: 1 << 16]) :]
        is_writable.set()
        assert len(rest) > len(content) / 2
        connection.sendall(rest)
        assert_stored(next_answer(answers), content, caller)


def test_a_server_that_stops_ends_an_upload_that_does_not(configuration: Configuration) -> None:
    content, hasty = tensor_of(8 * CHUNK), configuration.model_copy(update={"drain_seconds": 1})
    with running_api(hasty) as stopping, connected(stopping) as connection:
        connection.sendall(head(len(content)) + content[: 5 * CHUNK])
        wait_for(lambda: _written(configuration), 10, "the upload to begin")
        stopping.server.should_exit = True
        until_closed(connection)
    wait_until_nothing_is_left(configuration)


def test_an_upload_that_ends_while_the_server_stops_is_kept(
    configuration: Configuration, running: Api, caller: httpx.Client
) -> None:
    content = tensor_of(8 * CHUNK, seed=5)
    with running_api(configuration) as stopping, connected(stopping) as connection:
        connection.sendall(head(len(content)) + content[: 5 * CHUNK])
        wait_for(lambda: _written(configuration), 10, "the upload to begin")
        stopping.server.should_exit = True
        wait_for(lambda: not stopping.server.servers[0].is_serving(), 10, "the server to stop listening")
        connection.sendall(content[5 * CHUNK :])
        with connection.makefile("rb") as answers:
            assert_stored(next_answer(answers), content, caller)
