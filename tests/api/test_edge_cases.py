"""Unusual but valid requests get a clear answer, never a 500 or a timeout."""

import base64
import hashlib

import httpx
import numpy as np
import pytest

from tests.support.api import npy, planted, refused, submit, upload


@pytest.mark.parametrize("path", ["/v1/jobs?cursor=%D9%A3", "/v1/tensors?cursor=%D9%A3"])
def test_digits_of_other_scripts_are_no_cursor(client: httpx.Client, path: str) -> None:
    assert refused(client.get(path), 422)["errors"][0]["field"] == "cursor"


def test_a_number_beyond_every_iteration_is_refused(client: httpx.Client) -> None:
    job = submit(client, upload(client, planted(5, 4, 3))["id"])
    refused(client.get(f"/v1/jobs/{job['id']}/history", params={"after": 10**23}), 422)


@pytest.mark.parametrize(
    "body",
    [
        '{"tensor_id": "\\ud800", "rank": 2, "method": "mu"}',
        '{"tensor_id": "x", "rank": 2, "method": "mu", "initial": {"job_id": "\\ud800"}}',
    ],
)
def test_half_a_character_is_no_id(client: httpx.Client, body: str) -> None:
    refused(client.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"}), 422)


def test_an_event_id_that_never_was_is_refused(client: httpx.Client) -> None:
    """It would hold the shared reader at a place where nothing ever comes."""
    job = submit(client, upload(client, planted(5, 4, 3))["id"])
    answer = client.get(f"/v1/jobs/{job['id']}/events", headers={"Last-Event-ID": "999999999-0"})
    assert refused(answer, 422)["errors"][0]["field"] == "Last-Event-ID"


def test_a_stream_that_skipped_the_end_still_ends(client: httpx.Client) -> None:
    job = submit(client, upload(client, planted(5, 4, 3))["id"])
    headers = {"Last-Event-ID": "0-999"}
    with client.stream("GET", f"/v1/jobs/{job['id']}/events", headers=headers, timeout=30) as stream:
        lines = stream.iter_lines()
        next(lines)
        client.post(f"/v1/jobs/{job['id']}/cancel")
        assert not any(line.startswith("id:") for line in lines)


def test_a_norm_out_of_range_is_refused_before_it_is_queued(client: httpx.Client) -> None:
    tensor = upload(client, planted(5, 4, 3) * 1e100)
    body = {"tensor_id": tensor["id"], "rank": 2, "method": "mu"}
    assert refused(client.post("/v1/jobs", json=body), 422)["errors"][0]["field"] == "tensor"


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/jobs", {"GET", "HEAD", "POST"}),
        ("/v1/jobs/x", {"DELETE", "GET", "HEAD", "PATCH"}),
        ("/v1/tensors/x/content", {"GET", "HEAD"}),
    ],
)
def test_a_wrong_method_names_all_the_right_ones(client: httpx.Client, path: str, allowed: set[str]) -> None:
    answer = client.put(path)
    refused(answer, 405)
    assert set(answer.headers["allow"].split(", ")) == allowed


def test_ranges_that_mean_nothing_are_ignored(client: httpx.Client) -> None:
    tensor = upload(client, planted(5, 4, 3))
    path = f"/v1/tensors/{tensor['id']}/content"
    for asked in ("lines=1-2", "bytes=abc", "bytes="):
        assert client.get(path, headers={"Range": asked}).status_code == 200
    head = client.head(path, headers={"Range": "bytes=0-3"})
    assert (head.status_code, head.headers["content-length"]) == (200, str(tensor["nbytes"]))


def test_if_match_guards_a_download(client: httpx.Client) -> None:
    tensor = upload(client, planted(5, 4, 3))
    path = f"/v1/tensors/{tensor['id']}/content"
    refused(client.get(path, headers={"If-Match": '"other"'}), 412)
    assert client.get(path, headers={"If-Match": f'"{tensor["sha256"]}"'}).status_code == 200


@pytest.mark.parametrize("digest", ["sha-256=deadbeef", "sha-256=:not base64:", "sha-256="])
def test_a_digest_that_cannot_be_read_is_refused_not_ignored(client: httpx.Client, digest: str) -> None:
    content = npy(np.ones((2, 3)))
    refused(client.post("/v1/tensors", content=content, headers={"Repr-Digest": digest}), 422)
    known = base64.b64encode(hashlib.sha256(content).digest()).decode()
    answer = client.post("/v1/tensors", content=content, headers={"Repr-Digest": f"sha-256=:{known}:"})
    assert answer.status_code == 201


def test_a_search_by_digest_keeps_to_its_limit(client: httpx.Client) -> None:
    array = planted(6, 5, 2)
    tensor, *_ = [upload(client, array) for _ in range(3)]
    found = client.get("/v1/tensors", params={"sha256": tensor["sha256"], "limit": 2}).json()
    assert len(found["items"]) == 2


def test_a_job_that_ended_without_factors_has_none(client: httpx.Client) -> None:
    job = submit(client, upload(client, planted(5, 4, 3))["id"])
    path = f"/v1/jobs/{job['id']}/factors"
    refused(client.get(path), 409)
    client.post(f"/v1/jobs/{job['id']}/cancel")
    refused(client.get(path), 404)


def test_the_documented_example_needs_no_method(client: httpx.Client) -> None:
    schema = client.get("/openapi.json").json()["components"]["schemas"]["JobRequest"]
    assert set(schema["required"]) == {"rank", "tensor_id"}
    tensor = upload(client, planted(9, 9, 9))
    assert client.post("/v1/jobs", json={**schema["example"], "tensor_id": tensor["id"]}).status_code == 202


def test_a_boundary_that_is_too_long_is_refused(client: httpx.Client) -> None:
    kind = f"multipart/form-data; boundary={'x' * 300}"
    problem = refused(client.post("/v1/tensors", content=b"--x", headers={"Content-Type": kind}), 422, "bad-tensor")
    assert problem["errors"][0]["field"] == "Content-Type"
