"""The history of an ended job on the disk: a table of numbers, and the changes of state with their ids."""

import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from worker.contract import Event, Progress
from worker.files import write_whole

TABLE, CHANGES = "history.npy", "changes.json"


def write_history(folder: Path, rows: Sequence[Progress], changes: Sequence[Event]) -> None:
    """What the event stream held. Iterations need no column, nor does the fit."""
    table = [[row.objective, row.relative_error, row.seconds, row.phase == "compressed"] for row in rows]
    buffer = io.BytesIO()
    np.save(buffer, np.array(table, np.float64).reshape(-1, 4), allow_pickle=False)
    write_whole(folder / TABLE, buffer.getvalue())
    write_whole(folder / CHANGES, json.dumps([change.model_dump() for change in changes]).encode())


def read_history(folder: Path, after: int, count: int | None) -> list[Progress]:
    """At most `count` iterations after `after`."""
    try:
        table = np.load(folder / TABLE, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        return []
    stop = len(table) if count is None else after + count
    return [
        Progress(
            iteration=iteration,
            objective=objective,
            relative_error=error,
            fit=1 - error,
            seconds=seconds,
            phase="compressed" if compressed else "exact",
        )
        for iteration, (objective, error, seconds, compressed) in enumerate(table[after:stop].tolist(), after + 1)
    ]


def read_changes(folder: Path) -> list[Event]:
    try:
        return [Event.model_validate(change) for change in json.loads((folder / CHANGES).read_text())]
    except FileNotFoundError:
        return []
