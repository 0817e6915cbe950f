"""Exceptions of the HTTP layer: credentials, hosts, rates, sizes, media types."""

from collections.abc import Mapping, Sequence

from fastapi.exceptions import RequestValidationError

from sparse_ncp.worker.contract import Allowance

REALM = 'Bearer realm="sparse-ncp"'


class AuthError(Exception):
    """A request that is refused before it reaches a route. `headers` go into the response."""

    def __init__(self, reason: str, headers: Mapping[str, str]) -> None:
        super().__init__(reason)
        self.headers = headers


class MissingCredentials(AuthError):
    """No bearer token was sent."""

    def __init__(self) -> None:
        super().__init__("this server asks for a key", {"WWW-Authenticate": REALM})


class InvalidCredentials(AuthError):
    """The key is unknown."""

    def __init__(self) -> None:
        super().__init__("the key is unknown, or was revoked", {"WWW-Authenticate": f'{REALM}, error="invalid_token"'})


class SessionEnded(AuthError):
    """The session of the cookie has ended."""

    def __init__(self) -> None:
        super().__init__("the session has ended", {"WWW-Authenticate": REALM})


class NoSignIn(Exception):
    """An attempt to sign in on a server without keys."""

    def __init__(self) -> None:
        super().__init__("this server asks for no key")


class UntrustedHost(AuthError):
    """The Host header may come from a page of another site (DNS rebinding)."""

    def __init__(self) -> None:
        super().__init__("the Host header does not name this server", {})


class RateLimitExceeded(AuthError):
    """The owner has no request token left."""

    def __init__(self, allowance: Allowance) -> None:
        quota, seconds = _counted(allowance.quota, "request"), _counted(allowance.window_seconds, "second")
        super().__init__(f"more than {quota} in {seconds}", {"Retry-After": str(allowance.wait_seconds)})


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


class InvalidRequest(RequestValidationError):
    """A request that the schema refuses, with any other problems that were found."""

    def __init__(self, refused: RequestValidationError, problems: Sequence[Exception]) -> None:
        super().__init__(refused.errors(), body=refused.body)
        self.problems = problems


class TooLarge(Exception):
    """The upload is larger than a tensor may be."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"The tensor is over the limit of {limit} bytes.")


class UnsupportedMedia(Exception):
    """The route does not accept the media type of the body."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.remedy = remedy


class Forbidden(Exception):
    """The caller may not make this request."""


class TooManyStreams(Exception):
    """As many event streams are open as may be."""
