"""Plots of a job: valid in every format, labelled, and visible to its owner only."""

import httpx
import pytest

from tests.support.api import finished, planted, refused, submit, upload

BEGINS = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}
TYPES = {"svg": "image/svg+xml", "png": "image/png", "pdf": "application/pdf"}
# A picture in SVG has every text as a comment beside its outlines.
LABELS = {"convergence": ("objective", "relative error", "iteration"), "components": ("mode 1", "mode 3")}


@pytest.fixture
def job(client_with_worker: httpx.Client) -> str:
    tensor = upload(client_with_worker, planted(6, 5, 4))["id"]
    ended = finished(client_with_worker, submit(client_with_worker, tensor, preset="recommended", method="hals")["id"])
    assert ended["state"] == "succeeded"
    return str(ended["id"])


@pytest.mark.parametrize("plot", LABELS)
@pytest.mark.parametrize("format", BEGINS)
def test_every_picture_is_made_in_every_format(
    client_with_worker: httpx.Client, job: str, plot: str, format: str
) -> None:
    answer = client_with_worker.get(f"/v1/jobs/{job}/plots/{plot}", params={"format": format})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == TYPES[format]
    assert answer.content.startswith(BEGINS[format])
    assert client_with_worker.get(f"/v1/jobs/{job}/plots/{plot}", params={"format": format}).content == answer.content


@pytest.mark.parametrize("plot", LABELS)
def test_every_picture_is_labelled(client_with_worker: httpx.Client, job: str, plot: str) -> None:
    drawn = client_with_worker.get(f"/v1/jobs/{job}/plots/{plot}").text
    for label in LABELS[plot]:
        assert f"<!-- {label} -->" in drawn


def test_components_stand_over_the_labels_of_the_tensor(client_with_worker: httpx.Client) -> None:
    tensor = upload(client_with_worker, planted(4, 5, 3))["id"]
    axes = [
        {"name": "sample", "values": ["a", "b", "c", "d"]},
        {"name": "emission", "unit": "nm", "values": [250, 260, 270, 280, 290]},
        {"name": "repeat", "values": [1, 2, 3]},
    ]
    assert client_with_worker.put(f"/v1/tensors/{tensor}/axes", json=axes).status_code == 200
    ended = finished(client_with_worker, submit(client_with_worker, tensor)["id"])
    drawn = client_with_worker.get(f"/v1/jobs/{ended['id']}/plots/components").text
    for label in ("sample", "emission [nm]", "repeat", "290", "d"):
        assert f"<!-- {label} -->" in drawn


def test_a_job_that_waits_has_no_components_and_an_empty_history(client: httpx.Client) -> None:
    waiting = submit(client, upload(client, planted(6, 5, 4))["id"])["id"]
    refused(client.get(f"/v1/jobs/{waiting}/plots/components"), 409)
    assert "<!-- no sweep has ended -->" in client.get(f"/v1/jobs/{waiting}/plots/convergence").text
    client.post(f"/v1/jobs/{waiting}/cancel")


def test_what_is_not_there_is_refused(client: httpx.Client, other_client: httpx.Client) -> None:
    job = submit(client, upload(client, planted(6, 5, 4))["id"])["id"]
    client.post(f"/v1/jobs/{job}/cancel")
    for plot in LABELS:
        refused(other_client.get(f"/v1/jobs/{job}/plots/{plot}"), 404)
    for path in (f"/v1/jobs/{job}/plots/histogram", f"/v1/jobs/{job}/plots/components?format=gif"):
        problem = refused(client.get(path), 422)
        assert problem["errors"][0]["field"] in ("plot", "format")
