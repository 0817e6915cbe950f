"""A choice of the number of components over HTTP: the advice, the model of its job, and both kinds of plots."""

import io
import xml.etree.ElementTree as ET
from typing import Any

import httpx
import numpy as np
import pytest

from sparse_ncp.solvers.studies import ChoiceSettings, choose
from tests.support.api import planted, read_factors, refused, upload
from tests.support.studies import GRID, ended_study, patient, runs_of, study_events, submit_study

CHOICE: dict[str, Any] = {"kind": "choose", "rank": 4, "seeds": 2, "seed": 3}
STARTS = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}


@pytest.fixture(scope="module")
def tensor() -> Any:
    return np.maximum(0, planted(10, 9, 8, rank=2) + 0.05 * np.random.default_rng(8).standard_normal((10, 9, 8)))


def test_a_choice_ends_with_the_advice_that_the_package_gives(client_with_worker: httpx.Client, tensor: Any) -> None:
    lab = patient(client_with_worker)
    stored = upload(lab, tensor)["id"]
    axes = [{"name": name, "values": list(range(n))} for name, n in zip(("sample", "time", "place"), tensor.shape)]  # noqa: B905
    assert lab.put(f"/v1/tensors/{stored}/axes", json=axes).status_code == 200
    made = submit_study(lab, stored, **CHOICE)
    seen = list(study_events(lab, made["id"]))
    study = ended_study(lab, made["id"])
    *_, last = choose(tensor, ChoiceSettings(rank=4, seeds=2, seed=3), threads=1)
    assert last.outcome is not None
    advice = last.outcome.advice
    assert study["advice"]["components"] == advice.components
    assert study["advice"]["suggestion"] == advice.suggestion == 2
    assert (study["advice"]["confidence"], study["advice"]["residuals_white"]) == (
        advice.confidence,
        advice.residuals_white,
    )
    assert study["advice"]["range"] == list(advice.range)
    former = {"sure": "confidence", "white": "residuals_white", "between": "range"}
    assert {name: study["advice"][name] for name in former} == {
        name: study["advice"][present] for name, present in former.items()
    }
    assert study["advice"]["sparsity"] == pytest.approx(advice.sparsity)
    assert study["advice"]["reason"] == advice.reason
    assert [point["components"] for point in study["choice"]["points"]] == [p.components for p in last.outcome.points]
    # Events report its steps in order, and its single run.
    progress = [event.content["progress"] for event in seen if event.kind == "progress"]
    assert progress == sorted(progress)
    assert len(progress) > 3
    assert [event.kind for event in seen][-3:] == ["run", "state", "end"]
    # The result is like a job's.
    (run,) = runs_of(lab, made["id"])
    assert (run["id"], run["state"], run["result"]) == (study["job_id"], "succeeded", study["result"])
    factors = read_factors(lab.get(f"/v1/jobs/{run['id']}/factors").content)
    assert [A.shape for A in factors] == [(10, 2), (9, 2), (8, 2)]
    model = np.einsum("ir,jr,kr->ijk", *factors)
    error = np.linalg.norm(tensor - model) / np.linalg.norm(tensor)
    assert study["result"]["relative_error"] == pytest.approx(error, rel=1e-6)
    assert len(study["result"]["weights"]) == 2
    assert lab.get(f"/v1/jobs/{run['id']}/diagnostics").json()["core_consistency"] is not None
    for plot in ("choice", "components"):
        for format, start in STARTS.items():
            picture = lab.get(f"/v1/studies/{made['id']}/plots/{plot}", params={"format": format})
            assert picture.status_code == 200
            assert picture.content.startswith(start)
    words = labels(lab.get(f"/v1/studies/{made['id']}/plots/choice").content)
    assert {"number of components", "relative error"} <= words
    assert {"sample", "time", "place"} <= labels(lab.get(f"/v1/studies/{made['id']}/plots/components").content)
    refused(lab.get(f"/v1/studies/{made['id']}/table"), 404)
    refused(lab.get(f"/v1/studies/{made['id']}/plots/path"), 404)


def labels(svg: bytes) -> set[str]:
    """The texts of a picture, which matplotlib draws as paths under comments."""
    assert ET.fromstring(svg).tag.endswith("svg")
    comments = (line.strip() for line in svg.decode().splitlines() if "<!-- " in line)
    return {comment.removeprefix("<!-- ").removesuffix(" -->") for comment in comments}


def test_every_picture_of_a_comparison_is_valid_and_labelled(client_with_worker: httpx.Client) -> None:
    lab = patient(client_with_worker)
    true = np.random.default_rng(3).random((8, 3))
    asked = {**GRID, "betas": [0.0, 0.1], "reference": {"tensor_id": upload(lab, true)["id"], "mode": 2}}
    study = ended_study(lab, submit_study(lab, upload(lab, planted(9, 8, 7))["id"], **asked)["id"])["id"]
    wanted = {
        "objective": {"objective", "computing time [s]", "hals", "anls-bpp"},
        "quality": {"PSNR of mode 2 [dB]", "rank 2, hals, beta 0.1"},
        "path": {"relative error", "β", "rank 3"},
        "components": {"mode 1", "mode 2", "mode 3"},
    }
    for plot, words in wanted.items():
        assert words <= labels(lab.get(f"/v1/studies/{study}/plots/{plot}").content), plot
        for format, start in STARTS.items():
            answer = lab.get(f"/v1/studies/{study}/plots/{plot}", params={"format": format})
            assert answer.content.startswith(start)
    assert io.BytesIO(answer.content).getbuffer().nbytes > 1000


def test_a_choice_over_its_time_fails_and_says_so(client_with_worker: httpx.Client, tensor: Any) -> None:
    lab = patient(client_with_worker)
    made = submit_study(lab, upload(lab, tensor)["id"], **CHOICE, stop={"max_seconds": 1e-3})
    study = ended_study(lab, made["id"])
    assert study["state"] == "failed"
    assert "longer than 0.001 s" in study["error"]["message"]
    assert study["advice"] is None
