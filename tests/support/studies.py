"""Studies over HTTP: submit, wait, and the pieces that tables are checked against."""

from collections.abc import Iterator
from typing import Any

import httpx

from tests.support.api import Sent, parsed
from tests.support.stack import wait_for

# Four cells of runs that take milliseconds.
GRID: dict[str, Any] = {
    "kind": "compare",
    "ranks": [2, 3],
    "methods": ["hals", "anls-bpp"],
    "betas": [0.01],
    "repeats": 3,
    "seed": 5,
    "rescale": True,
    "stop": {"max_iterations": 20},
}


def patient(lab: httpx.Client) -> httpx.Client:
    """A client that waits for a picture: the first one loads matplotlib, which takes a while on a busy machine."""
    lab.timeout = httpx.Timeout(180)
    return lab


def submit_study(lab: httpx.Client, tensor_id: str, **fields: Any) -> dict[str, Any]:
    answer = lab.post("/v1/studies", json={"tensor_id": tensor_id, **fields})
    assert answer.status_code == 202, answer.text
    study: dict[str, Any] = answer.json()
    return study


def get_study(lab: httpx.Client, id: str) -> dict[str, Any]:
    answer = lab.get(f"/v1/studies/{id}")
    assert answer.status_code == 200, answer.text
    study: dict[str, Any] = answer.json()
    return study


def ended_study(lab: httpx.Client, id: str, seconds: float = 120) -> dict[str, Any]:
    """The study once it has ended."""

    def look() -> bool:
        return any(study["id"] == id and study["finished_at"] for study in lab.get("/v1/studies").json()["items"])

    wait_for(look, seconds, f"study {id}")
    return get_study(lab, id)


def runs_of(lab: httpx.Client, id: str) -> list[dict[str, Any]]:
    """All jobs of a study, page by page."""
    found: list[dict[str, Any]] = []
    cursor = None
    while True:
        query: dict[str, str | int] = {"study_id": id, "limit": 500}
        if cursor:
            query["cursor"] = cursor
        page = lab.get("/v1/jobs", params=query).json()
        found += page["items"]
        cursor = page["next"]
        if cursor is None:
            return found


def study_events(lab: httpx.Client, id: str, after: str | None = None) -> Iterator[Sent]:
    """The events of one connection, until the server ends it."""
    headers = {"Last-Event-ID": after} if after else {}
    with lab.stream("GET", f"/v1/studies/{id}/events", headers=headers) as answer:
        assert answer.status_code == 200
        yield from parsed(answer)
