"""The history of an ended job: a table with a row per iteration, and the changes of state with their ids.

Both are collected piece by piece in hidden files, which a later attempt continues, and appear whole once they are.
"""

import io
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sparse_ncp.solvers.runtime import Float64, Phase
from sparse_ncp.worker.contract import Event, Progress
from sparse_ncp.worker.store.files import append, atomic_write, atomic_writer, translate_storage_errors

TABLE, CHANGES = "history.npy", "changes.json"
# Of the table: objective, relative error, seconds, phase, start. Iterations need no column, nor does the fit.
COLUMNS = 5
# The phases by their numbers in the table; in a trial start, which has its own column, the number is not read.
PHASES: tuple[Phase, ...] = ("exact", "compressed", "single", "start")
ROW_BYTES = COLUMNS * np.dtype(np.float64).itemsize
COLLECTED = COLLECTED_ROWS, COLLECTED_CHANGES = ".history.rows", ".changes.lines"


def collected_length(folder: Path) -> int:
    """How many iterations were collected so far."""
    try:
        return os.stat(folder / COLLECTED_ROWS).st_size // ROW_BYTES
    except FileNotFoundError:
        return 0


def collect(folder: Path, rows: Sequence[Progress], changes: Sequence[Event]) -> None:
    """Add the next piece: on the disk when this returns. Changes that were collected before may come again."""
    lines = "".join(f"\n{change.model_dump_json()}" for change in changes)
    if lines:
        append(folder / COLLECTED_CHANGES, lines.encode())
    if rows:
        append(folder / COLLECTED_ROWS, _table(rows).tobytes(), collected_length(folder) * ROW_BYTES)


def complete(folder: Path) -> None:
    """Put what was collected in its place."""
    length = collected_length(folder)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (length, COLUMNS)})
    with atomic_writer(folder / TABLE) as table:
        table.write(header.getvalue())
        if length:
            with (folder / COLLECTED_ROWS).open("rb") as rows:
                shutil.copyfileobj(rows, table)
            table.truncate(len(header.getvalue()) + length * ROW_BYTES)  # without half a row that a full disk left
    changes = [change.model_dump() for change in _collected_changes(folder)]
    atomic_write(folder / CHANGES, json.dumps(changes).encode())
    for name in COLLECTED:
        (folder / name).unlink(missing_ok=True)


def write(folder: Path, rows: Sequence[Progress], changes: Sequence[Event], flush: bool = True) -> None:
    """Write a short history at once."""
    buffer = io.BytesIO()
    np.save(buffer, _table(rows), allow_pickle=False)
    atomic_write(folder / TABLE, buffer.getvalue(), flush)
    atomic_write(folder / CHANGES, json.dumps([change.model_dump() for change in changes]).encode(), flush)


def _table(rows: Sequence[Progress]) -> Float64:
    columns = [
        (row.objective, row.relative_error, row.seconds, PHASES.index(row.phase), row.start or 0) for row in rows
    ]
    return np.array(columns, np.float64).reshape(-1, COLUMNS)


def _collected_changes(folder: Path) -> list[Event]:
    """Each once, in order. A line that was cut short was written again."""
    found: dict[str, Event] = {}
    try:
        lines = (folder / COLLECTED_CHANGES).read_text().split("\n")
    except FileNotFoundError:
        return []
    for line in lines:
        try:
            change = Event.model_validate_json(line)
        except ValueError:
            continue
        found.setdefault(change.id, change)
    return list(found.values())


def read_history(folder: Path, after: int, count: int | None) -> list[Progress]:
    """Read at most `count` iterations after `after`."""
    try:
        with translate_storage_errors():
            table = np.load(folder / TABLE, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        return []
    rows = _padded(table[after : None if count is None else after + count])
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
        for iteration, (objective, error, seconds, phase, start) in enumerate(rows, after + 1)
    ]


def _padded(rows: Any) -> list[list[float]]:
    """Rows of five columns: tables of before have neither trial starts nor, before that, phases."""
    return [row + [0.0] * (COLUMNS - len(row)) for row in rows.tolist()]


def read_changes(folder: Path) -> list[Event]:
    try:
        return [Event.model_validate(change) for change in json.loads((folder / CHANGES).read_text())]
    except FileNotFoundError:
        return []
