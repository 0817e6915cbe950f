"""Latest version of the records of jobs, studies and tensors. `lua/state_machine.lua` has the same number.

Version 2 are studies with a plan, and their runs: a worker of version 1 would not make records of further runs.
"""

from collections.abc import Mapping

from sparse_ncp.worker.errors import LaterRecord

# Records from before the first release have no version.
VERSION = 2


def is_readable(fields: Mapping[str, str | None]) -> bool:
    """Return whether this release knows the version of a record."""
    return int(fields.get("version") or 0) <= VERSION


def check_version(kind: str, fields: Mapping[str, str]) -> None:
    """Raise LaterRecord if a later release has written the record."""
    if not is_readable(fields):
        raise LaterRecord(kind, fields["id"])
