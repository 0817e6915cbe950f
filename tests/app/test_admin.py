"""An admin sees owners, queues and usage, and can cancel anything; nobody else learns of it."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from tests.app.api import Api, api, npy, planted, refused, submit, upload
from tests.app.holders import holder, new_holder
from tests.stack import embedded_redis
from worker.key_files import KeyFiles

ROUTES = [
    ("GET", "/v1/admin/owners"),
    ("GET", "/v1/admin/queue"),
    ("GET", "/v1/admin/owners/ann/jobs"),
    ("POST", "/v1/admin/jobs/x/cancel"),
]


class House(NamedTuple):
    running: Api
    root: httpx.Client
    ann: httpx.Client
    bob: httpx.Client


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder: Path = tmp_path_factory.mktemp("admin")
    with (
        ExitStack() as stack,
        embedded_redis(folder, min_free_bytes=1) as configuration,
        api(configuration, keys=True) as running,
    ):
        names = {"root": True, "ann": False, "bob": False}
        callers = [
            stack.enter_context(new_holder(configuration, running.address, name, admin))
            for name, admin in names.items()
        ]
        yield House(running, *callers)


def test_an_admin_sees_every_owner_and_what_they_have_taken(house: House) -> None:
    upload(house.bob, planted(4, 5, seed=1))
    owners = {owner["owner"]: owner for owner in house.root.get("/v1/admin/owners").json()}
    assert owners.keys() == {"root", "ann", "bob"}
    assert owners["bob"]["tensor_bytes"] == len(npy(planted(4, 5)))
    assert (owners["root"]["admin"], owners["bob"]["admin"], owners["bob"]["has_key"]) == (True, False, True)
    assert owners["bob"]["key_last_used_at"] is not None
    assert "ncp_" not in str(owners)


def test_an_admin_sees_the_queue_and_cancels_anything(house: House) -> None:
    tensor = upload(house.ann, planted(4, 5))["id"]
    jobs = [submit(house.ann, tensor)["id"] for _ in range(3)]
    queue = house.root.get("/v1/admin/queue").json()
    assert {"owner": "ann", "queued": 3, "running": 0} in queue["owners"]
    assert (queue["queued"], queue["live_workers"]) == (3, 0)
    page = house.root.get("/v1/admin/owners/ann/jobs", params={"state": "queued", "limit": 2}).json()
    assert [job["id"] for job in page["items"]] == jobs[:0:-1]
    assert {job["owner"] for job in page["items"]} == {"ann"}
    rest = house.root.get("/v1/admin/owners/ann/jobs", params={"cursor": page["next"]}).json()
    assert [job["id"] for job in rest["items"]] == jobs[:1]
    answer = house.root.post(f"/v1/admin/jobs/{jobs[0]}/cancel")
    assert (answer.status_code, answer.json()["state"], answer.json()["owner"]) == (202, "cancelled", "ann")
    assert house.ann.get(f"/v1/jobs/{jobs[0]}").json()["state"] == "cancelled"
    refused(house.root.post("/v1/admin/jobs/nothing/cancel"), 404, "not-found")
    refused(house.root.get(f"/v1/jobs/{jobs[1]}"), 404)  # elsewhere an admin is an owner like others


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_for_everybody_else_there_is_no_such_route(house: House, method: str, path: str) -> None:
    problem, control = (refused(house.bob.request(method, url), 404) for url in (path, "/v1/nothing"))
    assert {**problem, "request_id": ""} == {**control, "request_id": ""}


def test_an_owner_whose_key_was_revoked_is_still_seen(tmp_path: Path) -> None:
    with embedded_redis(tmp_path, min_free_bytes=1) as configuration, api(configuration, keys=True) as running:
        keys = KeyFiles(configuration.data)
        with new_holder(configuration, running.address, "ann") as ann:
            upload(ann, planted(3, 3))
        keys.revoke("ann")
        with holder(running.address, keys.create("root", admin=True)) as root:
            owners = {owner["owner"]: owner for owner in root.get("/v1/admin/owners").json()}
    assert (owners["ann"]["has_key"], owners["ann"]["stored_bytes"] > 0) == (False, True)


def test_the_user_of_an_open_server_is_its_admin(tmp_path: Path) -> None:
    with (
        embedded_redis(tmp_path, min_free_bytes=1) as configuration,
        api(configuration, keys=True) as running,
        holder(running.address, None) as local,
    ):
        assert local.get("/v1/admin/queue").status_code == 200
        usage = local.get("/v1/usage").json()
        assert (usage["owner"], usage["admin"], usage["limits"]["requests_per_second"]) == ("local", True, None)
