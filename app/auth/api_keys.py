"""API keys, as files named by the key's digest.

They need no Redis, and every API that shares the folder sees a new or revoked key with the next request.
"""

import logging
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from pydantic import AwareDatetime, ValidationError

from sparse_ncp.solvers import InvalidInput
from sparse_ncp.worker.errors import NotFound, StoreUnavailable
from sparse_ncp.worker.owner_limits import UNLIMITED, FrozenModel, Limits
from sparse_ncp.worker.store.files import atomic_write, locked, private_folder, translate_storage_errors

log = logging.getLogger("ncp.keys")
PREFIX = "ncp_"
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
# The last use is stored at most this often: few requests should wait for the disk.
USE_SECONDS = 60.0
NEVER = (0.0, 0.0)
# Raised when a key file is damaged, is a folder, or belongs to another account.
UNREADABLE = (ValidationError, PermissionError, IsADirectoryError)


class Key(FrozenModel):
    """A key without its secret. Its name is the owner of everything that is created with it."""

    name: str
    admin: bool
    created_at: AwareDatetime
    limits: Limits = UNLIMITED
    last_used_at: AwareDatetime | None = None


class ApiKeys:
    """The keys of one data folder. The time stamp of a key's file is its last use, or 1970 before the first.

    Keys that were found once are cached, so that callers are still recognised while the disk is unavailable.
    """

    def __init__(self, root: Path) -> None:
        self._folder = root.absolute() / "keys"
        self._remembered: dict[Path, Key] = {}
        self._ever_made: bool | None = None

    @property
    def ever_made(self) -> bool:
        """Whether a key was ever created. Revoking the last one, or losing the disk, must not open the server."""
        if not self._ever_made:
            try:
                with translate_storage_errors():
                    self._ever_made = self._folder.is_dir()
            except StoreUnavailable:
                if self._ever_made is None:
                    raise
        return bool(self._ever_made)

    def find(self, secret: str) -> Key | None:
        """Return the key with this secret, looked up by its digest so that timing reveals nothing."""
        return self.find_digest(digest_of(secret))

    def find_digest(self, digest: str) -> Key | None:
        """Return the key whose secret has this digest, or None."""
        path = self._file(digest)
        try:
            with translate_storage_errors():
                key, used = _read(path)
        except StoreUnavailable:
            if path not in self._remembered:
                raise
            return self._remembered[path]
        except FileNotFoundError:
            self._remembered.pop(path, None)
            return None  # unknown
        except UNREADABLE:
            self._remembered.pop(path, None)
            log.warning("%s", _damage(path))
            return None
        self._remembered[path] = key
        if time.time() - used > USE_SECONDS:
            try:
                os.utime(path)
            except FileNotFoundError:
                return None  # revoked just now
            except OSError as error:  # a read-only disk must not lock callers out
                log.warning("cannot record the last use of key %s: %s", key.name, error)
        return key

    def create(self, name: str, admin: bool = False, limits: Limits = UNLIMITED) -> str:
        """Create a key and return its secret, which is not stored."""
        if NAME.fullmatch(name) is None:
            raise InvalidInput(
                "name", f"{name!r} is not a valid name", "use up to 64 characters: a-z, 0-9, dot, dash and underscore"
            )
        with self._alone():
            if any(key.name == name for key in self.all()):
                raise InvalidInput("name", f"{name} has a key already", "revoke it first, or choose another name")
            secret = PREFIX + secrets.token_urlsafe(32)
            path = self._file(digest_of(secret))
            _write(path, Key(name=name, admin=admin, created_at=datetime.now(UTC), limits=limits))
            os.utime(path, NEVER)
        return secret

    def all(self) -> list[Key]:
        """Return all keys that can be read, sorted by name."""
        return sorted((key for _, key in self._readable()), key=lambda key: key.name)

    def damaged(self) -> list[str]:
        """Return one sentence for each key file that cannot be read."""
        readable = {path for path, _ in self._readable()}
        return [_damage(path) for path in sorted(self._folder.glob("*.json")) if path not in readable]

    def revoke(self, name: str) -> None:
        """Revoke the key, from the next request on. Tensors and jobs of its owner stay."""
        with self._alone():
            self._named(name).unlink()

    def limit(self, name: str, limits: Limits) -> None:
        """Give the key other limits, from the next request on."""
        with self._alone():
            path = self._named(name)
            key, used = _read(path)
            _write(path, key.model_copy(update={"limits": limits}))
            os.utime(path, (used, used))

    def named(self, name: str) -> Key:
        return _read(self._named(name))[0]

    def _named(self, name: str) -> Path:
        for path, key in self._readable():
            if key.name == name:
                return path
        raise NotFound("key", name)

    def _readable(self) -> Iterator[tuple[Path, Key]]:
        for path in self._folder.glob("*.json"):
            with suppress(FileNotFoundError, *UNREADABLE):  # revoked just now, or damaged
                yield path, _read(path)[0]

    def _file(self, digest: str) -> Path:
        return self._folder / f"{digest}.json"

    def _alone(self) -> AbstractContextManager[object]:
        """Return the lock that serialises changes, so that no name is used twice."""
        return locked(private_folder(self._folder))


def digest_of(secret: str) -> str:
    """Return the digest of a secret, which is stored in its place."""
    return sha256(secret.encode(errors="replace")).hexdigest()


def _damage(path: Path) -> str:
    return f"the key file {path.name} cannot be read as a key: remove it and create a new one"


def _read(path: Path) -> tuple[Key, float]:
    """Return a key and the time stamp of its last use."""
    with path.open("rb") as file:
        used = os.fstat(file.fileno()).st_mtime
        key = Key.model_validate_json(file.read())
    return key.model_copy(update={"last_used_at": datetime.fromtimestamp(used, UTC) if used else None}), used


def _write(path: Path, key: Key) -> None:
    atomic_write(path, key.model_dump_json(exclude_unset=True, exclude={"last_used_at"}).encode())
