"""Missing and negative readings, masks and fixed models through the API: refusals, runs and records."""

import io
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from sparse_ncp.solvers import Settings, diagnose, solve
from tests.support.api import finished, planted, refused, submit, upload
from tests.support.jobs import same_bits

GAPS = {"missing": "nan"}
RUN: dict[str, Any] = {"rank": 3, "method": "anls-bpp", "penalty": "l1", "seed": 1, "stop": {"max_iterations": 60}}


def with_gaps(*shape: int) -> NDArray[np.float64]:
    """A band that all samples miss, and a few entries elsewhere."""
    X = planted(*shape)
    X[:, 1:3, 2] = np.nan
    X[2, 0, 0] = X[3, 4, 1] = np.nan
    return X


def factors_of(lab: httpx.Client, job_id: str, order: int) -> list[NDArray[Any]]:
    found = np.load(io.BytesIO(lab.get(f"/v1/jobs/{job_id}/factors").content))
    return [found[f"A{mode}"] for mode in range(1, order + 1)]


def refused_fields(lab: httpx.Client, tensor_id: str, **fields: Any) -> dict[str, dict[str, str]]:
    answer = lab.post("/v1/jobs", json={"tensor_id": tensor_id, "rank": 3, "method": "hals", **fields})
    return {error["field"]: error for error in refused(answer, 422)["errors"]}


# What is refused before anything is queued


def test_gaps_without_a_word_are_refused_with_their_share_and_the_remedy(client: httpx.Client) -> None:
    tensor = upload(client, with_gaps(6, 5, 4))
    wrong = refused_fields(client, tensor["id"])
    assert wrong.keys() == {"missing"}
    assert "14 of 120 entries (12 %) are NaN" in wrong["missing"]["problem"]
    assert '"nan"' in wrong["missing"]["remedy"]


def test_a_few_negative_readings_are_reported_with_the_least_and_two_remedies(client: httpx.Client) -> None:
    X = planted(20, 10, 5)
    X[3, 4, 1] = -0.25
    wrong = refused_fields(client, upload(client, X)["id"])
    assert wrong.keys() == {"negative"}
    assert "1 of 1,000 entries (0.1 %) is negative, the least is -0.25" in wrong["negative"]["problem"]
    assert '"keep"' in wrong["negative"]["remedy"]
    assert "zeros" in wrong["negative"]["remedy"]
    assert "sparse_ncp.clip" in wrong["negative"]["remedy"]
    assert "log-scaled" not in wrong["negative"]["problem"]


def test_the_remedy_for_negative_entries_is_one_that_the_method_takes(client: httpx.Client) -> None:
    X = planted(6, 5, 4)
    X[0, 0, 0] = -1
    wrong = refused_fields(client, upload(client, X)["id"], method="mu")
    assert "another method than mu" in wrong["negative"]["remedy"]


def test_many_negative_entries_raise_the_question_of_a_transformation(client: httpx.Client) -> None:
    wrong = refused_fields(client, upload(client, np.log10(planted(6, 5, 4)))["id"])
    assert "log-scaled or centred?" in wrong["negative"]["problem"]
    assert "undo" in wrong["negative"]["remedy"]
    assert '"keep"' in wrong["negative"]["remedy"]


def test_nearly_all_entries_are_described_without_an_exponent(client: httpx.Client) -> None:
    X = np.full((10, 10, 4), np.nan)
    X[0, 0, 0] = 1
    wrong = refused_fields(client, upload(client, X)["id"])
    assert wrong["missing"]["problem"].startswith("399 of 400 entries (100 %) are NaN")


def test_everything_about_the_entries_is_one_answer(client: httpx.Client) -> None:
    X = with_gaps(6, 5, 4)
    X[0, 0, 0] = -1
    assert refused_fields(client, upload(client, X)["id"]).keys() == {"missing", "negative"}


def test_a_tensor_without_a_positive_entry_is_refused_by_the_job(client: httpx.Client) -> None:
    wrong = refused_fields(client, upload(client, -planted(6, 5, 4))["id"], negative="keep")
    assert "no entry is positive" in wrong["tensor_id"]["problem"]


def test_multiplicative_updates_cannot_keep_negative_entries(client: httpx.Client) -> None:
    wrong = refused_fields(client, upload(client, planted(6, 5, 4))["id"], method="mu", negative="keep")
    assert "mu cannot keep negative entries" in wrong["method"]["problem"]


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (np.ones((6, 5, 4)), "has dtype float64"),
        (np.ones((6, 5), bool), "has shape (6, 5) for a tensor of (6, 5, 4)"),
        (np.ones((6, 5, 2), bool), "has shape (6, 5, 2)"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(client: httpx.Client, mask: NDArray[Any], words: str) -> None:
    tensor, stored = upload(client, planted(6, 5, 4)), upload(client, mask)
    wrong = refused_fields(client, tensor["id"], mask={"tensor_id": stored["id"]})
    assert words in wrong["mask.tensor_id"]["problem"]
    assert wrong["mask.tensor_id"]["remedy"]


def test_masks_and_models_that_are_not_there_are_named(client: httpx.Client, other_client: httpx.Client) -> None:
    tensor, theirs = upload(client, planted(6, 5, 4)), upload(other_client, np.ones((6, 5, 4), bool))
    for id in (theirs["id"], "never"):
        asked = {"tensor_id": tensor["id"], "rank": 3, "method": "hals"}
        answer = client.post("/v1/jobs", json={**asked, "mask": {"tensor_id": id}})
        assert refused(answer, 404)["errors"][0]["field"] == "mask.tensor_id"
    answer = client.post("/v1/jobs", json={**asked, "fixed": {"job_id": "never", "modes": [1]}})
    assert refused(answer, 404)["errors"][0]["field"] == "fixed.job_id"
    both = {**asked, "fixed": {"job_id": "never", "modes": [1, 2, 3]}}
    answer = client.post("/v1/jobs", json=both)
    assert {error["field"] for error in refused(answer, 422)["errors"]} == {"fixed.job_id", "fixed.modes"}
    both = {"mask": {"tensor_id": "no"}, "fixed": {"job_id": "no", "modes": [1]}, "rank": 0}
    answer = client.post("/v1/jobs", json={**asked, **both})
    assert {error["field"] for error in refused(answer, 422)["errors"]} == {"rank", "mask.tensor_id", "fixed.job_id"}


@pytest.mark.parametrize("modes", [[], [0], [9], [1, 1], ["2"], 2])
def test_modes_that_are_none_are_refused(client: httpx.Client, modes: Any) -> None:
    wrong = refused_fields(client, upload(client, planted(6, 5, 4))["id"], fixed={"job_id": "x", "modes": modes})
    assert any(field.startswith("fixed.modes") for field in wrong)


def test_a_model_that_still_changes_cannot_be_fixed(client: httpx.Client) -> None:
    tensor = upload(client, planted(6, 5, 4))
    queued = submit(client, tensor["id"])
    wrong = refused_fields(client, tensor["id"], fixed={"job_id": queued["id"], "modes": [2, 3]})
    assert "still change" in wrong["fixed.job_id"]["problem"]


def test_the_memory_that_gaps_take_is_counted_before_the_job_is_queued(client: httpx.Client) -> None:
    X = planted(50, 40, 40)
    asked = {"rank": 60, "method": "anls-bpp", "penalty": "l1"}
    submit(client, upload(client, X)["id"], **asked)
    mask = upload(client, np.random.default_rng(0).random(X.shape) < 0.9)
    wrong = refused_fields(client, upload(client, X)["id"], **asked, mask={"tensor_id": mask["id"]})
    assert "bytes beside the tensor" in wrong["rank"]["problem"]
    X[0, 0, 0] = np.nan
    assert refused_fields(client, upload(client, X)["id"], **asked, **GAPS).keys() == {"rank"}


def test_a_mask_of_a_live_job_cannot_be_deleted(client: httpx.Client) -> None:
    tensor, mask = upload(client, planted(6, 5, 4)), upload(client, np.ones((1, 5, 4), bool))
    job = submit(client, tensor["id"], mask={"tensor_id": mask["id"]})
    assert job["mask"] == {"tensor_id": mask["id"]}
    refused(client.delete(f"/v1/tensors/{mask['id']}"), 409, "in-use")
    client.post(f"/v1/jobs/{job['id']}/cancel")
    assert client.delete(f"/v1/tensors/{mask['id']}").status_code == 204


def test_another_mask_makes_another_job_of_the_same_key(client: httpx.Client) -> None:
    tensor, mask = upload(client, planted(6, 5, 4)), upload(client, np.ones((1, 5, 4), bool))
    body = {"tensor_id": tensor["id"], "rank": 2, "method": "hals", "mask": {"tensor_id": mask["id"]}}
    key = {"Idempotency-Key": f"mask of {tensor['id']}"}
    first = client.post("/v1/jobs", json=body, headers=key)
    again = client.post("/v1/jobs", json=body, headers=key)
    assert first.json()["id"] == again.json()["id"]
    refused(client.post("/v1/jobs", json={**body, "mask": None}, headers=key), 422, "key-reused")


# What runs


def test_a_tensor_with_gaps_is_decomposed_as_in_python(client_with_worker: httpx.Client) -> None:
    lab, X = client_with_worker, with_gaps(12, 10, 8)
    done = finished(lab, submit(lab, upload(lab, X)["id"], **RUN, **GAPS)["id"])
    assert done["state"] == "succeeded", done["error"]
    expected = solve(X, Settings.model_validate({**RUN, **GAPS}))
    assert same_bits(factors_of(lab, done["id"], 3), expected.factors)
    assert done["result"]["missing"] == int(np.isnan(X).sum()) == expected.missing
    assert done["result"]["relative_error"] == expected.relative_error


def test_a_mask_of_integers_gives_what_the_mask_gives_in_python(client_with_worker: httpx.Client) -> None:
    lab = client_with_worker
    X = np.rint(1000 * planted(12, 10, 8)).astype(np.int32)
    X[:, 3, 4] = 99_999  # a detector that was blind, in every sample
    mask = np.ones((1, 10, 8), bool)
    mask[0, 3, 4] = False
    stored = upload(lab, mask)
    done = finished(lab, submit(lab, upload(lab, X)["id"], **RUN, mask={"tensor_id": stored["id"]})["id"])
    assert done["state"] == "succeeded", done["error"]
    assert same_bits(factors_of(lab, done["id"], 3), solve(X, Settings.model_validate(RUN), mask=mask).factors)
    assert done["result"]["missing"] == 12


def test_what_a_mask_hides_may_be_anything(client_with_worker: httpx.Client) -> None:
    lab, X, mask = client_with_worker, planted(12, 10, 8), np.ones((12, 10, 8), bool)
    mask[0, 0, :3] = False
    clean = solve(X, Settings.model_validate(RUN), mask=mask)
    X[0, 0, :3] = np.nan, -1, 1e100
    stored = upload(lab, mask)
    done = finished(lab, submit(lab, upload(lab, X)["id"], **RUN, mask={"tensor_id": stored["id"]})["id"])
    assert done["state"] == "succeeded", done["error"]
    assert same_bits(factors_of(lab, done["id"], 3), clean.factors)
    mask[0, 0, 0] = True
    failed = finished(lab, submit(lab, upload(lab, X)["id"], **RUN, mask={"tensor_id": upload(lab, mask)["id"]})["id"])
    assert failed["error"]["kind"] == "input"
    assert "1 entry is NaN" in failed["error"]["message"]


def test_negative_readings_are_kept_on_request(client_with_worker: httpx.Client) -> None:
    lab, X = client_with_worker, planted(12, 10, 8) - 0.2
    kept = {**RUN, "negative": "keep"}
    done = finished(lab, submit(lab, upload(lab, X)["id"], **kept)["id"])
    assert done["state"] == "succeeded", done["error"]
    assert same_bits(factors_of(lab, done["id"], 3), solve(X, Settings.model_validate(kept)).factors)


def test_new_samples_are_scored_with_a_model_that_stays(client_with_worker: httpx.Client) -> None:
    lab, X = client_with_worker, planted(20, 10, 8)
    model = finished(lab, submit(lab, upload(lab, X[:12])["id"], **RUN)["id"])
    new = upload(lab, X[12:])
    scored = submit(lab, new["id"], **RUN, fixed={"job_id": model["id"], "modes": [2, 3]})
    assert scored["fixed"] == {"job_id": model["id"], "modes": [2, 3]}
    done = finished(lab, scored["id"])
    assert done["state"] == "succeeded", done["error"]
    found, old = factors_of(lab, done["id"], 3), factors_of(lab, model["id"], 3)
    assert same_bits(found[1:], old[1:])
    assert done["result"]["relative_error"] < 0.05
    wrong = refused_fields(lab, new["id"], **{**RUN, "rank": 4}, fixed={"job_id": model["id"], "modes": [2, 3]})
    assert "give 3" in wrong["rank"]["remedy"]
    wrong = refused_fields(lab, new["id"], **{**RUN, "rank": 4}, fixed={"job_id": model["id"], "modes": [1, 2]})
    assert wrong.keys() == {"rank", "fixed.modes"}
    assert "mode 1 has a length of 12 there, 8 here" in wrong["fixed.modes"]["problem"]
    wrong = refused_fields(lab, new["id"], **RUN, fixed={"job_id": model["id"], "modes": [1, 2, 3]})
    assert "every mode" in wrong["fixed.modes"]["problem"]
    for field, value in {"sparsity": 0.01, "regrow": True}.items():
        wrong = refused_fields(lab, new["id"], **{**RUN, field: value}, fixed={"job_id": model["id"], "modes": [2, 3]})
        assert wrong.keys() == {field}
    wrong = refused_fields(lab, new["id"], **RUN, fixed={"job_id": model["id"], "modes": [4]})
    assert "a mode 4" in wrong["fixed.modes"]["problem"]
    wrong = refused_fields(lab, upload(lab, planted(5, 4))["id"], **RUN, fixed={"job_id": model["id"], "modes": [1]})
    assert "has 3 modes, this tensor 2" in wrong["fixed.job_id"]["problem"]
    assert lab.delete(f"/v1/jobs/{model['id']}").status_code == 204  # what has ended needs it no more
    assert same_bits(factors_of(lab, done["id"], 3), found)


def test_labels_of_fixed_modes_must_agree_where_both_have_some(client_with_worker: httpx.Client) -> None:
    lab, X = client_with_worker, planted(6, 4, 3)

    def label(tensor: dict[str, Any], emission: list[float], unit: str | None = "nm") -> None:
        axes = [
            {"name": "sample", "values": [f"{tensor['id']} {sample}" for sample in range(6)]},
            {"name": "emission", "unit": unit, "values": emission},
            {"name": "excitation", "unit": "nm", "values": [1, 2, 3]},
        ]
        assert lab.put(f"/v1/tensors/{tensor['id']}/axes", json=axes).status_code == 200

    old, new = upload(lab, X), upload(lab, X)
    label(old, [300, 310, 320, 330])
    model = finished(lab, submit(lab, old["id"], **RUN)["id"])
    fixed = {"job_id": model["id"], "modes": [2, 3]}
    submit(lab, new["id"], **RUN, fixed=fixed)  # without labels there is nothing to compare
    label(new, [300, 311, 320, 330])
    wrong = refused_fields(lab, new["id"], **RUN, fixed=fixed)
    assert "mode 2 has 310.0 at index 1 there, 311.0 here" in wrong["fixed.modes"]["problem"]
    label(new, [300, 310, 320, 330], "cm⁻¹")
    assert "in nm there" in refused_fields(lab, new["id"], **RUN, fixed=fixed)["fixed.modes"]["problem"]
    label(new, [300, 310, 320, 330], None)
    assert finished(lab, submit(lab, new["id"], **RUN, fixed=fixed)["id"])["state"] == "succeeded"


# Diagnostics


def test_diagnostics_are_those_of_the_result(client_with_worker: httpx.Client) -> None:
    lab, X = client_with_worker, planted(12, 10, 8)
    done = finished(lab, submit(lab, upload(lab, X)["id"], **RUN)["id"])
    answer = lab.get(f"/v1/jobs/{done['id']}/diagnostics")
    assert answer.status_code == 200, answer.text
    found, expected = answer.json(), diagnose(X, factors_of(lab, done["id"], 3))
    assert expected is not None
    assert found["core_consistency"] == expected.core_consistency
    assert found["core_consistency_reason"] is None
    assert [component["share"] for component in found["components"]] == [c.share for c in expected.components]
    assert [tuple(mode["residual"]) for mode in found["modes"]] == [mode.residual for mode in expected.modes]
    assert [tuple(mode["leverage"]) for mode in found["modes"]] == [mode.leverage for mode in expected.modes]
    assert np.array_equal(found["congruence"], expected.congruence)


def test_diagnostics_with_gaps_have_a_core_consistency(client_with_worker: httpx.Client) -> None:
    lab, X = client_with_worker, with_gaps(12, 10, 8)
    done = finished(lab, submit(lab, upload(lab, X)["id"], **RUN, **GAPS)["id"])
    found = lab.get(f"/v1/jobs/{done['id']}/diagnostics").json()
    expected = diagnose(X, factors_of(lab, done["id"], 3))
    assert expected is not None
    assert found["core_consistency"] == expected.core_consistency is not None
    assert found["core_consistency_reason"] is None
    total = done["result"]["relative_error"] ** 2 * np.nansum(np.square(X))
    for mode in found["modes"]:
        assert sum(mode["residual"]) == pytest.approx(total, rel=1e-6)


def test_a_job_without_diagnostics_says_why(client: httpx.Client, client_with_worker: httpx.Client) -> None:
    lab = client_with_worker
    tensor = upload(lab, planted(6, 5, 4))
    off = finished(lab, submit(lab, tensor["id"], diagnose=False)["id"])
    problem = refused(lab.get(f"/v1/jobs/{off['id']}/diagnostics"), 404, "no-diagnostics")
    assert "without diagnose" in problem["detail"]
    assert problem["remedy"]
    queued = submit(client, upload(client, planted(6, 5, 4))["id"])
    refused(client.get(f"/v1/jobs/{queued['id']}/diagnostics"), 409, "still-live")
    client.post(f"/v1/jobs/{queued['id']}/cancel")
    assert "cancelled" in refused(client.get(f"/v1/jobs/{queued['id']}/diagnostics"), 404)["detail"]
    refused(client.get("/v1/jobs/never/diagnostics"), 404, "not-found")


# Slices of the model


@pytest.fixture(scope="module")
def sliced() -> NDArray[np.float64]:
    X = planted(12, 10, 8)
    X[3, 1, :] = np.nan
    return X


def test_a_slice_has_model_tensor_and_residual(client_with_worker: httpx.Client, sliced: NDArray[np.float64]) -> None:
    lab = client_with_worker
    tensor = upload(lab, sliced)
    done = finished(lab, submit(lab, tensor["id"], **RUN, **GAPS)["id"])
    factors = factors_of(lab, done["id"], 3)
    model = np.einsum("ar,br,cr->abc", *factors)
    path = f"/v1/jobs/{done['id']}/model"
    found = lab.get(path, params={"fix": "1:3"}).json()
    assert (found["modes"], found["model"]["shape"], found["model"]["steps"]) == ([2, 3], [10, 8], [1, 1])
    np.testing.assert_allclose(found["model"]["values"], model[3], rtol=1e-12)
    assert found["tensor"]["values"][1] == found["residual"]["values"][1] == [None] * 8
    np.testing.assert_allclose(np.delete(np.array(found["tensor"]["values"], float), 1, 0), np.delete(sliced[3], 1, 0))
    residual = np.array(found["residual"]["values"], float)
    np.testing.assert_allclose(np.delete(residual, 1, 0), np.delete(sliced[3] - model[3], 1, 0), atol=1e-12)
    thinned = lab.get(path, params={"fix": "2:4", "max": 5}).json()["model"]
    assert (thinned["shape"], thinned["steps"]) == ([4, 4], [3, 2])
    np.testing.assert_allclose(thinned["values"], model[::3, 4, ::2], rtol=1e-12)
    line = lab.get(path, params={"fix": "1:0,3:7"}).json()
    np.testing.assert_allclose(line["model"]["values"], model[0, :, 7], rtol=1e-12)
    whole = lab.get(path).json()["model"]
    np.testing.assert_allclose(whole["values"], model, rtol=1e-12)
    for fix, words in {
        "4:0": "no mode 4",
        "0:0": "no mode 0",
        "1:12": "no index 12",
        "1": "is not a mode and an index",
        "1:-1": "is not a mode and an index",
        "1:1,1:2": "named twice",
        "1:0,2:0,3:0": "names every mode",
        "1:0,": "is not a mode and an index",
    }.items():
        problem = refused(lab.get(path, params={"fix": fix}), 422)
        assert problem["errors"][0]["field"] == "fix"
        assert words in problem["detail"]
        assert problem["errors"][0]["remedy"]
    assert refused(lab.get(path, params={"max": 0}), 422)["errors"][0]["field"] == "max"
    assert lab.delete(f"/v1/tensors/{tensor['id']}").status_code == 204
    alone = lab.get(path, params={"fix": "1:3"}).json()
    assert (alone["tensor"], alone["residual"], alone["model"]) == (None, None, found["model"])


def test_a_slice_with_a_mask_shows_nothing_that_was_masked(client_with_worker: httpx.Client) -> None:
    lab, mask = client_with_worker, np.ones((1, 10, 8), bool)
    mask[0, 2, 5] = False
    tensor, stored = upload(lab, planted(12, 10, 8)), upload(lab, mask)
    done = finished(lab, submit(lab, tensor["id"], **RUN, mask={"tensor_id": stored["id"]})["id"])
    assert done["state"] == "succeeded", done["error"]
    found = lab.get(f"/v1/jobs/{done['id']}/model", params={"fix": "1:11"}).json()
    missing = [[value is None for value in row] for row in found["residual"]["values"]]
    assert np.array_equal(missing, ~mask[0])
    fixed = lab.get(f"/v1/jobs/{done['id']}/model", params={"fix": "2:2"}).json()
    assert [row[5] for row in fixed["tensor"]["values"]] == [None] * 12


def test_a_slice_is_bounded_however_large_the_tensor(client_with_worker: httpx.Client) -> None:
    lab, shape = client_with_worker, (60, 50, 40, 3)
    done = finished(lab, submit(lab, upload(lab, planted(*shape))["id"], stop={"max_iterations": 1})["id"])
    for asked in ({}, {"max": "1024"}, {"fix": "4:1", "max": "1024"}):
        found = lab.get(f"/v1/jobs/{done['id']}/model", params=asked).json()["residual"]
        assert np.prod(found["shape"]) <= 65_536
        assert np.array(found["values"]).shape == tuple(found["shape"])
        lengths = shape if "fix" not in asked else shape[:3]
        assert found["shape"] == [-(-length // step) for length, step in zip(lengths, found["steps"], strict=True)]


def test_a_queued_job_has_no_slice_yet(client: httpx.Client) -> None:
    queued = submit(client, upload(client, planted(6, 5, 4))["id"])
    refused(client.get(f"/v1/jobs/{queued['id']}/model"), 409, "not-yet")
    client.post(f"/v1/jobs/{queued['id']}/cancel")
    refused(client.get(f"/v1/jobs/{queued['id']}/model"), 404)
