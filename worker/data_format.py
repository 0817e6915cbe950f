"""The number of the format in which a data folder and a Redis are written, and its check at every start.

The number is raised only when an older release would misread what a newer one writes. Releases of one format may run
side by side. Imports no numpy, for the launcher.
"""

import json
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.errors import LaterFormat, Unavailable
from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.store.files import atomic_write, private_folder

# Data from before there was a number are of format 1, too.
FORMAT = 1
NAME = "format"


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


def mark_folder(folder: Path) -> None:
    """Write the format into a data folder; raise LaterFormat before anything is changed if it is a later one."""
    found, ours = folder_format(folder), this_release()
    _check(f"the data folder {folder}", found, ours)
    if found is None or found.format < ours.format:
        private_folder(folder)
        atomic_write(folder / NAME, json.dumps(ours._asdict()).encode())


def mark_redis(configuration: Configuration) -> None:
    """Write the format into Redis; raise LaterFormat before anything is changed if it is a later one.

    A Redis that cannot be used yet is left as it is.
    """
    from sparse_ncp.worker.records.redis.connection import connect, translate_redis_errors  # takes 0.1 s to load

    ours = this_release()
    try:
        with translate_redis_errors(), connect(configuration) as client:
            written: dict[str, str] = client.hgetall(keys.FORMAT)
            found = DataFormat(int(written["format"]), written["release"]) if written else None
            _check("this Redis", found, ours)
            if found is None or found.format < ours.format:
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


def _check(what: str, found: DataFormat | None, ours: DataFormat) -> None:
    if found is not None and found.format > ours.format:
        raise LaterFormat(
            f"{what} has data of {found}, and sparse-ncp {ours.release} reads formats up to {ours.format}; "
            f"install sparse-ncp {found.release} or newer, or restore the backup from before the upgrade"
        )
