"""Uploads and downloads of large tensors, compared with the simplest way to move the same bytes."""

import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.load.figure import Figure
from benchmarks.load.parts import Front, front

MEGABYTES = 400
ROUNDS = 15
UPLOAD_SHARE, DOWNLOAD_SHARE = 0.4, 1 / 2
BUFFER = 1 << 20
# Bytes per write of dd, at which it is fastest and steady here. With 1 MB it fell to a third in most rounds: the system
# caches that as one block, which a virtual machine often has to fetch from its host first.
DD_BYTES = 256 << 10


def measure(on_step: Callable[[], object]) -> Iterator[Figure]:
    """Measure all contestants in turn, so that a slow moment of the disk affects all, and compare medians."""
    rates: dict[str, list[float]] = {"copy": [], "upload": [], "bare": [], "download": []}
    with front() as running:
        path = running.configuration.data.parent / "tensor.npy"
        np.save(path, np.random.default_rng(0).random((MEGABYTES * 125, 1000)))
        size = path.stat().st_size / 1e6
        for _ in range(ROUNDS):
            for name, seconds in _round(running, path):
                rates[name].append(size / seconds)
            on_step()
    found = {name: median(values) for name, values in rates.items()}
    yield Figure(f"`dd conv=fsync`, {size:.0f} MB, median of {ROUNDS}", _rates(rates["copy"]))
    yield Figure("upload, every round", _rates(rates["upload"]))
    yield _share("upload, hashed, checked and on the disk", found["upload"], found["copy"], "dd", UPLOAD_SHARE)
    yield Figure("bare file server (`sendfile`)", f"{found['bare']:.0f} MB/s")
    yield _share("download", found["download"], found["bare"], "the bare server", DOWNLOAD_SHARE)


def _round(running: Front, path: Path) -> Iterator[tuple[str, float]]:
    copy = path.with_suffix(".copy")
    command = ["dd", f"if={path}", f"of={copy}", f"bs={DD_BYTES}", "conv=fsync"]
    yield "copy", _seconds(lambda: subprocess.run(command, check=True, capture_output=True))
    copy.unlink()
    started = time.perf_counter()
    location = _upload(running, path)
    yield "upload", time.perf_counter() - started
    with _bare_server(path) as port:
        yield "bare", _seconds(lambda: _download(port, "/"))
    yield "download", _seconds(lambda: _download(running.port, f"{location}/content"))
    _exchange(running.port, f"DELETE {location} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())


def _rates(values: Sequence[float]) -> str:
    """Return a rate with its spread: disks are not equally fast at every moment."""
    return f"{median(values):.0f} MB/s ({min(values):.0f} to {max(values):.0f})"


def _share(subject: str, rate: float, of: float, whom: str, least: float) -> Figure:
    share = rate / of
    return Figure(subject, f"{rate:.0f} MB/s, {share:.2f} of {whom}", f"at least {least:g} of {whom}", share >= least)


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _upload(running: Front, path: Path) -> str:
    """Upload with `sendfile`, which costs the client almost nothing."""
    lines = ["POST /v1/tensors HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {path.stat().st_size}"]
    head = "\r\n".join([*lines, "Connection: close", "", ""])
    with socket.create_connection((running.host, running.port)) as connection, path.open("rb") as file:
        connection.sendall(head.encode())
        connection.sendfile(file)
        answer = _all_of(connection)
    assert answer.startswith(b"HTTP/1.1 201"), answer
    body = answer.partition(b"\r\n\r\n")[2]
    return f"/v1/tensors/{json.loads(body)['id']}"


def _exchange(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(request)
        return _all_of(connection)


def _all_of(connection: socket.socket) -> bytes:
    pieces = []
    while piece := connection.recv(BUFFER):
        pieces.append(piece)
    return b"".join(pieces)


def _download(port: int, path: str) -> None:
    """Download into one buffer, without keeping anything."""
    buffer, count = bytearray(BUFFER), 0
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        while got := connection.recv_into(buffer):
            count += got
    assert count > MEGABYTES * 1e6, count


@contextmanager
def _bare_server(path: Path) -> Iterator[int]:
    """Answer one request with the file by `sendfile`, a lower bound for any HTTP server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_serve_once, args=(listener, path))
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def _serve_once(listener: socket.socket, path: Path) -> None:
    connection, _ = listener.accept()
    with connection, path.open("rb") as file:
        connection.recv(BUFFER)
        connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {path.stat().st_size}\r\n\r\n".encode())
        connection.sendfile(file)
