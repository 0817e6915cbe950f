"""An admin sees owners, queues and usage, and can cancel anything. Other owners cannot."""

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from sparse_ncp.app.auth.api_keys import ApiKeys
from sparse_ncp.worker.owner_limits import Limits
from tests.support.api import Api, finished, holder, new_holder, npy, planted, refused, running_api, submit, upload
from tests.support.jobs import LONG
from tests.support.stack import embedded_redis, wait_for, worker

ROUTES = [
    ("GET", "/v1/admin/owners"),
    ("GET", "/v1/admin/queue"),
    ("GET", "/v1/admin/server"),
    ("GET", "/v1/admin/owners/ann/jobs"),
    ("POST", "/v1/admin/jobs/x/cancel"),
]


class Server(NamedTuple):
    running: Api
    root: httpx.Client
    ann: httpx.Client
    bob: httpx.Client


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("admin")
    with (
        ExitStack() as stack,
        embedded_redis(folder, min_free_bytes=1) as configuration,
        running_api(configuration, keys=True) as running,
    ):
        names = {"root": True, "ann": False, "bob": False}
        callers = [
            stack.enter_context(new_holder(configuration, running.address, name, admin))
            for name, admin in names.items()
        ]
        yield Server(running, *callers)


def test_an_admin_sees_every_owner_and_what_they_have_taken(server: Server) -> None:
    upload(server.bob, planted(4, 5, seed=1))
    owners = {owner["owner"]: owner for owner in server.root.get("/v1/admin/owners").json()}
    assert owners.keys() >= {"root", "ann", "bob"}
    assert owners["bob"]["tensor_bytes"] == len(npy(planted(4, 5)))
    assert (owners["root"]["admin"], owners["bob"]["admin"], owners["bob"]["has_key"]) == (True, False, True)
    assert owners["bob"]["key_last_used_at"] is not None
    assert "ncp_" not in str(owners)
    assert (owners["bob"]["sharing"]["weight"], owners["bob"]["sharing"]["paused"]) == (1.0, None)


def test_an_admin_can_distinguish_no_limit_from_the_default(server: Server) -> None:
    ApiKeys(server.running.app.state.configuration.data).create("eve", limits=Limits(rank=None, live_jobs=3))
    owners = {owner["owner"]: owner for owner in server.root.get("/v1/admin/owners").json()}
    assert owners["eve"]["own_limits"] == ["live_jobs", "rank"]
    assert (owners["eve"]["limits"]["live_jobs"], owners["eve"]["limits"]["rank"]) == (3, None)
    assert owners["ann"]["own_limits"] == []


def test_an_admin_sees_the_queue_and_cancels_anything(server: Server) -> None:
    tensor = upload(server.ann, planted(4, 5))["id"]
    jobs = [submit(server.ann, tensor)["id"] for _ in range(3)]
    queue = server.root.get("/v1/admin/queue").json()
    assert {"owner": "ann", "queued": 3, "running": 0} in queue["owners"]
    assert (queue["queued"], queue["live_workers"]) == (3, 0)
    page = server.root.get("/v1/admin/owners/ann/jobs", params={"state": "queued", "limit": 2}).json()
    assert [job["id"] for job in page["items"]] == jobs[:0:-1]
    assert {job["owner"] for job in page["items"]} == {"ann"}
    rest = server.root.get("/v1/admin/owners/ann/jobs", params={"cursor": page["next"]}).json()
    assert [job["id"] for job in rest["items"]] == jobs[:1]
    answer = server.root.post(f"/v1/admin/jobs/{jobs[0]}/cancel")
    assert (answer.status_code, answer.json()["state"], answer.json()["owner"]) == (202, "cancelled", "ann")
    assert server.ann.get(f"/v1/jobs/{jobs[0]}").json()["state"] == "cancelled"
    refused(server.root.post("/v1/admin/jobs/nothing/cancel"), 404, "not-found")
    refused(server.root.get(f"/v1/jobs/{jobs[1]}"), 404)  # elsewhere an admin is an owner like others


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_for_everybody_else_there_is_no_such_route(server: Server, method: str, path: str) -> None:
    problem, control = (refused(server.bob.request(method, url), 404) for url in (path, "/v1/nothing"))
    assert {**problem, "request_id": ""} == {**control, "request_id": ""}


def test_an_owner_whose_key_was_revoked_is_still_seen(tmp_path: Path) -> None:
    with embedded_redis(tmp_path, min_free_bytes=1) as configuration, running_api(configuration, keys=True) as running:
        keys = ApiKeys(configuration.data)
        with new_holder(configuration, running.address, "ann") as ann:
            upload(ann, planted(3, 3))
        keys.revoke("ann")
        with holder(running.address, keys.create("root", admin=True)) as root:
            owners = {owner["owner"]: owner for owner in root.get("/v1/admin/owners").json()}
    assert (owners["ann"]["has_key"], owners["ann"]["stored_bytes"] > 0) == (False, True)


def test_the_user_of_an_open_server_is_its_admin(tmp_path: Path) -> None:
    with (
        embedded_redis(tmp_path, min_free_bytes=1) as configuration,
        running_api(configuration, keys=True) as running,
        holder(running.address, None) as local,
    ):
        assert local.get("/v1/admin/queue").status_code == 200
        usage = local.get("/v1/usage").json()
        assert (usage["owner"], usage["admin"], usage["limits"]["requests_per_second"]) == ("local", True, None)


def test_an_admin_sees_workers_what_they_run_and_the_disk(tmp_path: Path) -> None:
    with (
        embedded_redis(tmp_path, min_free_bytes=1) as configuration,
        running_api(configuration, keys=True) as api,
        new_holder(configuration, api.address, "root", admin=True) as root,
        new_holder(configuration, api.address, "ann") as ann,
    ):
        job = submit(ann, upload(ann, planted(40, 40, 40))["id"], **LONG)["id"]
        idle = root.get("/v1/admin/server").json()
        assert (idle["workers"], idle["running"], idle["oldest_queued_seconds"] > 0) == ([], [], True)
        with worker(configuration):
            seen = wait_for(lambda: (found := root.get("/v1/admin/server").json())["running"] and found)
            assert [(one["id"], one["owner"], one["state"]) for one in seen["running"]] == [(job, "ann", "running")]
            assert len(seen["workers"]) == 1
            assert datetime.fromisoformat(seen["workers"][0]["last_seen_at"]) <= datetime.now(UTC)
            assert root.post(f"/v1/admin/jobs/{job}/cancel").status_code == 202
            finished(ann, job)
        disk = seen["disk"]
        assert 0 < disk["free_bytes"] < disk["total_bytes"]
        assert disk["min_free_bytes"] == 1
        measured = wait_for(lambda: root.get("/v1/admin/server").json()["disk"]["stored_bytes"])
        assert measured.keys() == {"tensors", "jobs", "uploads"}
        assert measured["tensors"] > 40**3
