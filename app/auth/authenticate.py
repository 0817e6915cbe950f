"""Authentication: who is calling, and what they may do."""

from collections.abc import Callable
from typing import TypeAlias

from pydantic import AwareDatetime
from starlette.requests import Request

from sparse_ncp.app.auth.api_keys import ApiKeys, Key, digest_of
from sparse_ncp.app.auth.hosts import is_known, is_loopback, listed
from sparse_ncp.app.auth.sessions import COOKIE, Sessions
from sparse_ncp.app.errors.exceptions import InvalidCredentials, MissingCredentials, SessionEnded, UntrustedHost
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.owner_limits import FrozenModel, Limits

# Every route below needs a caller. The others, such as health, documentation and the page, are public.
API_PREFIX = "/v1"
# Used by browsers that have no key yet.
SESSION_PATH = f"{API_PREFIX}/session"


class Caller(FrozenModel):
    """The caller of a request. The owner is the name of their key."""

    owner: str
    admin: bool
    limits: Limits
    session_ends_at: AwareDatetime | None = None


Identify: TypeAlias = Callable[[Request], Caller]


def local_caller(configuration: Configuration) -> Caller:
    """The one user of a server without keys: its operator, whose requests are not limited."""
    limits = Limits.of(configuration).overridden(Limits(requests_per_second=None))
    return Caller(owner="local", admin=True, limits=limits)


class Authenticator:
    """Identifies callers by key, or by the session that began with one.

    A server on a loopback address is open until its first key is created.
    """

    def __init__(self, configuration: Configuration) -> None:
        self._keys = ApiKeys(configuration.data)
        self._sessions = Sessions(configuration.data, configuration.session_hours)
        self._limits = Limits.of(configuration)
        self._local = local_caller(configuration)
        self._on_loopback = is_loopback(configuration.host)
        self._hosts = listed(configuration.allowed_hosts)

    def __call__(self, request: Request) -> Caller:
        if self.is_open(request):
            return self._local
        scheme, _, secret = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self._caller(self._keys.find(secret.strip()))
        token = request.cookies.get(COOKIE)
        if not token:
            raise MissingCredentials
        return self._caller_in_session(token)

    def is_open(self, request: Request) -> bool:
        """Return whether the server is open. Raises UntrustedHost if the caller may be a page of another site."""
        # The connection's own address is checked too: the server may listen on another one than is configured.
        address = (request.scope.get("server") or ("",))[0]
        if not self._on_loopback or not is_loopback(address) or self._keys.ever_made:
            return False
        if not is_known(request.headers.get("host", ""), self._hosts):
            raise UntrustedHost
        return True

    def _caller_in_session(self, token: str) -> Caller:
        """Return the caller whose key started the session. Raises SessionEnded if it is over or the key was revoked."""
        session = self._sessions.find(token)
        key = None if session is None else self._keys.find_digest(session.key_digest)
        if session is None or key is None:
            self._sessions.end(token)
            raise SessionEnded
        return self._caller(key).model_copy(update={"session_ends_at": session.expires_at})

    def sign_in(self, secret: str) -> tuple[str, Caller]:
        """Start a session with a key; return the token for its cookie, and the caller."""
        self._caller(self._keys.find(secret))
        token = self._sessions.create(digest_of(secret))
        return token, self._caller_in_session(token)

    def sign_out(self, request: Request) -> None:
        """End the session of a browser, if there is one."""
        self._sessions.end(request.cookies.get(COOKIE, ""))

    def _caller(self, key: Key | None) -> Caller:
        if key is None:
            raise InvalidCredentials
        return Caller(owner=key.name, admin=key.admin, limits=self._limits.overridden(key.limits))


def is_api(path: str) -> bool:
    return path == API_PREFIX or path.startswith(f"{API_PREFIX}/")


def needs_caller(path: str) -> bool:
    return is_api(path) and path != SESSION_PATH
