"""Lists of an owner's records, newest first, filtered by a script in Redis."""

import json
from collections.abc import Mapping
from typing import Literal, NamedTuple

from sparse_ncp.worker.records.redis.connection import RedisConnection, below

# Records examined at once while filtering a list: one or two milliseconds.
BATCH = 1000


class Found(NamedTuple):
    """The ids of one page, and the cursor of the next."""

    ids: tuple[str, ...]
    next: str | None


def folded(name: str | None) -> str:
    """Return a name in the form used for searching, which ignores case."""
    return (name or "").casefold()


def find_page(
    redis: RedisConnection,
    kind: Literal["job", "tensor"],
    owner: str,
    filters: Mapping[str, str | None],
    name: str | None,
    limit: int,
    cursor: str | None,
) -> Found:
    """Return a page of the records that have these fields (None: any) and whose name contains `name`."""
    given = json.dumps({field: value for field, value in filters.items() if value is not None})
    part, wanted = folded(name), limit + 1
    examined = wanted if given == "{}" and not part else BATCH
    start, found = below(cursor), list[tuple[str, str]]()  # id and sequence number of each matching record
    while start and len(found) < wanted:
        start, *flat = redis.script("lists/matching", kind, owner, start, wanted, examined, given, part)
        found += zip(flat[::2], flat[1::2], strict=True)
    return Found(tuple(id for id, _ in found[:limit]), found[limit - 1][1] if len(found) > limit else None)
