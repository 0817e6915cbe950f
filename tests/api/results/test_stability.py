"""Stability over HTTP: requested in a job or as a study, it is in the result, in every download and at its own URL."""

import csv
import io
import json
import zipfile
from typing import Any, cast

import httpx
import numpy as np
import pytest
import scipy.io

from sparse_ncp.solvers import Settings, solve
from sparse_ncp.solvers.diagnostics.stability import Stability
from tests.support.api import Api, finished, http_client, planted, refused, submit, upload
from tests.support.studies import ended_study, submit_study

X = planted(8, 7, 6) + 0.05 * np.random.default_rng(3).random((8, 7, 6))
ASKED: dict[str, Any] = {
    "rank": 3,
    "preset": "recommended",
    "method": "anls-bpp",
    "stability": True,
    "resamples": 6,
    "seed": 2,
}


@pytest.fixture(scope="module")
def expected() -> Stability:
    found = solve(X, Settings.model_validate(ASKED), threads=1).stability
    assert found is not None
    return found


@pytest.fixture(scope="module")
def job(api_with_worker: Api) -> dict[str, Any]:
    with http_client(api_with_worker.address) as lab:
        return finished(lab, submit(lab, upload(lab, X)["id"], **ASKED)["id"])


def test_the_result_has_the_numbers_of_the_package(job: dict[str, Any], expected: Stability) -> None:
    assert job["result"]["stability"] == {
        "samples_mode": 1,
        "resamples": 6,
        "replicability": list(expected.replicability),
        "split_half": list(expected.split_half or ()),
    }


def test_a_call_of_its_own_gives_the_bands(
    client_with_worker: httpx.Client, job: dict[str, Any], expected: Stability
) -> None:
    found = client_with_worker.get(f"/v1/jobs/{job['id']}/stability").json()
    assert found["replicability"] == list(expected.replicability)
    assert found["modes"][0] is None
    for mode in (1, 2):
        band = expected.bands[mode]
        assert band is not None
        np.testing.assert_allclose(found["modes"][mode]["lower"], band.lower, rtol=1e-6)
        np.testing.assert_allclose(found["modes"][mode]["upper"], band.upper, rtol=1e-6)


def test_a_job_that_did_not_ask_has_none_and_the_answer_says_how_to_get_it(client_with_worker: httpx.Client) -> None:
    lab = client_with_worker
    plain = finished(lab, submit(lab, upload(lab, X)["id"], **{**ASKED, "stability": False})["id"])
    assert plain["result"]["stability"] is None
    answer = refused(lab.get(f"/v1/jobs/{plain['id']}/stability"), 404, "no-stability")
    assert "it was not requested" in answer["detail"]
    study = ended_study(lab, submit_study(lab, plain["tensor_id"], kind="stability", job_id=plain["id"])["id"])
    assert lab.get(f"/v1/jobs/{study['job_id']}/stability").status_code == 200


def test_every_download_has_the_bands_beside_the_factors(
    client_with_worker: httpx.Client, job: dict[str, Any], expected: Stability
) -> None:
    def download(**asked: Any) -> bytes:
        answer = client_with_worker.get(f"/v1/jobs/{job['id']}/factors", params=asked)
        assert answer.status_code == 200
        return answer.content

    band = expected.bands[1]
    assert band is not None
    stored = np.load(io.BytesIO(download(format="npz")))
    assert np.array_equal(stored["lower_A2"], band.lower)
    assert np.array_equal(stored["upper_A2"], band.upper)
    assert "lower_A1" not in stored
    assert stored["replicability"].tolist() == list(expected.replicability)
    assert stored["samples_mode"].item() == 1
    mat = scipy.io.loadmat(cast(Any, io.BytesIO(download(format="mat"))))
    assert np.array_equal(mat["upper_A3"], stored["upper_A3"])
    assert mat["split_half"].shape == (3, 1)
    with scipy.io.netcdf_file(io.BytesIO(download(format="nc")), mmap=False) as nc:
        assert nc.variables["lower_A2"].dimensions == nc.variables["A2"].dimensions
        np.testing.assert_array_equal(nc.variables["lower_A2"][:], band.lower)
        np.testing.assert_array_equal(nc.variables["replicability"][:], stored["replicability"])
    with zipfile.ZipFile(io.BytesIO(download(format="csv"))) as archive:
        head, *rows = csv.reader(io.StringIO(archive.read("upper_A2.csv").decode()))
        assert head == ["index", "component_1", "component_2", "component_3"]
        assert np.array_equal([[float(cell) for cell in row[1:]] for row in rows], band.upper)
        head, *rows = csv.reader(io.StringIO(archive.read("components.csv").decode()))
        assert head == ["component", "weight", "replicability", "split_half"]
        assert [float(row[2]) for row in rows] == list(expected.replicability)
        assert "replicability" not in json.loads(archive.read("about.json"))


def test_bands_are_scaled_and_sorted_with_the_factors(client_with_worker: httpx.Client, job: dict[str, Any]) -> None:
    def arrays(**asked: Any) -> Any:
        answer = client_with_worker.get(f"/v1/jobs/{job['id']}/factors", params={"format": "npz", **asked})
        return np.load(io.BytesIO(answer.content))

    plain, changed = arrays(), arrays(scale="unit", order="share")
    order = changed["components"] - 1
    assert sorted(order) == [0, 1, 2]
    norms = np.linalg.norm(plain["A2"], axis=0)[order]
    np.testing.assert_allclose(changed["A2"] * norms, plain["A2"][:, order], rtol=1e-12)
    np.testing.assert_allclose(changed["lower_A2"] * norms, plain["lower_A2"][:, order], rtol=1e-12)
    assert changed["replicability"].tolist() == plain["replicability"][order].tolist()


def test_a_study_assesses_the_model_of_a_job(client_with_worker: httpx.Client, job: dict[str, Any]) -> None:
    lab = client_with_worker
    asked = {"kind": "stability", "job_id": job["id"], "resamples": 7, "samples_mode": 2, "seed": 5, "name": "sure?"}
    study = ended_study(lab, submit_study(lab, job["tensor_id"], **asked)["id"])
    assert (study["kind"], study["state"], study["name"]) == ("stability", "succeeded", "sure?")
    assert study["request"] == {"job_id": job["id"], "resamples": 7, "samples_mode": 2, "seed": 5}
    stability = study["result"]["stability"]
    assert (stability["samples_mode"], stability["resamples"]) == (2, 7)
    assert min(stability["replicability"]) > 0.8
    assert study["result"]["objective"] == pytest.approx(job["result"]["objective"], rel=1e-3)
    run = lab.get(f"/v1/jobs/{study['job_id']}").json()
    assert run["initial"] == {"job_id": job["id"]}
    assert run["settings"]["starts"] == 1
    assert lab.get(f"/v1/jobs/{study['job_id']}/stability").json()["modes"][1] is None


def test_a_study_keeps_the_penalties_mask_and_fixed_factors_of_the_job(client_with_worker: httpx.Client) -> None:
    lab, mask = client_with_worker, np.random.default_rng(0).random((1, 7, 6)) < 0.9
    tensor, stored = upload(lab, X)["id"], upload(lab, mask)["id"]
    model = finished(lab, submit(lab, tensor, rank=3, preset="recommended", sparsity="auto")["id"])
    named = {"mask": {"tensor_id": stored}, "fixed": {"job_id": model["id"], "modes": [3]}}
    one = finished(lab, submit(lab, tensor, rank=3, method="anls-bpp", beta=0.01, **named)["id"])
    for source in (model, one):
        study = ended_study(lab, submit_study(lab, tensor, kind="stability", job_id=source["id"], resamples=5)["id"])
        run = lab.get(f"/v1/jobs/{study['job_id']}").json()
        assert run["resolved"]["beta"] == pytest.approx(source["resolved"]["beta"])
        assert run["resolved"]["alpha"] == pytest.approx(source["resolved"]["alpha"])
        assert (run["mask"], run["fixed"]) == (source["mask"], source["fixed"])
        assert len(study["result"]["stability"]["replicability"]) == 3


def test_what_cannot_be_assessed_is_refused_at_submission(client: httpx.Client) -> None:
    tensor = upload(client, planted(8, 2, 6))["id"]
    body = {"tensor_id": tensor, "rank": 2, "method": "hals", "stability": True}
    for fields, field in (({"samples_mode": 4}, "samples_mode"), ({"samples_mode": 2}, "stability")):
        answer = client.post("/v1/jobs", json={**body, **fields})
        assert [error["field"] for error in refused(answer, 422)["errors"]] == [field]
    queued = submit(client, tensor, rank=2, method="hals")
    study = {"kind": "stability", "tensor_id": tensor, "job_id": queued["id"]}
    assert "still change" in refused(client.post("/v1/studies", json=study), 422)["errors"][0]["problem"]
    missing = refused(client.post("/v1/studies", json={**study, "job_id": "never"}), 404)
    assert missing["errors"][0]["field"] == "job_id"
    assert client.post(f"/v1/jobs/{queued['id']}/cancel").status_code == 202
    other = {**study, "tensor_id": upload(client, X)["id"]}
    assert "of another tensor" in refused(client.post("/v1/studies", json=other), 422)["errors"][0]["problem"]


def test_more_components_than_can_be_identified_are_warned_of_at_submission(client: httpx.Client) -> None:
    tensor = upload(client, planted(6, 5, 4))["id"]
    many, few = (submit(client, tensor, rank=rank, method="hals") for rank in (500, 3))
    (warning,) = many["warnings"]
    assert "rank 500 is more than can be identified in a tensor of 6 × 5 × 4" in warning
    assert client.get(f"/v1/jobs/{many['id']}").json()["warnings"] == [warning]
    assert few["warnings"] == []
    body = {"tensor_id": tensor, "rank": 500, "method": "hals"}
    assert client.post("/v1/jobs/estimate", json=body).json()["warnings"] == [warning]
