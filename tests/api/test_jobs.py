"""Submitting, listing, cancelling and deleting jobs that no worker has taken yet."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import httpx
import pytest

from sparse_ncp.worker.errors import NoFactorsYet
from sparse_ncp.worker.records.records import Records
from sparse_ncp.worker.store.job_files import JobFiles
from tests.support.api import Api, http_client, planted, refused, submit, upload


@pytest.fixture
def tensor(client: httpx.Client) -> str:
    """A 4 × 5 × 6 tensor of the caller."""
    return str(upload(client, planted(4, 5, 6))["id"])


@pytest.fixture(autouse=True)
def _end_what_was_queued(api: Api) -> Iterator[None]:
    """Also end those of other owners and tests, since other tests of this server may have left some."""
    _cancel_all(api)
    yield
    _cancel_all(api)


def _cancel_all(api: Api) -> None:
    with closing(Records.of(api.app.state.configuration)) as records:
        owners = records.stats.owners()
    for owner in owners:
        with http_client(api.address, owner) as caller:
            for kind, only in (("studies", {}), ("jobs", {"state": "queued"})):
                for found in caller.get(f"/v1/{kind}", params={"limit": 500, **only}).json()["items"]:
                    caller.post(f"/v1/{kind}/{found['id']}/cancel").raise_for_status()


def test_a_job_is_accepted_with_everything_it_will_do(client: httpx.Client, tensor: str) -> None:
    body = {"tensor_id": tensor, "rank": 3, "method": "anls-bpp", "beta": [0.1, 0.2, 0.3], "name": "try", "priority": 2}
    answer = client.post("/v1/jobs", json=body)
    assert answer.status_code == 202
    job = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    assert "idempotent-replayed" not in answer.headers
    assert (job["state"], job["name"], job["priority"], job["attempt"]) == ("queued", "try", 2, 0)
    assert job["settings"]["beta"] == [0.1, 0.2, 0.3]
    assert job["settings"]["stop"]["max_iterations"] == 10_000
    assert job["queue_position"] == 1
    assert "owner" not in job
    assert client.get(answer.headers["location"]).json() == job


def test_submissions_at_the_same_time_are_answered_each_as_if_alone(client: httpx.Client, tensor: str) -> None:
    """More than are made together, and some of them refused."""
    bodies = [
        {"tensor_id": tensor, "rank": 1 + number % 3, "method": "hals", "name": str(number)} for number in range(80)
    ]
    for number in range(0, 80, 4):
        bodies[number] = {"tensor_id": f"nothing {number}", "rank": 2, "method": "hals"}
    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(lambda body: client.post("/v1/jobs", json=body), bodies))
    for number, answer in enumerate(answers):
        if number % 4 == 0:
            assert f"nothing {number}" in refused(answer, 404)["detail"]
        else:
            job = answer.json()
            assert answer.status_code == 202
            assert (job["name"], job["settings"]["rank"]) == (str(number), 1 + number % 3)
            assert client.get(answer.headers["location"]).json()["created_at"] == job["created_at"]
    found = client.get("/v1/jobs", params={"state": "queued", "limit": 500}).json()["items"]
    assert sorted(job["queue_position"] for job in found) == list(range(1, 61))


def test_one_key_at_the_same_time_makes_one_job(client: httpx.Client, tensor: str) -> None:
    body, key = {"tensor_id": tensor, "rank": 2, "method": "hals"}, {"Idempotency-Key": "at the same time"}
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: client.post("/v1/jobs", json=body, headers=key), range(40)))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sum("idempotent-replayed" not in answer.headers for answer in answers) == 1


def test_a_submission_that_waits_for_files_of_a_job_holds_up_no_other(
    api: Api, client: httpx.Client, tensor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, may_go_on = threading.Event(), threading.Event()

    def slow(files: JobFiles) -> None:
        reading.set()
        may_go_on.wait(10)
        raise NoFactorsYet("slow")

    earlier = submit(client, tensor)["id"]
    monkeypatch.setattr(JobFiles, "factors", slow)
    body = {"tensor_id": tensor, "rank": 2, "method": "hals", "initial": {"job_id": earlier}}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.post, "/v1/jobs", json=body)
        assert reading.wait(10)
        assert submit(client, tensor)["state"] == "queued"
        assert not waiting.done()
        may_go_on.set()
        refused(waiting.result(), 409)


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
    client: httpx.Client, tensor: str, fields: dict[str, Any], field: str
) -> None:
    body = {"tensor_id": tensor, "rank": 3, "method": "hals", **fields}
    problem = refused(client.post("/v1/jobs", json=body), 422)
    assert [error["field"] for error in problem["errors"]] == [field]
    assert problem["errors"][0]["problem"]
    assert problem["errors"][0]["remedy"]
    assert client.get("/v1/jobs", params={"state": "queued"}).json()["items"] == []


def test_every_wrong_field_is_named_at_once(client: httpx.Client) -> None:
    problem = refused(client.post("/v1/jobs", json={"rank": 0, "alpha": [-1, 2, -3], "stop": {"patience": 0}}), 422)
    named = [error["field"] for error in problem["errors"]]
    assert sorted(named) == ["alpha.1", "alpha.3", "method", "rank", "stop.patience", "tensor_id"]


def test_what_does_not_fit_is_named_at_once(client: httpx.Client, tensor: str) -> None:
    """Weights for another order, too much memory, and an initial job that is not there."""
    body = {"tensor_id": tensor, "rank": 10**9, "method": "hals", "alpha": [1, 2], "beta": [1, 2, 3, 4]}
    problem = refused(client.post("/v1/jobs", json={**body, "initial": {"job_id": "nothing"}}), 422, "does-not-fit")
    assert sorted(error["field"] for error in problem["errors"]) == ["alpha", "beta", "initial.job_id", "rank"]
    assert all(error["problem"] and error["remedy"] for error in problem["errors"])


def test_an_initial_job_without_factors_is_named_with_what_else_does_not_fit(client: httpx.Client, tensor: str) -> None:
    waiting = submit(client, tensor)
    body = {"tensor_id": tensor, "rank": 3, "method": "hals", "alpha": [1], "initial": {"job_id": waiting["id"]}}
    problem = refused(client.post("/v1/jobs", json=body), 422, "does-not-fit")
    assert [error["field"] for error in problem["errors"]] == ["alpha", "initial.job_id"]


def test_what_the_schema_refuses_and_what_is_not_there_are_named_at_once(client: httpx.Client) -> None:
    body = {"tensor_id": "nothing", "rank": 0, "method": "hals", "initial": {"job_id": "nothing"}, "colour": "red"}
    problem = refused(client.post("/v1/jobs", json=body), 422, "invalid")
    assert sorted(error["field"] for error in problem["errors"]) == ["colour", "initial.job_id", "rank", "tensor_id"]


def test_a_tensor_and_an_initial_job_that_are_not_there_are_named_at_once(client: httpx.Client) -> None:
    body = {"tensor_id": "nothing", "rank": 3, "method": "hals", "initial": {"job_id": "nothing"}}
    problem = refused(client.post("/v1/jobs", json=body), 404, "not-found")
    assert [error["field"] for error in problem["errors"]] == ["tensor_id", "initial.job_id"]


def test_an_unknown_tensor_or_initial_job_is_not_found(client: httpx.Client, tensor: str) -> None:
    body = {"tensor_id": "nothing", "rank": 3, "method": "hals"}
    assert refused(client.post("/v1/jobs", json=body), 404, "not-found")["errors"][0]["field"] == "tensor_id"
    body = {"tensor_id": tensor, "rank": 3, "method": "hals", "initial": {"job_id": "nothing"}}
    assert refused(client.post("/v1/jobs", json=body), 404, "not-found")["errors"][0]["field"] == "initial.job_id"


def test_a_job_that_needs_too_much_memory_is_refused(client: httpx.Client, tensor: str) -> None:
    body = {"tensor_id": tensor, "rank": 10**9, "method": "hals"}
    problem = refused(client.post("/v1/jobs", json=body), 422, "does-not-fit")
    assert problem["errors"][0]["field"] == "rank"
    assert "NCP_MAX_JOB_MEMORY_BYTES" in problem["remedy"]


def test_an_initial_job_without_factors_is_not_yet_usable(client: httpx.Client, tensor: str) -> None:
    waiting = submit(client, tensor)
    body = {"tensor_id": tensor, "rank": 3, "method": "hals", "initial": {"job_id": waiting["id"]}}
    refused(client.post("/v1/jobs", json=body), 409, "not-yet")


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded"])
def test_a_job_that_is_no_json_is_refused(client: httpx.Client, content_type: str) -> None:
    refused(client.post("/v1/jobs", content=b"rank=3", headers={"Content-Type": content_type}), 415)
    refused(client.post("/v1/jobs"), 415)


def test_broken_json_is_refused(client: httpx.Client) -> None:
    headers = {"Content-Type": "application/json"}
    for body in (b"{", b"", b"[1]", b"null", b'"text"'):
        problem = refused(client.post("/v1/jobs", content=body, headers=headers), 422)
        assert problem["errors"][0]["field"] == "body"
    refused(client.post("/v1/jobs", content=b"[" * 100_000, headers=headers), 400)


def test_the_same_key_and_body_give_the_same_job(client: httpx.Client, tensor: str) -> None:
    body = {"tensor_id": tensor, "rank": 3, "method": "hals"}
    first = client.post("/v1/jobs", json=body, headers={"Idempotency-Key": "once"})
    spelled_out = {"method": "hals", "seed": 0, "rank": 3, "tensor_id": tensor}
    again = client.post("/v1/jobs", json=spelled_out, headers={"Idempotency-Key": "once"})
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json()["id"] == again.json()["id"]
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["location"] == first.headers["location"]
    other = client.post("/v1/jobs", json={**body, "rank": 2}, headers={"Idempotency-Key": "once"})
    refused(other, 422, "key-reused")
    assert client.post("/v1/jobs", json=body).json()["id"] != first.json()["id"]


def test_a_key_belongs_to_its_owner(client: httpx.Client, other_client: httpx.Client, tensor: str) -> None:
    theirs = upload(other_client, planted(4, 5, 6))["id"]
    headers = {"Idempotency-Key": "shared"}
    mine = client.post("/v1/jobs", json={"tensor_id": tensor, "rank": 3, "method": "mu"}, headers=headers)
    other = other_client.post("/v1/jobs", json={"tensor_id": theirs, "rank": 2, "method": "als"}, headers=headers)
    assert mine.json()["id"] != other.json()["id"]
    other_client.post(f"/v1/jobs/{other.json()['id']}/cancel")


def test_a_key_replays_although_the_tensor_is_gone(client: httpx.Client) -> None:
    tensor = upload(client, planted(3, 3, seed=77))["id"]
    body, headers = {"tensor_id": tensor, "rank": 2, "method": "mu"}, {"Idempotency-Key": "gone"}
    job = client.post("/v1/jobs", json=body, headers=headers).json()
    client.post(f"/v1/jobs/{job['id']}/cancel")
    assert client.delete(f"/v1/tensors/{tensor}").status_code == 204
    again = client.post("/v1/jobs", json=body, headers=headers)
    assert (again.status_code, again.json()["id"]) == (202, job["id"])


def test_jobs_are_found_by_state_method_and_tensor(client: httpx.Client, tensor: str) -> None:
    other = upload(client, planted(4, 5, 6, seed=3))["id"]
    a, b, c = (
        submit(client, tensor, method="mu"),
        submit(client, other, method="mu"),
        submit(client, tensor, method="als"),
    )
    client.post(f"/v1/jobs/{c['id']}/cancel")

    def found(**query: str) -> list[str]:
        return [job["id"] for job in client.get("/v1/jobs", params=query).json()["items"]]

    assert found(state="queued") == [b["id"], a["id"]]
    assert found(tensor_id=tensor) == [c["id"], a["id"]]
    assert found(tensor_id=tensor, method="mu") == [a["id"]]
    assert found(state="cancelled", tensor_id=tensor) == [c["id"]]
    assert found(tensor_id="nothing") == []


@pytest.mark.parametrize(
    "query", [{"state": "odd"}, {"method": "odd"}, {"limit": "0"}, {"limit": "x"}, {"cursor": "x"}]
)
def test_a_wrong_filter_is_refused(client: httpx.Client, query: dict[str, str]) -> None:
    problem = refused(client.get("/v1/jobs", params=query), 422)
    assert [error["field"] for error in problem["errors"]] == list(query)


def test_pages_keep_their_filter_and_lose_nothing(client: httpx.Client, tensor: str) -> None:
    made = [submit(client, tensor, method=("mu", "als")[n % 2])["id"] for n in range(7)]
    seen, path = [], f"/v1/jobs?method=mu&tensor_id={tensor}&limit=2"
    for _ in range(2):
        answer = client.get(path)
        seen += [job["id"] for job in answer.json()["items"]]
        submit(client, tensor, method="mu")
        if "next" in answer.links:
            path = answer.links["next"]["url"]
    assert seen == made[::-2]
    assert "next" not in answer.links
    assert answer.json()["next"] is None


def test_a_queued_job_is_cancelled_at_once_and_only_once(client: httpx.Client, tensor: str) -> None:
    job = submit(client, tensor)
    first, second = (client.post(f"/v1/jobs/{job['id']}/cancel") for _ in range(2))
    assert (first.status_code, second.status_code) == (202, 202)
    assert first.json()["state"] == "cancelled"
    assert first.json()["finished_at"]
    assert second.json() == first.json()
    refused(client.get(f"/v1/jobs/{job['id']}/factors"), 404, "not-found")


def test_only_an_ended_job_can_be_deleted(client: httpx.Client, tensor: str) -> None:
    job = submit(client, tensor)
    refused(client.delete(f"/v1/jobs/{job['id']}"), 409, "still-live")
    client.post(f"/v1/jobs/{job['id']}/cancel")
    assert client.delete(f"/v1/jobs/{job['id']}").status_code == 204
    for path in ("", "/history", "/factors", "/factors/1", "/events"):
        refused(client.get(f"/v1/jobs/{job['id']}{path}"), 404, "not-found")
    refused(client.delete(f"/v1/jobs/{job['id']}"), 404)


def test_another_owners_job_does_not_exist(client: httpx.Client, other_client: httpx.Client, tensor: str) -> None:
    path = f"/v1/jobs/{submit(client, tensor)['id']}"
    for part in ("", "/history", "/factors", "/factors/1", "/events"):
        refused(other_client.get(path + part), 404, "not-found")
    refused(other_client.post(f"{path}/cancel"), 404)
    refused(other_client.delete(path), 404)
    assert other_client.get("/v1/jobs", params={"tensor_id": tensor}).json()["items"] == []


def test_the_queue_position_follows_priority(client: httpx.Client, tensor: str) -> None:
    first, urgent = submit(client, tensor), submit(client, tensor, priority=10)
    places = [client.get(f"/v1/jobs/{job['id']}").json()["queue_position"] for job in (first, urgent)]
    assert places == [2, 1]
