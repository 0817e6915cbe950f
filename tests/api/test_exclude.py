"""Indices that are left out of a job, by number or by label: refusals, results, downloads and diagnostics."""

import io
import json
from dataclasses import asdict
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from sparse_ncp.solvers import Settings, solve
from sparse_ncp.solvers.metrics import match_components
from tests.support.api import finished, planted, refused, submit, upload
from tests.support.jobs import same_bits

RUN: dict[str, Any] = {"rank": 2, "method": "anls-bpp", "penalty": "l1", "seed": 1, "stop": {"max_iterations": 60}}
AXES = [
    {"name": "sample", "values": ["blank", "river", "lake", "river 2", "spill", "pond", "well", "tap"]},
    {"name": "emission", "unit": "nm", "values": [250, 260, 270, 280, 290, 300]},
    {"name": "excitation", "values": ["a", "b", "c", "d", "d"]},
]


def lab_tensor() -> NDArray[np.float64]:
    X = planted(8, 6, 5)
    X[4] = np.random.default_rng(0).random((6, 5)) * 20
    return X


def labelled(lab: httpx.Client, X: NDArray[Any]) -> str:
    id: str = upload(lab, X)["id"]
    lab.put(f"/v1/tensors/{id}/axes", json=AXES).raise_for_status()
    return id


def factors_of(lab: httpx.Client, job_id: str) -> list[NDArray[Any]]:
    found = np.load(io.BytesIO(lab.get(f"/v1/jobs/{job_id}/factors").content))
    return [found[f"A{mode}"] for mode in (1, 2, 3)]


def refused_fields(lab: httpx.Client, tensor_id: str, **fields: Any) -> dict[str, dict[str, str]]:
    answer = lab.post("/v1/jobs", json={"tensor_id": tensor_id, "rank": 2, "method": "hals", **fields})
    return {error["field"]: error for error in refused(answer, 422)["errors"]}


@pytest.mark.parametrize(
    ("exclude", "problem", "remedy"),
    [
        ({"4": [0]}, "names mode 4 of a tensor with 3", "count the modes from 1 to 3"),
        ({"1": [8]}, "has index 8 of mode 1, whose length is 8", "give indices from 0 to 7"),
        ({"1": list(range(8))}, "leaves none of the 8 indices of mode 1", "exclude at most 6 of them"),
        ({"1": ["sea"]}, "names 'sea', which labels no index of mode 1 (sample)", "such as 'blank', or an index"),
        ({"3": ["d"]}, "names 'd', the label of 2 indices of mode 3", "give indices: 3, 4"),
        ({"1": [4, "spill"]}, "names index 4 of mode 1 by its number and by its label", "give one of the two"),
    ],
)
def test_what_cannot_be_excluded_is_refused_at_submission(
    client: httpx.Client, exclude: Any, problem: str, remedy: str
) -> None:
    wrong = refused_fields(client, labelled(client, lab_tensor()), exclude=exclude)
    assert wrong.keys() == {"exclude"}
    assert wrong["exclude"]["problem"] == problem
    assert remedy in wrong["exclude"]["remedy"]


def test_labels_need_axes_and_exclusions_are_of_indices(client: httpx.Client) -> None:
    tensor = upload(client, lab_tensor())
    assert "has no axes" in refused_fields(client, tensor["id"], exclude={"1": ["spill"]})["exclude"]["problem"]
    wrong = refused_fields(client, tensor["id"], exclude={"1": [2, 2]}, samples_mode=9)
    assert {field.partition(".")[0] for field in wrong} == {"exclude", "samples_mode"}
    assert "for a tensor of 3 modes" in refused_fields(client, tensor["id"], samples_mode=4)["samples_mode"]["problem"]


def test_all_indices_without_a_reading_are_named_at_submission(client: httpx.Client) -> None:
    X = lab_tensor()
    X[2] = X[6] = np.nan
    X[:, 3] = np.nan
    id = upload(client, X)["id"]
    wrong = refused_fields(client, id, missing="nan")["tensor_id"]
    assert wrong["problem"] == "indices 2, 6 of mode 1 and index 3 of mode 2 have no observed entry"
    assert wrong["remedy"].endswith('exclude={"1": [2, 6], "2": [3]}')
    mask = np.ones((8, 1, 1), bool)
    mask[5] = False
    masked = {"mask": {"tensor_id": upload(client, mask)["id"]}, "missing": "nan", "exclude": {"1": [2, 6]}}
    wrong = refused_fields(client, id, **masked)["tensor_id"]
    assert wrong["remedy"].endswith('exclude={"1": [2, 6, 5], "2": [3]}')
    pasted = json.loads(wrong["remedy"].partition("exclude=")[2])
    assert submit(client, id, **{**masked, "exclude": pasted})["settings"]["exclude"] == pasted


def test_indices_are_not_proposed_to_be_left_out_where_too_few_would_remain(client: httpx.Client) -> None:
    X = np.full((8, 6, 5), np.nan)
    X[0, :, 2:] = 1.0
    wrong = refused_fields(client, upload(client, X)["id"], missing="nan")["tensor_id"]
    assert wrong["remedy"] == "give more readings: leaving these indices out leaves 1 of the 8 indices of mode 1"


def test_a_job_without_some_samples_gives_their_loadings(client_with_worker: httpx.Client) -> None:
    lab = client_with_worker
    X, exclude = lab_tensor(), {"1": ["spill", "blank"], "2": [5]}
    job = finished(lab, submit(lab, labelled(lab, X), **RUN, exclude=exclude)["id"])
    assert job["state"] == "succeeded", job["error"]
    assert job["settings"]["exclude"] == exclude
    assert job["result"]["excluded"] == {"1": [0, 4], "2": [5]}
    expected = solve(X, Settings(**RUN, exclude={1: [4, 0], 2: [5]}))
    found = factors_of(lab, job["id"])
    assert [A.shape for A in found] == [(8, 2), (6, 2), (5, 2)]
    assert same_bits(found, expected.factors)
    assert job["result"]["relative_error"] == expected.relative_error
    diagnostics = lab.get(f"/v1/jobs/{job['id']}/diagnostics").json()
    assert expected.diagnostics is not None
    assert diagnostics["modes"][0]["residual"] == list(expected.diagnostics.modes[0].residual)
    stored = np.load(io.BytesIO(lab.get(f"/v1/jobs/{job['id']}/factors").content))
    assert json.loads(str(stored["excluded"])) == {"1": [0, 4], "2": [5]}


def test_an_outlying_sample_is_named_by_the_label_that_can_be_pasted(client_with_worker: httpx.Client) -> None:
    lab = client_with_worker
    X = planted(8, 6, 5)
    random = np.random.default_rng(3)
    X += 0.02 * X.mean() * random.random(X.shape)
    X[4] = X[4][::-1, ::-1] * random.random((6, 5)) * 3
    tensor_id = labelled(lab, X)
    job = finished(lab, submit(lab, tensor_id, **{**RUN, "rank": 3})["id"])
    diagnostics = lab.get(f"/v1/jobs/{job['id']}/diagnostics").json()
    assert [outlier["index"] for outlier in diagnostics["samples"]["outliers"]] == [4]
    [warning] = [warning for warning in job["result"]["warnings"] if "does not follow" in warning]
    assert "'spill'" in warning
    assert 'exclude={"1": ["spill"]}' in warning
    again = finished(lab, submit(lab, tensor_id, **{**RUN, "rank": 3}, exclude={"1": ["spill"]})["id"])
    assert not [warning for warning in again["result"]["warnings"] if "follow" in warning]

    found = lab.get(f"/v1/jobs/{again['id']}/comparison", params={"other": job["id"]}).json()
    after, before = factors_of(lab, again["id"]), factors_of(lab, job["id"])
    assert (found["relative_error"], found["other_relative_error"]) == (
        again["result"]["relative_error"], job["result"]["relative_error"],
    )  # fmt: skip
    kept = [index for index in range(8) if index != 4]
    pairs = match_components(*([A[0][kept], *A[1:]] for A in (after, before)))
    assert found["components"] == [json.loads(json.dumps(asdict(pair))) for pair in pairs]
    [left_out] = found["left_out"]
    assert (left_out["mode"], left_out["index"], left_out["label"]) == (1, 4, "spill")
    for name, place, factors in (("scores", "component", after), ("other_scores", "other", before)):
        size = np.linalg.norm(factors[1], axis=0) * np.linalg.norm(factors[2], axis=0)
        expected = [factors[0][4, pair[place] - 1] * size[pair[place] - 1] for pair in found["components"]]
        assert left_out[name] == pytest.approx(expected)
    diagnosed = lab.get(f"/v1/jobs/{again['id']}/diagnostics").json()
    assert found["core_consistency"] == diagnosed["core_consistency"]
    assert found["other_core_consistency"] == diagnostics["core_consistency"]


def test_jobs_that_cannot_be_compared_are_refused(client_with_worker: httpx.Client) -> None:
    lab = client_with_worker
    job = finished(lab, submit(lab, upload(lab, lab_tensor())["id"], **RUN)["id"])
    other = finished(lab, submit(lab, upload(lab, planted(8, 6, 4))["id"], **RUN)["id"])
    path = f"/v1/jobs/{job['id']}/comparison"
    problem = refused(lab.get(path, params={"other": other["id"]}), 422)
    assert problem["errors"][0]["problem"] == "has a model of another shape, 8×6×5 against 8×6×4"
    missing = refused(lab.get(path, params={"other": "0123456789abcdef"}), 404)
    assert missing["errors"][0]["field"] == "other"


def test_a_comparison_leaves_them_out_of_all_runs(client_with_worker: httpx.Client) -> None:
    lab = client_with_worker
    X = lab_tensor()
    body = {"kind": "compare", "tensor_id": labelled(lab, X), "ranks": [2], "methods": ["hals"], "repeats": 2}
    answer = lab.post("/v1/studies", json={**body, "exclude": {"1": ["sea"]}})
    assert refused(answer, 422)["errors"][0]["field"] == "exclude"
    study = lab.post("/v1/studies", json={**body, "exclude": {"1": ["spill"]}}).raise_for_status().json()
    jobs = lab.get("/v1/jobs", params={"study_id": study["id"]}).json()["items"]
    assert len(jobs) == 2
    for job in jobs:
        assert finished(lab, job["id"])["result"]["excluded"] == {"1": [4]}
