"""Files that were altered or cut short behind the server's back are noticed by their digest."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sparse_ncp.worker.broker import wake_worker
from sparse_ncp.worker.store.verification import LEAST_BYTES
from tests.support.jobs import LONG, Backend, ended, put, queue_job, random_tensor, reached, request
from tests.support.stack import embedded_redis, worker


def alter(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(("damage", "damaged"), [(alter, 1), (cut, 2)], ids=["the last altered", "both cut short"])
def test_a_damaged_checkpoint_costs_time_and_nothing_else(
    tmp_path: Path, damage: Callable[[Path], None], damaged: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every stopping worker leaves a checkpoint; the last two are kept."""
    with embedded_redis(tmp_path, checkpoint_seconds=600.0) as configuration:
        backend = Backend(configuration)
        job = backend.submit(**LONG)
        for _ in range(2):
            with worker(configuration) as stopping:
                seen = backend.now(job).progress
                reached(backend.records, job, 20 + (seen.iteration if seen else 0))
                stopping.terminate()
                stopping.wait(30)
        found = checkpoints(backend.folder(job))
        for path in found[:damaged]:
            damage(path)
        assert len(found) == 2
        whole = [iteration_of(path) for path in found[damaged:]]
        with worker(configuration):
            done = backend.as_if_nothing_happened(job)
        assert done.attempt == 1
        assert done.result is not None
        restarted = "its checkpoints were missing or damaged, so the run started again from its seed"
        assert (restarted in done.result.warnings) == (not whole)
        logged = f"resumes after iteration {whole[0]}" if whole else restarted
        assert f"job {job.id}: {logged}" in capfd.readouterr().err


def test_a_damaged_tensor_fails_its_jobs_with_the_reason(tmp_path: Path) -> None:
    with embedded_redis(tmp_path) as configuration, worker(configuration):
        backend = Backend(configuration)
        for seed, damage in enumerate((alter, cut)):
            other = put(backend.records, backend.store, random_tensor(5, 6, 7, seed=seed))
            damage(backend.store.tensor_path(other.sha256))
            job, _ = queue_job(backend.records, "local", request(other))
            wake_worker(configuration)
            failed = ended(backend.records, job)
            assert failed.error is not None
            assert (failed.state, failed.error.kind, failed.attempt) == ("failed", "system", 1)
            assert "altered" in failed.error.message
            assert "upload the tensor again" in failed.error.remedy
        backend.as_if_nothing_happened(backend.submit(rank=2, stop={"max_iterations": 3}))


def test_a_large_tensor_that_was_checked_before_is_noticed_too(tmp_path: Path) -> None:
    """It is not read again while its file is unchanged."""
    asked = {"rank": 1, "stop": {"max_iterations": 1}, "diagnose": False}
    with embedded_redis(tmp_path) as configuration, worker(configuration):
        backend = Backend(configuration)
        large = put(backend.records, backend.store, random_tensor(140, 130, 120))
        path = backend.store.tensor_path(large.sha256)
        assert path.stat().st_size >= LEAST_BYTES
        for _ in range(2):
            job, _ = queue_job(backend.records, "local", request(large, **asked))
            wake_worker(configuration)
            assert ended(backend.records, job).state == "succeeded"
        assert (backend.store.root / "tensors" / large.sha256 / "verified.json").exists()
        alter(path)
        job, _ = queue_job(backend.records, "local", request(large, **asked))
        wake_worker(configuration)
        failed = ended(backend.records, job)
        assert failed.error is not None
        assert "altered" in failed.error.message


def iteration_of(path: Path) -> int:
    return int(path.parent.name.split("-")[2])


def checkpoints(folder: Path) -> list[Path]:
    """The furthest first."""
    return sorted(folder.glob("checkpoint-*/state"), key=iteration_of, reverse=True)
