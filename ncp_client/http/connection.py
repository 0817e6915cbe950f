"""HTTP connection to a server: errors become exceptions, and requests that are safe to repeat are retried."""

import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from ncp_client.http.config import Address
from ncp_client.http.errors import NotFound, RateLimited, Refused, ServerUnavailable, Unauthorized

Answer = TypeVar("Answer")
ANSWER_SECONDS = 60.0
CONNECT_SECONDS = 10.0
# Pause before the first retry, doubled each time up to the longest.
PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 5.0
PROBLEM = "application/problem+json"
TOO_FAST = "too-fast"
PROXY_ERRORS = {502, 503, 504}


class Connection:
    """A pool of connections to one server, which retries requests for `patience_seconds` while it is unavailable."""

    def __init__(self, address: Address, patience_seconds: float) -> None:
        self.url = address.url
        self.patience_seconds = patience_seconds
        self._reached = False
        secure = address.url.startswith("https:")
        self._http = httpx.Client(
            base_url=address.url,
            headers={"Authorization": f"Bearer {address.key}"} if address.key else {},
            timeout=httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
            trust_env=not _is_this_machine(address.url),  # a proxy cannot reach this machine
            verify=secure,  # loading certificates takes longer than everything else in a short command
        )

    def close(self) -> None:
        """Close the pool."""
        self._http.close()

    def get(self, path: str, **params: Any) -> Any:
        """Return the JSON at a path."""
        return self.call("GET", path, params=params).json()

    def pages(self, path: str, **params: Any) -> Iterator[Any]:
        """Yield the items of a list, page after page."""
        following: str | None = None
        while True:
            page = self.get(path, **params, cursor=following)
            yield from page["items"]
            following = page["next"]
            if following is None:
                return

    def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        content: Callable[[], Iterable[bytes] | bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool | None = None,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> httpx.Response:
        """Send a request and return the response. By default only GET is retried."""
        if repeatable is None:
            repeatable = method == "GET"
        given = {name: value for name, value in (params or {}).items() if value is not None}
        sent = dict(headers or {})
        encoded = None
        if body is not None:
            sent["Content-Type"] = "application/json"
            encoded = json.dumps(body, allow_nan=False).encode()
        timeout = httpx.Timeout(answer_seconds, connect=CONNECT_SECONDS)

        def attempt() -> httpx.Response:
            with self._translate_errors():
                asked = self._http.build_request(
                    method, path, params=given, headers=sent, timeout=timeout, content=content() if content else encoded
                )
                answer = self._http.send(asked)
            self._check(answer)
            return answer

        return self.with_retries(attempt, repeatable)

    def delete(self, path: str) -> None:
        """Delete the object at a path. If the response is lost, try again; not found then means deleted."""
        try:
            self.call("DELETE", path)
        except ServerUnavailable as error:
            if not error.maybe_done:
                raise
            with suppress(NotFound):
                self.call("DELETE", path, repeatable=True)

    @contextmanager
    def stream(
        self,
        path: str,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        read_seconds: float = ANSWER_SECONDS,
    ) -> Iterator[httpx.Response]:
        """Open a GET whose response is read in chunks. It is not retried: only the caller knows where to continue."""
        given = {name: value for name, value in (params or {}).items() if value is not None}
        timeout = httpx.Timeout(read_seconds, connect=CONNECT_SECONDS)
        with (
            self._translate_errors(),
            self._http.stream("GET", path, params=given, headers=dict(headers or {}), timeout=timeout) as answer,
        ):
            if answer.status_code >= 300:
                answer.read()
            self._check(answer)
            yield answer

    def with_retries(self, attempt: Callable[[], Answer], repeatable: bool = True) -> Answer:
        """Call `attempt`, and retry while the server is unavailable.

        A request that is not repeatable is retried only if it had no effect.
        """
        deadline = time.monotonic() + self.patience_seconds
        for pause in pauses():
            reached_before = self._reached
            try:
                return attempt()
            except (ServerUnavailable, RateLimited) as error:
                if isinstance(error, RateLimited):
                    again = error.kind == TOO_FAST  # it had no effect
                else:
                    again = reached_before and (repeatable or not error.maybe_done)
                wait = error.retry_after or pause
                if not again or time.monotonic() + wait > deadline:
                    raise
                time.sleep(wait)
        raise AssertionError("pauses never end")

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raise ServerUnavailable instead of the exceptions of httpx."""
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise ServerUnavailable(
                f"no server answers at {self.url}: {_reason(error)}; is it running, and is the address right?"
            ) from error
        except httpx.TimeoutException as error:
            raise ServerUnavailable(f"the server at {self.url} took too long to respond", maybe_done=True) from error
        except (httpx.TransportError, httpx.StreamError, httpx.DecodingError) as error:
            raise ServerUnavailable(
                f"the connection to {self.url} was lost: {_reason(error)}", maybe_done=True
            ) from error

    def _check(self, answer: httpx.Response) -> None:
        if answer.is_success and answer.headers.get("x-request-id"):
            self._reached = True
            return
        header = answer.headers.get("retry-after", "")
        retry_after = float(header) if header.isdigit() else None
        if answer.headers.get("content-type") == PROBLEM:
            self._reached = True
            problem = answer.json()
            status = answer.status_code
            if status in (503, 504):
                raise ServerUnavailable(str(Refused(problem)), maybe_done=True, retry_after=retry_after)
            if status == 429:
                raise RateLimited(problem, retry_after)
            raise {404: NotFound, 401: Unauthorized}.get(status, Refused)(problem)
        if answer.status_code in PROXY_ERRORS:
            raise ServerUnavailable(
                f"the proxy at {self.url} cannot reach the server (HTTP {answer.status_code})", True, retry_after
            )
        if answer.is_redirect:
            raise ServerUnavailable(
                f"{self.url} redirects to {answer.headers.get('location')}; use that address instead"
            )
        raise ServerUnavailable(f"{self.url} is not a sparse-ncp server (HTTP {answer.status_code}); check the address")


def pauses() -> Iterator[float]:
    """Return growing pauses between retries."""
    return (min(LONGEST_PAUSE_SECONDS, PAUSE_SECONDS * 2**tries) for tries in itertools.count())


def _reason(error: Exception) -> str:
    return str(error).partition("] ")[2] or str(error) or type(error).__name__


def _is_this_machine(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
