"""A note that a running `ncp serve` leaves in its data folder: where it can be reached from this machine."""

from pathlib import Path

from pydantic import BaseModel, ValidationError

from worker.files import write_whole

NAME = "server.json"


class Note(BaseModel):
    address: str
    redis_url: str | None = None


def write_note(folder: Path, note: Note) -> None:
    write_whole(folder / NAME, note.model_dump_json().encode())


def read_note(folder: Path) -> Note | None:
    """None where no server runs. After an unclean end it may tell of one that is gone."""
    try:
        return Note.model_validate_json((folder / NAME).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValidationError):
        return None


def remove_note(folder: Path) -> None:
    (folder / NAME).unlink(missing_ok=True)
