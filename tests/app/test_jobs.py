"""Submitting, listing, cancelling and deleting jobs that no worker has taken yet."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.app.api import planted, refused, submit, upload


@pytest.fixture
def tensor(front: httpx.Client) -> str:
    """A 4 × 5 × 6 tensor of the caller."""
    return str(upload(front, planted(4, 5, 6))["id"])


@pytest.fixture(autouse=True)
def _end_what_was_queued(front: httpx.Client) -> Iterator[None]:
    """Before, too: other tests of this server may have left some."""
    _cancel_all(front)
    yield
    _cancel_all(front)


def _cancel_all(front: httpx.Client) -> None:
    for job in front.get("/v1/jobs", params={"state": "queued", "limit": 500}).json()["items"]:
        front.post(f"/v1/jobs/{job['id']}/cancel")


def test_a_job_is_accepted_with_everything_it_will_do(front: httpx.Client, tensor: str) -> None:
    body = {"tensor_id": tensor, "rank": 3, "method": "anls-bpp", "beta": [0.1, 0.2, 0.3], "name": "try", "priority": 2}
    answer = front.post("/v1/jobs", json=body)
    assert answer.status_code == 202
    job = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    assert "idempotent-replayed" not in answer.headers
    assert (job["state"], job["name"], job["priority"], job["attempt"]) == ("queued", "try", 2, 0)
    assert job["settings"]["beta"] == [0.1, 0.2, 0.3]
    assert job["settings"]["stop"]["max_iterations"] == 10_000
    assert job["queue_position"] == 1
    assert "owner" not in job
    assert front.get(answer.headers["location"]).json() == job


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"rank": 0}, "rank"),
        ({"rank": "many"}, "rank"),
        ({"rank": None}, "rank"),
        ({"method": "magic"}, "method"),
        ({"alpha": -1}, "alpha"),
        ({"alpha": "much"}, "alpha"),
        ({"beta": [0.1, -0.2, 0.3]}, "beta.2"),
        ({"beta": [0.1, 0.2]}, "beta"),
        ({"alpha": [1, 1, 1, 1]}, "alpha"),
        ({"penalty": "l2"}, "penalty"),
        ({"seed": -1}, "seed"),
        ({"init": "zeros"}, "init"),
        ({"stop": {"tolerance": -1}}, "stop.tolerance"),
        ({"stop": {"max_seconds": 0}}, "stop.max_seconds"),
        ({"stop": {"patiense": 2}}, "stop.patiense"),
        ({"stop": "soon"}, "stop"),
        ({"priority": 11}, "priority"),
        ({"priority": -11}, "priority"),
        ({"colour": "red"}, "colour"),
        ({"name": "x" * 201}, "name"),
        ({"initial": {}}, "initial.job_id"),
        ({"normalise": True, "method": "mu"}, "normalise"),
    ],
)
def test_a_wrong_field_is_named_with_its_remedy(
    front: httpx.Client, tensor: str, fields: dict[str, Any], field: str
) -> None:
    body = {"tensor_id": tensor, "rank": 3, "method": "hals", **fields}
    problem = refused(front.post("/v1/jobs", json=body), 422)
    assert [error["field"] for error in problem["errors"]] == [field]
    assert problem["errors"][0]["problem"]
    assert problem["errors"][0]["remedy"]
    assert front.get("/v1/jobs", params={"state": "queued"}).json()["items"] == []


def test_every_wrong_field_is_named_at_once(front: httpx.Client) -> None:
    problem = refused(front.post("/v1/jobs", json={"rank": 0, "alpha": [-1, 2, -3], "stop": {"patience": 0}}), 422)
    named = [error["field"] for error in problem["errors"]]
    assert sorted(named) == ["alpha.1", "alpha.3", "method", "rank", "stop.patience", "tensor_id"]


def test_an_unknown_tensor_or_initial_job_is_not_found(front: httpx.Client, tensor: str) -> None:
    body = {"tensor_id": "nothing", "rank": 3, "method": "hals"}
    assert refused(front.post("/v1/jobs", json=body), 404, "not-found")["errors"][0]["field"] == "tensor_id"
    body = {"tensor_id": tensor, "rank": 3, "method": "hals", "initial": {"job_id": "nothing"}}
    assert refused(front.post("/v1/jobs", json=body), 404, "not-found")["errors"][0]["field"] == "initial.job_id"


def test_a_job_that_needs_too_much_memory_is_refused(front: httpx.Client, tensor: str) -> None:
    body = {"tensor_id": tensor, "rank": 10**9, "method": "hals"}
    problem = refused(front.post("/v1/jobs", json=body), 422, "does-not-fit")
    assert problem["errors"][0]["field"] == "rank"
    assert "NCP_MAX_JOB_MEMORY_BYTES" in problem["remedy"]


def test_an_initial_job_without_factors_is_not_yet_usable(front: httpx.Client, tensor: str) -> None:
    waiting = submit(front, tensor)
    body = {"tensor_id": tensor, "rank": 3, "method": "hals", "initial": {"job_id": waiting["id"]}}
    refused(front.post("/v1/jobs", json=body), 409, "not-yet")


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded"])
def test_a_job_that_is_no_json_is_refused(front: httpx.Client, content_type: str) -> None:
    refused(front.post("/v1/jobs", content=b"rank=3", headers={"Content-Type": content_type}), 415)
    refused(front.post("/v1/jobs"), 415)


def test_broken_json_is_refused(front: httpx.Client) -> None:
    headers = {"Content-Type": "application/json"}
    for body in (b"{", b"", b"[1]", b"null", b'"text"'):
        problem = refused(front.post("/v1/jobs", content=body, headers=headers), 422)
        assert problem["errors"][0]["field"] == "body"
    refused(front.post("/v1/jobs", content=b"[" * 100_000, headers=headers), 400)


def test_the_same_key_and_body_give_the_same_job(front: httpx.Client, tensor: str) -> None:
    body = {"tensor_id": tensor, "rank": 3, "method": "hals"}
    first = front.post("/v1/jobs", json=body, headers={"Idempotency-Key": "once"})
    spelled_out = {"method": "hals", "seed": 0, "rank": 3, "tensor_id": tensor}
    again = front.post("/v1/jobs", json=spelled_out, headers={"Idempotency-Key": "once"})
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json()["id"] == again.json()["id"]
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["location"] == first.headers["location"]
    other = front.post("/v1/jobs", json={**body, "rank": 2}, headers={"Idempotency-Key": "once"})
    refused(other, 422, "key-reused")
    assert front.post("/v1/jobs", json=body).json()["id"] != first.json()["id"]


def test_a_key_belongs_to_its_owner(front: httpx.Client, stranger: httpx.Client, tensor: str) -> None:
    theirs = upload(stranger, planted(4, 5, 6))["id"]
    headers = {"Idempotency-Key": "shared"}
    mine = front.post("/v1/jobs", json={"tensor_id": tensor, "rank": 3, "method": "mu"}, headers=headers)
    other = stranger.post("/v1/jobs", json={"tensor_id": theirs, "rank": 2, "method": "als"}, headers=headers)
    assert mine.json()["id"] != other.json()["id"]
    stranger.post(f"/v1/jobs/{other.json()['id']}/cancel")


def test_a_key_replays_although_the_tensor_is_gone(front: httpx.Client) -> None:
    tensor = upload(front, planted(3, 3, seed=77))["id"]
    body, headers = {"tensor_id": tensor, "rank": 2, "method": "mu"}, {"Idempotency-Key": "gone"}
    job = front.post("/v1/jobs", json=body, headers=headers).json()
    front.post(f"/v1/jobs/{job['id']}/cancel")
    assert front.delete(f"/v1/tensors/{tensor}").status_code == 204
    again = front.post("/v1/jobs", json=body, headers=headers)
    assert (again.status_code, again.json()["id"]) == (202, job["id"])


def test_jobs_are_found_by_state_method_and_tensor(front: httpx.Client, tensor: str) -> None:
    other = upload(front, planted(4, 5, 6, seed=3))["id"]
    a, b, c = submit(front, tensor, method="mu"), submit(front, other, method="mu"), submit(front, tensor, method="als")
    front.post(f"/v1/jobs/{c['id']}/cancel")

    def found(**query: str) -> list[str]:
        return [job["id"] for job in front.get("/v1/jobs", params=query).json()["items"]]

    assert found(state="queued") == [b["id"], a["id"]]
    assert found(tensor_id=tensor) == [c["id"], a["id"]]
    assert found(tensor_id=tensor, method="mu") == [a["id"]]
    assert found(state="cancelled", tensor_id=tensor) == [c["id"]]
    assert found(tensor_id="nothing") == []


@pytest.mark.parametrize(
    "query", [{"state": "odd"}, {"method": "odd"}, {"limit": "0"}, {"limit": "x"}, {"cursor": "x"}]
)
def test_a_wrong_filter_is_refused(front: httpx.Client, query: dict[str, str]) -> None:
    problem = refused(front.get("/v1/jobs", params=query), 422)
    assert [error["field"] for error in problem["errors"]] == list(query)


def test_pages_keep_their_filter_and_lose_nothing(front: httpx.Client, tensor: str) -> None:
    made = [submit(front, tensor, method=("mu", "als")[n % 2])["id"] for n in range(7)]
    seen, path = [], f"/v1/jobs?method=mu&tensor_id={tensor}&limit=2"
    for _ in range(2):
        answer = front.get(path)
        seen += [job["id"] for job in answer.json()["items"]]
        submit(front, tensor, method="mu")
        if "next" in answer.links:
            path = answer.links["next"]["url"]
    assert seen == made[::-2]
    assert "next" not in answer.links
    assert answer.json()["next"] is None


def test_a_queued_job_is_cancelled_at_once_and_only_once(front: httpx.Client, tensor: str) -> None:
    job = submit(front, tensor)
    first, second = (front.post(f"/v1/jobs/{job['id']}/cancel") for _ in range(2))
    assert (first.status_code, second.status_code) == (202, 202)
    assert first.json()["state"] == "cancelled"
    assert first.json()["finished_at"]
    assert second.json() == first.json()
    refused(front.get(f"/v1/jobs/{job['id']}/factors"), 404, "not-found")


def test_only_an_ended_job_can_be_deleted(front: httpx.Client, tensor: str) -> None:
    job = submit(front, tensor)
    refused(front.delete(f"/v1/jobs/{job['id']}"), 409, "still-live")
    front.post(f"/v1/jobs/{job['id']}/cancel")
    assert front.delete(f"/v1/jobs/{job['id']}").status_code == 204
    for path in ("", "/history", "/factors", "/factors/1", "/events"):
        refused(front.get(f"/v1/jobs/{job['id']}{path}"), 404, "not-found")
    refused(front.delete(f"/v1/jobs/{job['id']}"), 404)


def test_another_owners_job_does_not_exist(front: httpx.Client, stranger: httpx.Client, tensor: str) -> None:
    path = f"/v1/jobs/{submit(front, tensor)['id']}"
    for part in ("", "/history", "/factors", "/factors/1", "/events"):
        refused(stranger.get(path + part), 404, "not-found")
    refused(stranger.post(f"{path}/cancel"), 404)
    refused(stranger.delete(path), 404)
    assert stranger.get("/v1/jobs", params={"tensor_id": tensor}).json()["items"] == []


def test_the_queue_position_follows_priority(front: httpx.Client, tensor: str) -> None:
    first, urgent = submit(front, tensor), submit(front, tensor, priority=10)
    places = [front.get(f"/v1/jobs/{job['id']}").json()["queue_position"] for job in (first, urgent)]
    assert places == [2, 1]
