"""A note that a running `ncp serve` leaves in its data folder: the API's address from this machine."""

from pathlib import Path

from worker.files import write_whole

NAME = "address"


def write_note(folder: Path, address: str) -> None:
    write_whole(folder / NAME, address.encode())


def read_note(folder: Path) -> str | None:
    """None where no server runs. After an unclean end it may tell of one that is gone."""
    note = folder / NAME
    return note.read_text() if note.is_file() else None


def remove_note(folder: Path) -> None:
    (folder / NAME).unlink(missing_ok=True)
