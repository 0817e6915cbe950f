"""Samples become labelled tensors of their caller, once, and a job on them finds the planted components."""

import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from sparse_ncp.solvers import synthetic
from sparse_ncp.worker.operations.samples import SAMPLES
from tests.support.api import Api, finished, http_client, new_holder, npy, refused, running_api
from tests.support.stack import embedded_redis


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_becomes_a_labelled_tensor_once(api: Api, name: str) -> None:
    with http_client(api.address, f"takes {name}") as lab:
        listed = {sample["name"]: sample for sample in lab.get("/v1/samples").json()["items"]}
        first = lab.post(f"/v1/samples/{name}")
        assert first.status_code == 201, first.text
        record = first.json()
        assert first.headers["location"] == f"/v1/tensors/{record['id']}"
        assert (record["name"], record["shape"]) == (listed[name]["title"], listed[name]["shape"])
        assert [axis["name"] for axis in record["axes"]] == listed[name]["modes"]
        assert lab.get(f"/v1/tensors/{record['id']}").json() == record
        again = lab.post(f"/v1/samples/{name}")
        assert (again.status_code, again.json(), again.headers["location"]) == (200, record, first.headers["location"])
        assert len(lab.get("/v1/tensors").json()["items"]) == 1
        assert lab.get("/v1/usage").json()["stored_bytes"] >= record["nbytes"]


def test_there_are_two_samples_and_one_has_missing_and_negative_readings(api: Api) -> None:
    with http_client(api.address, "looks around") as lab:
        page = lab.get("/v1/samples").json()
        assert (len(page["items"]), page["next"]) == (2, None)
        records = [lab.post(f"/v1/samples/{sample['name']}").json() for sample in page["items"]]
    assert sorted(len(record["shape"]) for record in records) == [3, 4]
    assert [(record["missing"] > 0, record["negative"] > 0) for record in records] == [(True, True), (False, False)]


def test_a_caller_who_has_uploaded_the_same_bytes_has_the_sample_already(client: httpx.Client) -> None:
    content = client.get(f"/v1/tensors/{client.post('/v1/samples/fluorescence').json()['id']}/content").content
    with http_client(str(client.base_url), "has it already") as lab:
        own = lab.post("/v1/tensors", content=content, params={"name": "mine"}).json()
        answer = lab.post("/v1/samples/fluorescence")
    assert (answer.status_code, answer.json()["id"], answer.json()["name"]) == (200, own["id"], "mine")


def test_two_clicks_at_once_make_one_tensor(api: Api) -> None:
    with http_client(api.address, "clicks twice") as lab, ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: lab.post("/v1/samples/evoked"), range(4)))
        assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 201]
        assert len({answer.json()["id"] for answer in answers}) == 1


def test_an_unknown_sample_is_not_found(client: httpx.Client) -> None:
    assert "/v1/samples" in str(refused(client.post("/v1/samples/nothing"), 404)["remedy"])


def test_a_sample_counts_for_the_quota_and_leaves_nothing_if_there_is_no_room(tmp_path: Path) -> None:
    with (
        embedded_redis(tmp_path, min_free_bytes=1) as configuration,
        running_api(configuration, keys=True) as api,
        new_holder(configuration, api.address, "small", stored_bytes=1000) as small,
        new_holder(configuration, api.address, "narrow", tensor_bytes=1000) as narrow,
        new_holder(configuration, api.address, "ann") as ann,
    ):
        refused(small.post("/v1/samples/fluorescence"), 409, "quota-reached")
        refused(narrow.post("/v1/samples/fluorescence"), 413)
        record = ann.post("/v1/samples/fluorescence").json()
        assert ann.delete(f"/v1/tensors/{record['id']}").status_code == 204
        with new_holder(configuration, api.address, "labels", stored_bytes=record["nbytes"] + 100) as labels:
            refused(labels.post("/v1/samples/fluorescence"), 409, "quota-reached")
            assert labels.get("/v1/usage").json()["stored_bytes"] == 0
        assert [path.name for path in (configuration.data / "tensors").glob("*.npy")] == []


def matched(found: list[np.ndarray[Any, Any]], planted: list[np.ndarray[Any, Any]]) -> float:
    """Return the smallest cosine between a planted component and the most similar one found."""
    cosines = np.prod(
        [
            (A / np.linalg.norm(A, axis=0)).T @ (B / np.linalg.norm(B, axis=0))
            for A, B in zip(found, planted, strict=True)
        ],
        axis=0,
    )
    return float(cosines.max(axis=0).min())


def test_the_settings_that_are_suggested_find_what_was_planted(client_with_worker: httpx.Client) -> None:
    lab = client_with_worker
    suggested = {sample["name"]: sample["suggested"] for sample in lab.get("/v1/samples").json()["items"]}
    for name, fields in suggested.items():
        record = lab.post(f"/v1/samples/{name}").json()
        axes = [axis["values"] for axis in record["axes"]]
        job = lab.post("/v1/jobs", json={"tensor_id": record["id"], **fields}).json()
        assert finished(lab, job["id"], 180)["state"] == "succeeded"
        factors = np.load(io.BytesIO(lab.get(f"/v1/jobs/{job['id']}/factors").content))
        made = (
            synthetic.fluorescence(len(axes[0]), axes[1], axes[2])
            if name == "fluorescence"
            else synthetic.evoked(record["shape"], rank=5)
        )
        assert npy(made.tensor) == lab.get(f"/v1/tensors/{record['id']}/content").content
        assert matched([factors[f"A{mode}"] for mode in range(1, len(axes) + 1)], made.factors) > 0.9, name
