"""Whoever watches an accelerated run is told which numbers are approximate."""

import csv
import io

import httpx

from tests.app.api import events, finished, planted, submit, upload


def test_every_iteration_says_its_phase_live_and_stored(lab: httpx.Client) -> None:
    stop = {"criterion": "relative_objective", "tolerance": 1e-6, "max_iterations": 2000}
    tensor = upload(lab, planted(24, 24, 24))["id"]
    job = finished(lab, submit(lab, tensor, method="apg", accelerate="compress", stop=stop)["id"])
    seen = [event.content["phase"] for event in events(lab, job["id"]) if event.kind == "progress"]
    change = seen.index("exact")
    assert change > 0
    assert seen == ["compressed"] * change + ["exact"] * (len(seen) - change)
    assert job["progress"]["phase"] == "exact"
    path = f"/v1/jobs/{job['id']}/history"
    assert [row["phase"] for row in lab.get(path).json()] == seen
    table = csv.DictReader(io.StringIO(lab.get(path, params={"format": "csv"}).text))
    assert [row["phase"] for row in table] == seen


def test_a_plain_run_is_exact_from_the_start(lab: httpx.Client) -> None:
    job = submit(lab, upload(lab, planted(5, 5, 5))["id"], stop={"max_iterations": 4, "tolerance": 0})
    phases = [event.content["phase"] for event in events(lab, job["id"]) if event.kind == "progress"]
    assert phases == ["exact"] * 4


def test_the_documentation_names_the_phases(front: httpx.Client) -> None:
    described = front.get("/openapi.json").json()["components"]["schemas"]["Progress"]["properties"]["phase"]
    assert described["enum"] == ["compressed", "exact"]
    assert "approximate" in described["description"]
