"""Who is calling, and what they may."""

from collections.abc import Callable
from typing import TypeAlias

from starlette.requests import Request

from app.hosts import is_known, is_loopback, listed
from app.turned_away import NoKey, UnknownHost, UnknownKey
from worker.configuration import Configuration
from worker.key_files import KeyFiles
from worker.limits import Limits
from worker.value import Value


class Caller(Value):
    owner: str
    admin: bool
    limits: Limits


Identify: TypeAlias = Callable[[Request], Caller]


def local_caller(configuration: Configuration) -> Caller:
    """The one user of an open server is its operator, whose requests nobody needs to slow down."""
    limits = Limits.of(configuration).overridden(Limits(requests_per_second=None))
    return Caller(owner="local", admin=True, limits=limits)


class Doorkeeper:
    """Asks for a key, unless the server is open: on a loopback address, and there has never been a key."""

    def __init__(self, configuration: Configuration) -> None:
        self._keys = KeyFiles(configuration.data)
        self._limits = Limits.of(configuration)
        self._local = local_caller(configuration)
        self._on_loopback = is_loopback(configuration.host)
        self._hosts = listed(configuration.allowed_hosts)

    def __call__(self, request: Request) -> Caller:
        if self._is_open(request):
            if not is_known(request.headers.get("host", ""), self._hosts):
                raise UnknownHost
            return self._local
        return self._holder(request.headers.get("authorization"))

    def _is_open(self, request: Request) -> bool:
        """The address is asked of the connection too: whoever starts the server otherwise may not know ours."""
        address = (request.scope.get("server") or ("",))[0]
        return self._on_loopback and is_loopback(address) and not self._keys.ever_made

    def _holder(self, authorization: str | None) -> Caller:
        scheme, _, secret = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            raise NoKey
        key = self._keys.find(secret.strip())
        if key is None:
            raise UnknownKey
        return Caller(owner=key.name, admin=key.admin, limits=self._limits.overridden(key.limits))
