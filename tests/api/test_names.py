"""Renaming jobs and tensors, and finding them by a part of their name."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.records.redis.connection import connect
from tests.support.api import Api, finished, http_client, planted, refused, submit, upload

Make = Callable[[httpx.Client, str | None], dict[str, Any]]


def tensor(lab: httpx.Client, name: str | None) -> dict[str, Any]:
    return upload(lab, planted(3, 2), name)


def job(lab: httpx.Client, name: str | None) -> dict[str, Any]:
    return submit(lab, upload(lab, planted(3, 2))["id"], name=name)


KINDS: dict[str, Make] = {"tensors": tensor, "jobs": job}


def found(lab: httpx.Client, kind: str, **query: str | int) -> list[str | None]:
    answer = lab.get(f"/v1/{kind}", params=query)
    assert answer.status_code == 200, answer.text
    return [item["name"] for item in answer.json()["items"]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_can_be_given_changed_and_taken_away(client: httpx.Client, kind: str) -> None:
    made = KINDS[kind](client, None)
    path = f"/v1/{kind}/{made['id']}"
    for name in ("first", 'Übung "2" \\ 日本', "", None):
        answer = client.patch(path, json={"name": name})
        assert (answer.status_code, answer.json()) == (200, made | {"name": name})
        assert client.get(path).json()["name"] == name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("body", "field"), [({}, "name"), ({"name": 1}, "name"), ({"name": "x" * 201}, "name"), ({"nmae": "x"}, "nmae")]
)
def test_nothing_but_a_name_can_be_changed(client: httpx.Client, kind: str, body: dict[str, Any], field: str) -> None:
    path = f"/v1/{kind}/{KINDS[kind](client, 'kept')['id']}"
    assert field in {error["field"] for error in refused(client.patch(path, json=body), 422)["errors"]}
    refused(client.patch(path, content=b"name=x"), 415)
    assert client.get(path).json()["name"] == "kept"


@pytest.mark.parametrize("kind", KINDS)
def test_owners_cannot_rename_what_is_not_theirs(client: httpx.Client, other_client: httpx.Client, kind: str) -> None:
    path = f"/v1/{kind}/{KINDS[kind](client, 'mine')['id']}"
    refused(other_client.patch(path, json={"name": "theirs"}), 404)
    refused(client.patch(f"/v1/{kind}/none", json={"name": "x"}), 404)
    assert client.get(path).json()["name"] == "mine"


def test_a_finished_job_can_be_renamed_and_stays_what_it_is(client_with_worker: httpx.Client) -> None:
    lab = client_with_worker
    asked = {"rank": 2, "method": "hals", "name": "before", "tensor_id": upload(lab, planted(5, 4, 3))["id"]}
    first = lab.post("/v1/jobs", json=asked, headers={"Idempotency-Key": "names"}).json()
    done = finished(lab, first["id"])
    renamed = lab.patch(f"/v1/jobs/{first['id']}", json={"name": "after"}).json()
    assert renamed == done | {"name": "after"}
    again = lab.post("/v1/jobs", json=asked, headers={"Idempotency-Key": "names"})
    assert (again.json()["id"], again.headers["idempotent-replayed"]) == (first["id"], "true")


@pytest.mark.parametrize("kind", KINDS)
def test_a_list_can_be_searched_by_a_part_of_the_name_in_any_case(api: Api, kind: str) -> None:
    with http_client(api.address, f"searches {kind}") as lab:
        for name in ("Fluorescence A-17", "fluorescence b", "ÜBUNG 100%_[x]", None):
            KINDS[kind](lab, name)
        assert found(lab, kind, name="FLUOR") == ["fluorescence b", "Fluorescence A-17"]
        assert found(lab, kind, name="übung") == found(lab, kind, name="%_[X]") == ["ÜBUNG 100%_[x]"]
        assert found(lab, kind, name="nothing") == found(lab, kind, name="%a") == []
        assert len(found(lab, kind, name="")) == len(found(lab, kind)) >= 4
        newest = lab.get(f"/v1/{kind}", params={"name": "fluor", "limit": 1})
        assert [item["name"] for item in newest.json()["items"]] == ["fluorescence b"]
        following = lab.get(newest.links["next"]["url"]).json()
        assert [item["name"] for item in following["items"]] == ["Fluorescence A-17"]
        assert following["next"] is None
        renamed = lab.get(f"/v1/{kind}", params={"name": "a-17"}).json()["items"][0]
        lab.patch(f"/v1/{kind}/{renamed['id']}", json={"name": "Phosphorescence"})
        assert found(lab, kind, name="a-17") == []
        assert found(lab, kind, name="PHOSPHOR") == ["Phosphorescence"]


def test_a_name_goes_together_with_the_other_filters(client: httpx.Client) -> None:
    made = submit(client, upload(client, planted(3, 2))["id"], name="together")
    assert found(client, "jobs", name="GETHER", tensor_id=made["tensor_id"], state="queued") == ["together"]
    assert found(client, "jobs", name="gether", tensor_id=made["tensor_id"], state="failed") == []
    assert found(client, "jobs", name="other", tensor_id=made["tensor_id"]) == []
    record = upload(client, planted(3, 2, seed=77), "by digest")
    assert found(client, "tensors", sha256=record["sha256"], name="DIGEST") == ["by digest"]
    assert found(client, "tensors", sha256=record["sha256"], name="other") == []


def test_runs_of_a_study_are_found_by_name_too(api: Api) -> None:
    with http_client(api.address, "searches runs") as lab:
        tensor_id = job(lab, "Rank 2, by itself")["tensor_id"]
        grid = {"kind": "compare", "tensor_id": tensor_id, "ranks": [1, 2], "methods": ["hals"], "repeats": 2}
        assert lab.post("/v1/studies", json=grid).status_code == 202
        runs = [f"rank 2, hals, beta 0, run {number}" for number in (2, 1)]
        assert found(lab, "jobs", name="RANK 2") == [*runs, "Rank 2, by itself"]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_left_of_the_names_of_what_was_deleted(api: Api, configuration: Configuration, kind: str) -> None:
    with http_client(api.address, f"deletes {kind}") as lab, connect(configuration) as redis:
        made = KINDS[kind](lab, "to go")
        if kind == "jobs":
            lab.post(f"/v1/jobs/{made['id']}/cancel")
        assert lab.delete(f"/v1/{kind}/{made['id']}").status_code == 204
        assert not redis.exists(keys.names(kind.removesuffix("s"), f"deletes {kind}"))
