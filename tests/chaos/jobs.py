"""A stream of small jobs from several owners, submitted through every outage."""

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
import numpy as np
from kombu.exceptions import OperationalError
from numpy.typing import NDArray

from sparse_ncp.solvers import METHODS, Settings
from sparse_ncp.worker.broker import wake_worker
from sparse_ncp.worker.contract import TERMINAL, JobRequest
from sparse_ncp.worker.errors import StoreUnavailable, Unavailable
from tests.chaos.server import ChaosServer
from tests.support.api import http_client, npy
from tests.support.jobs import put, queue_job, random_tensor
from tests.support.stack import wait_for
from tests.support.watcher import Watcher

Answer = TypeVar("Answer")
OWNERS = ("local", "ann", "bob")
SHAPES = ((30, 30, 30), (60, 50), (12, 12, 12, 12))
# Nothing is attacked meanwhile, but the machine may be busy with other things.
PATIENCE_SECONDS = 300.0


@dataclass
class Accepted:
    """A job that the server has answered for."""

    owner: str
    id: str
    tensor: NDArray[np.float64]
    settings: Settings
    cancel_asked: bool = False
    watcher: Watcher | None = None


@dataclass
class Lane:
    """One owner's tensors."""

    ids: list[str] = field(default_factory=list)


class Jobs:
    """`local` goes through HTTP, the others through the records: an open server has one caller."""

    def __init__(self, server: ChaosServer, dice: random.Random) -> None:
        self._server = server
        self._dice = dice
        self._tensors = [random_tensor(*shape, seed=place) for place, shape in enumerate(SHAPES)]
        self._lanes = {owner: Lane() for owner in OWNERS}
        self._count = 0
        self.accepted: list[Accepted] = []
        self._live: list[Accepted] = []
        for owner in OWNERS:
            self._lanes[owner].ids = [self._upload(owner, tensor) for tensor in self._tensors]

    def live(self) -> list[Accepted]:
        """Return the jobs that are not known to have ended. Each end is checked once, because there are hundreds."""
        with suppress(Unavailable):
            self._live = [job for job in self._live if self._state(job) not in TERMINAL]
        return self._live

    def submit(self) -> None:
        owner, place = self._dice.choice(OWNERS), self._dice.randrange(len(SHAPES))
        if self._dice.random() < 0.2:
            self._lanes[owner].ids[place] = self._upload(owner, self._tensors[place])
        method = self._dice.choice(list(METHODS))
        request = JobRequest(
            tensor_id=self._lanes[owner].ids[place],
            method=method,
            rank=self._dice.randint(2, 6),
            seed=self._dice.randrange(1000),
            priority=self._dice.randint(-1, 1),
            accelerate=self._dice.choice(("none", "float32") if method == "mu" else ("none", "compress", "float32")),
            stop={
                "max_iterations": self._dice.choice((30, 300, 1500)),
                "criterion": "relative_objective",
                "tolerance": self._dice.choice((0, 1e-6)),
            },
        )
        job = Accepted(owner, self._send(owner, request), self._tensors[place], request.settings())
        if owner == "local" and self._dice.random() < 0.7:
            job.watcher = Watcher(self._server.address, job.id)
            job.watcher.start()
        self.accepted.append(job)
        self._live.append(job)

    def cancel(self) -> bool:
        """One that lives; False if there is none."""
        live = self.live()
        if not live:
            return False
        job = self._dice.choice(live)
        job.cancel_asked = True
        self._persistently(lambda: self._server.records.jobs.cancel(job.owner, job.id))
        return True

    def _state(self, job: Accepted) -> str:
        return self._server.records.jobs.get(job.owner, job.id).state

    def _upload(self, owner: str, tensor: NDArray[np.float64]) -> str:
        if owner == "local":
            return str(self._posted("/v1/tensors", 201, content=npy(tensor))["id"])
        return self._persistently(lambda: put(self._server.records, self._server.store, tensor, owner)).id

    def _send(self, owner: str, request: JobRequest) -> str:
        """Send it with an Idempotency-Key: repeated after a lost answer, it is the same job."""
        self._count += 1
        key = f"chaos {self._count}"
        if owner == "local":
            body = request.model_dump(mode="json", exclude_unset=True)
            return str(self._posted("/v1/jobs", 202, json=body, headers={"Idempotency-Key": key})["id"])
        job = self._persistently(lambda: queue_job(self._server.records, owner, request, key))[0]
        self._persistently(lambda: wake_worker(self._server.configuration))
        return job.id

    def _posted(self, path: str, status: int, **content: Any) -> dict[str, Any]:
        def post() -> dict[str, Any]:
            with http_client(self._server.address) as caller:
                answer = caller.post(path, **content)
            if answer.status_code == 503:
                raise Unavailable
            assert answer.status_code == status, answer.text
            found: dict[str, Any] = answer.json()
            return found

        return self._persistently(post)

    def _persistently(self, call: Callable[[], Answer]) -> Answer:
        """Again while the server is away; anything but its absence is an error."""

        def attempt() -> tuple[Answer] | None:
            try:
                return (call(),)
            except (Unavailable, StoreUnavailable, OperationalError, httpx.TransportError):
                return None

        return wait_for(attempt, PATIENCE_SECONDS, "the server")[0]
