"""Uploading, finding, downloading and deleting tensors."""

import base64
import hashlib
import socket
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest

from sparse_ncp.app.server.http.connection import LARGE_PIECE
from sparse_ncp.worker.config import Configuration
from tests.support.api import Api, npy, planted, refused, submit, upload
from tests.support.stack import wait_for


def leftovers(configuration: Configuration) -> list[Path]:
    return list((configuration.data / "uploads").iterdir())


def stored(configuration: Configuration) -> set[str]:
    return {path.parent.name for path in (configuration.data / "tensors").glob("*/manifest-*.json")}


def test_an_upload_answers_with_what_the_tensor_is(client: httpx.Client) -> None:
    X = planted(4, 5, 6)
    answer = client.post("/v1/tensors", params={"name": "first"}, content=npy(X))
    assert answer.status_code == 201
    record = answer.json()
    assert answer.headers["location"] == f"/v1/tensors/{record['id']}"
    assert (record["name"], record["shape"], record["dtype"]) == ("first", [4, 5, 6], "float64")
    assert record["sha256"] == hashlib.sha256(npy(X)).hexdigest()
    assert record["nbytes"] == len(npy(X))
    assert (record["min"], record["max"]) == (X.min(), X.max())
    assert record["norm"] == pytest.approx(np.linalg.norm(X), rel=1e-12)
    assert "owner" not in record
    assert client.get(answer.headers["location"]).json() == record


def test_a_form_gives_the_same_tensor_as_a_raw_body(client: httpx.Client) -> None:
    content = npy(planted(30, 40, 20))
    form = client.post("/v1/tensors", files={"note": ("n.txt", b"x"), "file": ("lab.npy", content)})
    assert form.status_code == 201, form.text
    assert form.json()["name"] == "lab.npy"
    assert form.json()["sha256"] == hashlib.sha256(content).hexdigest()
    assert client.get(f"/v1/tensors/{form.json()['id']}/content").content == content


def test_a_body_in_chunks_of_any_size_arrives_as_it_was_sent(client: httpx.Client) -> None:
    """A large piece is passed on without a copy; pieces that arrive before it is taken are appended to it."""
    content = npy(planted(60, 50, 40))
    file, sizes = BytesIO(content), cycle([1, LARGE_PIECE, 7, 3 * LARGE_PIECE, LARGE_PIECE - 1, 1])
    answer = client.post("/v1/tensors", content=iter(lambda: file.read(next(sizes)), b""))
    assert answer.status_code == 201, answer.text
    assert answer.json()["sha256"] == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    ("body", "content_type", "field"),
    [
        (b"--x\r\nContent-Disposition: form-data; name=other\r\n\r\nabc\r\n--x--\r\n", "boundary=x", "file"),
        (b"--x\r\nContent-Disposition: form-data; name=file\r\n\r\nabc", "boundary=x", "body"),
        (b"no form at all", "boundary=x", "body"),
        (b"--x--\r\n", "charset=utf-8", "Content-Type"),
    ],
)
def test_a_broken_form_is_refused(
    client: httpx.Client, configuration: Configuration, body: bytes, content_type: str, field: str
) -> None:
    headers = {"Content-Type": f"multipart/form-data; {content_type}"}
    problem = refused(client.post("/v1/tensors", content=body, headers=headers), 422, "bad-tensor")
    assert problem["errors"][0]["field"] == field
    assert leftovers(configuration) == []


def bad_files() -> dict[str, bytes]:
    X = planted(3, 4)
    good, infinite = npy(X), X.copy()
    infinite[2, 1] = np.inf
    return {
        "empty": b"",
        "text": b"a,b\n1,2\n",
        "zip": b"PK\x03\x04" + bytes(40),
        "pickle": b"\x80\x04" + bytes(40),
        "truncated": good[:-1],
        "padded": good + b"\0",
        "header bomb": b"\x93NUMPY\x02\x00" + (1 << 30).to_bytes(4, "little") + bytes(10),
        "vector": npy(np.ones(5)),
        "complex": npy(np.ones((2, 2), complex)),
        "empty mode": npy(np.ones((2, 0))),
        "zeros": npy(np.zeros((2, 2))),
        "infinite": npy(infinite),
        "all missing": npy(np.full((2, 2), np.nan)),
    }


@pytest.mark.parametrize("kind", bad_files())
def test_what_is_no_tensor_is_refused_with_the_reason(
    client: httpx.Client, configuration: Configuration, kind: str
) -> None:
    before = stored(configuration)
    problem = refused(client.post("/v1/tensors", content=bad_files()[kind]), 422, "bad-tensor")
    assert problem["errors"][0]["problem"]
    assert problem["errors"][0]["remedy"]
    assert leftovers(configuration) == []
    assert stored(configuration) == before


def test_missing_and_negative_entries_are_kept_and_counted(client: httpx.Client) -> None:
    X = planted(3, 4)
    X[1, 2], X[2, 1], X[0, 0] = -0.5, np.nan, -0.25
    record = upload(client, X)
    assert (record["missing"], record["negative"], record["min"]) == (1, 2, -0.5)
    assert record["max"] == np.nanmax(X)
    assert record["norm"] == pytest.approx(np.sqrt(np.nansum(np.square(X))), rel=1e-12)
    assert client.get(f"/v1/tensors/{record['id']}/content").content == npy(X)


def test_a_mask_is_a_tensor_of_booleans(client: httpx.Client) -> None:
    record = upload(client, np.array([[True, False, True]]))
    assert (record["dtype"], record["shape"], record["missing"]) == ("bool", [1, 3], 0)


def test_content_length_over_the_limit_is_refused_before_the_body_is_read(
    api: Api, configuration: Configuration
) -> None:
    address = urlsplit(api.address)
    with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
        head = f"POST /v1/tensors HTTP/1.1\r\nHost: x\r\nContent-Length: {configuration.max_tensor_bytes + 1}\r\n\r\n"
        connection.sendall(head.encode())
        assert b"413" in connection.recv(4096).split(b"\r\n")[0]


def test_a_stream_that_passes_the_limit_is_refused(client: httpx.Client, configuration: Configuration) -> None:
    chunks = (bytes(1 << 16) for _ in range(1 + (configuration.max_tensor_bytes >> 16)))
    refused(client.post("/v1/tensors", content=chunks), 413, "too-large")
    assert leftovers(configuration) == []


def test_a_form_that_passes_the_limit_is_refused(client: httpx.Client, configuration: Configuration) -> None:
    files = {"file": bytes(configuration.max_tensor_bytes + 1)}
    refused(client.post("/v1/tensors", files=files), 413, "too-large")
    assert leftovers(configuration) == []


def test_a_client_that_disconnects_leaves_nothing_behind(api: Api, configuration: Configuration) -> None:
    address = urlsplit(api.address)
    with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
        connection.sendall(b"POST /v1/tensors HTTP/1.1\r\nHost: x\r\nContent-Length: 500000\r\n\r\n" + bytes(100_000))
        wait_for(lambda: leftovers(configuration), what="the upload to begin")
    wait_for(lambda: not leftovers(configuration), what="the upload to vanish")


def test_a_digest_that_matches_is_accepted_and_another_is_refused(
    client: httpx.Client, configuration: Configuration
) -> None:
    content = npy(planted(7, 3, seed=5))
    digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
    right = {"Repr-Digest": f"sha-512=:AAAA:, sha-256=:{digest}:"}
    wrong = {"Repr-Digest": f"sha-256=:{base64.b64encode(bytes(32)).decode()}:"}
    broken = {"Repr-Digest": "sha-256=:???:"}
    for headers in (wrong, broken):
        problem = refused(client.post("/v1/tensors", content=content, headers=headers), 422)
        assert problem["errors"][0]["field"] == "Repr-Digest"
    assert hashlib.sha256(content).hexdigest() not in stored(configuration)
    assert client.post("/v1/tensors", content=content, headers=right).status_code == 201
    assert leftovers(configuration) == []


@pytest.mark.parametrize(
    "headers", [{"Content-Encoding": "gzip"}, {"Content-Type": "application/json"}, {"Content-Type": "multipart/mixed"}]
)
def test_a_body_in_another_form_is_refused(client: httpx.Client, headers: dict[str, str]) -> None:
    refused(client.post("/v1/tensors", content=npy(planted(2, 2)), headers=headers), 415, "unsupported-media")


def test_the_same_bytes_are_stored_once_and_go_with_the_last_record(
    client: httpx.Client, other_client: httpx.Client, configuration: Configuration
) -> None:
    X = planted(5, 5, seed=9)
    mine, theirs = upload(client, X), upload(other_client, X)
    assert mine["id"] != theirs["id"]
    assert mine["sha256"] == theirs["sha256"]
    assert client.delete(f"/v1/tensors/{mine['id']}").status_code == 204
    assert mine["sha256"] in stored(configuration)
    assert other_client.get(f"/v1/tensors/{theirs['id']}/content").content == npy(X)
    assert other_client.delete(f"/v1/tensors/{theirs['id']}").status_code == 204
    assert mine["sha256"] not in stored(configuration)


def test_a_digest_finds_only_the_callers_own_records(client: httpx.Client, other_client: httpx.Client) -> None:
    record = upload(client, planted(5, 4, seed=10))
    found = client.get("/v1/tensors", params={"sha256": record["sha256"]}).json()
    assert [item["id"] for item in found["items"]] == [record["id"]]
    assert other_client.get("/v1/tensors", params={"sha256": record["sha256"]}).json() == {"items": [], "next": None}


def test_another_owners_tensor_does_not_exist(client: httpx.Client, other_client: httpx.Client) -> None:
    record = upload(client, planted(5, 4, seed=11))
    for path in (f"/v1/tensors/{record['id']}", f"/v1/tensors/{record['id']}/content"):
        refused(other_client.get(path), 404, "not-found")
    refused(other_client.delete(f"/v1/tensors/{record['id']}"), 404)
    body = {"tensor_id": record["id"], "rank": 2, "method": "mu"}
    assert refused(other_client.post("/v1/jobs", json=body), 404)["errors"][0]["field"] == "tensor_id"


def test_pages_of_tensors_follow_one_another(client: httpx.Client) -> None:
    made = [upload(client, planted(2, 3, seed=20 + n))["id"] for n in range(5)]
    seen: list[Any] = []
    path: str | None = "/v1/tensors?limit=2"
    while path is not None:
        answer = client.get(path)
        assert len(answer.json()["items"]) <= 2
        seen += [item["id"] for item in answer.json()["items"]]
        path = answer.links["next"]["url"] if "next" in answer.links else None
        assert (path is None) == (answer.json()["next"] is None)
    assert seen[:5] == made[::-1]
    assert len(seen) == len(set(seen))


def test_content_comes_whole_by_range_and_not_at_all_if_known(client: httpx.Client) -> None:
    X = planted(20, 10, seed=30)
    content, path = npy(X), f"/v1/tensors/{upload(client, X)['id']}/content"
    whole = client.get(path)
    assert whole.content == content
    assert whole.headers["etag"] == f'"{hashlib.sha256(content).hexdigest()}"'
    part = client.get(path, headers={"Range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, content[10:20])
    assert part.headers["content-range"] == f"bytes 10-19/{len(content)}"
    assert client.get(path, headers={"Range": "bytes=-5"}).content == content[-5:]
    for known in (whole.headers["etag"], f'"other", W/{whole.headers["etag"]}', "*"):
        again = client.get(path, headers={"If-None-Match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == whole.headers["etag"]
    stale = client.get(path, headers={"Range": "bytes=0-0", "If-Range": '"other"'})
    assert (stale.status_code, stale.content) == (200, content)
    head = client.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["content-length"]) == len(content)


def test_a_range_that_is_not_there_is_refused(client: httpx.Client) -> None:
    X = planted(3, 3, seed=31)
    path = f"/v1/tensors/{upload(client, X)['id']}/content"
    beyond = client.get(path, headers={"Range": "bytes=100000-"})
    refused(beyond, 416)
    assert beyond.headers["content-range"] == f"bytes */{len(npy(X))}"


def test_a_tensor_that_a_live_job_needs_stays(client: httpx.Client) -> None:
    record = upload(client, planted(4, 4, seed=40))
    job = submit(client, record["id"])
    refused(client.delete(f"/v1/tensors/{record['id']}"), 409, "in-use")
    assert client.post(f"/v1/jobs/{job['id']}/cancel").status_code == 202
    assert client.delete(f"/v1/tensors/{record['id']}").status_code == 204
    refused(client.get(f"/v1/tensors/{record['id']}"), 404)


def test_a_full_disk_is_reported_and_leaves_nothing_behind(
    client: httpx.Client, configuration: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        refused(client.post("/v1/tensors", content=npy(planted(200, 100))), 507, "store-full")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert leftovers(configuration) == []
