"""Excluded indices and diagnostics in the Python client, the command, R, and Octave."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from ncp_client import Client
from ncp_client.cli.commands import run
from ncp_client.cli.options import parse_exclusion
from tests.support.api import Api, planted
from tests.support.languages import octave, r

TENSOR = planted(9, 8, 7)


def test_a_result_has_what_was_excluded_and_its_diagnostics(lab: Client) -> None:
    result = lab.decompose(TENSOR, rank=2, exclude={"1": [0, 3], "2": [5]})
    assert result.excluded == {1: [0, 3], 2: [5]}
    assert [len(A) for A in result.factors] == [9, 8, 7]
    assert result.diagnostics is not None
    assert result.diagnostics["samples"]["left_out"][3] is None
    assert result.diagnostics is result.diagnostics
    plain = lab.decompose(TENSOR, rank=2, diagnose=False)
    assert (plain.excluded, plain.diagnostics) == ({}, None)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1:1,2,4,9", {"1": [1, 2, 4, 9]}),
        ("1:2 3:blank,7", {"1": [2], "3": ["blank", 7]}),
        ("1:2;1:5", {"1": [2, 5]}),
    ],
)
def test_the_command_reads_modes_and_indices(text: str, found: dict[str, Any]) -> None:
    assert parse_exclusion(text) == found


@pytest.mark.parametrize("text", ["1", "1:", "one:2", ":2"])
def test_other_exclusions_are_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="MODE:INDEX"):
        parse_exclusion(text)


def test_two_jobs_stand_side_by_side(lab: Client, api_with_worker: Api, capsys: pytest.CaptureFixture[str]) -> None:
    tensor = lab.upload(TENSOR)
    before = lab.submit(tensor, rank=2).wait()
    after = lab.submit(tensor, rank=2, exclude={1: [3]}).wait()
    found = after.compare(before)
    assert found == after.compare(before.id)
    assert [one["index"] for one in found["left_out"]] == [3]
    assert run(["show", after.id, "--beside", before.id, "--url", api_with_worker.address]) == 0
    printed = capsys.readouterr().out
    assert f"{found['relative_error']:.6f}" in printed
    assert "scores of 3 of mode 1" in printed


def test_r_excludes_and_reads_diagnostics(
    api_with_worker: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCP_URL", api_with_worker.address)
    np.save(tmp_path / "x.npy", TENSOR)
    script = """
    job <- ncp_watch(ncp_submit(ncp_upload("x.npy"), 2, exclude = list("1" = 3, "2" = c(0, 5))))
    found <- ncp_diagnostics(job)
    stopifnot(identical(job$result$excluded, list("1" = 3L, "2" = c(0L, 5L))))
    stopifnot(length(found$modes[[1]]$residual) == 9, found$samples$mode == 1)
    whole <- ncp_watch(ncp_submit(job$tensor_id, 2))
    beside <- ncp_comparison(job, whole$id)
    stopifnot(identical(beside, ncp_comparison(job$id, whole)), beside$other_id == whole$id)
    stopifnot(beside$other_relative_error == whole$result$relative_error, length(beside$components) == 2)
    stopifnot(vapply(beside$left_out, function(one) one$index, 0L) == c(3, 0, 5))
    cat(dim(ncp_factors(job)[[1]]))
    """
    assert r(script, tmp_path) == "9 2"


def test_octave_excludes_and_reads_diagnostics(
    api_with_worker: Api, lab: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCP_URL", api_with_worker.address)
    tensor = lab.upload(TENSOR)
    script = f"""
    job = ncp_watch(ncp_submit('{tensor.id}', 'rank', 2, 'exclude', {{3, [0 5]}}));
    found = ncp_diagnostics(job);
    assert(numel(found.modes(1).residual) == 9);
    whole = ncp_watch(ncp_submit('{tensor.id}', 'rank', 2));
    beside = ncp_comparison(job, whole.id);
    assert(isequal(beside, ncp_comparison(job.id, whole)) && strcmp(beside.other_id, whole.id));
    assert(beside.other_relative_error == whole.result.relative_error && numel(beside.components) == 2);
    assert(isequal([beside.left_out.index], [3 0 5]));
    printf('%s', job.id);
    """
    job = lab.job(octave(script, tmp_path).strip())
    assert json.dumps(job.record["result"]["excluded"]) == '{"1": [3], "2": [0, 5]}'
