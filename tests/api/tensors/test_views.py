"""Slices and the summary show what is in a tensor before anything runs."""

import hashlib
import io
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.operations import tensors as operations
from sparse_ncp.worker.store.local import LocalStore
from tests.support.api import Api, http_client, npy, planted, refused, upload
from tests.support.processes import frozen
from tests.support.stack import wait_for


def test_a_slice_has_the_entries_of_the_tensor(client: httpx.Client) -> None:
    X = planted(7, 6, 5, 4)
    path = f"/v1/tensors/{upload(client, X)['id']}/slice"
    found = client.get(path, params={"fix": "1:3,4:0"}).json()
    assert (found["shape"], found["steps"]) == ([6, 5], [1, 1])
    assert found["values"] == X[3, :, :, 0].tolist()
    assert client.get(path, params={"fix": "2:5"}).json()["values"] == X[:, 5].tolist()
    assert client.get(path, params={"fix": "4:1,1:2,2:3"}).json()["values"] == X[2, 3, :, 1].tolist()
    assert client.get(path).json()["values"] == X.tolist()


def test_a_slice_is_thinned_to_the_size_that_was_asked_for(client: httpx.Client) -> None:
    X = planted(17, 10, 3)
    path = f"/v1/tensors/{upload(client, X)['id']}/slice"
    thin = client.get(path, params={"fix": "3:2", "max": 5}).json()
    assert (thin["shape"], thin["steps"]) == ([5, 5], [4, 2])
    assert thin["values"] == X[::4, ::2, 2].tolist()
    one = client.get(path, params={"max": 1}).json()
    assert (one["shape"], one["values"]) == ([1, 1, 1], [[[X[0, 0, 0]]]])


def test_a_slice_of_512_by_512_comes_whole_and_nothing_larger_does(client: httpx.Client) -> None:
    path = f"/v1/tensors/{upload(client, np.ones((1000, 1000), np.uint8))['id']}/slice"
    assert client.get(path, params={"max": 512}).json()["shape"] == [500, 500]
    largest = client.get(path, params={"max": 1024}).json()
    assert np.prod(largest["shape"]) <= 1 << 18
    assert largest["shape"] == [-(-1000 // step) for step in largest["steps"]]


def test_missing_entries_are_null_and_negative_ones_are_kept(client: httpx.Client) -> None:
    X = planted(4, 3)
    X[1, 2], X[3, 0] = np.nan, -0.5
    answer = client.get(f"/v1/tensors/{upload(client, X)['id']}/slice")
    values = json.loads(answer.content, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))["values"]
    assert (values[1][2], values[3][0]) == (None, -0.5)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["bool", "int64", "float32", ">f8", "uint8"])
def test_every_type_and_layout_of_a_tensor_has_slices(client: httpx.Client, dtype: str, order: str) -> None:
    X = np.asarray(np.arange(24).reshape(2, 3, 4) % 5, dtype, order="F" if order == "F" else "C")
    record = client.post("/v1/tensors", content=npy(X)).json()
    assert np.load(io.BytesIO(npy(X))).flags.f_contiguous == (order == "F")
    found = client.get(f"/v1/tensors/{record['id']}/slice", params={"fix": "1:1"}).json()
    assert found["values"] == X[1].astype(float).tolist()


def test_a_slice_that_is_not_there_is_refused_with_the_reason(client: httpx.Client, other_client: httpx.Client) -> None:
    path = f"/v1/tensors/{upload(client, planted(4, 3))['id']}/slice"
    for fix, words in {"3:0": "no mode 3", "1:4": "no index 4", "1:0,2:0": "every mode", "x": "not a mode"}.items():
        problem = refused(client.get(path, params={"fix": fix}), 422)
        assert problem["errors"][0]["field"] == "fix"
        assert words in problem["detail"]
    for most in ("0", "1025", "many"):
        assert refused(client.get(path, params={"max": most}), 422)["errors"][0]["field"] == "max"
    refused(other_client.get(path), 404)


def summary(lab: httpx.Client, X: NDArray[Any]) -> dict[str, Any]:
    answer = lab.get(f"/v1/tensors/{upload(lab, X)['id']}/summary")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = json.loads(answer.content, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    return found


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_summary_counts_every_entry(client: httpx.Client, order: str) -> None:
    random = np.random.default_rng(3)
    X = np.array(random.normal(1.0, 1.0, (50, 30, 40)), order="F" if order == "F" else "C")
    X[random.random(X.shape) < 0.1] = 0
    X[3], X[:, 7, 5] = np.nan, np.nan
    found, seen = summary(client, X), X[~np.isnan(X)]
    assert (found["observed"], found["missing"]) == (seen.size, np.isnan(X).sum())
    assert (found["negative"], found["zero"]) == ((seen < 0).sum(), (seen == 0).sum())
    assert found["mean"] == pytest.approx(seen.mean())
    histogram = found["histogram"]
    assert (histogram["min"], histogram["max"], len(histogram["counts"])) == (seen.min(), seen.max(), 64)
    np.testing.assert_allclose(histogram["counts"], np.histogram(seen, 64)[0], atol=1)  # an entry on an edge
    assert sum(histogram["counts"]) == seen.size
    assert [profile["mode"] for profile in found["profiles"]] == [1, 2, 3]
    for mode, profile in enumerate(found["profiles"]):
        others = tuple(other for other in range(3) if other != mode)
        assert profile["step"] == 1
        assert [value is None for value in profile["values"]] == np.isnan(X).all(axis=others).tolist()
        expected = np.nansum(X, axis=others) / np.maximum(1, (~np.isnan(X)).sum(axis=others))
        np.testing.assert_allclose([value or 0.0 for value in profile["values"]], expected, rtol=1e-9, atol=1e-12)


def test_the_profile_of_a_long_mode_has_the_means_of_neighbours(client: httpx.Client) -> None:
    X = np.arange(2 * 1300, dtype=np.float32).reshape(2, 1300)
    long = summary(client, X)["profiles"][1]
    assert (long["step"], len(long["values"])) == (3, 434)
    assert long["values"] == [float(X[:, start : start + 3].mean()) for start in range(0, 1300, 3)]


@pytest.mark.parametrize(
    "X",
    [
        np.full((3, 2), 5, np.int8),
        np.array([[True, False], [True, True]]),
        np.array([[1e-320, 2e-320], [1e-320, 5e-321]]),
        np.array([[-1e150, 1e150], [0, 1]]),
        np.array([[2**62, 2**62 + 1], [0, -(2**62)]]),
        np.ones((1, 2, 1, 3, 1, 2, 1, 2)),
    ],
)
def test_tensors_of_every_kind_have_a_summary(client: httpx.Client, X: NDArray[Any]) -> None:
    found = summary(client, X)
    assert sum(found["histogram"]["counts"]) == found["observed"] == X.size
    assert (found["negative"], found["zero"]) == ((X < 0).sum(), (X == 0).sum())
    assert [len(profile["values"]) for profile in found["profiles"]] == list(X.shape)


def test_a_summary_is_computed_once_kept_with_the_bytes_and_gone_with_them(
    client: httpx.Client, other_client: httpx.Client, configuration: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = planted(6, 5, seed=41)
    record, shared = upload(client, X), upload(other_client, X)
    path = f"/v1/tensors/{record['id']}/summary"
    kept = LocalStore(configuration.data).root / "tensors" / record["sha256"] / "summary.json"
    kept = kept.with_suffix(".json")
    refused(other_client.get(path), 404)
    first = client.get(path)
    assert kept.stat().st_mode & 0o777 == 0o600
    with monkeypatch.context() as patch:
        patch.setattr(operations, "summarize", lambda *_: pytest.fail("computed again"))
        assert client.get(path).content == first.content
        assert other_client.get(f"/v1/tensors/{shared['id']}/summary").content == first.content
    kept.write_bytes(kept.read_bytes().replace(b"0", b"1"))
    assert client.get(path).content == first.content, "a damaged file was believed"
    digest, _, content = kept.read_bytes().partition(b"\n")
    assert hashlib.sha256(content).hexdigest().encode() == digest
    client.delete(f"/v1/tensors/{record['id']}")
    assert kept.exists(), "another owner still has these bytes"
    other_client.delete(f"/v1/tensors/{shared['id']}")
    assert not kept.exists()


def test_while_summaries_are_computed_everybody_else_is_served(api: Api) -> None:
    """More callers wait for one than the server has threads."""
    with http_client(api.address, "waits") as lab, ThreadPoolExecutor(60) as pool:
        first, record = (upload(lab, planted(5, 4, seed=seed)) for seed in (41, 42))
        assert lab.get(f"/v1/tensors/{first['id']}/summary").status_code == 200  # from here on there is a template
        renderers, path = api.app.state.renderers, f"/v1/tensors/{record['id']}/summary"
        with frozen([psutil.Process(renderers.template_pid)]):
            waiting = [
                pool.submit(httpx.get, f"{api.address}{path}", headers=lab.headers, timeout=60) for _ in range(60)
            ]
            wait_for(lambda: renderers.waiting_clients == 60, 20, "all to wait")
            assert renderers.queue.taken == 1, "the same is computed more than once"
            assert lab.get("/v1/jobs").status_code == 200
            assert upload(lab, planted(3, 2))["id"]
        assert len({answer.result().content for answer in waiting}) == 1


def test_a_summary_that_comes_too_late_leaves_no_file(client: httpx.Client, configuration: Configuration) -> None:
    store, record = LocalStore(configuration.data), upload(client, planted(4, 3, seed=43))
    client.delete(f"/v1/tensors/{record['id']}")
    store.save_summary(record["sha256"], b"{}")
    assert store.summary(record["sha256"]) is None
    assert not (store.root / "tensors" / record["sha256"]).exists()
