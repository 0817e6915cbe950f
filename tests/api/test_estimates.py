"""An estimate says what a job would need, or why it would be refused, before it is submitted."""

from pathlib import Path
from typing import Any

import httpx
import numpy as np

from tests.support.api import finished, new_holder, planted, refused, running_api, submit, upload
from tests.support.stack import embedded_redis


def estimate(lab: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = lab.post("/v1/jobs/estimate", json={"rank": 3, "method": "hals", **fields})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_an_estimate_gives_memory_and_settings_and_queues_nothing(client: httpx.Client) -> None:
    tensor = upload(client, planted(20, 10, 5))["id"]
    small = estimate(client, tensor_id=tensor)
    assert small["refused"] == []
    assert 0 < small["memory"]["needed_bytes"] <= small["memory"]["limit_bytes"] == 64 << 20
    assert estimate(client, tensor_id=tensor, rank=6)["memory"]["needed_bytes"] > small["memory"]["needed_bytes"]
    assert client.get("/v1/jobs", params={"tensor_id": tensor}).json()["items"] == []
    preset = {"tensor_id": tensor, "rank": 4, "preset": "recommended", "beta": 0.5}
    settings = client.post("/v1/jobs/estimate", json=preset).json()["settings"]
    assert settings == client.post("/v1/jobs", json=preset).json()["settings"]


def test_an_estimate_has_every_reason_for_which_the_job_would_be_refused(client: httpx.Client) -> None:
    X = planted(40, 30, 20)
    X[0, 0, 0], X[1, 1, 1] = np.nan, -1.0
    other = submit(client, upload(client, planted(3, 2))["id"])["id"]
    body = {
        "tensor_id": upload(client, X)["id"],
        "rank": 100_000,
        "method": "hals",
        "beta": [1, 2],
        "initial": {"job_id": other},
        "mask": {"tensor_id": "none"},
    }
    found = client.post("/v1/jobs/estimate", json=body)
    assert found.status_code == 200, found.text
    assert found.json()["refused"] == refused(client.post("/v1/jobs", json=body), 422)["errors"]
    assert {problem["field"] for problem in found.json()["refused"]} >= {"rank", "beta", "mask.tensor_id"}
    body = {name: value for name, value in body.items() if name != "mask"}
    reported = client.post("/v1/jobs/estimate", json=body).json()
    assert reported["refused"] == refused(client.post("/v1/jobs", json=body), 422)["errors"]
    assert {problem["field"] for problem in reported["refused"]} == {
        "rank",
        "beta",
        "missing",
        "negative",
        "initial.job_id",
    }
    assert reported["memory"]["needed_bytes"] > reported["memory"]["limit_bytes"]


def test_a_body_that_is_no_job_is_refused_as_when_it_is_submitted(
    client: httpx.Client, other_client: httpx.Client
) -> None:
    tensor = upload(client, planted(3, 2))["id"]
    for body in ({"tensor_id": tensor}, {"tensor_id": tensor, "rank": -1, "method": "hals", "betta": 1}):
        answers = [client.post(path, json=body) for path in ("/v1/jobs/estimate", "/v1/jobs")]
        assert refused(answers[0], 422)["errors"] == refused(answers[1], 422)["errors"]
    refused(client.post("/v1/jobs/estimate", content=b"{}"), 415)
    for caller, named in ((other_client, tensor), (client, "none")):
        asked = {"tensor_id": named, "rank": 2, "method": "hals"}
        assert refused(caller.post("/v1/jobs/estimate", json=asked), 404)["errors"][0]["field"] == "tensor_id"


def test_limits_of_the_caller_are_reported_before_the_job_is_submitted(tmp_path: Path) -> None:
    with (
        embedded_redis(tmp_path, min_free_bytes=1) as configuration,
        running_api(configuration, keys=True) as api,
        new_holder(configuration, api.address, "ann", live_jobs=1, rank=5, job_seconds=60, stored_bytes=10**6) as ann,
    ):
        tensor = upload(ann, planted(10, 5))["id"]
        first = estimate(ann, tensor_id=tensor)
        assert (first["refused"], first["settings"]["stop"]["max_seconds"]) == ([], 60)
        over = estimate(ann, tensor_id=tensor, rank=6, stop={"max_seconds": 61})
        assert [problem["field"] for problem in over["refused"]] == ["rank", "stop.max_seconds"]
        job = submit(ann, tensor)["id"]
        assert [problem["field"] for problem in estimate(ann, tensor_id=tensor)["refused"]] == ["live_jobs"]
        ann.post(f"/v1/jobs/{job}/cancel")
        assert finished(ann, job)["state"] == "cancelled"
        left = 10**6 - ann.get("/v1/usage").json()["stored_bytes"]
        upload(ann, np.ones((1, left - 128), np.uint8))
        assert [problem["field"] for problem in estimate(ann, tensor_id=tensor)["refused"]] == ["stored_bytes"]
