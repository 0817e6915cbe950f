"""Owners see only what is theirs, on every route there is and will be."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request

from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.errors import InUse, NotFound
from tests.support.api import Api, finished, new_holder, npy, planted, running_api, submit, upload
from tests.support.isolation import Things, complaints, seen_by
from tests.support.stack import embedded_redis, wait_for, worker

OUTSIDE = {"/", "/docs"}  # the same for everybody


def _things(caller: httpx.Client, owner: str, seed: int, key: str) -> Things:
    array = planted(6, 5, 4, seed=seed)
    tensor = upload(caller, array, f"tensor of {owner}")
    body = {"tensor_id": tensor["id"], "rank": 2, "method": "hals", "stability": True, "name": f"job of {owner}"}
    job = caller.post("/v1/jobs", json=body, headers={"Idempotency-Key": key}).json()
    grid = {"kind": "compare", "ranks": [2], "methods": ["hals"], "betas": [0.0], "repeats": 1}
    study = caller.post("/v1/studies", json={"tensor_id": tensor["id"], **grid, "stop": {"max_iterations": 20}}).json()
    return Things(tensor["id"], job["id"], study["id"], owner, tensor["sha256"], key, npy(array))


def _ended(caller: httpx.Client, things: Things) -> None:
    assert finished(caller, things.job_id)["state"] == "succeeded"
    path = f"/v1/studies/{things.study_id}"
    wait_for(lambda: caller.get(path).json()["state"] == "succeeded", 60, "the study to end")


class Pair:
    """Ann, who has an ended and a queued job, and Bob, who has his own things."""

    def __init__(self, configuration: Configuration, stack: ExitStack, running: Api) -> None:
        self.configuration = configuration
        self.ann = stack.enter_context(new_holder(configuration, running.address, "ann"))
        self.bob = stack.enter_context(new_holder(configuration, running.address, "bob"))
        with worker(configuration):
            ended, self.bobs = _things(self.ann, "ann", 1, "key of ann"), _things(self.bob, "bob", 2, "key of bob")
            _ended(self.ann, ended)
            _ended(self.bob, self.bobs)
        queued = submit(self.ann, ended.tensor_id)["id"]
        self.anns = [ended, Things(**{**vars(ended), "job_id": queued})]

    def complaints(self, running: Api) -> list[str]:
        """On a server that may have further routes, with Bob looking at what is Ann's."""
        never = Things(
            secrets.token_hex(8),
            secrets.token_hex(10),
            secrets.token_hex(10),
            "eve",
            secrets.token_hex(32),
            "key of eve",
            npy(planted(6, 5, 4, seed=3)),
        )
        document = httpx.get(f"{running.address}/openapi.json", trust_env=False, timeout=60).json()
        self.ann.base_url = self.bob.base_url = httpx.URL(running.address)
        return complaints(document, (self.ann, self.anns), (self.bob, self.bobs), never)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Pair, Api]]:
    folder: Path = tmp_path_factory.mktemp("isolation")
    with (
        ExitStack() as stack,
        embedded_redis(folder, min_free_bytes=1, max_requests_per_second=0) as configuration,
        running_api(configuration, keys=True) as running,
    ):
        yield Pair(configuration, stack, running), running


def test_nothing_of_another_owner_is_seen_changed_or_guessed(served: tuple[Pair, Api]) -> None:
    pair, running = served
    assert pair.complaints(running) == []


def test_an_owner_sees_all_of_their_own(served: tuple[Pair, Api]) -> None:
    """Else the others' refusals would prove nothing."""
    pair, running = served
    seen = seen_by(pair.ann, running.app.openapi(), pair.anns[0])
    assert len(seen) > 10
    assert {name: answer for name, answer in seen.items() if answer[0] >= 400} == {}


def test_every_route_is_documented_or_the_same_for_everybody(served: tuple[Pair, Api]) -> None:
    _, running = served
    assert {route.path for route in running.app.state.routes} <= running.app.openapi()["paths"].keys() | OUTSIDE


def shows_any_job(app: FastAPI) -> None:
    @app.get("/v1/careless/{job_id}")
    def show(job_id: str, request: Request) -> Any:
        records = request.app.state.records
        return records.jobs.get(records.jobs.owner_of(job_id), job_id).model_dump(mode="json", exclude={"owner"})


def lists_everything(app: FastAPI) -> None:
    @app.get("/v1/careless")
    def list_all(request: Request) -> Any:
        records = request.app.state.records
        return [job.id for owner in records.stats.owners() for job in records.jobs.list(owner).items]


def reveals_existence(app: FastAPI) -> None:
    @app.get("/v1/careless/{job_id}")
    def hint(job_id: str, request: Request) -> Any:
        request.app.state.records.jobs.owner_of(job_id)
        raise InUse("job", job_id)


def cancels_in_silence(app: FastAPI) -> None:
    @app.post("/v1/careless/{job_id}")
    def cancel(job_id: str, request: Request) -> Any:
        records = request.app.state.records
        records.jobs.cancel(records.jobs.owner_of(job_id), job_id)
        raise NotFound("job", job_id)


def takes_a_new_parameter(app: FastAPI) -> None:
    @app.get("/v1/careless/{study_id}")
    def show(study_id: str) -> Any:
        return study_id


CARELESS = [shows_any_job, lists_everything, reveals_existence, takes_a_new_parameter, cancels_in_silence]


@pytest.mark.parametrize("extend", CARELESS)
def test_a_route_that_forgets_the_owner_is_found(served: tuple[Pair, Api], extend: Callable[[FastAPI], None]) -> None:
    pair, running = served
    with running_api(pair.configuration, extend, keys=True) as careless:
        assert pair.complaints(careless)
    pair.ann.base_url = pair.bob.base_url = httpx.URL(running.address)
