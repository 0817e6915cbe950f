"""Keys as files, one per key, named by its digest: they need no Redis, and every API machine that shares the folder
sees a new or revoked key with the next request."""

import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from pydantic import AwareDatetime

from worker.errors import NotFound, Refused
from worker.files import private_folder, write_whole
from worker.limits import UNLIMITED, Limits
from worker.value import Value

PREFIX = "ncp_"
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
# A use is noted at most this often: the note is a time stamp, and no request should wait for a disk.
NOTE_SECONDS = 60.0
NEVER = (0.0, 0.0)


class Key(Value):
    """What is known of a key. Its name is the owner of what is made with it."""

    name: str
    admin: bool
    created_at: AwareDatetime
    limits: Limits = UNLIMITED
    last_used_at: AwareDatetime | None = None


class KeyFiles:
    """The keys of one data folder. The time stamp of a key's file is its last use, 1970 if there was none."""

    def __init__(self, root: Path) -> None:
        self._folder = root.absolute() / "keys"

    @property
    def ever_made(self) -> bool:
        """Whether there has been a key: a server whose last key was revoked must not become open by that."""
        return self._folder.is_dir()

    def find(self, secret: str) -> Key | None:
        """Found by digest: nothing that was sent is ever compared, so no time tells how close it came."""
        path = self._path(secret)
        try:
            key, used = _read(path)
            if time.time() - used > NOTE_SECONDS:
                os.utime(path)
        except FileNotFoundError:
            return None  # unknown, or revoked this very moment
        return key

    def create(self, name: str, admin: bool = False, limits: Limits = UNLIMITED) -> str:
        """The key itself, which nobody can tell again."""
        if NAME.fullmatch(name) is None:
            raise Refused("name", f"{name!r} is no name", "use up to 64 of a-z, 0-9, dot, dash and underscore")
        with self._alone():
            if any(key.name == name for key in self.all()):
                raise Refused("name", f"{name} has a key already", "revoke it first, or choose another name")
            secret = PREFIX + secrets.token_urlsafe(32)
            path = self._path(secret)
            _write(path, Key(name=name, admin=admin, created_at=datetime.now(UTC), limits=limits))
            os.utime(path, NEVER)
        return secret

    def all(self) -> list[Key]:
        """By name."""
        found = [_read(path)[0] for path in self._folder.glob("*.json")]
        return sorted(found, key=lambda key: key.name)

    def revoke(self, name: str) -> None:
        """The next request with it is refused. What was made with it stays."""
        with self._alone():
            self._named(name).unlink()

    def limit(self, name: str, limits: Limits) -> None:
        """Other limits, from the next request on."""
        with self._alone():
            path = self._named(name)
            key, used = _read(path)
            _write(path, key.model_copy(update={"limits": limits}))
            os.utime(path, (used, used))

    def named(self, name: str) -> Key:
        return _read(self._named(name))[0]

    def _named(self, name: str) -> Path:
        for path in self._folder.glob("*.json"):
            if _read(path)[0].name == name:
                return path
        raise NotFound("key", name)

    def _path(self, secret: str) -> Path:
        return self._folder / f"{sha256(secret.encode()).hexdigest()}.json"

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One change at a time: two could give the same name twice."""
        folder = os.open(private_folder(self._folder), os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)


def _read(path: Path) -> tuple[Key, float]:
    """The key, and when it was last used."""
    with path.open("rb") as file:
        used = os.fstat(file.fileno()).st_mtime
        key = Key.model_validate_json(file.read())
    return key.model_copy(update={"last_used_at": datetime.fromtimestamp(used, UTC) if used else None}), used


def _write(path: Path, key: Key) -> None:
    write_whole(path, key.model_dump_json(exclude_unset=True, exclude={"last_used_at"}).encode())
