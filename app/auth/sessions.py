"""Sessions of browsers: a random token in a cookie instead of the key, kept as a file named by the token's digest."""

import logging
import secrets
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

from pydantic import AwareDatetime, ValidationError

from sparse_ncp.worker.owner_limits import FrozenModel
from sparse_ncp.worker.store.files import atomic_write, locked, private_folder

COOKIE = "ncp_session"
PREFIX = "ncp_session_"  # the log leaves out what begins like a key
# Of one key at a time; the oldest gives way. A person has a few browsers.
MOST_SESSIONS = 50
log = logging.getLogger("ncp.sessions")


class Session(FrozenModel):
    """Who has signed in: the digest of the key, which itself is not stored."""

    key_digest: str
    created_at: AwareDatetime
    expires_at: AwareDatetime

    @property
    def is_over(self) -> bool:
        return datetime.now(UTC) >= self.expires_at


class Sessions:
    """The sessions of one data folder. Like keys they need no Redis, and every API that shares the folder sees them."""

    def __init__(self, root: Path, hours: float) -> None:
        self._folder = root.absolute() / "sessions"
        self._lasts = timedelta(hours=hours)

    def create(self, key_digest: str) -> str:
        """Start a session of this key and return its token, which is not stored."""
        token, now = PREFIX + secrets.token_urlsafe(32), datetime.now(UTC)
        session = Session(key_digest=key_digest, created_at=now, expires_at=now + self._lasts)
        with locked(private_folder(self._folder)):
            own = []
            for path in self._folder.glob("*.json"):  # make room: expired sessions and the oldest of this key go
                old = _read(path)
                if old is None or old.is_over:
                    path.unlink(missing_ok=True)
                elif old.key_digest == key_digest:
                    own.append((old.created_at, path))
            for _, path in sorted(own)[: -MOST_SESSIONS + 1]:
                path.unlink(missing_ok=True)
            atomic_write(self._path(token), session.model_dump_json().encode())
        return token

    def find(self, token: str) -> Session | None:
        """Return the session, or None if it does not exist or has expired."""
        session = _read(self._path(token))
        return None if session is None or session.is_over else session

    def end(self, token: str) -> None:
        self._path(token).unlink(missing_ok=True)

    def _path(self, token: str) -> Path:
        """Return the session's file, named by digest: a cookie may contain anything, and timing reveals nothing."""
        return self._folder / f"{sha256(token.encode(errors='replace')).hexdigest()}.json"


def _read(path: Path) -> Session | None:
    """Return the session in a file, or None if the file is gone or damaged: its browser must sign in again."""
    with suppress(FileNotFoundError):
        try:
            return Session.model_validate_json(path.read_bytes())
        except ValidationError:
            log.warning("the session file %s cannot be read: its browser must sign in again", path.name)
    return None
