"""Invalid studies are refused at their field before anything is queued."""

from typing import Any

import httpx
import numpy as np
import pytest
from pydantic import TypeAdapter

from sparse_ncp.worker.errors import TooManyJobs
from sparse_ncp.worker.owner_limits import Limits
from sparse_ncp.worker.study_contract import StudyRequest
from tests.support.api import Api, http_client, planted, refused, upload
from tests.support.studies import GRID, submit_study

CHOICE: dict[str, Any] = {"kind": "choose", "rank": 4, "seeds": 1}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"kind": None}, "kind"),
        ({"kind": "guess"}, "kind"),
        ({"ranks": []}, "ranks"),
        ({"methods": []}, "methods"),
        ({"betas": []}, "betas"),
        ({"ranks": [2, 2]}, "ranks"),
        ({"ranks": [0]}, "ranks.1"),
        ({"ranks": 3}, "ranks"),
        ({"methods": ["hals", "none"]}, "methods.2"),
        ({"betas": [-1.0]}, "betas.1"),
        ({"sparsities": [0.1]}, "sparsities"),
        ({"betas": None, "sparsities": [1.5]}, "sparsities.1"),
        ({"betas": None, "sparsities": [0.1], "penalty": None}, "sparsities"),  # anls-bpp has the squared penalty
        ({"sparsity": 0.1}, "sparsity"),
        ({"rank": 3}, "rank"),
        ({"repeats": 0}, "repeats"),
        ({"repeats": 1001}, "repeats"),
        ({"inner_passes": 3}, "inner_passes"),  # not of anls-bpp
        ({"stop": {"max_iterations": 0}}, "stop.max_iterations"),
        ({"alpha": [1.0, 1.0]}, "alpha"),
        ({"validate": {"split_half": {"mode": 4}}}, "validate.split_half.mode"),
        ({"validate": {"split_half": {"mode": 1, "parts": 5}}}, "validate.split_half.parts"),
        ({"validate": {"holdout": {"block": [1, 2]}}}, "validate.holdout.block"),
        ({"reference": {"tensor_id": "nowhere", "mode": 1}}, "reference.tensor_id"),
        ({"reference": {"tensor_id": "9×3", "mode": 2}}, "reference.tensor_id"),
        ({"reference": {"tensor_id": "9×3", "mode": 4}}, "reference.mode"),
        ({"mask": {"tensor_id": "9×3"}}, "mask.tensor_id"),
        ({"tensor_id": "nowhere"}, "tensor_id"),
        ({"initial": {"job_id": "nowhere"}}, "initial.job_id"),
    ],
)
def test_a_grid_that_cannot_run_is_refused_with_its_field(
    client: httpx.Client, changes: dict[str, Any], field: str
) -> None:
    known = {"9×3": upload(client, np.ones((9, 3)))["id"]}
    body = {**GRID, "tensor_id": upload(client, planted(9, 8, 7))["id"], **changes}
    for name in ("reference", "mask"):
        if isinstance(body.get(name), dict):
            body[name] = {**body[name], "tensor_id": known.get(body[name]["tensor_id"], body[name]["tensor_id"])}
    before = client.get("/v1/usage").json()["jobs"]["queued"]
    problem = refused(client.post("/v1/studies", json=body), 404 if "nowhere" in str(changes) else 422)
    assert field in [error["field"] for error in problem["errors"]], problem
    assert all(error["problem"] and error["remedy"] for error in problem["errors"])
    assert client.get("/v1/usage").json()["jobs"]["queued"] == before


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"rank": 1}, "rank"),
        ({"seeds": 0}, "seeds"),
        ({"noise": "pink"}, "noise"),
        ({"methods": ["hals"]}, "methods"),
        ({"stop": {"max_seconds": 0}}, "stop.max_seconds"),
        ({"tensor": planted(3, 3)}, "tensor_id"),
        ({"tensor": np.full((9, 8, 7), np.nan) + np.eye(9, 8)[:, :, None] * 0}, "missing"),
        ({"tensor": planted(9, 8, 7) - 0.5}, "negative"),
        ({"samples_mode": 4}, "samples_mode"),
        ({"exclude": {"1": [9]}}, "exclude"),
        ({"exclude": {"1": ["blank"]}}, "exclude"),
        ({"mask": {"tensor_id": "none"}}, "mask.tensor_id"),
        ({"validate": {"split_half": {"mode": 4}}}, "validate.split_half.mode"),
    ],
)
def test_a_choice_that_cannot_be_made_is_refused_with_its_field(
    client: httpx.Client, changes: dict[str, Any], field: str
) -> None:
    changed = dict(changes)
    tensor = np.array(changed.pop("tensor", planted(9, 8, 7)))
    if np.isnan(tensor).all():
        tensor[0] = 1.0
    body = {**CHOICE, "tensor_id": upload(client, tensor)["id"], **changed}
    problem = refused(client.post("/v1/studies", json=body), 404 if "mask" in changes else 422)
    assert problem["errors"][0]["field"] == field
    assert problem["errors"][0]["remedy"]


def test_a_choice_counts_what_it_cannot_take(client: httpx.Client) -> None:
    tensor = np.array(planted(9, 8, 7))
    tensor[0, 0, 0], tensor[1, 1, 1], tensor[2, 2, 2] = np.nan, -1.0, -2.0
    problem = refused(client.post("/v1/studies", json={**CHOICE, "tensor_id": upload(client, tensor)["id"]}), 422)
    first, second = [error["problem"] for error in problem["errors"]]
    assert "1 of 504 entries (0.2 %) is NaN" in first
    assert "2 of 504 entries (0.4 %) are negative" in second
    given = {"missing": "nan", "negative": "keep"}  # as both remedies say
    for name, error in zip(given, problem["errors"], strict=True):
        assert (error["field"], f'"{given[name]}"' in error["remedy"]) == (name, True)
    submit_study(client, upload(client, tensor)["id"], **CHOICE, **given)


def test_halves_without_a_reading_are_refused_before_any_run_and_the_remedies_work(client: httpx.Client) -> None:
    tensor = np.array(planted(9, 8, 7))
    tensor[::2, 4] = np.nan
    id = upload(client, tensor)["id"]
    half = {"split_half": {"mode": 1, "parts": 2}}
    for body in (GRID, {**CHOICE, "rank": 2}):
        asked = {**body, "tensor_id": id, "missing": "nan", "validate": half}
        problem = refused(client.post("/v1/studies", json=asked), 422)
        [error] = problem["errors"]
        assert error["field"] == "validate.split_half"
        assert "index 4 of mode 2 has no observed entry" in error["problem"]
        assert '{"mode": 2, "parts": 2}' in error["remedy"]
        assert 'exclude={"2": [4]}' in error["remedy"]
        for remedy in ({"validate": {"split_half": {"mode": 2, "parts": 2}}}, {"exclude": {"2": [4]}}):
            assert client.post("/v1/studies", json={**asked, **remedy}).status_code == 202


def test_too_many_runs_are_refused_with_their_count(client: httpx.Client) -> None:
    tensor = upload(client, planted(9, 8, 7))["id"]
    body = {**GRID, "tensor_id": tensor, "betas": [float(b) for b in range(1, 10)], "repeats": 1000}
    problem = refused(client.post("/v1/studies", json=body), 422)
    assert "36,000 runs, over your limit of 10,000" in problem["errors"][0]["problem"]


def test_a_study_counts_as_one_live_job(api: Api) -> None:
    """Whatever the limit, a grid of twelve fits in; the next job does not."""
    with http_client(api.address, "counted") as lab:
        tensor = upload(lab, planted(9, 8, 7))["id"]
        study = submit_study(lab, tensor, **GRID)
        usage = lab.get("/v1/usage").json()
        assert (usage["jobs"]["queued"], usage["live_studies"]) == (12, 1)
        operations = api.app.state.studies
        one = Limits(live_jobs=1)
        body = operations_request(tensor)
        with pytest.raises(TooManyJobs):
            operations.submit("counted", body, limits=one)
        operations.submit("counted", body, limits=Limits(live_jobs=2))
        refused(lab.delete(f"/v1/tensors/{tensor}"), 409, "in-use")
        refused(lab.delete(f"/v1/studies/{study['id']}"), 409, "still-live")
        assert lab.post(f"/v1/studies/{study['id']}/cancel").json()["state"] == "cancelled"
        assert lab.get("/v1/usage").json()["live_studies"] == 1
        assert lab.delete(f"/v1/studies/{study['id']}").status_code == 204


def operations_request(tensor: str) -> Any:
    return TypeAdapter(StudyRequest).validate_python({**GRID, "tensor_id": tensor})


def test_the_same_key_and_body_give_the_same_study(client: httpx.Client) -> None:
    tensor = upload(client, planted(9, 8, 7))["id"]
    body, headers = {**GRID, "tensor_id": tensor}, {"Idempotency-Key": "study once"}
    first = client.post("/v1/studies", json=body, headers=headers)
    again = client.post("/v1/studies", json={**body, "priority": 0}, headers=headers)
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json()["id"] == again.json()["id"]
    assert again.headers["Idempotent-Replayed"] == "true"
    assert first.headers["Location"] == f"/v1/studies/{first.json()['id']}"
    refused(client.post("/v1/studies", json={**body, "repeats": 2}, headers=headers), 422, "key-reused")
    refused(client.post("/v1/jobs", json={"tensor_id": tensor, "rank": 2, "method": "hals"}, headers=headers), 422)


def test_a_study_is_invisible_to_other_owners(client: httpx.Client, other_client: httpx.Client) -> None:
    study = submit_study(client, upload(client, planted(9, 8, 7))["id"], **GRID)["id"]
    for path in ("", "/events", "/table", "/plots/path"):
        refused(other_client.get(f"/v1/studies/{study}{path}"), 404, "not-found")
    refused(other_client.post(f"/v1/studies/{study}/cancel"), 404)
    refused(other_client.delete(f"/v1/studies/{study}"), 404)
    assert study not in [one["id"] for one in other_client.get("/v1/studies").json()["items"]]
    assert other_client.get("/v1/jobs", params={"study_id": study}).json()["items"] == []


def test_a_study_before_its_first_run_has_a_row_for_every_cell(client: httpx.Client) -> None:
    study = submit_study(client, upload(client, planted(9, 8, 7))["id"], **GRID)
    rows = client.get(f"/v1/studies/{study['id']}").json()["table"]["rows"]
    assert [(row["runs"], row["objective"], row["best"]) for row in rows] == [(0, None, None)] * 4
    for plot in ("objective", "quality", "path"):
        assert client.get(f"/v1/studies/{study['id']}/plots/{plot}").status_code == 200
    refused(client.get(f"/v1/studies/{study['id']}/plots/components"), 409, "not-yet")
    refused(client.get(f"/v1/studies/{study['id']}/plots/choice"), 404)
