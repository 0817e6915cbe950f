"""The number of the format in which a data folder and a Redis are written, and its check at every start.

The number is raised only when an older release would misread what a newer one writes. Releases of one format may run
side by side. Imports no numpy, for the launcher.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.errors import LaterFormat, OldRedis, StoreFull, StoreUnavailable, Unavailable
from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.store.files import atomic_write, private_folder

# Data without a number are of format 1, too.
FORMAT = 1
NAME = "format"
# The first release of Redis whose scripts have flags.
LEAST_REDIS = 7
TOO_OLD = (
    f"this Redis is version {{}}, and sparse-ncp needs Redis {LEAST_REDIS} or newer, or Valkey; "
    "upgrade it, or set NCP_REDIS_URL or NCP_REDIS_SERVER to another one"
)


class DataFormat(NamedTuple):
    """The format of stored data, and the first release that wrote it there."""

    format: int
    release: str

    def __str__(self) -> str:
        return f"format {self.format}, written since sparse-ncp {self.release}"


def this_release() -> DataFormat:
    """Return the format that this release writes."""
    return DataFormat(FORMAT, version("sparse-ncp"))


def folder_format(folder: Path) -> DataFormat | None:
    """Return the format of a data folder; None if it is new, or from before there was a number."""
    path = folder / NAME
    return DataFormat(**json.loads(path.read_bytes())) if path.is_file() else None


def check_folder(folder: Path) -> DataFormat | None:
    """Return the format of a data folder; raise LaterFormat if it is a later one than that of this release."""
    found = folder_format(folder)
    _check(f"the data folder {folder}", found)
    return found


def mark_folder(folder: Path) -> None:
    """Write the format into a data folder; raise LaterFormat before anything is changed if it is a later one.

    A folder that cannot be written now is left as it is: a worker waits until it can.
    """
    found, ours = check_folder(folder), this_release()
    if found is None or found.format < ours.format:
        private_folder(folder)
        with suppress(StoreFull, StoreUnavailable):
            atomic_write(folder / NAME, json.dumps(ours._asdict()).encode())


def check_redis(configuration: Configuration) -> DataFormat | None:
    """Return the format of the records in Redis.

    Raises
    ------
    OldRedis
        If Redis is too old for the scripts.
    LaterFormat
        If the records have a later format than that of this release.
    Unavailable
        If Redis cannot be used yet.
    """
    from redis.exceptions import ResponseError  # takes 0.1 s to load

    from sparse_ncp.worker.records.redis.connection import connect, translate_redis_errors

    with translate_redis_errors(), connect(configuration) as client:
        try:
            written: dict[str, str] = client.hgetall(keys.FORMAT)
        except ResponseError as error:
            if "unknown command" in str(error):  # HELLO, with which a connection begins
                raise OldRedis(TOO_OLD.format("5 or older")) from error
            raise
        try:
            info = client.info("server")
        except ResponseError:  # a hosted Redis hides its version
            info = {}
    check_version(info)
    found = DataFormat(int(written["format"]), written["release"]) if written else None
    _check("this Redis", found)
    return found


def check_version(info: Mapping[str, Any]) -> None:
    """Raise OldRedis if an answer to INFO names a Redis without the flags of scripts. Valkey names both versions."""
    version = str(info.get("redis_version", ""))
    major = version.partition(".")[0]
    if major.isdecimal() and int(major) < LEAST_REDIS:
        raise OldRedis(TOO_OLD.format(version))


def mark_redis(configuration: Configuration) -> None:
    """Write the format into Redis; raise OldRedis or LaterFormat before anything is changed.

    A Redis that cannot be used yet is left as it is.
    """
    from sparse_ncp.worker.records.redis.connection import connect, translate_redis_errors

    ours = this_release()
    try:
        found = check_redis(configuration)
        if found is None or found.format < ours.format:
            with translate_redis_errors(), connect(configuration) as client:
                client.hset(keys.FORMAT, mapping=ours._asdict())
    except Unavailable:
        return


def plan_of_upgrade(folder: Path) -> str:
    """Return what the start of this release does to the format of a data folder."""
    found, ours = folder_format(folder), this_release()
    if found is not None and found.format > ours.format:
        return f"{found}: sparse-ncp {ours.release} cannot use it"
    if found is not None and found.format < ours.format:
        return f"{found}: the next start raises it to {ours.format}, and older releases cannot use it any more"
    return f"{found or ours}: sparse-ncp {ours.release} uses it as it is"


def _check(what: str, found: DataFormat | None) -> None:
    ours = this_release()
    if found is not None and found.format > ours.format:
        raise LaterFormat(
            f"{what} has data of {found}, and sparse-ncp {ours.release} reads formats up to {ours.format}; "
            f"install sparse-ncp {found.release} or newer, or restore the backup from before the upgrade"
        )
