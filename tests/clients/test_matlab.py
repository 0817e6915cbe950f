"""The client for MATLAB and Octave, run with Octave on a server."""

import re
import threading
from pathlib import Path

import numpy as np
import pytest
import scipy.io

from ncp_client import Client, Tensor
from tests.support.api import Api
from tests.support.jobs import same_bits
from tests.support.languages import octave
from tests.support.machine.proxy import cutting_proxy
from tests.support.stack import ROOT

# Rank three in any order, without noise.
PLANTED = """
function X = planted(shape)
  rand('twister', 1);
  X = zeros(prod(shape), 1);
  for r = 1:3
    column = 1;
    for n = 1:numel(shape), column = kron(rand(shape(n), 1), column); end
    X = X + column;
  end
  X = reshape(X, shape);
end
"""


@pytest.fixture(autouse=True)
def server_of_the_variables(api_with_worker: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCP_URL", api_with_worker.address)


@pytest.mark.parametrize("shape", [(12, 10), (12, 10, 8), (7, 6, 5, 4)])
@pytest.mark.parametrize("kind", ["single", "double"])
def test_one_line_decomposes_an_array_of_any_order(
    shape: tuple[int, ...], kind: str, lab: Client, tmp_path: Path
) -> None:
    script = f"""
    X = {kind}(planted([{" ".join(map(str, shape))}]));
    r = ncp(X, 'rank', 4, 'beta', 0, 'progress', false);
    factors = r.factors;
    save('-v6', 'back.mat', 'X', 'factors');
    printf('%s %s %.3g\\n', r.job.id, r.tensor.id, r.job.result.relative_error);
    """
    job_id, tensor_id, error = octave(PLANTED + script, tmp_path).split()
    found = scipy.io.loadmat(tmp_path / "back.mat")
    assert same_bits(list(found["factors"].ravel()), lab.job(job_id).factors())
    lab.tensor(tensor_id).download(tmp_path / "stored.npy")
    stored = np.load(tmp_path / "stored.npy")
    assert (stored.dtype, stored.flags.f_contiguous) == (np.float32 if kind == "single" else np.float64, True)
    assert np.array_equal(stored, found["X"])
    assert float(error) < 0.05
    assert lab.job(job_id).record["settings"]["preset"] == "recommended"


@pytest.mark.parametrize("kind", ["uint8", "int16", "uint32", "int64", "logical"])
def test_every_class_of_numbers_is_written_as_it_is(kind: str, lab: Client, tmp_path: Path) -> None:
    script = f"t = ncp_upload({kind}(reshape(1:24, [2 3 4])), 'name', 'Größe 1'); printf('%s', t.id);"
    tensor = lab.tensor(octave(script, tmp_path))
    tensor.download(tmp_path / "stored.npy")
    expected = np.arange(1, 25).reshape((2, 3, 4), order="F").astype(bool if kind == "logical" else kind)
    assert np.load(tmp_path / "stored.npy").dtype == expected.dtype
    assert np.array_equal(np.load(tmp_path / "stored.npy"), expected)
    assert tensor.name == "Größe 1"


def test_the_single_steps_give_history_and_factors(tmp_path: Path) -> None:
    script = """
    t = ncp_upload(planted([9 8 7]));
    first = ncp_watch(ncp_submit(t, 'rank', 2, 'method', 'hals'));
    job = ncp_submit(t.id, 'rank', 2, 'method', 'hals', 'beta', [0 0.1 0.2], 'initial', first, ...
                     'stop', struct('max_iterations', 30, 'tolerance', 0));
    seen = 0;
    [job, history] = ncp_watch(job, 'progress', @(row) row.iteration);
    assert(isequal([history.iteration], 1:30));
    assert(strcmp(job.state, 'succeeded'));
    assert(isequal(job.settings.beta(:)', [0 0.1 0.2]));
    assert(strcmp(job.initial.job_id, first.id));
    assert(isequal(size(ncp_factors(job.id){2}), [8 2]));
    """
    octave(PLANTED + script, tmp_path)


def test_a_study_is_asked_for_with_lists_of_one_too(tmp_path: Path) -> None:
    script = """
    t = ncp_upload(planted([9 8 7]));
    study = ncp_study(t, 'compare', 'ranks', 2, 'methods', 'hals', 'betas', [0 0.1], 'repeats', 2, ...
                      'validate', struct('holdout', struct('fraction', 0.1, 'folds', 2)));
    study = ncp_watch_study(study);
    assert(strcmp(study.state, 'succeeded'));
    assert(isequal([study.table.rows.beta], [0 0.1]));
    assert(numel(study.table.ranks.holdout.relative_error) == 2);
    choice = ncp_watch_study(ncp_study(t.id, 'choose', 'rank', 4, 'seeds', 2).id);
    assert(~isempty(choice.advice.reason));
    said = ncp_advice(study);
    assert(strcmp(said{1}, study.recommendation.title) && strncmp(said{1}, 'Rank 2', 6));
    assert(isequal(said(2:end), [study.recommendation.sentences; study.table.notes]));
    assert(any(strfind(said{end}, 'ended with a warning')));
    assert(~isempty(strfind(evalc('ncp_advice(choice)'), choice.advice.reason)));
    assert(size(ncp_factors(choice.job_id){1}, 1) == 9);
    own = ncp_study(t, 'compare', 'ranks', 2, 'methods', {'hals', 'anls-bpp'}, 'repeats', 1, 'penalty', []);
    assert(isempty(own.request.penalty) && ~isfield(study.request, 'penalty'));
    """
    octave(PLANTED + script, tmp_path)


def test_the_advice_ends_with_what_failed(unread_in_halves: Tensor, tmp_path: Path) -> None:
    script = f"""
    half = struct('split_half', struct('mode', 1, 'parts', 2));
    study = ncp_study('{unread_in_halves.id}', 'choose', 'rank', 2, 'missing', 'nan', 'validate', half);
    ncp_advice(ncp_watch_study(study));
    """
    said = octave(script, tmp_path)
    assert said.startswith("validate.split_half: has halves in which index 4 of mode 2 has no observed entry (")
    assert 'exclude={"2": [4]})' in said


def test_the_stability_of_a_job_comes_as_matrices(tmp_path: Path) -> None:
    script = """
    t = ncp_upload(planted([9 8 7]));
    job = ncp_watch(ncp_submit(t, 'rank', 2, 'stability', true, 'resamples', 5));
    found = ncp_stability(job);
    assert(isequal(found.replicability(:), job.result.stability.replicability(:)) && numel(found.split_half) == 2);
    assert(isempty(found.modes{1}) && isequal(size(found.modes{2}.lower), [8 2]));
    assert(all(all(found.modes{3}.lower <= found.modes{3}.upper)));
    study = ncp_watch_study(ncp_study(t, 'stability', 'job_id', job.id, 'resamples', 6));
    assert(strcmp(study.state, 'succeeded') && study.result.stability.resamples == 6);
    """
    octave(PLANTED + script, tmp_path)


@pytest.mark.parametrize(
    ("call", "identifier", "words"),
    [
        ("ncp(ones(3, 3), 'rank', 0, 'beta', -1)", "ncp:refused", ["rank: ", "beta: "]),
        ("ncp(-ones(3, 3), 'rank', 1)", "ncp:refused", ["negative"]),
        ("ncp_factors('nothing')", "ncp:notFound", ["there is no job nothing"]),
        ("ncp_watch_study('nothing')", "ncp:notFound", ["there is no study nothing"]),
        ("ncp(ones(3, 3), 'rank', 1, 'url', 'http://127.0.0.1:1')", "ncp:unavailable", ["no server answers at"]),
        ("ncp(ones(3, 3), 'rank', 1, 'url', 'lab')", "ncp:usage", ["is not the address of a server"]),
        ("ncp_upload('nothing.npy')", "ncp:noFile", ["nothing.npy"]),
        ("ncp_upload({1})", "ncp:notATensor", ["real numbers, not cell"]),
        ("ncp_upload(1i * ones(2, 2))", "ncp:notATensor", ["real numbers"]),
        ("ncp(ones(3, 3), 'rank')", "ncp:usage", ["names and values"]),
    ],
)
def test_refusals_are_errors_with_the_servers_words(
    call: str, identifier: str, words: list[str], tmp_path: Path
) -> None:
    script = f"try, {call}; catch e, printf('%s\\n%s', e.identifier, e.message); end"
    found, said = octave(script, tmp_path).split("\n", 1)
    assert found == identifier
    assert all(word in said for word in words)


def test_watching_goes_on_when_answers_are_lost(
    api_with_worker: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = """
    job = ncp_submit(ncp_upload(planted([9 8 7])), 'rank', 3, 'method', 'apg', ...
                     'stop', struct('max_iterations', 2000, 'tolerance', 0));
    [job, history] = ncp_watch(job);
    assert(isequal([history.iteration], 1:2000));
    """
    with cutting_proxy(api_with_worker.address) as proxy:
        monkeypatch.setenv("NCP_URL", proxy.address)
        losing = threading.Thread(target=proxy.lose_answers, args=(4_000,))
        losing.start()
        octave(PLANTED + script, tmp_path)
        losing.join()


def test_the_guides_lines_run_as_written(tmp_path: Path) -> None:
    guide = (ROOT / "docs/how-to/matlab.md").read_text()
    written = re.findall(r"^```matlab\n(.*?)^```", guide, re.DOTALL | re.MULTILINE)
    assert len(written) == 3
    said = octave("\n".join(written), tmp_path)
    assert "3 components" in said
    assert "rank 2: relative error 0." in said
