"""`ncp gc`: run the cleanup of worker.operations.cleanup now, or list what it would remove. Needs no running server."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sparse_ncp.app.server.data_folder import lock_data_folder
from sparse_ncp.app.server.discovery import with_running_redis
from sparse_ncp.app.server.embedded_redis import discard_socket, socket_path, start_redis, url_of
from sparse_ncp.app.server.errors import NoServer, StartupError
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.data_format import check_folder, check_redis
from sparse_ncp.worker.operations.cleanup import Cleanup
from sparse_ncp.worker.processes import stop
from sparse_ncp.worker.records.records import Records
from sparse_ncp.worker.store.local import open_store

# For the Redis that this command has started: as in the launcher.
STOP_SECONDS = 10.0
KINDS = {"study": "studies", "job": "jobs", "tensor": "tensors", "file": "files"}


def collect_garbage(configuration: Configuration, dry_run: bool) -> None:
    """Run the cleanup and print what it removed. A missing data folder, or one of a later release, is an error."""
    if not configuration.data.is_dir():
        raise StartupError(f"there is no data folder {configuration.data}; name it with --data")
    check_folder(configuration.data)
    with open_redis(configuration) as reachable:
        check_redis(reachable)
        verb = "would remove" if dry_run else "removed"
        counts: Counter[str] = Counter()
        nbytes = 0
        for removed in Cleanup(Records.of(reachable), open_store(reachable), reachable, dry_run).run():
            print(f"{verb} {removed}")
            counts[removed.kind] += 1
            nbytes += removed.nbytes
    total = ", ".join(f"{counts[kind]} {kind if counts[kind] == 1 else many}" for kind, many in KINDS.items())
    print(f"{verb} {total}: {nbytes:,} bytes")


@contextmanager
def open_redis(configuration: Configuration) -> Iterator[Configuration]:
    """Yield a configuration with a Redis: the configured one, the running server's, or one started for this context."""
    if configuration.redis_url is not None:
        yield configuration
        return
    folder = configuration.data / "redis"
    if not folder.is_dir():  # in an empty Redis nothing is in use, so everything would be removed
        raise StartupError(
            f"{configuration.data} holds no records; if they are in a Redis elsewhere, set NCP_REDIS_URL"
        )
    with ExitStack() as held:
        try:
            held.enter_context(lock_data_folder(configuration.data, patience_seconds=0))
        except StartupError:
            try:
                reachable = with_running_redis(configuration)
            except NoServer as error:
                raise StartupError(
                    f"the server on {configuration.data} is starting, or uses another Redis; set NCP_REDIS_URL"
                ) from error
            yield reachable
            return
        url = held.enter_context(_started_redis(configuration, folder))
        yield configuration.model_copy(update={"redis_url": url})


@contextmanager
def _started_redis(configuration: Configuration, folder: Path) -> Iterator[str]:
    socket = socket_path(folder)
    process = start_redis(configuration, socket, folder)
    try:
        yield url_of(socket)
    finally:
        stop(process, STOP_SECONDS)
        discard_socket(socket, configuration.data)
