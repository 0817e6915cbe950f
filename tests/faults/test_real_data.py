"""Jobs with missing entries, a mask or a fixed model survive failures; so does the diagnosis at their end."""

import json
from dataclasses import asdict
from typing import Any

import httpx
import numpy as np
import psutil
from numpy.typing import NDArray

from sparse_ncp.solvers import Settings, solve
from sparse_ncp.worker.broker import wake_worker
from sparse_ncp.worker.contract import Job
from tests.support.api import http_client, refused, running_api
from tests.support.faulty_worker import GO
from tests.support.jobs import LONG, TENSOR, Backend, ended, job_process, put, queue_job, reached, request, same_bits
from tests.support.processes import kill
from tests.support.stack import wait_for, worker

PENSIVE = ("tests.support.faulty_worker", "pensive")
# A sweep with gaps takes longer, so half the sweeps are as long on the way.
GAPPY: dict[str, Any] = {**LONG, "stop": {"max_iterations": 700, "tolerance": 0}}
SHORT: dict[str, Any] = {"rank": 3, "method": "hals", "stop": {"max_iterations": 20, "tolerance": 0}}


def submit(backend: Backend, tensor: NDArray[Any], **fields: Any) -> Job:
    job, _ = queue_job(backend.records, "local", request(put(backend.records, backend.store, tensor), **fields))
    wake_worker(backend.configuration)
    return job


def kill_job(worker_pid: int) -> None:
    victim = job_process(worker_pid)
    kill(victim)
    psutil.wait_procs([victim], timeout=10)


def kill_twice(backend: Backend, job: Job, worker_pid: int) -> None:
    """Once early, once far into the run."""
    for seen in (1, 300):
        reached(backend.records, job, seen)
        kill_job(worker_pid)


def is_as_undisturbed(backend: Backend, job: Job, tensor: NDArray[Any], **given: Any) -> bool:
    """Its factors, its history and its diagnostics, once it has ended."""
    done = ended(backend.records, job, 120)
    assert done.state == "succeeded", done.error
    assert done.result is not None
    expected = solve(tensor, done.settings, **given)
    assert expected.diagnostics is not None
    assert backend.store.job(job.id).diagnostics() == json.dumps(asdict(expected.diagnostics)).encode()
    assert done.result.missing == expected.missing
    return same_bits(backend.store.job(job.id).factors(), expected.factors) and backend.published_once(done)


def test_a_killed_job_with_gaps_resumes_to_the_same_bits(backend: Backend) -> None:
    X = TENSOR.copy()
    X[np.random.default_rng(1).random(X.shape) < 0.2] = np.nan
    with worker(backend.configuration) as running:
        job = submit(backend, X, **GAPPY, missing="nan")
        kill_twice(backend, job, running.pid)
        assert is_as_undisturbed(backend, job, X)


def test_a_killed_job_with_a_mask_resumes_to_the_same_bits(backend: Backend) -> None:
    mask = np.random.default_rng(2).random((1, 40, 40)) < 0.8
    stored = put(backend.records, backend.store, mask)
    with worker(backend.configuration) as running:
        job = submit(backend, TENSOR, **GAPPY, mask={"tensor_id": stored.id})
        kill_twice(backend, job, running.pid)
        assert is_as_undisturbed(backend, job, TENSOR, mask=mask)


def test_a_killed_job_with_a_fixed_model_resumes_to_the_same_bits(backend: Backend) -> None:
    turned = np.ascontiguousarray(TENSOR[:, ::-1])
    with worker(backend.configuration) as running:
        model = submit(backend, TENSOR, **{**SHORT, "rank": 8})
        ended(backend.records, model)
        job = submit(backend, turned, **LONG, fixed={"job_id": model.id, "modes": [3]})
        kill_twice(backend, job, running.pid)
        fixed = {3: backend.store.job(model.id).factors()[2]}
        assert is_as_undisturbed(backend, job, turned, fixed=fixed)


# While it is diagnosed


def diagnosing(backend: Backend) -> Job:
    """A job that has ended all but its diagnosis: the checkpoint of its last iteration is there."""
    job = submit(backend, TENSOR, **SHORT)
    wait_for(
        lambda: list(backend.folder(job).glob("checkpoint-*-20-*/manifest.json")),
        what="the last iteration's checkpoint",
    )
    return job


def test_a_job_that_is_killed_while_it_is_diagnosed_only_diagnoses_again(backend: Backend) -> None:
    with worker(backend.configuration, *PENSIVE) as running:
        job = diagnosing(backend)
        wait_for(lambda: backend.now(job).phase == "diagnosing", what="the word for it")
        kill_job(running.pid)
        wait_for(lambda: backend.now(job).attempt == 2, what="the second attempt")
        (backend.configuration.data / GO).touch()
        assert is_as_undisturbed(backend, job, TENSOR)


def test_a_job_that_is_killed_amid_its_resamples_draws_the_same_ones_again(backend: Backend) -> None:
    X = TENSOR[:12]
    with worker(backend.configuration) as running:
        job = submit(backend, X, **SHORT, stability=True, resamples=800)
        wait_for(lambda: backend.now(job).phase == "resampling", what="the word for it")
        wait_for(lambda: list(backend.folder(job).glob("checkpoint-*-20-*/manifest.json")), what="a checkpoint")
        kill_job(running.pid)
        wait_for(lambda: backend.now(job).attempt == 2, what="the second attempt")
        assert is_as_undisturbed(backend, job, X)
    expected = solve(X, backend.now(job).settings).stability
    assert expected is not None
    with backend.store.job(job.id).open_factors("factors.npz").file as file:
        stored = dict(np.load(file))
    assert all(np.array_equal(stored[name], array) for name, array in expected.to_arrays().items())
    assert backend.now(job).phase is None


def test_cancelling_amid_resamples_gives_the_factors_at_once(backend: Backend) -> None:
    with worker(backend.configuration), running_api(backend.configuration) as api, http_client(api.address) as lab:
        job = submit(backend, TENSOR, **SHORT, stability=True, resamples=1000)
        wait_for(lambda: backend.now(job).phase == "resampling", what="the word for it")
        preparing = backend.now(job).preparing
        assert preparing is not None
        assert preparing.step == "resample"
        backend.records.jobs.cancel("local", job.id)
        done = ended(backend.records, job)
        assert done.state == "succeeded"
        assert done.result is not None
        assert done.result.stability is None
        assert same_bits(backend.store.job(job.id).factors(), solve(TENSOR, Settings.model_validate(SHORT)).factors)
        answer: httpx.Response = lab.get(f"/v1/jobs/{job.id}/stability")
        assert "cancelled before that was complete" in refused(answer, 404, "no-stability")["detail"]


def test_a_worker_that_stops_hands_back_a_job_that_it_diagnoses(backend: Backend) -> None:
    with worker(backend.configuration, *PENSIVE):
        job = diagnosing(backend)
    handed_back = backend.now(job)
    assert (handed_back.state, handed_back.phase) == ("queued", None)
    with worker(backend.configuration):
        assert is_as_undisturbed(backend, job, TENSOR)
    assert backend.now(job).attempt == 1


def test_cancelling_a_diagnosis_gives_the_factors_at_once(backend: Backend) -> None:
    with (
        worker(backend.configuration, *PENSIVE),
        running_api(backend.configuration) as api,
        http_client(api.address) as lab,
    ):
        job = diagnosing(backend)
        backend.records.jobs.cancel("local", job.id)
        assert ended(backend.records, job).state == "succeeded"
        assert same_bits(backend.store.job(job.id).factors(), solve(TENSOR, Settings.model_validate(SHORT)).factors)
        answer: httpx.Response = lab.get(f"/v1/jobs/{job.id}/diagnostics")
        assert "cancelled before they were complete" in refused(answer, 404, "no-diagnostics")["detail"]
