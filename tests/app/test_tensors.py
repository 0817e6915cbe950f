"""Uploading, finding, downloading and deleting tensors."""

import base64
import hashlib
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest

from tests.app.api import Api, npy, planted, refused, submit, upload
from tests.stack import wait_for
from worker.configuration import Configuration


def leftovers(configuration: Configuration) -> list[Path]:
    return list((configuration.data / "uploads").iterdir())


def stored(configuration: Configuration) -> set[str]:
    return {path.stem for path in (configuration.data / "tensors").glob("*.npy")}


def test_an_upload_answers_with_what_the_tensor_is(front: httpx.Client) -> None:
    X = planted(4, 5, 6)
    answer = front.post("/v1/tensors", params={"name": "first"}, content=npy(X))
    assert answer.status_code == 201
    record = answer.json()
    assert answer.headers["location"] == f"/v1/tensors/{record['id']}"
    assert (record["name"], record["shape"], record["dtype"]) == ("first", [4, 5, 6], "float64")
    assert record["sha256"] == hashlib.sha256(npy(X)).hexdigest()
    assert record["nbytes"] == len(npy(X))
    assert (record["min"], record["max"]) == (X.min(), X.max())
    assert record["norm"] == pytest.approx(np.linalg.norm(X), rel=1e-12)
    assert "owner" not in record
    assert front.get(answer.headers["location"]).json() == record


def test_a_form_gives_the_same_tensor_as_a_raw_body(front: httpx.Client) -> None:
    content = npy(planted(30, 40, 20))
    form = front.post("/v1/tensors", files={"note": ("n.txt", b"x"), "file": ("lab.npy", content)})
    assert form.status_code == 201, form.text
    assert form.json()["name"] == "lab.npy"
    assert form.json()["sha256"] == hashlib.sha256(content).hexdigest()
    assert front.get(f"/v1/tensors/{form.json()['id']}/content").content == content


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
    front: httpx.Client, configuration: Configuration, body: bytes, content_type: str, field: str
) -> None:
    headers = {"Content-Type": f"multipart/form-data; {content_type}"}
    problem = refused(front.post("/v1/tensors", content=body, headers=headers), 422, "bad-tensor")
    assert problem["errors"][0]["field"] == field
    assert leftovers(configuration) == []


def bad_files() -> dict[str, bytes]:
    X = planted(3, 4)
    good, negative, missing = npy(X), X.copy(), X.copy()
    negative[1, 2], missing[2, 1] = -1, np.nan
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
        "negative": npy(negative),
        "NaN": npy(missing),
    }


@pytest.mark.parametrize("kind", bad_files())
def test_what_is_no_tensor_is_refused_with_the_reason(
    front: httpx.Client, configuration: Configuration, kind: str
) -> None:
    before = stored(configuration)
    problem = refused(front.post("/v1/tensors", content=bad_files()[kind]), 422, "bad-tensor")
    assert problem["errors"][0]["problem"]
    assert problem["errors"][0]["remedy"]
    assert leftovers(configuration) == []
    assert stored(configuration) == before


def test_a_tensor_with_negatives_is_told_how_to_clip(front: httpx.Client) -> None:
    problem = refused(front.post("/v1/tensors", content=bad_files()["negative"]), 422)
    assert "1 entries are negative" in problem["detail"]
    assert "[1, 2]" in problem["detail"]
    assert "maximum" in problem["remedy"]


def test_content_length_over_the_limit_is_refused_before_the_body_is_read(
    idle: Api, configuration: Configuration
) -> None:
    address = urlsplit(idle.address)
    with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
        head = f"POST /v1/tensors HTTP/1.1\r\nHost: x\r\nContent-Length: {configuration.max_tensor_bytes + 1}\r\n\r\n"
        connection.sendall(head.encode())
        assert b"413" in connection.recv(4096).split(b"\r\n")[0]


def test_a_stream_that_passes_the_limit_is_refused(front: httpx.Client, configuration: Configuration) -> None:
    chunks = (bytes(1 << 16) for _ in range(1 + (configuration.max_tensor_bytes >> 16)))
    refused(front.post("/v1/tensors", content=chunks), 413, "too-large")
    assert leftovers(configuration) == []


def test_a_form_that_passes_the_limit_is_refused(front: httpx.Client, configuration: Configuration) -> None:
    files = {"file": bytes(configuration.max_tensor_bytes + 1)}
    refused(front.post("/v1/tensors", files=files), 413, "too-large")
    assert leftovers(configuration) == []


def test_a_client_that_disconnects_leaves_nothing_behind(idle: Api, configuration: Configuration) -> None:
    address = urlsplit(idle.address)
    with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
        connection.sendall(b"POST /v1/tensors HTTP/1.1\r\nHost: x\r\nContent-Length: 500000\r\n\r\n" + bytes(100_000))
        wait_for(lambda: leftovers(configuration), what="the upload to begin")
    wait_for(lambda: not leftovers(configuration), what="the upload to vanish")


def test_a_digest_that_matches_is_accepted_and_another_is_refused(
    front: httpx.Client, configuration: Configuration
) -> None:
    content = npy(planted(7, 3, seed=5))
    digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
    right = {"Repr-Digest": f"sha-512=:AAAA:, sha-256=:{digest}:"}
    wrong = {"Repr-Digest": f"sha-256=:{base64.b64encode(bytes(32)).decode()}:"}
    broken = {"Repr-Digest": "sha-256=:???:"}
    for headers in (wrong, broken):
        problem = refused(front.post("/v1/tensors", content=content, headers=headers), 422)
        assert problem["errors"][0]["field"] == "Repr-Digest"
    assert hashlib.sha256(content).hexdigest() not in stored(configuration)
    assert front.post("/v1/tensors", content=content, headers=right).status_code == 201
    assert leftovers(configuration) == []


@pytest.mark.parametrize(
    "headers", [{"Content-Encoding": "gzip"}, {"Content-Type": "application/json"}, {"Content-Type": "multipart/mixed"}]
)
def test_a_body_in_another_form_is_refused(front: httpx.Client, headers: dict[str, str]) -> None:
    refused(front.post("/v1/tensors", content=npy(planted(2, 2)), headers=headers), 415, "unsupported-media")


def test_the_same_bytes_are_stored_once_and_go_with_the_last_record(
    front: httpx.Client, stranger: httpx.Client, configuration: Configuration
) -> None:
    X = planted(5, 5, seed=9)
    mine, theirs = upload(front, X), upload(stranger, X)
    assert mine["id"] != theirs["id"]
    assert mine["sha256"] == theirs["sha256"]
    assert front.delete(f"/v1/tensors/{mine['id']}").status_code == 204
    assert mine["sha256"] in stored(configuration)
    assert stranger.get(f"/v1/tensors/{theirs['id']}/content").content == npy(X)
    assert stranger.delete(f"/v1/tensors/{theirs['id']}").status_code == 204
    assert mine["sha256"] not in stored(configuration)


def test_a_digest_finds_only_the_callers_own_records(front: httpx.Client, stranger: httpx.Client) -> None:
    record = upload(front, planted(5, 4, seed=10))
    found = front.get("/v1/tensors", params={"sha256": record["sha256"]}).json()
    assert [item["id"] for item in found["items"]] == [record["id"]]
    assert stranger.get("/v1/tensors", params={"sha256": record["sha256"]}).json() == {"items": [], "next": None}


def test_another_owners_tensor_does_not_exist(front: httpx.Client, stranger: httpx.Client) -> None:
    record = upload(front, planted(5, 4, seed=11))
    for path in (f"/v1/tensors/{record['id']}", f"/v1/tensors/{record['id']}/content"):
        refused(stranger.get(path), 404, "not-found")
    refused(stranger.delete(f"/v1/tensors/{record['id']}"), 404)
    body = {"tensor_id": record["id"], "rank": 2, "method": "mu"}
    assert refused(stranger.post("/v1/jobs", json=body), 404)["errors"][0]["field"] == "tensor_id"


def test_pages_of_tensors_follow_one_another(front: httpx.Client) -> None:
    made = [upload(front, planted(2, 3, seed=20 + n))["id"] for n in range(5)]
    seen: list[Any] = []
    path: str | None = "/v1/tensors?limit=2"
    while path is not None:
        answer = front.get(path)
        assert len(answer.json()["items"]) <= 2
        seen += [item["id"] for item in answer.json()["items"]]
        path = answer.links["next"]["url"] if "next" in answer.links else None
        assert (path is None) == (answer.json()["next"] is None)
    assert seen[:5] == made[::-1]
    assert len(seen) == len(set(seen))


def test_content_comes_whole_by_range_and_not_at_all_if_known(front: httpx.Client) -> None:
    X = planted(20, 10, seed=30)
    content, path = npy(X), f"/v1/tensors/{upload(front, X)['id']}/content"
    whole = front.get(path)
    assert whole.content == content
    assert whole.headers["etag"] == f'"{hashlib.sha256(content).hexdigest()}"'
    part = front.get(path, headers={"Range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, content[10:20])
    assert part.headers["content-range"] == f"bytes 10-19/{len(content)}"
    assert front.get(path, headers={"Range": "bytes=-5"}).content == content[-5:]
    for known in (whole.headers["etag"], f'"other", W/{whole.headers["etag"]}', "*"):
        again = front.get(path, headers={"If-None-Match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == whole.headers["etag"]
    stale = front.get(path, headers={"Range": "bytes=0-0", "If-Range": '"other"'})
    assert (stale.status_code, stale.content) == (200, content)
    head = front.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["content-length"]) == len(content)


def test_a_range_that_is_not_there_is_refused(front: httpx.Client) -> None:
    X = planted(3, 3, seed=31)
    path = f"/v1/tensors/{upload(front, X)['id']}/content"
    beyond = front.get(path, headers={"Range": "bytes=100000-"})
    refused(beyond, 416)
    assert beyond.headers["content-range"] == f"bytes */{len(npy(X))}"


def test_a_tensor_that_a_live_job_needs_stays(front: httpx.Client) -> None:
    record = upload(front, planted(4, 4, seed=40))
    job = submit(front, record["id"])
    refused(front.delete(f"/v1/tensors/{record['id']}"), 409, "in-use")
    assert front.post(f"/v1/jobs/{job['id']}/cancel").status_code == 202
    assert front.delete(f"/v1/tensors/{record['id']}").status_code == 204
    refused(front.get(f"/v1/tensors/{record['id']}"), 404)


def test_a_full_disk_is_told_and_leaves_nothing_behind(
    front: httpx.Client, configuration: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        refused(front.post("/v1/tensors", content=npy(planted(200, 100))), 507, "store-full")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert leftovers(configuration) == []
