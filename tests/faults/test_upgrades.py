"""A job that continues after an upgrade, or on another kind of machine, says so in its record."""

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sparse_ncp.solvers import State
from sparse_ncp.worker.contract import Job
from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.records.redis.connection import RedisConnection
from tests.support.jobs import LONG, Backend, ended, reached, same_bits
from tests.support.stack import embedded_redis, worker


def of_another_version(content: bytes) -> bytes:
    """The checkpoint as a version with another format would have written it."""
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        arrays = dict(stored)
    header = json.loads(arrays["header"].tobytes())
    header["format"] += 1
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def of_another_machine(content: bytes) -> bytes:
    """The checkpoint as another kind of processor would have written it."""
    return replace(State.from_bytes(content), machine="another kind of processor").to_bytes()


def replace_checkpoint(backend: Backend, job: Job, change: Callable[[bytes], bytes]) -> int:
    """Replace the only checkpoint of a stopped job; return its iteration."""
    path = backend.checkpointed(job)
    iteration, changed = int(path.parent.name.split("-")[2]), change(path.read_bytes())
    shutil.rmtree(path.parent)
    name = backend.store.job(job.id).save_study_checkpoint(1, iteration, changed)
    RedisConnection.of(backend.configuration).command("HSET", keys.job(job.id), "checkpoint", name)
    return iteration


@pytest.mark.parametrize("change", [of_another_version, of_another_machine])
def test_the_record_says_why_a_resumed_run_may_differ(
    tmp_path: Path, change: Callable[[bytes], bytes], capfd: pytest.CaptureFixture[str]
) -> None:
    with embedded_redis(tmp_path, checkpoint_seconds=600.0) as configuration:
        backend = Backend(configuration)
        job = backend.submit(**LONG)
        with worker(configuration) as stopping:
            reached(backend.records, job, 20)
            stopping.terminate()
            stopping.wait(30)
        iteration = replace_checkpoint(backend, job, change)
        with worker(configuration):
            done = ended(backend.records, job)
        assert done.result is not None
        assert same_bits(backend.store.job(job.id).factors(), backend.solved(**LONG))
        assert backend.published_once(done)
        (warning,) = [text for text in done.result.warnings if "checkpoint" in text or "machine" in text]
        resumed = f"job {job.id}: resumes after iteration {iteration}" in capfd.readouterr().err
        if change is of_another_version:
            assert "another version of sparse-ncp, so the run started again from its seed" in warning
            assert not resumed
        else:
            assert "another kind of machine" in warning
            assert f"after iteration {iteration}" in warning
            assert resumed
