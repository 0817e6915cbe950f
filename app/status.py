"""`ncp status`: how the server on a data folder is, in the terminal, beside it and without asking it for a key."""

import http.client
import json
import shutil
import sys
from datetime import UTC, datetime
from urllib.parse import urlsplit

from app.note import read_note
from worker.configuration import Configuration
from worker.contract import Job
from worker.embedded_redis import address_in
from worker.errors import Unavailable
from worker.link import connect
from worker.overview import Overview
from worker.stored_bytes import stored_bytes

NO_SERVER = 1
COLUMNS = "{:<20}  {:<12}  {:<9}  {:>9}  {:>10}  {:>14}  {:>10}"
TITLES = ("job", "owner", "method", "iteration", "objective", "relative error", "runs for")


def status(configuration: Configuration) -> int:
    """Everything on one screen; one clear line and exit code 1 where there is no server."""
    address = read_note(configuration.data) or f"http://{configuration.host}:{configuration.port}"
    try:
        reached = _with_redis(configuration)
        with connect(reached) as connection:
            lines = _told(Overview(connection, reached), reached, address)
    except (Unavailable, FileNotFoundError, NotADirectoryError):
        print(
            f"ncp: no server runs on the folder {configuration.data}; start one with ncp serve, "
            "or name its folder with --data, or its Redis with --redis-url",
            file=sys.stderr,
        )
        return NO_SERVER
    print("\n".join(lines))
    return 0


def _with_redis(configuration: Configuration) -> Configuration:
    """The one that is configured, else the one that a server on this folder has started."""
    found = configuration.redis_url or address_in(configuration.data / "redis")
    return configuration.model_copy(update={"redis_url": found})


def _told(overview: Overview, configuration: Configuration, address: str) -> list[str]:
    glance, running, version = overview.glance(), overview.running(), _version(address)
    oldest = f", the oldest waits for {_span(glance.oldest_queued_seconds)}" if glance.queued else ""
    stored, free = stored_bytes(configuration.data), shutil.disk_usage(configuration.data).free
    return [
        f"server   {f'sparse-ncp {version}' if version else 'no answer'} at {address}",
        f"queue    {glance.queued}{oldest}",
        f"workers  {glance.live_workers or 'none: start one with ncp worker'}",
        f"disk     {_size(free)} free; tensors {_size(stored['tensors'])}, jobs {_size(stored['jobs'])}",
        f"running  {len(running)}",
        *([COLUMNS.format(*TITLES)] if running else []),
        *map(_row, running),
    ]


def _row(job: Job) -> str:
    began, done = job.started_at or job.created_at, job.progress
    numbers = (done.iteration, f"{done.objective:.4g}", f"{done.relative_error:.6f}") if done else (0, "-", "-")
    lasting = _span((datetime.now(UTC) - began).total_seconds())
    return COLUMNS.format(job.id, job.owner[:12], job.settings.method, *numbers, lasting)


def _version(address: str) -> str | None:
    """What the API says of itself; None if it does not answer."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=2)
    try:
        connection.request("GET", "/healthz")
        return str(json.loads(connection.getresponse().read())["version"])
    except (OSError, http.client.HTTPException, ValueError, KeyError):
        return None
    finally:
        connection.close()


def _span(seconds: float) -> str:
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
