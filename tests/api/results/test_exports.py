"""Labels of a tensor, and factors in formats for other programs, which contain their own description."""

import csv
import hashlib
import io
import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import httpx
import numpy as np
import pytest
import scipy.io
import xarray

from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.records.redis.connection import connect
from tests.support.api import (
    OWNER,
    finished,
    http_client,
    npy,
    planted,
    read_factors,
    refused,
    running_api,
    submit,
    upload,
)
from tests.support.stack import embedded_redis

SHAPE = (5, 4, 3)
AXES: list[dict[str, Any]] = [
    {"name": "Probe", "unit": None, "values": ["a", "b", "ä", "d,e", "f"]},
    {"name": "emission", "unit": "nm", "values": [250, 251.5, 252, 253]},
    {"name": "Zeit µ", "unit": "s", "values": [0, 0.1, 1e-3]},
]
VARIANTS: list[dict[str, Any]] = [
    {},
    {"format": "mat"},
    {"format": "csv"},
    {"format": "csv", "mode": 2},
    {"format": "nc"},
    {"format": "npz", "scale": "unit"},
    {"format": "mat", "order": "share"},
    {"format": "nc", "scale": "max", "order": "share", "zeros": "drop"},
]


@contextmanager
def server(folder: Path) -> Iterator[httpx.Client]:
    """A server on this folder, without a worker."""
    with (
        embedded_redis(folder, min_free_bytes=1) as configuration,
        running_api(configuration) as running,
        http_client(running.address) as client,
    ):
        yield client


def put_axes(client: httpx.Client, tensor_id: str, axes: object = AXES) -> httpx.Response:
    return client.put(f"/v1/tensors/{tensor_id}/axes", json=axes)


def labelled_job(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    tensor = upload(client, planted(*SHAPE))["id"]
    assert put_axes(client, tensor).status_code == 200
    return finished(client, submit(client, tensor, stop={"max_iterations": 30}, **fields)["id"])


def exported(client: httpx.Client, job: dict[str, Any], **asked: Any) -> httpx.Response:
    answer = client.get(f"/v1/jobs/{job['id']}/factors", params=asked)
    assert answer.status_code == 200, answer.text
    return answer


def arrays(client: httpx.Client, job: dict[str, Any], **asked: Any) -> dict[str, Any]:
    with np.load(io.BytesIO(exported(client, job, **asked).content), allow_pickle=False) as stored:
        return dict(stored)


def components(found: dict[str, Any], weighted: bool) -> np.ndarray[Any, Any]:
    """Every component as a whole tensor."""
    weights = found["weights"] if weighted else np.ones(found["A1"].shape[1])
    return np.asarray(np.einsum("r,ir,jr,kr->rijk", weights, found["A1"], found["A2"], found["A3"]))


# Labels


def test_labels_are_kept_and_shown_with_the_tensor(client: httpx.Client) -> None:
    tensor = upload(client, planted(*SHAPE))
    assert tensor["axes"] is None
    path = f"/v1/tensors/{tensor['id']}"
    assert client.get(f"{path}/axes").json() == []
    answer = put_axes(client, tensor["id"])
    assert (answer.status_code, answer.json()) == (200, AXES)
    assert client.get(f"{path}/axes").json() == AXES
    assert client.get(path).json() == {**tensor, "axes": AXES}
    again = [{**axis, "name": f"new {axis['name']}"} for axis in AXES]
    assert put_axes(client, tensor["id"], again).status_code == 200
    assert client.get(path).json()["axes"] == again


@pytest.mark.parametrize(
    ("axes", "fields"),
    [
        ([AXES[0], {**AXES[1], "values": [1, 2]}, AXES[2]], ["axes[2].values"]),
        ([{**axis, "values": [1, 2]} for axis in AXES], ["axes[1].values", "axes[2].values", "axes[3].values"]),
        (AXES[:2], ["axes"]),
        ([{**AXES[0], "values": [1]}], ["axes", "axes[1].values"]),
        ([*AXES, AXES[0]], ["axes", "axes[4].name"]),
        ([AXES[0], AXES[1], {**AXES[2], "name": "Probe"}], ["axes[3].name"]),
        ([AXES[0], {**AXES[1], "values": [250, "251", 252, 253]}, AXES[2]], ["axes[2].values.2"]),
        ([{**AXES[0], "values": ["a", "b", 3, 4, "e"]}, *AXES[1:]], ["axes[1].values.3"]),
        ([AXES[0], {**AXES[1], "values": [250, None, 252, 253]}, AXES[2]], ["axes[2].values.2"]),
        ([AXES[0], {**AXES[1], "values": 250}, AXES[2]], ["axes[2].values"]),
        ([AXES[0], {"name": "emission"}, AXES[2]], ["axes[2].values"]),
        ([AXES[0], {**AXES[1], "label": 1}, AXES[2]], ["axes[2].label"]),
        ([{**AXES[0], "name": ""}, AXES[1], {**AXES[2], "unit": "a\nb"}], ["axes[1].name", "axes[3].unit"]),
        ([{**AXES[0], "name": "x" * 201}, *AXES[1:]], ["axes[1].name"]),
        ({"axes": AXES}, ["body"]),
    ],
)
def test_labels_that_do_not_fit_are_named(client: httpx.Client, axes: Any, fields: list[str]) -> None:
    tensor = upload(client, planted(*SHAPE))["id"]
    problem = refused(put_axes(client, tensor, axes), 422)
    assert sorted({error["field"] for error in problem["errors"]}) == fields
    assert all(error["remedy"] for error in problem["errors"])
    assert "1 entries" not in problem["detail"]
    assert client.get(f"/v1/tensors/{tensor}/axes").json() == []


def test_not_a_number_is_no_label(client: httpx.Client) -> None:
    tensor = upload(client, planted(2, 2))["id"]
    content = '[{"name": "a", "values": [NaN, 1]}, {"name": "b", "values": [1, 1e999]}]'
    headers = {"Content-Type": "application/json"}
    problem = refused(client.put(f"/v1/tensors/{tensor}/axes", content=content, headers=headers), 422)
    assert [error["field"] for error in problem["errors"]] == ["axes[1].values.1", "axes[2].values.2"]


def test_labels_are_json_and_bounded_in_size(client: httpx.Client) -> None:
    path = f"/v1/tensors/{upload(client, planted(2, 2))['id']}/axes"
    refused(client.put(path, content="[]"), 415)
    axes = [{"name": "a", "values": ["x" * (1 << 20), "y"]}, {"name": "b", "values": [1, 2]}]
    refused(client.put(path, json=axes), 413)


def test_labels_belong_to_the_owner_of_the_tensor(client: httpx.Client, other_client: httpx.Client) -> None:
    tensor = upload(client, planted(*SHAPE))["id"]
    refused(put_axes(other_client, tensor), 404)
    refused(other_client.get(f"/v1/tensors/{tensor}/axes"), 404)
    job = submit(client, tensor)["id"]
    refused(other_client.get(f"/v1/jobs/{job}/axes"), 404)
    refused(put_axes(client, "nothing"), 404)


def test_the_same_bytes_uploaded_twice_have_labels_of_their_own(client: httpx.Client) -> None:
    first, second = (upload(client, planted(*SHAPE, seed=9)) for _ in range(2))
    put_axes(client, first["id"])
    assert client.get(f"/v1/tensors/{second['id']}").json()["axes"] is None
    put_axes(client, second["id"])
    assert client.delete(f"/v1/tensors/{first['id']}").status_code == 204
    assert client.get(f"/v1/tensors/{second['id']}/axes").json() == AXES


def test_labels_count_for_the_quota_and_go_with_the_last_who_has_them(tmp_path: Path) -> None:
    with (
        embedded_redis(tmp_path, min_free_bytes=1, max_stored_bytes=500_000) as configuration,
        running_api(configuration) as running,
        http_client(running.address) as client,
    ):
        redis = connect(configuration)
        tensor = upload(client, planted(*SHAPE))["id"]
        filler = upload(client, np.ones((1, 498_000), np.uint8))["id"]
        before = client.get("/v1/usage").json()["tensor_bytes"]
        put_axes(client, tensor)
        put_axes(client, tensor)
        labels = client.get("/v1/usage").json()["tensor_bytes"] - before
        assert 0 < labels < 1000
        large = [{**AXES[0], "values": ["x" * 200] * 5}, {**AXES[1], "values": ["y" * 200] * 4}, AXES[2]]
        refused(put_axes(client, tensor, large), 409, "quota-reached")
        assert client.delete(f"/v1/tensors/{filler}").status_code == 204
        job = submit(client, tensor)["id"]
        put_axes(client, tensor, [{**axis, "name": f"other {axis['name']}"} for axis in AXES])
        assert len(redis.keys(keys.axes("*"))) == 2
        client.post(f"/v1/jobs/{job}/cancel")
        assert client.delete(f"/v1/jobs/{job}").status_code == 204
        assert len(redis.keys(keys.axes("*"))) == 1
        assert client.delete(f"/v1/tensors/{tensor}").status_code == 204
        assert redis.keys(keys.axes("*")) == redis.keys(keys.labelled("*")) == []
        assert client.get("/v1/usage").json()["tensor_bytes"] == 0


def test_labels_survive_a_restart_of_everything(tmp_path: Path) -> None:
    with server(tmp_path) as client:
        tensor = upload(client, planted(*SHAPE))["id"]
        put_axes(client, tensor)
    with server(tmp_path) as client:
        assert client.get(f"/v1/tensors/{tensor}/axes").json() == AXES


def test_a_job_keeps_the_labels_it_was_submitted_with(client_with_worker: httpx.Client) -> None:
    job = labelled_job(client_with_worker)
    put_axes(client_with_worker, job["tensor_id"], [{**axis, "name": f"new {axis['name']}"} for axis in AXES])
    assert client_with_worker.get(f"/v1/jobs/{job['id']}/axes").json() == AXES
    assert client_with_worker.delete(f"/v1/tensors/{job['tensor_id']}").status_code == 204
    assert client_with_worker.get(f"/v1/jobs/{job['id']}/axes").json() == AXES
    assert json.loads(str(arrays(client_with_worker, job)["axes"])) == AXES


# Exports


def test_the_factors_explain_themselves(client_with_worker: httpx.Client) -> None:
    job = labelled_job(client_with_worker, beta=0.01, rescale=True)
    found, result = arrays(client_with_worker, job), job["result"]
    for name in ("objective", "relative_error", "fit", "iterations"):
        assert found[name] == result[name]
    assert found["weights"].tolist() == result["weights"]
    assert found["iteration"] == result["iterations"]
    assert json.loads(str(found["settings"])) == job["settings"]
    assert found["version"] == version("sparse-ncp")
    assert found["tensor_sha256"] == hashlib.sha256(npy(planted(*SHAPE))).hexdigest()
    assert found["stop_reason"] == result["stop_reason"]
    assert exported(client_with_worker, job).headers["factors-iteration"] == str(result["iterations"])
    for mode in (1, 2, 3):
        alone = client_with_worker.get(f"/v1/jobs/{job['id']}/factors/{mode}")
        assert alone.headers["factors-iteration"] == str(result["iterations"])
        archive = zipfile.ZipFile(io.BytesIO(exported(client_with_worker, job).content))
        assert archive.read(f"A{mode}.npy") == alone.content


def test_the_same_run_gives_the_same_file(client_with_worker: httpx.Client) -> None:
    first, second = (labelled_job(client_with_worker) for _ in range(2))
    assert first["result"]["seconds"] != second["result"]["seconds"]
    for asked in ({}, {"format": "csv"}, {"format": "nc"}, {"format": "mat", "scale": "max"}):
        contents = [exported(client_with_worker, job, **cast(Any, asked)).content for job in (first, second)]
        assert contents[0] == contents[1]


@pytest.mark.parametrize("asked", VARIANTS, ids=str)
def test_every_variant_has_a_tag_ranges_and_a_head_of_its_own(
    client_with_worker: httpx.Client, asked: dict[str, Any]
) -> None:
    job = labelled_job(client_with_worker)
    path = str(httpx.URL(f"/v1/jobs/{job['id']}/factors", params=asked))
    whole = client_with_worker.get(path)
    etag = whole.headers["etag"]
    assert etag == f'"{hashlib.sha256(whole.content).hexdigest()}"'
    assert client_with_worker.get(path).content == whole.content
    assert client_with_worker.get(path, headers={"If-None-Match": etag}).status_code == 304
    refused(client_with_worker.get(path, headers={"If-Match": '"other"'}), 412)
    part = client_with_worker.get(path, headers={"Range": "bytes=5-20", "If-Range": etag})
    assert (part.status_code, part.content) == (206, whole.content[5:21])
    head = client_with_worker.head(path)
    assert (head.headers["etag"], head.headers["content-length"]) == (etag, str(len(whole.content)))
    assert head.headers["content-type"] == whole.headers["content-type"]
    others = [exported(client_with_worker, job, **other).headers["etag"] for other in VARIANTS if other != asked]
    assert etag not in others


@pytest.mark.parametrize("scale", ["unit", "max"])
def test_scaled_columns_times_weights_are_the_same_model(client_with_worker: httpx.Client, scale: str) -> None:
    job = labelled_job(client_with_worker)
    plain, scaled = arrays(client_with_worker, job), arrays(client_with_worker, job, scale=scale)
    assert scaled["scale"] == scale
    for mode in (1, 2, 3):
        columns = scaled[f"A{mode}"]
        sizes = np.linalg.norm(columns, axis=0) if scale == "unit" else columns.max(axis=0)
        assert sizes == pytest.approx(np.ones(3), rel=1e-12)
    assert components(scaled, weighted=True) == pytest.approx(components(plain, weighted=False), rel=1e-12)


def test_the_largest_components_come_first_and_dead_ones_are_left_out(client_with_worker: httpx.Client) -> None:
    """At this β some components vanish. The others keep their numbers, and the model is the same."""
    tensor = upload(client_with_worker, planted(8, 7, 6))["id"]
    fields = {"method": "anls-bpp", "penalty": "l1", "rescale": True, "beta": 0.3, "rank": 6}
    job = finished(client_with_worker, submit(client_with_worker, tensor, **fields)["id"])
    plain = arrays(client_with_worker, job)
    assert (plain["weights"] == 0).any()
    assert (plain["weights"] > 0).any()
    found = arrays(client_with_worker, job, order="share", zeros="drop")
    assert (found["weights"] > 0).all()
    assert (np.diff(found["weights"]) <= 0).all()
    for mode in (1, 2, 3):
        assert np.array_equal(found[f"A{mode}"], plain[f"A{mode}"][:, found["components"] - 1])
    sorted_only = arrays(client_with_worker, job, order="share")
    assert sorted(sorted_only["components"]) == [1, 2, 3, 4, 5, 6]
    assert sorted_only["components"][: len(found["components"])].tolist() == found["components"].tolist()


def test_a_table_has_the_labels_and_the_numbers_in_full(client_with_worker: httpx.Client) -> None:
    job = labelled_job(client_with_worker)
    factors = read_factors(exported(client_with_worker, job).content)
    with zipfile.ZipFile(io.BytesIO(exported(client_with_worker, job, format="csv").content)) as archive:
        assert archive.namelist() == ["A1.csv", "A2.csv", "A3.csv", "components.csv", "about.json"]
        tables = [archive.read(f"A{mode}.csv") for mode in (1, 2, 3)]
        assert json.loads(archive.read("about.json"))["iteration"] == job["result"]["iterations"]
        weights = list(csv.reader(io.TextIOWrapper(archive.open("components.csv"), "utf-8")))
    assert [float(weight) for _, weight in weights[1:]] == job["result"]["weights"]
    for table, A in zip(tables, factors, strict=True):
        rows = list(csv.reader(io.StringIO(table.decode())))
        assert rows[0][1:] == ["component_1", "component_2", "component_3"]
        assert [[float(cell) for cell in row[1:]] for row in rows[1:]] == A.tolist()
    titles = [table.decode().split(",")[0] for table in tables]
    assert titles == ["Probe", "emission (nm)", "Zeit µ (s)"]
    assert [row[0] for row in csv.reader(io.StringIO(tables[0].decode()))][1:] == AXES[0]["values"]
    alone = exported(client_with_worker, job, format="csv", mode=2)
    assert alone.headers["content-type"] == "text/csv; charset=utf-8"
    assert alone.content == tables[1]
    assert [line.split(",")[0] for line in alone.text.splitlines()] == ["emission (nm)", "250", "251.5", "252", "253"]


def test_xarray_opens_the_netcdf_file_with_its_coordinates(client_with_worker: httpx.Client, tmp_path: Path) -> None:
    job = labelled_job(client_with_worker)
    path = tmp_path / "factors.nc"
    path.write_bytes(exported(client_with_worker, job, format="nc").content)
    with xarray.open_dataset(path, engine="scipy") as found:
        for mode, (A, axis) in enumerate(
            zip(read_factors(exported(client_with_worker, job).content), AXES, strict=True), start=1
        ):
            variable = found[f"A{mode}"]
            assert variable.dims[1] == "component"
            assert np.array_equal(variable.values, A)
            coordinate = found[variable.dims[0]]
            assert coordinate.values.tolist() == axis["values"]
            assert coordinate.attrs["long_name"] == axis["name"]
            assert coordinate.attrs.get("units") == axis["unit"]
        assert found["A2"].dims == ("emission", "component")
        assert found["A2"].sel(emission=251.5, component=2).item() == found["A2"].values[1, 1]
        assert found["A1"].sel(Probe="ä").shape == (3,)
        assert found["weights"].values.tolist() == job["result"]["weights"]
        assert found.attrs["relative_error"] == job["result"]["relative_error"]
        assert json.loads(found.attrs["settings"]) == job["settings"]


def test_netcdf_without_labels_and_in_single_precision(client_with_worker: httpx.Client, tmp_path: Path) -> None:
    tensor = upload(client_with_worker, planted(6, 5).astype(np.float32))["id"]
    job = finished(client_with_worker, submit(client_with_worker, tensor, stop={"max_iterations": 5})["id"])
    path = tmp_path / "factors.nc"
    path.write_bytes(exported(client_with_worker, job, format="nc", scale="max").content)
    with xarray.open_dataset(path, engine="scipy") as found:
        assert found["A1"].dims == ("mode1", "component")
        assert found["A1"].dtype == np.float32
        assert list(found.coords) == ["component"]


def test_names_that_netcdf_does_not_have_are_replaced(client_with_worker: httpx.Client, tmp_path: Path) -> None:
    tensor = upload(client_with_worker, planted(3, 3, 3, 3))["id"]
    names = ["A1", "1 µm/s", "日_characters", "日"]
    axes = [{"name": name, "values": ["x", "yy", "zzz"]} for name in names]
    assert put_axes(client_with_worker, tensor, axes).is_success
    job = finished(client_with_worker, submit(client_with_worker, tensor, stop={"max_iterations": 3})["id"])
    path = tmp_path / "factors.nc"
    path.write_bytes(exported(client_with_worker, job, format="nc").content)
    with xarray.open_dataset(path, engine="scipy") as found:
        coordinates = [found[found[f"A{mode}"].dims[0]] for mode in (1, 2, 3, 4)]
        assert [coordinate.attrs["long_name"] for coordinate in coordinates] == names
        assert all(coordinate.values.tolist() == ["x", "yy", "zzz"] for coordinate in coordinates)


def test_matlab_reads_labels_and_scaled_factors(client_with_worker: httpx.Client) -> None:
    job = labelled_job(client_with_worker)
    content = exported(client_with_worker, job, format="mat", scale="unit").content
    found = scipy.io.loadmat(cast(Any, io.BytesIO(content)), simplify_cells=True)
    assert np.array_equal(found["A2"], arrays(client_with_worker, job, scale="unit")["A2"])
    assert found["axes"]["mode2"]["unit"] == "nm"
    assert found["axes"]["mode2"]["values"].tolist() == AXES[1]["values"]
    assert found["axes"]["mode1"]["values"].tolist() == AXES[0]["values"]
    assert json.loads(found["settings"]) == job["settings"]


def test_an_export_that_cannot_be_is_refused_with_its_field(client_with_worker: httpx.Client) -> None:
    job = labelled_job(client_with_worker)
    path = f"/v1/jobs/{job['id']}/factors"
    for asked, status, field in (
        ({"format": "xlsx"}, 422, "format"),
        ({"scale": "sum"}, 422, "scale"),
        ({"order": "size"}, 422, "order"),
        ({"zeros": "no"}, 422, "zeros"),
        ({"mode": 2}, 422, "mode"),
        ({"format": "csv", "mode": 0}, 422, "mode"),
        ({"format": "csv", "mode": 4}, 404, "mode"),
        ({"sort": "share"}, 422, "sort"),
    ):
        problem = refused(client_with_worker.get(path, params=cast(Any, asked)), status)
        assert [error["field"] for error in problem["errors"]] == [field]


def test_a_model_without_components_has_files_too(client_with_worker: httpx.Client) -> None:
    """The penalty outweighs the tensor: nothing is left once the dead are dropped."""
    tensor = upload(client_with_worker, planted(4, 4, 4))["id"]
    fields = {"method": "anls-bpp", "penalty": "l1", "beta": 1e6, "stop": {"max_iterations": 5}}
    job = finished(client_with_worker, submit(client_with_worker, tensor, **fields)["id"])
    for format in ("npz", "mat", "csv"):
        exported(client_with_worker, job, format=format, scale="max", zeros="drop")
    path = f"/v1/jobs/{job['id']}/factors"
    problem = refused(client_with_worker.get(path, params={"format": "nc", "zeros": "drop"}), 422)
    assert problem["errors"][0]["field"] == "zeros"
    assert arrays(client_with_worker, job, zeros="drop")["A1"].shape == (4, 0)


def test_exports_belong_to_the_owner_of_the_job(client_with_worker: httpx.Client) -> None:
    job = labelled_job(client_with_worker)
    for path in ("factors?format=csv", "factors?scale=unit", "axes"):
        refused(client_with_worker.get(f"/v1/jobs/{job['id']}/{path}", headers={OWNER: "another owner"}), 404)
