"""The data folder of a server: its lock, whether its records are there, and the file with the server's address."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sparse_ncp.app.server.errors import StartupError
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.errors import Unavailable
from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.store.files import atomic_write, locked, private_file, private_folder
from sparse_ncp.worker.store.local_blobs import holds_files

# The last child of a killed server is gone within this time.
PATIENCE_SECONDS = 2.0
NAME = "address"


@contextmanager
def lock_data_folder(path: Path, patience_seconds: float = PATIENCE_SECONDS) -> Iterator[int]:
    """Lock the data folder against a second server, and yield the descriptor, which children inherit.

    The children of a killed server hold the lock a moment longer, so this waits for it. The folder itself is locked,
    because a lock file could be removed by mistake; older servers lock that file, so it is locked as well.
    """
    remedy = "choose another with --data or NCP_DATA"
    deadline = time.monotonic() + patience_seconds
    with ExitStack() as held:
        while True:
            try:
                with ExitStack() as taken:
                    lock = taken.enter_context(locked(private_folder(path), wait=False))
                    taken.enter_context(locked(private_file(path / "lock"), wait=False))
                    held.push(taken.pop_all())
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise StartupError(f"another server uses the data folder {path}; stop it, or {remedy}") from error
            except OSError as error:
                problem = f"the data folder {path} cannot be used ({error.strerror})"
                raise StartupError(f"{problem}; {remedy}") from error
            time.sleep(0.05)
        yield lock


def check_records(configuration: Configuration) -> None:
    """Raise StartupError if there are stored files but no records: Redis is then probably the wrong one, or empty."""
    if not holds_files(configuration.data):
        return
    from sparse_ncp.worker.records.redis.connection import connect, translate_redis_errors  # see launcher.py

    try:
        with translate_redis_errors(), connect(configuration) as client:
            has_records = client.exists(keys.SEQUENCE)
    except Unavailable:  # a Redis elsewhere that does not answer yet: who can say that it is empty?
        return
    if has_records:
        return
    raise StartupError(
        f"the data folder {configuration.data} has tensors or jobs, but Redis has no records of them; "
        "restore its folder redis from a backup, or set NCP_REDIS_URL to the Redis that has them, "
        "or move tensors and jobs elsewhere to start afresh"
    )


def write_address_file(folder: Path, address: str) -> None:
    atomic_write(folder / NAME, address.encode())


def read_address_file(folder: Path) -> str | None:
    """Return the address of the server, or None. After a crash it may be that of a server which is gone."""
    path = folder / NAME
    return path.read_text() if path.is_file() else None


def remove_address_file(folder: Path) -> None:
    (folder / NAME).unlink(missing_ok=True)
