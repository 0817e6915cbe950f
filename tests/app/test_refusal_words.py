"""A refusal names the field as the caller wrote it, and what to do."""

import httpx
import pytest

from tests.app.api import finished, planted, refused, submit, upload


def test_a_missing_initial_job_is_named_where_it_was_written(front: httpx.Client) -> None:
    tensor = upload(front, planted(5, 4, 3))
    body = {"tensor_id": tensor["id"], "rank": 2, "method": "hals", "initial": {"job_id": "none"}}
    told = refused(front.post("/v1/jobs", json=body), 404)
    assert [error["field"] for error in told["errors"]] == ["initial.job_id"]
    assert [error["field"] for error in refused(front.get("/v1/jobs/none"), 404)["errors"]] == ["job_id"]


def test_a_mode_that_the_tensor_has_not_is_named_mode(lab: httpx.Client) -> None:
    job = submit(lab, upload(lab, planted(5, 4, 3))["id"])
    finished(lab, job["id"])
    told = refused(lab.get(f"/v1/jobs/{job['id']}/factors/4"), 404)
    assert [(error["field"], error["problem"]) for error in told["errors"]] == [("mode", "there is no factor A4")]


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/v1/jobs", {"Content-Type": "text/plain"}),
        ("/v1/tensors", {"Content-Type": "application/json"}),
        ("/v1/tensors", {"Content-Encoding": "gzip"}),
    ],
)
def test_an_unsupported_body_is_told_what_to_send(front: httpx.Client, path: str, headers: dict[str, str]) -> None:
    told = refused(front.post(path, content=b"{}", headers=headers), 415, "unsupported-media")
    assert told["remedy"].startswith("send ")
    assert not told["detail"].startswith("Application")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"rank": "8"}, "rank"),
        ({"rank": True}, "rank"),
        ({"beta": "0.1"}, "beta"),
        ({"beta": [0.1, "0.1", 0.1]}, "beta.2"),
        ({"stop": {"max_seconds": "5"}}, "stop.max_seconds"),
        ({"priority": "1"}, "priority"),
        ({"rescale": "yes"}, "rescale"),
        ({"rescale": 1}, "rescale"),
    ],
)
def test_text_is_no_number_and_a_number_no_truth_value(
    front: httpx.Client, fields: dict[str, object], field: str
) -> None:
    tensor = upload(front, planted(5, 4, 3))
    body = {"tensor_id": tensor["id"], "rank": 2, "method": "hals", **fields}
    told = refused(front.post("/v1/jobs", json=body), 422)
    assert [error["field"] for error in told["errors"]] == [field]
    assert told["errors"][0]["remedy"].startswith("give ")
    assert "without quotes" in told["errors"][0]["remedy"]


def test_a_whole_number_may_be_written_as_python_and_matlab_write_it(front: httpx.Client) -> None:
    """MATLAB's jsonencode writes 8 for its doubles; other clients write 8.0."""
    tensor = upload(front, planted(5, 4, 3))
    text = '{"tensor_id": "%s", "rank": %s, "method": "hals", "seed": 1e3, "beta": 0, "stop": {"max_iterations": 5.0}}'
    for rank in ("2", "2.0"):
        content = text % (tensor["id"], rank)
        answer = front.post("/v1/jobs", content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code == 202, answer.text
        assert answer.json()["settings"]["rank"] == 2
        assert answer.json()["settings"]["seed"] == 1000
    refused(front.post("/v1/jobs", json={"tensor_id": tensor["id"], "rank": 2.5, "method": "hals"}), 422)
