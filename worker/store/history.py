"""The history of an ended job: a table with a row per iteration, and the changes of state with their ids.

It is collected in pieces, which a later attempt continues, and published whole.
"""

import io
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from typing import TypeAlias

import numpy as np

from ncp_client.formats import UnreadableFile
from ncp_client.formats.npy import read_header
from sparse_ncp.solvers.runtime import Float64, Phase
from sparse_ncp.worker.contract import Event, Progress, parse_event_id
from sparse_ncp.worker.errors import CorruptFile
from sparse_ncp.worker.store.blobs import Blobs
from sparse_ncp.worker.store.manifests import publish, read_manifest

# Iteration and number of an event.
EventPlace: TypeAlias = tuple[int, int]
ROWS, CHANGES = "rows.npy", "changes.json"
# Where both lay before they had a folder and a manifest.
UNVERSIONED_ROWS = "history.npy"
# Columns of the table: objective, relative error, seconds, phase, start. Iterations need no column, nor does the fit.
COLUMNS = 5
# The phases by their numbers in the table; in a trial start, which has its own column, the number is not read.
PHASES: tuple[Phase, ...] = ("exact", "compressed", "single", "start")
# A piece: the first iteration in it, how many there are, and the digest of the piece.
PIECE = re.compile(r"(\d+)-(\d+)-[0-9a-f]{16}")


def collected_length(blobs: Blobs, folder: str) -> int:
    """Return the number of iterations collected so far, without a gap."""
    length = 0
    for first, count, _ in _pieces(blobs, folder):
        if first <= length + 1:
            length = max(length, first - 1 + count)
    return length


def collect(blobs: Blobs, folder: str, rows: Sequence[Progress], changes: Sequence[Event]) -> None:
    """Add the next piece; it is durable on return. Pieces may overlap, and repeat changes."""
    first = rows[0].iteration if rows else collected_length(blobs, folder) + 1
    content = _changes_json(changes) + b"\n" + _table(rows).tobytes()
    name = f"{first:012d}-{len(rows)}-{sha256(content).hexdigest()[:16]}"
    blobs.put(f"{folder}/pieces/{name}", content)


def read_collected(blobs: Blobs, folder: str, after: EventPlace, count: int) -> list[Event]:
    """Return at most `count` collected events after that place, in order; none once the pieces are gone."""
    found: dict[EventPlace, Event] = {}
    for first, length, name in _pieces(blobs, folder):
        if first - 1 + length < after[0]:
            continue
        try:
            changes, table = _read_piece(blobs, name)
        except FileNotFoundError:  # published as a whole meanwhile
            return []
        for change in changes:
            found.setdefault(parse_event_id(change.id), change)
        for row in _progress(table.tolist(), first):
            found.setdefault(
                (row.iteration, 0), Event(id=f"{row.iteration}-0", kind="progress", payload=row.model_dump_json())
            )
        if sum(place > after for place in found) >= count:
            break
    return [found[place] for place in sorted(found) if place > after][:count]


def complete(blobs: Blobs, folder: str) -> None:
    """Publish the collected pieces as one history, and delete them. Others may be doing the same."""
    tables: list[Float64] = []
    length, changes = 0, dict[str, Event]()
    for first, count, name in _pieces(blobs, folder):
        with suppress(FileNotFoundError):  # deleted by another who has published the whole
            own, table = _read_piece(blobs, name)
            for change in own:
                changes.setdefault(change.id, change)
            if first <= length + 1 and first - 1 + count > length:
                tables.append(table[length + 1 - first :])
                length = first - 1 + count
    table = np.concatenate(tables) if tables else _table([])
    _publish(blobs, folder, table, list(changes.values()), flush=True)
    discard_pieces(blobs, folder)


def write(blobs: Blobs, folder: str, rows: Sequence[Progress], changes: Sequence[Event], flush: bool = True) -> None:
    """Publish a short history at once."""
    _publish(blobs, folder, _table(rows), changes, flush)


def is_complete(blobs: Blobs, folder: str) -> bool:
    """Return whether the history is published."""
    return read_manifest(blobs, f"{folder}/history") is not None


def discard_pieces(blobs: Blobs, folder: str) -> None:
    """Delete the collected pieces."""
    for _, _, name in _pieces(blobs, folder):
        blobs.delete(name)


def read_history(blobs: Blobs, folder: str, after: int, count: int | None) -> list[Progress]:
    """Return at most `count` iterations after `after`."""
    try:
        name = f"history/{ROWS}" if is_complete(blobs, folder) else UNVERSIONED_ROWS
        file = blobs.open(f"{folder}/{name}")
    except FileNotFoundError:
        return []
    with file:
        try:
            header = read_header(file)
        except UnreadableFile as error:
            raise CorruptFile(f"the stored history {error.problem}") from error
        length, columns = header.shape
        after = min(after, length)  # a seek beyond what a file can hold is an error
        wanted = length - after if count is None else min(count, length - after)
        file.seek(header.offset + after * columns * header.dtype.itemsize)
        content = np.frombuffer(file.read(wanted * columns * header.dtype.itemsize), header.dtype)
    # Former tables have neither trial starts nor, before that, phases.
    rows = [row + [0.0] * (COLUMNS - columns) for row in content.reshape(-1, columns).tolist()]
    return _progress(rows, after + 1)


def _progress(rows: Sequence[Sequence[float]], first: int) -> list[Progress]:
    """Return the rows of a table, of which the first is this iteration."""
    return [
        Progress(
            iteration=iteration,
            objective=objective,
            relative_error=error,
            fit=1 - error,
            seconds=seconds,
            phase="start" if start else PHASES[int(phase)],
            start=int(start) or None,
        )
        for iteration, (objective, error, seconds, phase, start) in enumerate(rows, first)
    ]


def read_changes(blobs: Blobs, folder: str) -> list[Event]:
    """Return the changes of state in their order."""
    for name in (f"{folder}/history/{CHANGES}", f"{folder}/{CHANGES}"):
        with suppress(FileNotFoundError), blobs.open(name) as file:
            return [Event.model_validate(change) for change in json.load(file)]
    return []


def _pieces(blobs: Blobs, folder: str) -> list[tuple[int, int, str]]:
    """List the pieces in order: first iteration, number of iterations, name."""
    named = [(PIECE.fullmatch(blob.name.rpartition("/")[2]), blob.name) for blob in blobs.list(f"{folder}/pieces/")]
    return [(int(found[1]), int(found[2]), name) for found, name in named if found]


def _read_piece(blobs: Blobs, name: str) -> tuple[list[Event], Float64]:
    """Return the changes of state and the table of a piece."""
    with blobs.open(name) as file:
        head, _, body = file.read().partition(b"\n")
    changes = [Event.model_validate(change) for change in json.loads(head)]
    return changes, np.frombuffer(body).reshape(-1, COLUMNS)


def _publish(blobs: Blobs, folder: str, table: Float64, changes: Sequence[Event], flush: bool) -> None:
    buffer = io.BytesIO()
    np.save(buffer, table, allow_pickle=False)
    files = [(CHANGES, _changes_json(changes)), (ROWS, buffer.getvalue())]
    publish(blobs, f"{folder}/history", files, flush=flush, undo=False)


def _changes_json(changes: Sequence[Event]) -> bytes:
    return json.dumps([change.model_dump() for change in changes]).encode()


def _table(rows: Sequence[Progress]) -> Float64:
    columns = [
        (row.objective, row.relative_error, row.seconds, PHASES.index(row.phase), row.start or 0) for row in rows
    ]
    return np.array(columns, np.float64).reshape(-1, COLUMNS)
