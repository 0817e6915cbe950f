"""Labels: set with the upload, kept by the job, and present in results and files of every format."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray

from ncp_client import Client, Refused
from ncp_client.cli.main import main
from ncp_client.content import array_content
from tests.support.api import Api, planted
from tests.support.languages import octave, r

TENSOR = planted(4, 3, 5, seed=61)
AXES: list[Any] = [
    {"name": "sample", "values": ["a", "b", "c", "d"]},
    {"name": "emission", "unit": "nm", "values": np.linspace(250, 260, 3)},
    "visit",
]


def test_labels_go_with_the_tensor_into_results_and_files(lab: Client, tmp_path: Path) -> None:
    tensor = lab.upload(TENSOR, axes=AXES)
    assert tensor.axes is not None
    assert [axis["name"] for axis in tensor.axes] == ["sample", "emission", "visit"]
    assert tensor.axes[2]["values"] == [0, 1, 2, 3, 4]
    assert lab.upload(TENSOR).axes == tensor.axes  # not sent again, and its labels are still there
    job = lab.submit(tensor, 2, method="hals").wait()
    found = job.result.to_xarray()
    assert found["A2"].sel(emission=255).shape == (2,)
    assert found["emission"].attrs["units"] == "nm"
    assert job.result.plot().axes[1].get_xlabel() == "emission / nm"
    job.download(tmp_path / "f.nc", scale="unit", order="share")
    with xarray.open_dataset(tmp_path / "f.nc", engine="scipy") as stored:
        assert stored["emission"].values.tolist() == [250, 255, 260]
    job.download(tmp_path / "second.csv", mode=2)
    assert (tmp_path / "second.csv").read_text().splitlines()[1].startswith("250")
    job.download(tmp_path / "all.zip")
    assert (tmp_path / "all.zip").read_bytes().startswith(b"PK")
    tensor.label(["x", "y", "z"])
    assert lab.job(job.id).result.to_xarray()["A1"].dims == ("sample", "component")  # as it was run


@pytest.mark.parametrize(
    "axes", [["a", "b"], ["a", "b", "c", "d"], ["a", {"name": "b", "values": [1]}, "c"], ["a", "a", "b"]]
)
def test_labels_that_do_not_fit_are_refused_and_nothing_is_kept(axes: Any, lab: Client) -> None:
    array = planted(4, 3, 5, seed=62)
    with pytest.raises(Refused, match="axes"):
        lab.upload(array, axes=axes)
    assert list(lab.tensors(sha256=array_content(array).sha256().hex())) == []


def test_the_command_takes_labels_from_a_file(
    api_with_worker: Api, lab: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("NCP_URL", api_with_worker.address)
    np.save(tmp_path / "x.npy", planted(2, 3, seed=63))
    (tmp_path / "axes.json").write_text(json.dumps(["row", {"name": "column", "values": [1, 2, 3]}]))
    assert main(["upload", str(tmp_path / "x.npy"), "--axes", str(tmp_path / "axes.json")]) == 0
    axes = lab.tensor(capsys.readouterr().out.strip()).axes
    assert axes is not None
    assert axes[1]["values"] == [1, 2, 3]
    (tmp_path / "axes.json").write_text("{")
    assert main(["upload", str(tmp_path / "x.npy"), "--axes", str(tmp_path / "axes.json")]) == 2
    assert "is not JSON" in capsys.readouterr().err


def test_octave_and_r_label_their_tensors(
    api_with_worker: Api, lab: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCP_URL", api_with_worker.address)
    in_octave = """
    axes = {struct('name', 'sample', 'values', {{'a', 'b'}}), struct('name', 'one', 'unit', 'nm', 'values', 250)};
    t = ncp_upload([1; 2], 'axes', axes); printf('%s', t.id);
    """
    in_r = """
    axes <- list(list(name = "sample", values = c("a", "b")), list(name = "one", unit = "nm", values = 250))
    cat(ncp_upload(matrix(c(1, 3), 2, 1), axes = axes)$id)
    """
    for found in (octave(in_octave, tmp_path), r(in_r, tmp_path)):
        axes = lab.tensor(found).axes
        assert axes == [
            {"name": "sample", "unit": None, "values": ["a", "b"]},
            {"name": "one", "unit": "nm", "values": [250]},
        ]
