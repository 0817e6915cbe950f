"""The connection to Redis: scripts by name, and one word for every way it can be away."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import Any

import redis
from redis.backoff import ConstantBackoff
from redis.exceptions import ConnectionError, ResponseError, TimeoutError
from redis.retry import Retry

from worker.configuration import Configuration
from worker.errors import Unavailable

# Answers of a Redis that is there but cannot write: its disk or memory is full, it is still loading, it is a replica.
UNABLE = ("MISCONF", "OOM", "LOADING", "READONLY", "NOREPLICAS", "MASTERDOWN")
AWAY = (ConnectionError, TimeoutError)


def connect(configuration: Configuration, patience_seconds: float = 5.0) -> "redis.Redis":
    """One client with a pool. It reconnects by itself; a call to a silent Redis is given up after `patience_seconds`.

    Only a broken connection is tried again at once: one that was idle while Redis was restarted is found broken.
    """
    if configuration.redis_url is None:
        raise Unavailable("no Redis is configured: set NCP_REDIS_URL, or start everything with `ncp serve`")
    return redis.Redis.from_url(
        configuration.redis_url,
        decode_responses=True,
        socket_timeout=patience_seconds,
        socket_connect_timeout=2,
        health_check_interval=0,
        retry=Retry(ConstantBackoff(0.05), 1, (ConnectionError,)),
    )


@contextmanager
def away_is_unavailable() -> Iterator[None]:
    try:
        yield
    except AWAY as error:
        raise Unavailable(f"Redis cannot be used: {error}") from error
    except ResponseError as error:
        if str(error).startswith(UNABLE):
            raise Unavailable(f"Redis cannot be used: {error}") from error
        raise


class Link:
    """What every kind of record shares."""

    def __init__(self, redis: "redis.Redis", configuration: Configuration) -> None:
        self._redis = redis
        self._configuration = configuration

    def _run(self, name: str, *arguments: str | int) -> Any:
        """Run `lua/<name>.lua`; Redis keeps it by its digest, so only the first call sends the text."""
        script = self._redis.register_script(_script(name))
        with away_is_unavailable():
            return script(keys=[], args=list(arguments))

    def _call(self, command: str, *arguments: str | int) -> Any:
        with away_is_unavailable():
            return self._redis.execute_command(command, *arguments)  # type: ignore[no-untyped-call]

    def _page(self, index: str, limit: int, cursor: str | None) -> tuple[list[str], str | None]:
        """Members of a sorted set, the highest score first, below the cursor; and the cursor to go on with."""
        top = f"({cursor}" if cursor is not None and cursor.isdecimal() else "+inf"
        arguments = (index, top, "-inf", "WITHSCORES", "LIMIT", 0, limit + 1)
        found = self._call("ZREVRANGEBYSCORE", *arguments)
        ids = [member for member, _ in found[:limit]]
        return ids, str(int(found[limit - 1][1])) if len(found) > limit else None

    @property
    def _lease_milliseconds(self) -> int:
        return int(self._configuration.lease_seconds * 1000)


@cache
def _script(name: str) -> str:
    folder = files("worker") / "lua"
    return (folder / "prelude.lua").read_text() + (folder / f"{name}.lua").read_text()
