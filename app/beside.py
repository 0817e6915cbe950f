"""Commands that work on a server's records, whether it is running or not."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.claims import Taken, take_folder
from worker.configuration import Configuration
from worker.embedded_redis import address_in, discard_socket, socket_path, start_redis, url_of
from worker.process import stop

STOP_SECONDS = 10.0


@contextmanager
def reached(configuration: Configuration) -> Iterator[Configuration]:
    """With the Redis to use: the configured one, the running server's own, or if none runs one for this moment."""
    if configuration.redis_url is not None:
        yield configuration
        return
    folder = configuration.data / "redis"
    if not folder.is_dir():  # an empty Redis would know of nothing, and take everything for unused
        raise Taken(f"{configuration.data} holds no records; if they are in a Redis elsewhere, set NCP_REDIS_URL")
    try:
        lock = take_folder(configuration.data, patience_seconds=0)
    except Taken:
        yield configuration.model_copy(update={"redis_url": _running(folder, configuration)})
        return
    with lock, _own(configuration, folder) as url:
        yield configuration.model_copy(update={"redis_url": url})


def _running(folder: Path, configuration: Configuration) -> str:
    try:
        return address_in(folder)
    except FileNotFoundError as error:
        raise Taken(
            f"the server on {configuration.data} is starting, or uses another Redis; set NCP_REDIS_URL"
        ) from error


@contextmanager
def _own(configuration: Configuration, folder: Path) -> Iterator[str]:
    socket = socket_path(folder)
    process = start_redis(configuration, socket, folder)
    try:
        yield url_of(socket)
    finally:
        stop(process, STOP_SECONDS)
        discard_socket(socket, configuration.data)
