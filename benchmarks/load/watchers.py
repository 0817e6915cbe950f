"""A thousand clients of one event stream each, in one process: `python -m benchmarks.load.watchers PORT SECONDS JOB…`.

Every event carries the time of its publication in `seconds`; the latencies are printed at the end.
"""

import asyncio
import json
import re
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import cast

import uvloop

MOMENT = re.compile(rb'"seconds":([0-9.e+]+)')


class Watcher(asyncio.Protocol):
    """Read one stream; only the times are parsed, since the client itself must not limit the measurement."""

    def __init__(self, job: str, delays: list[float]) -> None:
        self._job = job
        self._delays = delays
        self._rest = b""
        self.is_watching = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(
            f"GET /v1/jobs/{self._job}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        now = time.time()
        if b": keep-alive" in data:  # everything recorded has been sent
            self.is_watching.set()
        whole, _, self._rest = (self._rest + data).rpartition(b"\n\n")
        self._delays.extend(now - float(moment) for moment in MOMENT.findall(whole))


async def watch(port: int, seconds: float, jobs: Sequence[str], clients: int) -> list[float]:
    loop = asyncio.get_running_loop()
    delays: list[float] = []
    made = []
    for client in range(clients):
        watcher = partial(Watcher, jobs[client % len(jobs)], delays)
        made.append(await loop.create_connection(watcher, "127.0.0.1", port))
    for _, watching in made:
        await watching.is_watching.wait()
    print("connected", flush=True)
    await asyncio.sleep(seconds)
    for transport, _ in made:
        transport.close()
    return delays


if __name__ == "__main__":
    port, seconds, clients, *jobs = sys.argv[1:]
    print(json.dumps(uvloop.run(watch(int(port), float(seconds), jobs, int(clients)))))
