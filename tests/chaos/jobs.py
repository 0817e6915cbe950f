"""A stream of small jobs from several owners, submitted through every outage."""

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

import httpx
import numpy as np
from kombu.exceptions import OperationalError
from numpy.typing import NDArray

from sparse_ncp.solvers import METHODS, Settings
from sparse_ncp.worker.broker import wake_worker
from sparse_ncp.worker.contract import TERMINAL, JobRequest
from sparse_ncp.worker.errors import NotFound, StoreUnavailable, Unavailable
from sparse_ncp.worker.owner_limits import UNLIMITED, Limits
from tests.chaos.server import ChaosServer
from tests.support.api import http_client, npy
from tests.support.jobs import put, random_tensor
from tests.support.stack import wait_for
from tests.support.watcher import Watcher

Answer = TypeVar("Answer")
OWNERS = ("local", "ann", "bob")
GREEDY, MODEST = "greedy", "modest"
EVERYBODY = (*OWNERS, GREEDY, MODEST)
SHAPES = ((30, 30, 30), (60, 50), (12, 12, 12, 12), (60, 60, 60))
# The last of them is for long jobs.
LONG_PLACE = len(SHAPES) - 1
# Nothing is attacked meanwhile, but the machine may be busy with other things.
PATIENCE_SECONDS = 300.0


@dataclass(eq=False)
class Accepted:
    """A job that the server has answered for."""

    owner: str
    id: str
    tensor: NDArray[np.float64]
    settings: Settings
    cancel_asked: bool = False
    is_long: bool = False
    is_paused: bool = False
    watcher: Watcher | None = None


@dataclass
class Lane:
    """One owner's tensors."""

    ids: list[str] = field(default_factory=list)


class Jobs:
    """`local` goes through HTTP, the others around it: an open server has one caller. Threads may add jobs."""

    def __init__(self, server: ChaosServer, dice: random.Random) -> None:
        self._server = server
        self._dice = dice
        self._tensors = [random_tensor(*shape, seed=place) for place, shape in enumerate(SHAPES)]
        self._lanes = {owner: Lane() for owner in EVERYBODY}
        self._numbers = count()
        self.accepted: list[Accepted] = []
        self._live: list[Accepted] = []
        for owner in EVERYBODY:
            self._lanes[owner].ids = [self._upload(owner, tensor) for tensor in self._tensors]

    def live(self) -> list[Accepted]:
        """Return the jobs that are not known to have ended. Each end is checked once, because there are hundreds."""
        with suppress(Unavailable):
            for job in list(self._live):
                if self._state(job) in TERMINAL:
                    self._live.remove(job)
        return list(self._live)

    def submit(self) -> None:
        owner, place = self._dice.choice(OWNERS), self._dice.randrange(LONG_PLACE)
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
        job = self.add(owner, place, request)
        if owner == "local" and self._dice.random() < 0.7:
            job.watcher = Watcher(self._server.address, job.id)
            job.watcher.start()

    def add(
        self, owner: str, place: int, request: JobRequest, limits: Limits = UNLIMITED, is_long: bool = False
    ) -> Accepted:
        """Submit a request for the tensor in this place, and keep it for the audit."""
        id = self._send(owner, request, limits)
        job = Accepted(owner, id, self._tensors[place], request.settings(), is_long=is_long)
        self.accepted.append(job)
        self._live.append(job)
        return job

    def tensor_id(self, owner: str, place: int) -> str:
        return self._lanes[owner].ids[place]

    def tensor(self, owner: str, id: str) -> NDArray[np.float64]:
        return self._tensors[self._lanes[owner].ids.index(id)]

    def cancel(self) -> bool:
        """One that lives; False if there is none."""
        live = self.live()
        if live:
            self.cancel_one(self._dice.choice(live))
        return bool(live)

    def cancel_one(self, job: Accepted) -> None:
        job.cancel_asked = True
        self.persistently(lambda: self._server.records.jobs.cancel(job.owner, job.id))

    def delete_ended(self, job: Accepted) -> None:
        """Delete a job as soon as it has ended. Nothing of it may be left."""
        if job in self._live:
            self._live.remove(job)
        self.accepted.remove(job)
        wait_for(lambda: self.persistently(lambda: self._state(job)) in TERMINAL, PATIENCE_SECONDS, "a job to end")
        self.persistently(lambda: delete_once(lambda: self._server.jobs.delete(job.owner, job.id)))

    def _state(self, accepted: Accepted) -> str:
        job = self._server.records.jobs.get(accepted.owner, accepted.id)
        accepted.is_paused = job.paused is not None and job.paused.iteration > 0
        return job.state

    def _upload(self, owner: str, tensor: NDArray[np.float64]) -> str:
        if owner == "local":
            return str(self._posted("/v1/tensors", 201, content=npy(tensor))["id"])
        return self.persistently(lambda: put(self._server.records, self._server.store, tensor, owner)).id

    def _send(self, owner: str, request: JobRequest, limits: Limits) -> str:
        """Send it with an Idempotency-Key: repeated after a lost answer, it is the same job."""
        key = f"chaos {next(self._numbers)}"
        if owner == "local":
            body = request.model_dump(mode="json", exclude_unset=True)
            return str(self._posted("/v1/jobs", 202, json=body, headers={"Idempotency-Key": key})["id"])
        job, _ = self.persistently(lambda: self._server.jobs.submit(owner, request, key, limits))
        self.persistently(lambda: wake_worker(self._server.configuration))
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

        return self.persistently(post)

    def persistently(self, call: Callable[[], Answer]) -> Answer:
        """Again while the server is away; anything but its absence is an error."""

        def attempt() -> tuple[Answer] | None:
            try:
                return (call(),)
            except (Unavailable, StoreUnavailable, OperationalError, httpx.TransportError):
                return None

        return wait_for(attempt, PATIENCE_SECONDS, "the server")[0]


def delete_once(delete: Callable[[], None]) -> None:
    """Delete; repeated after a lost answer, the record may be gone already."""
    with suppress(NotFound):
        delete()
