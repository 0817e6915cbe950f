"""Proxies in front of a server: nginx as the guide has it, and one that cuts connections on request."""

import re
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from sparse_ncp.worker.processes import start, stop
from tests.support.stack import ROOT, wait_for

PIECE = 4096
GUIDE = (ROOT / "docs" / "how-to" / "running-a-server.md").read_text()
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")


class CuttingProxy:
    """Forwards to a server. While `allowed` is set, answers end after so many bytes, and so does the connection.

    `forget_connections` does to open connections what a long sleep of the machine does: no byte arrives any more,
    neither side is notified, and the next send on one finds it closed.
    """

    def __init__(self, address: str) -> None:
        server = urlsplit(address)
        self._target = (server.hostname, server.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.allowed: int | None = None
        self.answered_bytes = 0
        self.cuts = 0
        self._forgotten = 0  # times; a connection older than the last is dead
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def run(self) -> None:
        with suppress(OSError):  # closed by the test
            while True:
                near = self._listener.accept()[0]
                threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def lose_answers(self, after_bytes: int) -> None:
        """Once so many bytes were answered, lose three answers."""
        wait_for(lambda: self.answered_bytes >= after_bytes, what="a caller")
        self.allowed = 0
        wait_for(lambda: self.cuts >= 3, what="lost answers")
        self.allowed = None

    def forget_connections(self) -> None:
        self._forgotten += 1

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _connect(self, near: socket.socket) -> None:
        with near, socket.create_connection(self._target) as far:
            born = self._forgotten
            there = threading.Thread(target=self._forward, args=(near, far, born), daemon=True)
            there.start()
            self._answer(far, near, born)
            for end in (near, far):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            there.join()

    def _answer(self, far: socket.socket, near: socket.socket, born: int) -> None:
        sent = 0
        with suppress(OSError):
            while piece := far.recv(PIECE):
                if born != self._forgotten:
                    continue
                if self.allowed is not None and sent + len(piece) > self.allowed:
                    near.sendall(piece[: max(0, self.allowed - sent)])
                    self.cuts += 1
                    return
                near.sendall(piece)
                sent += len(piece)
                self.answered_bytes += len(piece)

    def _forward(self, near: socket.socket, far: socket.socket, born: int) -> None:
        with suppress(OSError):
            while piece := near.recv(PIECE):
                if born != self._forgotten:
                    near.shutdown(socket.SHUT_RDWR)
                    far.shutdown(socket.SHUT_RDWR)
                    return
                far.sendall(piece)


@contextmanager
def cutting_proxy(address: str) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(address)
    thread = threading.Thread(target=proxy.run)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join()


def published() -> str:
    found = re.search(r"```nginx\n(.*?)```", GUIDE, re.DOTALL)
    assert found is not None, "the guide shows no configuration"
    return found[1]


@contextmanager
def nginx(folder: Path, address: str) -> Iterator[str]:
    """On a free port without TLS, its files in a folder of its own; otherwise as published."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    site = published().replace("listen 443 ssl;", f"listen 127.0.0.1:{port};").replace("http://127.0.0.1:8000", address)
    site = re.sub(r"\n *ssl_.*", "", site)
    paths = "".join(
        f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    lines = f"daemon off;\nuser root;\npid {folder}/pid;\nevents {{}}\nhttp {{\naccess_log off;\n{paths}{site}}}\n"
    (folder / "nginx.conf").write_text(lines)
    process = start([str(NGINX), "-p", str(folder), "-e", str(folder / "errors"), "-c", str(folder / "nginx.conf")])
    try:
        wait_for(lambda: process.poll() is not None or _answers(port), 20, "nginx")
        assert process.poll() is None, (folder / "errors").read_text()
        yield f"http://127.0.0.1:{port}/ncp"
    finally:
        stop(process, 10)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
