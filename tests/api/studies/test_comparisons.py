"""A comparison over HTTP: its runs are ordinary jobs, and its table agrees with their records."""

import csv
import io
import statistics
from itertools import combinations, product
from typing import Any

import httpx
import numpy as np
import pytest

from sparse_ncp.solvers import Settings, solve
from sparse_ncp.solvers.metrics import factor_match_score, psnr
from sparse_ncp.worker.operations import study_admission
from tests.support.api import Sent, finished, planted, read_factors, refused, submit, upload
from tests.support.studies import GRID, ended_study, get_study, patient, runs_of, study_events, submit_study

TENSOR = planted(9, 8, 7)


def spread(values: list[float]) -> Any:
    return pytest.approx({"mean": statistics.fmean(values), "deviation": statistics.stdev(values)}, rel=1e-9, abs=1e-12)


def cell_of(run: dict[str, Any]) -> tuple[int, str]:
    return run["settings"]["rank"], run["settings"]["method"]


def test_the_table_is_the_one_that_the_single_jobs_give(client_with_worker: httpx.Client) -> None:
    lab = patient(client_with_worker)
    true = np.random.default_rng(3).random((8, 3))
    asked = {**GRID, "reference": {"tensor_id": upload(lab, true)["id"], "mode": 2}}
    study = ended_study(lab, submit_study(lab, upload(lab, TENSOR)["id"], **asked)["id"])
    assert study["state"] == "succeeded"
    assert study["runs"] == {
        "total": 12, "queued": 0, "running": 0, "succeeded": 12, "failed": 0, "cancelled": 0,
    }  # fmt: skip
    runs = runs_of(lab, study["id"])
    assert len(runs) == 12
    table = lab.get(f"/v1/studies/{study['id']}/table", params={"mode": 3}).json()
    assert [(row["rank"], row["method"], row["beta"]) for row in table["rows"]] == [
        (rank, method, 0.01) for rank in (2, 3) for method in ("hals", "anls-bpp")
    ]
    for row in table["rows"]:
        own = [run for run in runs if cell_of(run) == (row["rank"], row["method"])]
        results = [run["result"] for run in own]
        factors = [read_factors(lab.get(f"/v1/jobs/{run['id']}/factors").content) for run in own]
        assert (row["runs"], row["failures"]) == (3, 0)
        for name in ("objective", "relative_error", "seconds", "iterations"):
            assert row[name] == spread([result[name] for result in results]), name
        assert row["sparsity"] == spread([result["sparsity"]["per_mode"][2] for result in results])
        assert row["mode_components"] == spread([result["nonzero_components"]["per_mode"][2] for result in results])
        kept = [sum(one > 1e-6 * max(result["weights"]) for one in result["weights"]) for result in results]
        assert row["components"] == spread(kept)
        assert row["penalty"] == "l1"
        assert {run["settings"]["penalty"] for run in own} == {"l1"}
        assert set(row["warnings"]) == {text for result in results for text in result["warnings"]}
        assert row["warned"] == sum(bool(result["warnings"]) for result in results)
        assert row["psnr"] == spread([psnr(found[1], true) for found in factors])
        pairs = [factor_match_score(one, other, divisor="larger") for one, other in combinations(factors, 2)]
        assert row["factor_match"] == spread(pairs)
        assert row["best"] == min(own, key=lambda run: float(run["result"]["objective"]))["id"]
    for rank in table["ranks"]:
        own = [run for run in runs if run["settings"]["rank"] == rank["rank"]]
        best = min(own, key=lambda run: float(run["result"]["relative_error"]))
        assert rank["job_id"] == best["id"]
        found = lab.get(f"/v1/jobs/{best['id']}/diagnostics").json()["core_consistency"]
        assert rank["core_consistency"] == pytest.approx(found)


def test_a_comparison_keeps_the_recommendation_of_its_table(client_with_worker: httpx.Client) -> None:
    lab = patient(client_with_worker)
    asked = {**GRID, "validate": {"split_half": {"mode": 1, "parts": 2}}}
    study = submit_study(lab, upload(lab, TENSOR)["id"], **asked)
    assert study["recommendation"] is None
    *_, end = study_events(lab, study["id"])
    kept = next(one for one in lab.get("/v1/studies").json()["items"] if one["id"] == study["id"])
    assert end.content["recommendation"] == kept["recommendation"] is not None
    found = get_study(lab, study["id"])
    recommendation = found["recommendation"]
    row = next(row for row in found["table"]["rows"] if row["best"] == recommendation["best"])
    assert [row[name] for name in ("rank", "method", "beta", "requested_sparsity")] == [
        recommendation[name] for name in ("rank", "method", "beta", "sparsity")
    ]
    assert recommendation["title"].startswith(f"Rank {recommendation['rank']} – ")
    assert "split halves of the data" in recommendation["sentences"][0]
    assert (kept["recommendation"], kept["table"]) == (recommendation, None)


def test_run_k_of_every_cell_starts_from_the_same_factors_as_a_job_of_its_own(client_with_worker: httpx.Client) -> None:
    lab = patient(client_with_worker)
    study = ended_study(lab, submit_study(lab, upload(lab, TENSOR)["id"], **GRID)["id"])
    for run in runs_of(lab, study["id"]):
        settings = Settings.model_validate(run["settings"])
        assert settings.seed in (5, 6, 7)
        alone = solve(TENSOR, settings, threads=1)
        shared = read_factors(lab.get(f"/v1/jobs/{run['id']}/factors").content)
        assert all(np.array_equal(mine, theirs) for mine, theirs in zip(shared, alone.factors, strict=True))
    assert len({(*cell_of(run), run["settings"]["seed"]) for run in runs_of(lab, study["id"])}) == 12


def test_a_run_that_shared_a_process_is_a_job_like_any_other(client_with_worker: httpx.Client) -> None:
    lab = patient(client_with_worker)
    tensor = upload(lab, TENSOR)["id"]
    study = ended_study(lab, submit_study(lab, tensor, **GRID)["id"])
    run = runs_of(lab, study["id"])[0]
    same = {name: run["settings"][name] for name in ("rank", "method", "beta", "penalty", "seed", "stop", "rescale")}
    job = finished(lab, submit(lab, tensor, **same)["id"])
    assert run["study_id"] == study["id"]
    assert job["study_id"] is None
    assert run["resolved"] == job["resolved"]
    for name in ("objective", "relative_error", "iterations", "weights", "sparsity", "stop_reason"):
        assert run["result"][name] == job["result"][name]
    for path in ("factors", "factors?format=mat", "factors?format=csv", "factors?format=nc", "factors/2"):
        mine, theirs = (lab.get(f"/v1/jobs/{one['id']}/{path}") for one in (run, job))
        assert mine.status_code == 200
        if path.endswith(("factors", "2")):  # the others hold the computing time
            assert mine.content == theirs.content
            assert mine.headers["etag"] == theirs.headers["etag"]
    numbers = [
        [(row["iteration"], row["objective"]) for row in lab.get(f"/v1/jobs/{one['id']}/history").json()]
        for one in (run, job)
    ]
    assert numbers[0] == numbers[1]
    with lab.stream("GET", f"/v1/jobs/{run['id']}/events") as answer:
        text = answer.read().decode()
    ids = [line.removeprefix("id: ") for line in text.splitlines() if line.startswith("id: ")]
    last = run["result"]["iterations"]
    assert ids == ["0-1", "0-2", *(f"{place}-0" for place in range(1, last + 1)), f"{last}-1", f"{last}-2"]
    assert lab.get(f"/v1/jobs/{run['id']}/events", headers={"Last-Event-ID": ids[-1]}).status_code == 204
    assert lab.get(f"/v1/jobs/{run['id']}/plots/components").status_code == 200
    refused(lab.delete(f"/v1/jobs/{run['id']}"), 409, "part-of-study")


def test_a_table_comes_as_json_csv_and_latex_with_the_same_numbers(client_with_worker: httpx.Client) -> None:
    lab = patient(client_with_worker)
    asked = {**GRID, "betas": None, "sparsities": [0.01, 0.3], "penalty": "l1"}
    study = ended_study(lab, submit_study(lab, upload(lab, TENSOR)["id"], **asked)["id"])
    address = f"/v1/studies/{study['id']}/table"
    answered = lab.get(address).json()
    assert answered == study["table"]
    written = lab.get(address, params={"format": "csv"})
    assert written.headers["content-type"].startswith("text/csv")
    lines = list(csv.DictReader(io.StringIO(written.text)))
    assert len(lines) == len(answered["rows"]) == 8
    for line, row in zip(lines, answered["rows"], strict=True):
        assert (int(line["rank"]), line["method"], float(line["asked_sparsity"])) == (
            row["rank"], row["method"], row["asked_sparsity"],
        )  # fmt: skip
        assert line["best"] == row["best"]
        assert float(line["objective_mean"]) == row["objective"]["mean"]
        assert line["psnr_mean"] == ""
    latex = lab.get(address, params={"format": "latex"}).text
    assert latex.count(r"\num{") >= 8 * 6
    assert r"\begin{tabular}" in latex
    problem = refused(lab.get(address, params={"mode": 4}), 422)
    assert problem["errors"][0]["field"] == "mode"


def test_every_run_has_one_event_and_an_interrupted_reader_resumes(client_with_worker: httpx.Client) -> None:
    lab = patient(client_with_worker)
    study = submit_study(lab, upload(lab, TENSOR)["id"], **GRID)
    seen = list(study_events(lab, study["id"]))
    kinds = [event.kind for event in seen]
    assert kinds == ["state", "state", *["run"] * 12, "state", "end"]
    runs = [event.content for event in seen if event.kind == "run"]
    assert {run["job_id"] for run in runs} == {run["id"] for run in runs_of(lab, study["id"])}
    assert [run["done"] for run in runs] == list(range(1, 13))
    assert {(run["cell"], run["repeat"]) for run in runs} == set(product(range(4), range(3)))
    assert seen[-1].content["state"] == "succeeded"
    assert list(study_events(lab, study["id"], seen[4].id)) == seen[5:]
    address = f"/v1/studies/{study['id']}/events"
    assert lab.get(address, headers={"Last-Event-ID": seen[-1].id}).status_code == 204
    assert refused(lab.get(address, headers={"Last-Event-ID": "999-0"}), 422)["errors"][0]["field"] == "Last-Event-ID"


def test_a_reader_who_comes_back_while_runs_go_on_misses_none_and_sees_none_twice(
    client_with_worker: httpx.Client,
) -> None:
    lab = patient(client_with_worker)
    study = submit_study(lab, upload(lab, TENSOR)["id"], **{**GRID, "repeats": 20})
    seen: list[Sent] = []
    while not seen or seen[-1].kind != "end":
        again = study_events(lab, study["id"], seen[-1].id if seen else None)
        seen += [event for _, event in zip(range(9), again, strict=False)]  # then the connection is dropped
    assert [event.content["done"] for event in seen if event.kind == "run"] == list(range(1, 81))
    assert len({event.id for event in seen}) == len(seen)


def test_validations_are_reported_for_every_rank(client_with_worker: httpx.Client) -> None:
    lab = patient(client_with_worker)
    checks = {"split_half": {"mode": 1, "parts": 4}, "holdout": {"fraction": 0.2, "folds": 2}}
    asked = {**GRID, "ranks": [1, 3], "repeats": 1, "validate": checks}
    study = ended_study(lab, submit_study(lab, upload(lab, planted(16, 9, 8))["id"], **asked)["id"])
    assert study["runs"]["total"] == len(runs_of(lab, study["id"])) == 4
    for rank in study["table"]["ranks"]:
        assert len(rank["split_half"]["congruence"]) == 3
        assert rank["split_half"]["passed"] == (min(rank["split_half"]["congruence"]) > 0.95)
        assert len(rank["holdout"]["relative_error"]) == 2
    one, three = (rank["holdout"]["relative_error"] for rank in study["table"]["ranks"])
    assert max(three) < min(one)


def test_runs_that_fail_are_counted_and_the_others_stand(client_with_worker: httpx.Client) -> None:
    """Only the run itself detects a mask that hides all entries but zeros."""
    lab = patient(client_with_worker)
    seen = np.zeros((9, 8, 7), bool)
    seen[range(9), np.arange(9) % 8, np.arange(9) % 7] = True  # some entry of every index
    mask = upload(lab, seen)["id"]
    tensor = upload(lab, np.where(seen, 0.0, TENSOR))["id"]
    study = ended_study(lab, submit_study(lab, tensor, **GRID, mask={"tensor_id": mask})["id"])
    assert study["state"] == "failed"
    assert study["error"]["kind"] == "input"
    assert [(row["runs"], row["failures"], row["objective"]) for row in study["table"]["rows"]] == [(3, 3, None)] * 4


def test_halves_that_a_large_tensor_does_not_have_are_named_and_the_table_stands(
    client_with_worker: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors above a size are not searched before the runs."""
    monkeypatch.setattr(study_admission, "MOST_SEARCHED", 0)
    lab, tensor = patient(client_with_worker), np.array(TENSOR)
    tensor[::2, 4] = np.nan
    fields = {**GRID, "missing": "nan", "exclude": {"2": [1]}, "validate": {"split_half": {"mode": 1, "parts": 2}}}
    study = ended_study(lab, submit_study(lab, upload(lab, tensor)["id"], **fields)["id"])
    assert study["state"] == "succeeded"
    assert [row["failures"] for row in study["table"]["rows"]] == [0] * 4
    error = study["error"]
    assert error["kind"] == "input"
    assert error["message"] == "validate.split_half: has halves in which index 4 of mode 2 has no observed entry"
    assert 'validate.split_half {"mode": 2, "parts": 2}' in error["remedy"]
    assert 'exclude={"2": [1, 4]}' in error["remedy"]


def test_a_deleted_study_takes_its_runs_along(client_with_worker: httpx.Client, other_client: httpx.Client) -> None:
    lab = patient(client_with_worker)
    study = ended_study(lab, submit_study(lab, upload(lab, TENSOR)["id"], **GRID)["id"])
    runs = runs_of(lab, study["id"])
    before = lab.get("/v1/usage").json()
    refused(other_client.delete(f"/v1/studies/{study['id']}"), 404)
    assert lab.delete(f"/v1/studies/{study['id']}").status_code == 204
    after = lab.get("/v1/usage").json()
    assert before["jobs"]["succeeded"] - after["jobs"]["succeeded"] == 12
    assert after["result_bytes"] < before["result_bytes"]
    refused(lab.get(f"/v1/studies/{study['id']}"), 404)
    refused(lab.delete(f"/v1/studies/{study['id']}"), 404)
    assert all(lab.get(f"/v1/jobs/{run['id']}").status_code == 404 for run in runs)
    assert runs_of(lab, study["id"]) == []


def test_get_reports_the_progress_of_a_study(client_with_worker: httpx.Client) -> None:
    lab = patient(client_with_worker)
    study = submit_study(lab, upload(lab, TENSOR)["id"], **GRID, name="first look")
    assert study["name"] == "first look"
    assert study["table"] is None or study["table"]["rows"]
    done = ended_study(lab, study["id"])
    assert (done["progress"], done["seconds_left"], done["advice"]) == (1.0, None, None)
    assert done["request"]["ranks"] == [2, 3]
    listed = next(one for one in lab.get("/v1/studies").json()["items"] if one["id"] == study["id"])
    assert listed["table"] is None
    assert {**listed, "table": done["table"]} == done
    assert get_study(lab, study["id"]) == done
