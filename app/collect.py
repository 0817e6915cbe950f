"""`ncp gc`: remove what has had its time, now; or say what would go."""

import sys
from collections import Counter

from app.beside import reached
from app.claims import Taken
from worker.configuration import Configuration
from worker.embedded_redis import NoServer
from worker.errors import Unavailable
from worker.records import Records
from worker.retention import Retention
from worker.store import Store

REFUSED = 2


def collect(configuration: Configuration, dry_run: bool) -> int:
    """Beside a running server or without one. A wrong folder is refused, not made."""
    try:
        if not configuration.data.is_dir():
            raise Taken(f"there is no data folder {configuration.data}; name it with --data")
        with reached(configuration) as joined:
            _collect(joined, dry_run)
    except (Taken, NoServer, Unavailable) as refusal:
        print(f"ncp: {refusal}", file=sys.stderr)
        return REFUSED
    return 0


def _collect(configuration: Configuration, dry_run: bool) -> None:
    verb = "would remove" if dry_run else "removed"
    counts: Counter[str] = Counter()
    nbytes = 0
    for removed in Retention(Records.of(configuration), Store(configuration.data), configuration, dry_run).run():
        print(f"{verb} {removed}")
        counts[removed.kind] += 1
        nbytes += removed.nbytes
    told = ", ".join(f"{counts[kind]} {kind}{'' if counts[kind] == 1 else 's'}" for kind in ("job", "tensor", "file"))
    print(f"{verb} {told}: {nbytes:,} bytes")
