"""Upload, submit, watch, download: through real HTTP, a real worker and real files."""

import csv
import hashlib
import io
import itertools
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import scipy.io

from sparse_ncp.solvers import METHODS, AdviceWarning, Settings, solve
from tests.support.api import Api, Sent, events, finished, npy, planted, read_factors, refused, submit, upload
from tests.support.stack import wait_for

ENDLESS = {"tolerance": 0, "max_iterations": 10_000_000}


def factors(client_with_worker: httpx.Client, job_id: str) -> list[Any]:
    answer = client_with_worker.get(f"/v1/jobs/{job_id}/factors")
    assert answer.status_code == 200, answer.text
    return read_factors(answer.content)


def assert_same_bits(found: list[Any], expected: list[Any]) -> None:
    assert [A.dtype for A in found] == [A.dtype for A in expected]
    assert [npy(A) for A in found] == [npy(np.ascontiguousarray(A)) for A in expected]


def running(client_with_worker: httpx.Client, job_id: str, iterations: int = 1) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        job: dict[str, Any] = client_with_worker.get(f"/v1/jobs/{job_id}").json()
        return job if (job["progress"] or {}).get("iteration", 0) >= iterations else None

    return wait_for(look, 30, "progress")


@pytest.mark.filterwarnings("ignore:hals as in the paper:sparse_ncp.AdviceWarning")
@pytest.mark.parametrize("method", METHODS)
def test_the_downloaded_factors_are_those_of_solve(client_with_worker: httpx.Client, method: str) -> None:
    X, stop = planted(12, 10, 8), {"max_iterations": 25}
    job = finished(
        client_with_worker,
        submit(client_with_worker, upload(client_with_worker, X)["id"], method=method, beta=0.01, seed=4, stop=stop)[
            "id"
        ],
    )
    assert job["state"] == "succeeded", job
    settings = Settings.model_validate({"rank": 3, "method": method, "beta": 0.01, "seed": 4, "stop": stop})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AdviceWarning)  # of the paper's HALS with a penalty
        expected = solve(X, settings)
    assert_same_bits(factors(client_with_worker, job["id"]), expected.factors)
    result = job["result"]
    assert (result["objective"], result["relative_error"]) == (expected.objective, expected.relative_error)
    assert (result["iterations"], result["stop_reason"]) == (expected.iterations, expected.stop_reason)
    assert result["sparsity"]["per_mode"] == list(expected.sparsity.per_mode)
    assert result["nonzero_components"]["all_modes"] == expected.nonzero_components.all_modes
    assert result["weights"] == expected.weights.tolist()
    assert result["fit"] == 1 - result["relative_error"]
    assert job["progress"]["iteration"] == result["iterations"]


def test_a_fourth_order_run_in_single_precision(client_with_worker: httpx.Client) -> None:
    X = planted(6, 5, 4, 7).astype(np.float32)
    settings = {"method": "anls-bpp", "beta": [0.1, 0.1, 0.1, 0.0], "stop": {"max_iterations": 15}}
    job = finished(
        client_with_worker, submit(client_with_worker, upload(client_with_worker, X)["id"], **settings)["id"]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AdviceWarning)
        expected = solve(X, Settings.model_validate({"rank": 3, **settings}))
    assert_same_bits(factors(client_with_worker, job["id"]), expected.factors)
    assert job["result"]["warnings"] == list(expected.warnings)
    for mode, A in enumerate(expected.factors, start=1):
        one = client_with_worker.get(f"/v1/jobs/{job['id']}/factors/{mode}")
        assert one.content == npy(A)
        assert one.headers["etag"] == f'"{hashlib.sha256(npy(A)).hexdigest()}"'
    refused(client_with_worker.get(f"/v1/jobs/{job['id']}/factors/5"), 404)


def test_matlab_reads_the_factors_and_the_metrics(client_with_worker: httpx.Client, tmp_path: Path) -> None:
    job = finished(
        client_with_worker,
        submit(client_with_worker, upload(client_with_worker, planted(5, 6, 4))["id"], stop={"max_iterations": 5})[
            "id"
        ],
    )
    answer = client_with_worker.get(f"/v1/jobs/{job['id']}/factors", params={"format": "mat"})
    (tmp_path / "factors.mat").write_bytes(answer.content)
    found = scipy.io.loadmat(str(tmp_path / "factors.mat"))
    for mode, A in enumerate(factors(client_with_worker, job["id"]), start=1):
        assert np.array_equal(found[f"A{mode}"], A)
    assert found["objective"].item() == job["result"]["objective"]
    assert found["weights"].shape == (3, 1)


def test_factors_come_whole_by_range_and_not_at_all_if_known(client_with_worker: httpx.Client) -> None:
    job = finished(
        client_with_worker,
        submit(client_with_worker, upload(client_with_worker, planted(5, 6, 4))["id"], stop={"max_iterations": 5})[
            "id"
        ],
    )
    for path in (f"/v1/jobs/{job['id']}/factors", f"/v1/jobs/{job['id']}/factors/2"):
        whole = client_with_worker.get(path)
        assert whole.headers["etag"] == f'"{hashlib.sha256(whole.content).hexdigest()}"'
        assert client_with_worker.get(path, headers={"If-None-Match": whole.headers["etag"]}).status_code == 304
        part = client_with_worker.get(path, headers={"Range": "bytes=3-8"})
        assert (part.status_code, part.content) == (206, whole.content[3:9])
        head = client_with_worker.head(path)
        assert int(head.headers["content-length"]) == len(whole.content)
        assert head.headers["etag"] == whole.headers["etag"]


def test_first_progress_comes_within_two_seconds_of_submitting(client_with_worker: httpx.Client) -> None:
    tensor = upload(client_with_worker, planted(6, 6, 6))["id"]
    started = time.monotonic()
    job = submit(client_with_worker, tensor, stop={"max_iterations": 3})
    assert (
        next(event for event in events(client_with_worker, job["id"]) if event.kind == "progress").content["iteration"]
        == 1
    )
    assert time.monotonic() - started < 2


def test_the_events_are_the_history_in_order_and_once(client_with_worker: httpx.Client) -> None:
    job = submit(
        client_with_worker,
        upload(client_with_worker, planted(9, 8, 7))["id"],
        stop={"tolerance": 0, "max_iterations": 300},
    )
    seen = list(events(client_with_worker, job["id"]))
    progress = [event.content for event in seen if event.kind == "progress"]
    assert [row["iteration"] for row in progress] == list(range(1, 301))
    history = client_with_worker.get(f"/v1/jobs/{job['id']}/history").json()
    assert progress == history
    assert [event.content["state"] for event in seen if event.kind == "state"][-2:] == ["running", "succeeded"]
    assert [event.kind for event in seen].count("end") == 1
    assert seen[-1].kind == "end"
    assert seen[-1].content == client_with_worker.get(f"/v1/jobs/{job['id']}").json()
    late = list(events(client_with_worker, job["id"]))
    assert late == seen


def test_a_client_that_reconnects_anywhere_misses_nothing_and_sees_nothing_twice(
    client_with_worker: httpx.Client,
) -> None:
    job = submit(
        client_with_worker,
        upload(client_with_worker, planted(9, 8, 7))["id"],
        stop={"tolerance": 0, "max_iterations": 400},
    )
    seen: list[Sent] = []
    after: str | None = None
    while not seen or seen[-1].kind != "end":
        for place, event in enumerate(events(client_with_worker, job["id"], after)):
            seen.append(event)
            after = event.id
            if place == 36:
                break
    assert seen == list(events(client_with_worker, job["id"]))
    assert [event.content["iteration"] for event in seen if event.kind == "progress"] == list(range(1, 401))


def test_connecting_again_after_the_end_is_204(client_with_worker: httpx.Client) -> None:
    job = submit(client_with_worker, upload(client_with_worker, planted(4, 4, 4))["id"], stop={"max_iterations": 3})
    last = list(events(client_with_worker, job["id"]))[-1]
    again = client_with_worker.get(f"/v1/jobs/{job['id']}/events", headers={"Last-Event-ID": last.id})
    assert (again.status_code, again.content) == (204, b"")
    refused(client_with_worker.get(f"/v1/jobs/{job['id']}/events", headers={"Last-Event-ID": "yesterday"}), 422)


def test_history_can_be_polled_and_plotted(client_with_worker: httpx.Client) -> None:
    job = finished(
        client_with_worker,
        submit(client_with_worker, upload(client_with_worker, planted(5, 5, 5))["id"], stop={"max_iterations": 20})[
            "id"
        ],
    )
    path = f"/v1/jobs/{job['id']}/history"
    rows = client_with_worker.get(path).json()
    assert client_with_worker.get(path, params={"after": 15}).json() == rows[15:]
    assert client_with_worker.get(path, params={"after": 1000}).json() == []
    table = client_with_worker.get(path, params={"format": "csv", "after": 10})
    assert table.headers["content-type"].startswith("text/csv")
    read = list(csv.DictReader(io.StringIO(table.text)))
    assert [float(row["objective"]) for row in read] == [row["objective"] for row in rows[10:]]
    assert [row["iteration"] for row in read] == [str(row["iteration"]) for row in rows[10:]]


def test_a_running_job_is_cancelled_and_keeps_what_it_has_computed(client_with_worker: httpx.Client) -> None:
    job = submit(client_with_worker, upload(client_with_worker, planted(8, 8, 8))["id"], stop=ENDLESS)
    running(client_with_worker, job["id"], 5)
    first = client_with_worker.post(f"/v1/jobs/{job['id']}/cancel")
    assert first.status_code == 202
    assert first.json()["cancel_requested"]
    ended = finished(client_with_worker, job["id"], 10)
    assert (ended["state"], ended["result"]["stop_reason"]) == ("cancelled", "cancelled")
    assert len(factors(client_with_worker, job["id"])) == 3
    assert len(client_with_worker.get(f"/v1/jobs/{job['id']}/history").json()) == ended["result"]["iterations"]
    assert client_with_worker.post(f"/v1/jobs/{job['id']}/cancel").json() == ended


def test_while_a_job_runs_its_last_checkpoint_can_be_downloaded(client_with_worker: httpx.Client) -> None:
    job = submit(client_with_worker, upload(client_with_worker, planted(8, 8, 8))["id"], stop=ENDLESS)
    answer = wait_for(lambda: _given(client_with_worker.get(f"/v1/jobs/{job['id']}/factors")), 30, "a checkpoint")
    assert client_with_worker.get(f"/v1/jobs/{job['id']}").json()["state"] == "running"
    with np.load(io.BytesIO(answer.content)) as arrays:
        assert arrays["A1"].shape == (8, 3)
        assert arrays["stop_reason"] == "checkpoint"
        assert answer.headers["factors-iteration"] == str(arrays["iteration"])
    refused(client_with_worker.delete(f"/v1/jobs/{job['id']}"), 409, "still-live")
    client_with_worker.post(f"/v1/jobs/{job['id']}/cancel")
    finished(client_with_worker, job["id"], 10)
    assert client_with_worker.delete(f"/v1/jobs/{job['id']}").status_code == 204


def _given(answer: httpx.Response) -> httpx.Response | None:
    if answer.status_code != 200:
        refused(answer, 409, "not-yet")
        return None
    return answer


def test_a_job_starts_from_another_jobs_factors(client_with_worker: httpx.Client) -> None:
    X = planted(7, 6, 5)
    tensor = upload(client_with_worker, X)["id"]
    first = finished(client_with_worker, submit(client_with_worker, tensor, stop={"max_iterations": 10})["id"])
    stop = {"max_iterations": 5}
    second = finished(
        client_with_worker,
        submit(client_with_worker, tensor, method="apg", initial={"job_id": first["id"]}, stop=stop)["id"],
    )
    settings = Settings.model_validate({"rank": 3, "method": "apg", "stop": stop})
    assert_same_bits(
        factors(client_with_worker, second["id"]),
        solve(X, settings, initial=factors(client_with_worker, first["id"])).factors,
    )
    other = upload(client_with_worker, planted(7, 6, 4))["id"]
    body = {"tensor_id": other, "rank": 3, "method": "apg", "initial": {"job_id": first["id"]}}
    assert refused(client_with_worker.post("/v1/jobs", json=body), 422)["errors"][0]["field"] == "initial.job_id"


def test_a_job_may_start_from_factors_of_another_rank_and_says_so(client_with_worker: httpx.Client) -> None:
    tensor = upload(client_with_worker, planted(7, 6, 5))["id"]
    first = submit(client_with_worker, tensor, stop={"max_iterations": 10})["id"]
    finished(client_with_worker, first)
    for rank, words in ((2, "strongest were kept"), (4, "random components were added")):
        fields = {"rank": rank, "initial": {"job_id": first}, "stop": {"max_iterations": 5}}
        job = finished(client_with_worker, submit(client_with_worker, tensor, **fields)["id"])
        assert job["state"] == "succeeded", job
        assert any(words in warning for warning in job["result"]["warnings"])
        assert factors(client_with_worker, job["id"])[0].shape == (7, rank)


def test_a_recommended_job_shows_its_trial_starts_and_what_its_settings_came_to(
    client_with_worker: httpx.Client,
) -> None:
    tensor = upload(client_with_worker, planted(12, 10, 8))["id"]
    body = {"tensor_id": tensor, "rank": 4, "preset": "recommended", "sparsity": 0.05, "starts": 3}
    asked = client_with_worker.post("/v1/jobs", json=body)
    assert asked.status_code == 202, asked.text
    job = finished(client_with_worker, asked.json()["id"])
    assert job["state"] == "succeeded", job
    assert job["resolved"]["penalty"] == "l1"
    assert all(beta > 0 for beta in job["resolved"]["beta"])
    assert [start["start"] for start in job["result"]["starts"]] == [1, 2, 3]
    history = client_with_worker.get(f"/v1/jobs/{job['id']}/history").json()
    assert {row["start"] for row in history} == {1, 2, 3, None}
    assert all((row["phase"] == "start") == (row["start"] is not None) for row in history)
    continued = [row["objective"] for row in history if row["start"] is None]
    assert all(after <= before * (1 + 1e-9) for before, after in itertools.pairwise(continued))
    assert continued[-1] == job["result"]["objective"]


def test_the_server_is_ready_with_a_worker(client_with_worker: httpx.Client) -> None:
    ready = client_with_worker.get("/readyz")
    assert ready.status_code == 200, ready.text
    assert ready.json()["durable"]
    assert ready.json()["live_workers"] == 1


def test_many_clients_see_the_same_events(api_with_worker: Api, client_with_worker: httpx.Client) -> None:
    job = submit(
        client_with_worker,
        upload(client_with_worker, planted(9, 8, 7))["id"],
        stop={"tolerance": 0, "max_iterations": 500},
    )
    with ThreadPoolExecutor(12) as pool:
        streams = list(pool.map(lambda _: list(events(client_with_worker, job["id"])), range(12)))
    assert all(stream == streams[0] for stream in streams)
    assert len([event for event in streams[0] if event.kind == "progress"]) == 500
