"""The connection to Redis: commands, scripts by name, and one exception for every kind of outage."""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import Any, Self, TypeVar

import redis
from redis.backoff import ConstantBackoff
from redis.commands.core import Script
from redis.exceptions import ConnectionError, NoScriptError, RedisError, ResponseError, TimeoutError
from redis.retry import Retry

from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.errors import OutcomeUnknown, Unavailable, WritesRefused

# Codes of errors with which Redis refuses every write while it still reads, and what they mean.
REFUSES_WRITES = {
    "OOM": "its memory is full (maxmemory)",
    "READONLY": "it is a read-only replica, for example during a failover",
    "MISCONF": "it cannot write its files, for example because its disk is full",
    "NOREPLICAS": "too few of its replicas are connected (min-replicas-to-write)",
}
# Codes of errors of a Redis that can neither write nor read for now.
UNABLE = {
    "LOADING": "it is loading its records",
    "MASTERDOWN": "it is a replica that has lost its master",
    "BUSY": "it is busy with a long script",
}
AWAY = (ConnectionError, TimeoutError)
# redis-py takes the codes that it knows off the message. Others are its first word, also in a pipeline.
CODE = re.compile(r"(?:^|of pipeline caused error: )([A-Z]+) ")
# The first line of a script says what it does, and so what Redis checks before it runs it. Without flags it writes.
SHEBANG = "#!lua"
READS_ONLY = "no-writes"
# A change whose outcome is unknown is repeated for so many times the patience of one call, at this interval.
REPEATED_CALLS, REPEAT_SECONDS = 5, 0.1
Answer = TypeVar("Answer")
# What every script begins with, in this order.
SHARED_SCRIPTS = ("keys", "accounts", "state_machine")


def connect(configuration: Configuration, patience_seconds: float = 5.0) -> "redis.Redis":
    """Return a client with a pool of connections, whose calls time out after `patience_seconds`.

    A broken connection is retried once, because a restart of Redis is only noticed when a connection is used.
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
def translate_redis_errors(changes: bool = False) -> Iterator[None]:
    """Raise Unavailable for every error that means that Redis cannot be used.

    Raise WritesRefused if it only refuses to write, and OutcomeUnknown if `changes` were sent and the answer was lost.
    """
    try:
        yield
    except (*AWAY, ResponseError) as error:
        code = error_code(error)
        if code in REFUSES_WRITES:
            raise WritesRefused(f"Redis refuses to write: {REFUSES_WRITES[code]}") from error
        if changes and not code and isinstance(error, AWAY):
            raise OutcomeUnknown(f"Redis did not answer in time: {error}") from error
        if code in UNABLE or isinstance(error, AWAY):
            raise Unavailable(f"Redis cannot be used: {UNABLE.get(code, error)}") from error
        raise


def error_code(error: RedisError) -> str:
    """Return the code of an error of Redis, such as OOM; empty if it has none."""
    found = CODE.search(str(error)) if error.status_code is None else None
    return error.status_code or (found[1] if found else "")


class RedisConnection:
    """Commands and scripts on one Redis. Safe to use from many threads."""

    def __init__(self, client: "redis.Redis", configuration: Configuration) -> None:
        self.client = client
        self.configuration = configuration
        self._scripts: dict[str, Script] = {}

    @classmethod
    def of(cls, configuration: Configuration, patience_seconds: float = 5.0) -> Self:
        return cls(connect(configuration, patience_seconds), configuration)

    def script(self, name: str, *arguments: str | int, is_kept: bool = True) -> Any:
        """Run `lua/<name>.lua`. Redis caches scripts, so only the first call sends the source.

        Raises OutcomeUnknown if the answer of a script that writes was lost, unless what it writes is not kept.
        """
        changes = is_kept and self._connected_to_write(name)
        with translate_redis_errors(changes):
            return self._registered(name)(keys=[], args=list(arguments))

    def script_calls(self, name: str, calls: Sequence[Sequence[str | int]]) -> list[Any]:
        """Run a script once for each list of arguments, in one round trip; return results or exceptions."""
        digest = self._registered(name).sha
        with translate_redis_errors(self._connected_to_write(name)):
            pipe = self.client.pipeline(transaction=False)
            for arguments in calls:
                pipe.execute_command("EVALSHA", digest, 0, *arguments)  # type: ignore[no-untyped-call]
            answers = pipe.execute(raise_on_error=False)
        for place, (arguments, answer) in enumerate(zip(calls, answers, strict=True)):
            try:
                if isinstance(answer, NoScriptError):  # Redis was restarted
                    answers[place] = self.script(name, *arguments)
                elif isinstance(answer, ResponseError):
                    with translate_redis_errors():
                        raise answer
            except (ResponseError, Unavailable) as error:
                answers[place] = error
        return answers

    def repeat_until_known(self, change: Callable[[], Answer], kind: str, id: str) -> tuple[Answer, bool]:
        """Repeat a change while its outcome is unknown; return its answer, and whether it was repeated.

        A change that was made already must change nothing, and answer as before.

        Raises
        ------
        OutcomeUnknown
            If Redis does not answer in time. It may have made the change, or make it later.
        """
        patience = self.client.connection_pool.connection_kwargs["socket_timeout"]
        deadline: float | None = None
        while True:
            try:
                return change(), deadline is not None
            except Unavailable as error:
                if deadline is None and not isinstance(error, OutcomeUnknown):
                    raise  # nothing was sent
                deadline = deadline or time.monotonic() + REPEATED_CALLS * patience
                if time.monotonic() > deadline:
                    raise OutcomeUnknown(str(error), kind, id) from error
                time.sleep(REPEAT_SECONDS)

    def _connected_to_write(self, name: str) -> bool:
        """Return whether a script writes. It is sent on a connection that exists, so what fails here was not sent."""
        if READS_ONLY in self.script_source(name).partition("\n")[0]:
            return False
        pool = self.client.connection_pool
        with translate_redis_errors():
            pool.release(pool.get_connection())
        return True

    def _registered(self, name: str) -> Script:
        script = self._scripts.get(name)
        if script is None:
            script = self._scripts[name] = self.client.register_script(self.script_source(name))
        return script

    def script_source(self, name: str) -> str:
        """Return the source of `lua/<name>.lua`, after the settings and functions that all scripts share."""
        settings = self.configuration.share_half_life_seconds, self.configuration.turn_seconds
        return read_script(name, f"local HALF_LIFE, TURN = {settings[0]!r}, {settings[1]!r}\n")

    def command(self, command: str, *arguments: str | int) -> Any:
        """Run one command."""
        with translate_redis_errors():
            return self.client.execute_command(command, *arguments)  # type: ignore[no-untyped-call]

    def commands(self, commands: Iterable[Sequence[str | int]]) -> list[Any]:
        """Run many commands in one round trip, and return their results."""
        with translate_redis_errors():
            pipe = self.client.pipeline(transaction=False)
            for command in commands:
                pipe.execute_command(*command)  # type: ignore[no-untyped-call]
            return list(pipe.execute())

    def hashes(self, names: Iterable[str]) -> list[dict[str, str]]:
        """Return the hashes that exist."""
        return [fields for fields in self.commands(("HGETALL", name) for name in names) if fields]

    def now(self) -> int:
        """Return the time of Redis in milliseconds, the clock of all records."""
        seconds, microseconds = self.command("TIME")
        return int(seconds) * 1000 + int(microseconds) // 1000

    @property
    def lease_milliseconds(self) -> int:
        return int(self.configuration.lease_seconds * 1000)

    def close(self) -> None:
        self.client.close()


def below(cursor: str | None) -> str:
    """Convert a cursor to a bound of a range; without a valid cursor, the list begins at the top."""
    return f"({cursor}" if cursor is not None and cursor.isdecimal() else "+inf"


@cache
def read_script(name: str, settings: str = "") -> str:
    """Return the source of `lua/<name>.lua`, after the settings and the functions that all scripts share.

    A script may begin with a line such as `#!lua flags=no-writes`. So Redis decides before its first command whether it
    may run: a script that writes is refused as a whole, and one that only reads is run by a Redis that cannot write.
    """
    folder = files("sparse_ncp.worker.records") / "lua"
    first, rest = SHEBANG, (folder / f"{name}.lua").read_text()
    if rest.startswith(SHEBANG):
        first, _, rest = rest.partition("\n")
    shared = "".join((folder / f"{part}.lua").read_text() for part in SHARED_SCRIPTS)
    return f"{first}\n{settings}{shared}{rest}"
