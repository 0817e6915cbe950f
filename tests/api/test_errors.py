"""Every error response has the same form, and contains no internals."""

import logging
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.logs import AddLogContext
from tests.support.api import Api, finished, http_client, npy, planted, refused, running_api, submit, upload
from tests.support.stack import embedded_redis


def test_an_unknown_path_is_a_problem(client: httpx.Client) -> None:
    for path in ("/nothing", "/v1/nothing", "/v1/jobs/x", "/v1/tensors/x/content", "/v1/jobs/x/factors/0/y"):
        refused(client.get(path), 404)


def test_a_wrong_method_is_a_problem_that_names_the_right_ones(client: httpx.Client) -> None:
    for method, path in (("PUT", "/v1/tensors"), ("DELETE", "/v1/jobs"), ("PATCH", "/v1/jobs"), ("POST", "/healthz")):
        answer = client.request(method, path)
        refused(answer, 405)
        assert answer.headers["allow"]
    assert client.put("/v1/jobs/estimate").headers["allow"] == "POST"
    assert client.put("/v1/jobs/x").headers["allow"] == "DELETE, GET, HEAD, PATCH"
    assert client.post("/static/vendor/plotly.min.js").headers["allow"] == "GET, HEAD"


def test_a_large_body_is_cut_off_wherever_it_does_not_belong(client: httpx.Client) -> None:
    chunks = (bytes(1 << 16) for _ in range(100))
    refused(client.post("/v1/jobs", content=chunks, headers={"Content-Type": "application/json"}), 413)


def test_a_mode_that_is_not_a_number_is_refused(client: httpx.Client) -> None:
    assert refused(client.get("/v1/jobs/x/factors/first"), 422)["errors"][0]["field"] == "mode"
    assert refused(client.get("/v1/jobs/x/factors/0"), 422)["errors"][0]["field"] == "mode"
    assert refused(client.get("/v1/jobs/x/factors?format=doc"), 422)["errors"][0]["field"] == "format"
    assert refused(client.get("/v1/jobs/x/history?after=-1"), 422)["errors"][0]["field"] == "after"


def test_the_callers_request_id_is_kept_if_it_is_harmless(client: httpx.Client) -> None:
    assert client.get("/healthz", headers={"X-Request-Id": "lab-7.a_B"}).headers["x-request-id"] == "lab-7.a_B"
    drawn = [client.get("/healthz", headers={"X-Request-Id": "a b" * n}).headers["x-request-id"] for n in (1, 100)]
    assert len(set(drawn)) == 2
    assert not {"a b", "a b" * 100} & set(drawn)


def test_every_answer_has_a_log_line_with_its_request_id(
    client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.handler.addFilter(AddLogContext())
    caplog.set_level(logging.INFO)
    answer = client.get("/v1/jobs/nothing", headers={"X-Request-Id": "traced"})
    assert answer.headers["x-request-id"] == "traced"
    lines = [record for record in caplog.records if record.name == "ncp.http"]
    assert any(getattr(record, "request_id", "") == "traced" and "404" in record.getMessage() for record in lines)


def test_a_path_cannot_write_log_lines_of_its_own(client: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    refused(client.get("/v1/jobs/x%0aERROR%20forged"), 404)
    assert any("x%0AERROR%20forged" in record.getMessage() for record in caplog.records)
    assert not any("\nERROR" in record.getMessage() for record in caplog.records)


def test_an_internal_failure_reveals_only_the_request_id(
    configuration: Configuration, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(app: FastAPI) -> None:
        @app.get("/broken")
        def fail() -> None:
            raise RuntimeError("secret of /var/lib")

    with running_api(configuration, broken) as running, http_client(running.address) as caller:
        answer = caller.get("/broken")
    problem = refused(answer, 500, "failure")
    assert "secret" not in answer.text
    assert problem["request_id"] == answer.headers["x-request-id"]
    assert "secret of /var/lib" in caplog.text


def test_without_redis_every_call_says_when_to_try_again(tmp_path: Path) -> None:
    with embedded_redis(tmp_path, min_free_bytes=1) as configuration:
        pass  # it has ended: its socket is gone
    with running_api(configuration) as running, http_client(running.address) as caller:
        for path in ("/v1/jobs", "/v1/tensors/x", "/v1/jobs/x/events", "/v1/jobs/x/factors"):
            answer = caller.get(path)
            refused(answer, 503, "unavailable")
            assert int(answer.headers["retry-after"]) > 0
            assert "sock" not in answer.text
        assert caller.get("/healthz").status_code == 200
        lacks = refused(caller.get("/readyz"), 503, "not-ready")["errors"]
        assert {lack["field"] for lack in lacks} == {"redis", "writable", "durable", "worker"}


def test_an_upload_without_redis_leaves_no_record(tmp_path: Path) -> None:
    with embedded_redis(tmp_path) as configuration:
        pass
    with running_api(configuration) as running, http_client(running.address) as caller:
        refused(caller.post("/v1/tensors", content=npy(planted(3, 3))), 503, "unavailable")
        refused(caller.post("/v1/tensors", content=b"no tensor"), 503, "unavailable")
    assert not list((configuration.data / "tensors").glob("*.npy"))
    assert list((configuration.data / "uploads").iterdir()) == []


def test_without_a_worker_the_server_is_not_ready_but_takes_jobs(api: Api, client: httpx.Client) -> None:
    lacks = refused(client.get("/readyz"), 503, "not-ready")["errors"]
    assert [lack["field"] for lack in lacks] == ["worker"]
    job = submit(client, upload(client, planted(3, 3))["id"])
    assert client.post(f"/v1/jobs/{job['id']}/cancel").status_code == 202


def test_a_missing_initial_job_is_named_where_it_was_written(client: httpx.Client) -> None:
    tensor = upload(client, planted(5, 4, 3))
    body = {"tensor_id": tensor["id"], "rank": 2, "method": "hals", "initial": {"job_id": "none"}}
    reported = refused(client.post("/v1/jobs", json=body), 404)
    assert [error["field"] for error in reported["errors"]] == ["initial.job_id"]
    assert [error["field"] for error in refused(client.get("/v1/jobs/none"), 404)["errors"]] == ["job_id"]


def test_a_mode_that_the_tensor_has_not_is_named_mode(client_with_worker: httpx.Client) -> None:
    job = submit(client_with_worker, upload(client_with_worker, planted(5, 4, 3))["id"])
    finished(client_with_worker, job["id"])
    reported = refused(client_with_worker.get(f"/v1/jobs/{job['id']}/factors/4"), 404)
    assert [(error["field"], error["problem"]) for error in reported["errors"]] == [("mode", "there is no factor A4")]


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/v1/jobs", {"Content-Type": "text/plain"}),
        ("/v1/tensors", {"Content-Type": "application/json"}),
        ("/v1/tensors", {"Content-Encoding": "gzip"}),
    ],
)
def test_an_unsupported_body_is_answered_with_what_to_send(
    client: httpx.Client, path: str, headers: dict[str, str]
) -> None:
    reported = refused(client.post(path, content=b"{}", headers=headers), 415, "unsupported-media")
    assert reported["remedy"].startswith("send ")
    assert not reported["detail"].startswith("Application")


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
    client: httpx.Client, fields: dict[str, object], field: str
) -> None:
    tensor = upload(client, planted(5, 4, 3))
    body = {"tensor_id": tensor["id"], "rank": 2, "method": "hals", **fields}
    reported = refused(client.post("/v1/jobs", json=body), 422)
    assert [error["field"] for error in reported["errors"]] == [field]
    assert reported["errors"][0]["remedy"].startswith("give ")
    assert "without quotes" in reported["errors"][0]["remedy"]


def asked(client: httpx.Client, **fields: object) -> dict[str, object]:
    tensor = upload(client, planted(5, 4, 3))["id"]
    problem = refused(client.post("/v1/jobs", json={"tensor_id": tensor, "rank": 2, "method": "hals", **fields}), 422)
    (error,) = problem["errors"]
    assert problem["remedy"] == error["remedy"], "what stands at the top is the one remedy"
    assert "Input should" not in error["problem"]
    return dict(error)


@pytest.mark.parametrize(
    ("fields", "field", "problem", "remedy"),
    [
        ({"max_iterations": 50}, "max_iterations", "belongs in `stop`", '"stop": {"max_iterations": …}'),
        ({"tolerance": 0}, "tolerance", "belongs in `stop`", '"stop": {"tolerance": …}'),
        ({"stop": {"seed": 1}}, "stop.seed", "does not belong in `stop`", '"seed" beside "stop"'),
        ({"stop": {"max_iteration": 1}}, "stop.max_iteration", "not known", "did you mean max_iterations"),
        ({"penalti": "l1"}, "penalti", "not known", "did you mean penalty"),
        ({"colour": "red"}, "colour", "not known", "leave it out"),
        ({"rank": [8]}, "rank", "not a list", "without brackets"),
        ({"rank": {"value": 8}}, "rank", "not an object", "such as 8"),
        ({"rank": None}, "rank", "not null", "such as 8"),
        ({"seed": [1, 2]}, "seed", "not a list", "without brackets"),
        ({"beta": [[0.1], 0.1, 0.1]}, "beta.1", "not a list", "without brackets"),
        ({"stop": {"max_seconds": [5]}}, "stop.max_seconds", "not a list", "without brackets"),
        ({"starts": [5]}, "starts", "not a list", "without brackets"),
        ({"stop": 5}, "stop", "is not a JSON object", "in braces"),
        ({"name": 5}, "name", "is not text", "in quotes"),
        ({"name": ["x"]}, "name", "is not text", "in quotes"),
        ({"rank": 0}, "rank", "is less than 1", "give 1 or more"),
        ({"rank": 2.5}, "rank", "is not a whole number", "give a whole number"),
        ({"beta": -0.1}, "beta", "is less than 0", "give 0 or more"),
        ({"sparsity": 0}, "sparsity", "is not more than 0", "give more than 0"),
        ({"negative": "clip"}, "negative", "is not 'refuse' or 'keep'", "give 'refuse' or 'keep'"),
        ({"preset": "best"}, "preset", "is not 'recommended'", "give 'recommended'"),
        ({"name": "x" * 201}, "name", "is longer than 200 characters", "shorten it"),
        ({"method": "{0}{name}"}, "method", "unknown method '{0}{name}'", "choose one of mu"),
    ],
)
def test_a_mistake_is_described_with_the_remedy_that_fits(
    client: httpx.Client, fields: dict[str, object], field: str, problem: str, remedy: str
) -> None:
    error = asked(client, **fields)
    assert error["field"] == field
    assert problem in str(error["problem"])
    assert remedy in str(error["remedy"])


@pytest.mark.parametrize(
    ("body", "place", "remedy"),
    [
        ('{"rank": 3,\n "beta": }', "line 2, column 10", "correct it there"),
        ("{'rank': 3}", "line 1, column 2", "double quotes"),
        ('{"rank": 3', "line 1, column 11", "correct it there"),
        (" ", "line 1, column 2", "send a JSON object"),
        ('{"a": 1}\n{"b": 2}', "line 2, column 1", "correct it there"),
    ],
)
def test_broken_json_is_reported_by_line_and_column(client: httpx.Client, body: str, place: str, remedy: str) -> None:
    answer = client.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})
    (error,) = refused(answer, 422)["errors"]
    assert error["field"] == "body"
    assert error["problem"].startswith("is not valid JSON: ")
    assert error["problem"].endswith(place)
    assert remedy in error["remedy"]


def test_a_wrong_form_is_described_in_words_not_by_a_pattern(client: httpx.Client) -> None:
    job = submit(client, upload(client, planted(5, 4, 3))["id"])["id"]
    answers = [
        client.get("/v1/jobs", params={"cursor": "next"}),
        client.get("/v1/tensors", params={"sha256": "DEADBEEF"}),
        client.get(f"/v1/jobs/{job}/events", headers={"Last-Event-ID": "yesterday"}),
    ]
    for answer in answers:
        problem = refused(answer, 422)
        (error,) = problem["errors"]
        assert error["problem"].startswith("is not ")
        assert not set("^$[]{}") & set(problem["detail"] + error["remedy"])


def test_the_remedy_at_the_top_is_that_of_what_is_missing(client_with_worker: httpx.Client) -> None:
    job = finished(
        client_with_worker, submit(client_with_worker, upload(client_with_worker, planted(5, 4, 3))["id"])["id"]
    )
    problem = refused(client_with_worker.get(f"/v1/jobs/{job['id']}/factors/9"), 404)
    assert problem["remedy"] == problem["errors"][0]["remedy"] == "count from 1 to the order of the job's tensor"


def test_a_whole_number_may_be_written_as_python_and_matlab_write_it(client: httpx.Client) -> None:
    """MATLAB's jsonencode writes 8 for its doubles; other clients write 8.0."""
    tensor = upload(client, planted(5, 4, 3))
    text = '{"tensor_id": "%s", "rank": %s, "method": "hals", "seed": 1e3, "beta": 0, "stop": {"max_iterations": 5.0}}'
    for rank in ("2", "2.0"):
        content = text % (tensor["id"], rank)
        answer = client.post("/v1/jobs", content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code == 202, answer.text
        assert answer.json()["settings"]["rank"] == 2
        assert answer.json()["settings"]["seed"] == 1000
    refused(client.post("/v1/jobs", json={"tensor_id": tensor["id"], "rank": 2.5, "method": "hals"}), 422)
