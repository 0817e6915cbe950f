"""The Python client: one line for each task, with the bits and the messages of the server."""

import io
import itertools
import json
import math
import sys
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
from numpy.typing import NDArray

import ncp_client
from ncp_client import Client, JobFailed, NcpError, NotFound, Refused
from ncp_client.content import array_content
from ncp_client.fields import REFERENCES, JobFields, StopFields
from ncp_client.job import FORMATS
from sparse_ncp.app.main import create_app
from sparse_ncp.worker.config import Configuration
from tests.support.api import Api, npy, planted
from tests.support.jobs import same_bits

TENSOR = planted(9, 8, 7)
ENDLESS: Any = {"method": "apg", "stop": {"max_iterations": 10**6, "tolerance": 0}}


def test_one_line_decomposes_an_array(lab: Client) -> None:
    result = lab.decompose(TENSOR, rank=4, sparsity=0.02)
    assert [factor.shape for factor in result.factors] == [(9, 4), (8, 4), (7, 4)]
    assert result.relative_error < 0.1
    assert result.fit == 1 - result.relative_error
    assert result.components == 3
    assert result.job["settings"]["preset"] == "recommended"


def test_without_a_method_the_recommended_settings_are_used(lab: Client) -> None:
    tensor = lab.upload(TENSOR)
    assert lab.submit(tensor, 2).record["settings"]["preset"] == "recommended"
    assert lab.submit(tensor, 2, method="hals").record["settings"]["preset"] is None


def test_every_field_of_a_job_can_be_given_by_name() -> None:
    """A new field of a job must be added to ncp_client/fields.py."""
    schemas = create_app(Configuration()).openapi()["components"]["schemas"]
    assert {"tensor_id", "rank", *get_type_hints(JobFields)} == schemas["JobRequest"]["properties"].keys()
    assert get_type_hints(StopFields).keys() == schemas["Stop"]["properties"].keys()
    for field, key in REFERENCES.items():
        named = schemas["JobRequest"]["properties"][field]["anyOf"][0]["$ref"].rpartition("/")[2]
        assert schemas[named]["properties"].keys() == {key}


def test_every_format_of_factors_is_known() -> None:
    parameters = create_app(Configuration()).openapi()["paths"]["/v1/jobs/{job_id}/factors"]["get"]["parameters"]
    (asked,) = (parameter["schema"] for parameter in parameters if parameter["name"] == "format")
    assert set(asked["enum"]) == set(FORMATS)


def test_all_fields_reach_the_server_as_given(lab: Client) -> None:
    tensor = lab.upload(TENSOR)
    first = lab.submit(tensor, 2, method="hals").wait()
    job = lab.submit(
        tensor.id,
        np.int64(3),  # type: ignore[arg-type]
        method="anls-bpp",
        beta=np.array([0.0, 0.1, 0.2]),
        alpha=(0.0, 0.0, 1e-3),
        seed=7,
        stop={"max_iterations": 3, "tolerance": 0.0},
        name="named",
        priority=2,
        initial=first,
    )
    settings = job.record["settings"]
    assert (settings["rank"], settings["beta"], settings["seed"]) == (3, [0.0, 0.1, 0.2], 7)
    assert settings["stop"]["max_iterations"] == 3
    assert job.record["initial"] == {"job_id": first.id}
    assert (job.name, job.record["priority"]) == ("named", 2)
    assert lab.submit(tensor, 2, initial=first.id).record["initial"] == {"job_id": first.id}


def test_what_cannot_be_sent_is_named(lab: Client) -> None:
    with pytest.raises(ValueError, match=r"stop\.max_seconds: nan cannot be sent"):
        lab.submit("0", 2, stop={"max_seconds": math.nan})
    with pytest.raises(ValueError, match="name: b'x' cannot be sent"):
        lab.submit("0", 2, name=b"x")  # type: ignore[arg-type]


# Uploads


STRIDED = np.arange(2.0 * 9 * 8 * 7).reshape(18, 8, 7)[::2]


@pytest.mark.parametrize(
    "array",
    [
        TENSOR,
        np.asfortranarray(TENSOR),
        TENSOR.transpose(1, 0, 2),
        STRIDED,
        TENSOR.astype(np.float32),
        TENSOR.astype(">f8"),
        (TENSOR * 100).astype(np.uint16),
        np.broadcast_to(TENSOR[0], (5, 8, 7)),
        TENSOR.tolist(),
    ],
    ids=["C", "Fortran", "transposed", "strided", "float32", "big-endian", "integers", "broadcast", "lists"],
)
def test_any_array_arrives_as_it_is(array: Any, lab: Client, tmp_path: Path) -> None:
    content = array_content(array)
    sent = b"".join(content.chunks())
    assert len(sent) == content.nbytes
    assert np.array_equal(np.load(io.BytesIO(sent)), np.asarray(array))
    stored = lab.upload(array)
    stored.download(tmp_path / "back.npy")
    assert (tmp_path / "back.npy").read_bytes() == sent
    assert stored.shape == np.asarray(array).shape


def test_a_large_array_comes_in_pieces() -> None:
    pieces = list(array_content(np.ones((100, 100, 100))).chunks())
    assert max(map(len, pieces)) <= 1 << 20
    assert b"".join(pieces) == npy(np.ones((100, 100, 100)))


def test_files_memory_maps_and_streams_are_uploaded_once(lab: Client, tmp_path: Path) -> None:
    path = tmp_path / "tensor.npy"
    np.save(path, planted(5, 4, 3, seed=77))
    seen: list[tuple[int, int]] = []
    first = lab.upload(path, name="from a file", on_progress=lambda sent, total: seen.append((sent, total)))
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)
    seen.clear()
    again = [
        lab.upload(str(path), on_progress=lambda sent, total: seen.append((sent, total))),
        lab.upload(np.load(path, mmap_mode="r")),
        lab.upload(np.load(path)),
    ]
    with path.open("rb") as file:
        again.append(lab.upload(file))
    assert {tensor.id for tensor in again} == {first.id}
    assert not seen
    assert first.name == "from a file"
    assert [tensor.id for tensor in lab.tensors(sha256=first.record["sha256"])] == [first.id]


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.ma.masked_array(TENSOR, TENSOR > 1), "fill it with NaN"),
        (np.array(["a", "b"]), "not a tensor of numbers"),
        (TENSOR.astype(complex), "not a tensor of numbers"),
        (np.array([object(), object()]), "not a tensor of numbers"),
    ],
)
def test_what_is_not_a_tensor_of_numbers_is_not_sent(array: Any, words: str, lab: Client) -> None:
    with pytest.raises(TypeError, match=words):
        lab.upload(array)


# Jobs


def test_watching_yields_every_iteration_once_and_leaves_the_ended_job(lab: Client) -> None:
    job = lab.submit(lab.upload(TENSOR), 3, method="hals", stop={"max_iterations": 40, "tolerance": 0.0})
    rows = list(job.watch())
    assert [row.iteration for row in rows] == list(range(1, 41))
    assert job.state == "succeeded"
    assert job.progress == rows[-1]
    late = lab.job(job.id)
    assert next(late.watch()) == rows[0]  # a late watcher sees the same
    assert late.state == "succeeded"
    assert list(late.watch()) == rows
    history = job.history()
    assert history.objective.tolist() == [row.objective for row in rows]
    assert history.phase == [row.phase for row in rows]
    assert job.history(after=30).iteration.tolist() == list(range(31, 41))


def test_a_mask_marks_missing_entries_and_new_samples_scored_on_a_fixed_model(lab: Client) -> None:
    mask = np.ones((1, *TENSOR.shape[1:]), bool)
    mask[0, 0, 0] = False
    observed = lab.upload(mask)
    model = lab.submit(lab.upload(TENSOR), 3, mask=observed).wait()
    assert model.result.numbers["missing"] == len(TENSOR)
    assert len(model.diagnostics()["modes"]) == TENSOR.ndim
    fixed = {"job_id": model.id, "modes": [2, 3]}
    scored = lab.submit(lab.upload(TENSOR[:2]), 3, mask=observed, fixed=fixed, diagnose=False).wait()
    np.testing.assert_array_equal(scored.factors()[1], model.factors()[1])
    with pytest.raises(NotFound):
        scored.diagnostics()


def test_a_name_may_hold_any_line_end(lab: Client) -> None:
    """Server-sent events are lines, and only a line feed ends one."""
    name = "one\u2028two\u0085three\u000b\r\n\n: four"
    job = lab.submit(lab.upload(TENSOR), 2, name=name).wait()
    assert (job.state, job.name) == ("succeeded", name)


def test_waiting_has_an_end_and_the_job_goes_on(lab: Client) -> None:
    job = lab.submit(lab.upload(TENSOR), 3, **ENDLESS)
    with pytest.raises(TimeoutError, match="continues on the server"):
        job.wait(timeout=1.0)
    with pytest.raises(NcpError, match="call wait"):
        job.result  # noqa: B018
    assert not job.refresh().ended
    row = next(job.watch())
    assert row.iteration == 1
    partial = lab.job(job.id)
    for _ in partial.watch():
        try:
            factors = partial.factors()
            break
        except Refused as error:
            assert error.kind == "not-yet"  # noqa: PT017
    assert [factor.shape for factor in factors] == [(9, 3), (8, 3), (7, 3)]
    assert job.cancel().record["cancel_requested"]
    assert job.wait().state == "cancelled"
    assert job.result.factors[0].shape == (9, 3)
    job.delete()
    with pytest.raises(NotFound):
        job.refresh()


def test_factors_are_the_servers_bits_and_come_in_every_format(lab: Client, tmp_path: Path) -> None:
    import scipy.io

    job = lab.submit(lab.upload(TENSOR), 3, method="hals").wait()
    factors = job.factors()
    job.download(tmp_path / "f.npz")
    job.download(tmp_path / "f.mat")
    job.download(tmp_path / "second.npy", mode=2)
    with np.load(tmp_path / "f.npz") as arrays:
        assert same_bits(factors, [arrays[f"A{mode}"] for mode in (1, 2, 3)])
    assert np.array_equal(scipy.io.loadmat(tmp_path / "f.mat")["A1"], factors[0])
    assert np.array_equal(np.load(tmp_path / "second.npy"), factors[1])
    job.download(tmp_path / "no-ending")
    assert (tmp_path / "no-ending").read_bytes() == (tmp_path / "f.npz").read_bytes()
    with pytest.raises(ValueError, match="there is no format docx"):
        job.download(tmp_path / "f.docx")
    with pytest.raises(Refused, match="format"):
        job.download(tmp_path / "f.docx", format="docx")
    for ending in ("npy", "csv"):
        with pytest.raises(ValueError, match="holds one mode"):
            job.download(tmp_path / f"all.{ending}")
    assert {path.name for path in tmp_path.iterdir()} >= {"f.npz", "f.mat", "second.npy"}
    assert not list(tmp_path.glob("*docx*"))


def test_the_stability_comes_with_the_result_and_its_bands_with_the_job(lab: Client, tmp_path: Path) -> None:
    array = planted(9, 8, 7) + 0.05 * np.random.default_rng(1).random((9, 8, 7))
    job = lab.submit(lab.upload(array), rank=2, stability=True, resamples=5).wait()
    result, found = job.result, job.stability()
    assert result.stability == {
        name: found[name] for name in ("samples_mode", "resamples", "replicability", "split_half")
    }
    assert found["modes"][0] is None
    assert result.bands[0] is None
    assert result.bands[1] is not None
    lower, upper = result.bands[1]
    np.testing.assert_allclose(found["modes"][1]["upper"], upper, rtol=1e-6)
    assert (lower <= upper).all()
    figure = result.plot(tmp_path / "bands.png")
    assert [len(axes.collections) for axes in figure.axes] == [0, 2, 2]
    assert lab.submit(lab.upload(array), rank=2).wait().result.stability is None
    study = lab.study(job.record["tensor_id"], "stability", job_id=job.id, resamples=5).wait()
    assert study.kind == "stability"
    assert len(lab.job(study.record["job_id"]).stability()["modes"]) == 3


def test_a_failed_job_raises_the_message_of_the_server(lab: Client, api_with_worker: Api) -> None:
    tensor = lab.upload(planted(5, 4, 3, seed=13))
    data: Path = api_with_worker.app.state.configuration.data
    (manifest,) = (data / "tensors" / tensor.record["sha256"]).glob("manifest-*.json")
    stored = data / json.loads(manifest.read_text())["blob"]
    stored.write_bytes(stored.read_bytes()[:-8] + bytes(8))
    with pytest.raises(JobFailed) as failure:
        lab.decompose(tensor, 2)
    error = failure.value.record["error"]
    assert str(failure.value) == f"job {failure.value.record['id']} failed: {error['message']} ({error['remedy']})"


def test_lists_go_over_all_pages(lab: Client) -> None:
    tensor = lab.upload(planted(3, 3, seed=99))
    made = [lab.submit(tensor, 1, method="hals") for _ in range(3)]
    found = [job.id for job in lab.jobs(tensor=tensor)]
    assert found == [job.id for job in reversed(made)]
    connection = lab._connection
    assert [record["id"] for record in connection.pages("/v1/jobs", tensor_id=tensor.id, limit=2)] == found
    assert [job.id for job in itertools.islice(lab.jobs(tensor=tensor.id, method="hals"), 1)] == found[:1]
    assert list(lab.jobs(state="failed", tensor=tensor)) == []


def test_jobs_and_tensors_are_renamed_and_found_by_name(lab: Client) -> None:
    tensor = lab.upload(np.random.default_rng(7).random((4, 3)), name="before")
    job = lab.submit(tensor, 2)
    for thing in (tensor, job):
        thing.rename("Found by the Client")
        assert thing.name == "Found by the Client"
    assert [found.id for found in lab.tensors(name="by the client")] == [tensor.id]
    assert [found.id for found in lab.jobs(name="BY THE CLIENT", tensor=tensor)] == [job.id]
    job.rename(None)
    assert lab.job(job.id).name is None
    job.wait()


def test_methods_and_usage_are_returned(lab: Client) -> None:
    assert {"hals", "anls-bpp"} <= {method["name"] for method in lab.methods()}
    assert lab.usage()["owner"] == "local"


# Results


@pytest.fixture(scope="module")
def result(api_with_worker: Api) -> ncp_client.Result:
    axes = [
        {"name": "sample", "values": [f"s{number}" for number in range(9)]},
        {"name": "emission", "unit": "nm", "values": np.linspace(250, 320, 8).tolist()},
        {"name": "time"},
    ]
    with Client(api_with_worker.address) as client:
        found = client.decompose(TENSOR, rank=3, method="hals")
    return ncp_client.Result(found.job, found.factors, axes)


def test_a_result_becomes_a_tensor_of_tensorly(result: ncp_client.Result) -> None:
    model: NDArray[Any] = result.to_tensorly().to_tensor()
    error = np.linalg.norm(model - TENSOR) / np.linalg.norm(TENSOR)
    assert error == pytest.approx(result.relative_error, rel=1e-6)


def test_a_result_becomes_a_dataset_of_xarray_with_its_axes(result: ncp_client.Result) -> None:
    found = result.to_xarray()
    assert found["A2"].dims == ("emission", "component")
    assert found["emission"].attrs["units"] == "nm"
    assert found["A2"].sel(emission=260).shape == (3,)
    assert found["A1"].sel(sample="s3").shape == (3,)
    assert np.array_equal(found["A3"], result.factors[2])
    assert found.attrs["job_id"] == result.job["id"]
    names = [{"name": name} for name in ("component", "weight", "A1")]
    taken = ncp_client.Result(result.job, result.factors, names).to_xarray()
    assert taken["A2"].dims == ("weight (mode 2)", "component")


def test_a_package_that_is_missing_is_named(result: ncp_client.Result, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, convert in (("xarray", result.to_xarray), ("tensorly", result.to_tensorly), ("matplotlib", result.plot)):
        for loaded in [module for module in sys.modules if module.partition(".")[0] == name]:
            monkeypatch.delitem(sys.modules, loaded)
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(NcpError, match=f"pip install {name}"):
            convert()


def test_a_result_is_drawn_with_one_plot_per_mode(result: ncp_client.Result, tmp_path: Path) -> None:
    figure = result.plot(tmp_path / "components.png")
    assert [axes.get_xlabel() for axes in figure.axes] == ["sample", "emission / nm", "time"]
    assert all(len(axes.lines) == 3 for axes in figure.axes)
    assert (tmp_path / "components.png").read_bytes().startswith(b"\x89PNG")


# Records of other versions


def test_fields_that_this_client_does_not_know_are_left_out() -> None:
    row = {"iteration": 1, "objective": 1.0, "relative_error": 0.5, "fit": 0.5, "seconds": 0.1, "invented": True}
    assert ncp_client.Progress.of(row).phase == "exact"
