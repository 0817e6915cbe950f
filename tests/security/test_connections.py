"""Many connections without a key do not keep other callers from the server."""

import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from sparse_ncp.worker.config import Configuration
from tests.support.api import Api, finished, new_holder, planted, running_api, submit, upload
from tests.support.raw_http import connected
from tests.support.stack import embedded_redis, wait_for

IN_ALL, PER_ADDRESS = 24, 6


@pytest.fixture
def configuration(tmp_path: Path) -> Iterator[Configuration]:
    limits = {"max_connections": IN_ALL, "max_connections_per_address": PER_ADDRESS}
    with embedded_redis(tmp_path, min_free_bytes=1, keep_alive_seconds=0.3, **limits) as made:
        yield made


@pytest.fixture
def behind_a_proxy(configuration: Configuration) -> Iterator[Api]:
    """All clients have an address of this machine, which may be that of a proxy."""
    with running_api(configuration, keys=True) as made:
        yield made


@pytest.fixture
def in_the_open(configuration: Configuration, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """All clients seem to be on another machine, and none is a proxy."""
    monkeypatch.setattr("sparse_ncp.app.server.http.api.is_loopback", lambda address: False)
    with running_api(configuration, keys=True) as made:
        yield made


@contextmanager
def idle(running: Api, count: int) -> Iterator[list[socket.socket]]:
    """Connections on which nothing is sent."""
    with ExitStack() as stack:
        yield [stack.enter_context(connected(running)) for _ in range(count)]


def open_ones(connections: list[socket.socket]) -> int:
    closed = select.select(connections, [], [], 0)[0]
    return len(connections) - len(closed)


def test_a_caller_with_a_key_comes_in_where_others_hold_every_connection(
    configuration: Configuration, behind_a_proxy: Api
) -> None:
    with idle(behind_a_proxy, 3 * IN_ALL) as others:
        wait_for(lambda: open_ones(others) <= IN_ALL, 10, "the oldest to be closed")
        with new_holder(configuration, behind_a_proxy.address, "ann") as ann:
            assert ann.get("/v1/jobs").status_code == 200
            reported = ann.get("/metrics").text
            assert 'ncp_crowded_connections_total{bound="all"}' in reported
        assert open_ones(others) >= IN_ALL / 2


def test_a_callers_connections_are_not_closed_for_others(configuration: Configuration, in_the_open: Api) -> None:
    with new_holder(configuration, in_the_open.address, "ann") as ann:
        job = submit(ann, upload(ann, planted(3, 3))["id"])["id"]
        with ann.stream("GET", f"/v1/jobs/{job}/events") as stream:
            lines = stream.iter_lines()
            next(lines)
            with idle(in_the_open, 3 * IN_ALL):
                assert ann.post(f"/v1/jobs/{job}/cancel").status_code == 202
                assert "event: end" in list(lines)
        assert finished(ann, job)["state"] == "cancelled"


def test_an_address_has_its_own_bound_and_a_key_lifts_it(
    configuration: Configuration, in_the_open: Api, caplog: pytest.LogCaptureFixture
) -> None:
    with idle(in_the_open, 2 * PER_ADDRESS) as others:
        wait_for(lambda: open_ones(others) == PER_ADDRESS, 10, "the oldest to be closed")
        assert "too many without a key from 127.0.0.1" in caplog.text
        with ExitStack() as stack:
            for number in range(PER_ADDRESS + 1):
                holder = stack.enter_context(new_holder(configuration, in_the_open.address, f"holder-{number}"))
                assert holder.get("/v1/jobs").status_code == 200
            assert [line for line in caplog.messages if "without a key" in line][1:] == []  # not one for each


def test_a_proxy_speaks_for_many(behind_a_proxy: Api) -> None:
    with idle(behind_a_proxy, 2 * PER_ADDRESS) as connections:
        connections[-1].sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert connections[-1].recv(100).startswith(b"HTTP/1.1 200")
        assert open_ones(connections[:-1]) == 2 * PER_ADDRESS - 1


def test_the_api_may_open_as_many_files_as_its_hard_limit_allows() -> None:
    program = (
        "import resource; _, hard = resource.getrlimit(resource.RLIMIT_NOFILE);"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard));"
        "from sparse_ncp.app.server.http.connection_limits import raise_file_limit; files = raise_file_limit();"
        "assert files == resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(hard, 65536), files"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
