"""Crowds of requests at once: exports, plots and event streams of one owner, over HTTP."""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import product

import httpx
import psutil

from tests.chaos.jobs import Accepted, Jobs
from tests.chaos.server import ChaosServer
from tests.support.processes import kill, part

EXPORTS = [
    f"factors?format={format}&scale={scale}&order={order}"
    for format, scale, order in product(("csv", "mat", "nc"), ("none", "unit", "max"), ("none", "share"))
]
PLOTS = [f"plots/{name}?format={format}" for name in ("components", "convergence") for format in ("png", "svg", "pdf")]
STREAMS = 40
# A stream is read this long, an export waited for.
STREAM_SECONDS, ANSWER_SECONDS = 5.0, 60.0
# An answer, no factors or no job any more, too many at once, or no Redis or disk: never another error.
ANSWERS = (200, 404, 409, 429, 503, 507)
# Every so many jobs whose exports are being made are deleted meanwhile.
DELETED_SHARE = 0.3


class Crowds:
    def __init__(self, server: ChaosServer, jobs: Jobs, dice: random.Random) -> None:
        self._server = server
        self._jobs = jobs
        self._dice = dice
        self._threads: list[threading.Thread] = []
        self.answers: Counter[int] = Counter()
        self.complaints: list[str] = []

    def named(self) -> Mapping[str, tuple[int, Callable[[], bool]]]:
        """Each with its weight, as in `Attacks`."""
        return {
            "exports in a crowd": (3, lambda: self._results(EXPORTS)),
            "plots in a crowd": (3, lambda: self._results(PLOTS)),
            "event streams in a crowd": (3, self.streams),
            "renderer killed": (4, self.kill_renderer),
        }

    def streams(self) -> bool:
        """Watch a job many times."""
        mine = self._mine()
        if mine:
            self._start([f"/v1/jobs/{self._dice.choice(mine).id}/events"] * STREAMS, STREAM_SECONDS)
        return bool(mine)

    def kill_renderer(self) -> bool:
        """Kill one at work, or the process from which they are forked."""
        with suppress(psutil.NoSuchProcess):
            found = part(self._server.running, "api").children(recursive=True)
            if found:
                kill(self._dice.choice(found))
            return bool(found)
        return False

    def end(self) -> None:
        """Wait for every answer."""
        for thread in self._threads:
            thread.join()

    def _results(self, kinds: Sequence[str]) -> bool:
        """Ask for all kinds of results of a few jobs; one of them may be deleted meanwhile."""
        mine = [job for job in self._mine() if job.watcher is None or not job.watcher.is_alive()]
        if not mine:
            return False
        chosen = self._dice.sample(mine, min(4, len(mine)))
        self._start([f"/v1/jobs/{job.id}/{kind}" for job in chosen for kind in kinds], ANSWER_SECONDS)
        if chosen[0] not in self._jobs.live() and self._dice.random() < DELETED_SHARE:
            self._jobs.delete_ended(chosen[0])
        return True

    def _mine(self) -> list[Accepted]:
        """Return the latest jobs of the caller of an open server."""
        return [job for job in self._jobs.accepted[-50:] if job.owner == "local"]

    def _start(self, paths: Sequence[str], seconds: float) -> None:
        thread = threading.Thread(target=lambda: asyncio.run(self._ask_all(paths, seconds)), daemon=True)
        self._threads.append(thread)
        thread.start()

    async def _ask_all(self, paths: Sequence[str], seconds: float) -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=self._server.address, timeout=seconds, limits=limits, trust_env=False
        ) as client:
            await asyncio.gather(*(self._ask(client, path, seconds) for path in paths))

    async def _ask(self, client: httpx.AsyncClient, path: str, seconds: float) -> None:
        """Read an answer to its end, or as long as there is time; the API may be killed meanwhile."""
        with suppress(httpx.TransportError, TimeoutError):
            async with asyncio.timeout(seconds), client.stream("GET", path) as answer:
                self.answers[answer.status_code] += 1
                if answer.status_code not in ANSWERS:
                    self.complaints.append(f"GET {path}: {answer.status_code} {(await answer.aread())[:300]!r}")
                async for _ in answer.aiter_raw():
                    pass
