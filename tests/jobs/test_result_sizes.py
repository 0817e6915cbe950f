"""Results are reserved from the quota at submission, and released to what was really stored."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from sparse_ncp.solvers import Settings, sweeps
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.contract import TERMINAL, Axis, Job, TensorRecord, Usage
from sparse_ncp.worker.errors import QuotaReached
from sparse_ncp.worker.operations.jobs import JobOperations
from sparse_ncp.worker.operations.result_sizes import result_size
from sparse_ncp.worker.operations.studies import StudyOperations
from sparse_ncp.worker.owner_limits import Limits
from sparse_ncp.worker.records.claims import FIRST_ITERATIONS, ROW_BYTES, ExecutionRecords
from sparse_ncp.worker.store.local import LocalStore
from sparse_ncp.worker.study_contract import Study, StudyRequest
from tests.jobs.test_studies import FAILED
from tests.support.jobs import ENDLESS, ended, put, random_tensor, request, row
from tests.support.stack import wait_for, worker


@pytest.fixture
def studies(records: ExecutionRecords, store: LocalStore, configuration: Configuration) -> StudyOperations:
    return StudyOperations(records, store, configuration)


@pytest.fixture
def running(configuration: Configuration) -> Iterator[None]:
    with worker(configuration):
        yield


def usage(records: ExecutionRecords) -> Usage:
    return records.stats.usage("local")


def compare(studies: StudyOperations, tensor: TensorRecord, limits: Limits | None = None, **fields: Any) -> Study:
    body = {"kind": "compare", "tensor_id": tensor.id, "ranks": [2], "methods": ["hals"], "repeats": 4, **fields}
    return studies.submit("local", TypeAdapter(StudyRequest).validate_python(body), limits=limits or Limits())[0]


def settled(records: ExecutionRecords, job: Job) -> Job:
    """The job once it has ended and its history is in the store."""
    found = ended(records, job)
    wait_for(lambda: (status := records.jobs.status(job.id)) and status.settled, 20, "its history to be stored")
    return found


@pytest.mark.usefixtures("running")
def test_no_result_takes_more_than_was_reserved(
    records: ExecutionRecords, store: LocalStore, jobs: JobOperations, studies: StudyOperations
) -> None:
    tensors = [
        put(records, store, random_tensor(4, 5, 6)),
        put(records, store, random_tensor(300, 7, 5).astype(np.float32)),
        put(records, store, random_tensor(12, 9, 8, 3)),
    ]
    labelled = put(records, store, random_tensor(40, 30, 5))
    axes = [
        Axis(name=name, unit="nm", values=[f"{name}{number}" for number in range(length)])
        for name, length in zip("abc", labelled.shape, strict=True)
    ]
    records.tensors.set_axes("local", labelled.id, tuple(axes))
    label_bytes = records.tensors.get_labelled("local", labelled.id).model_dump_json()
    asked: list[dict[str, Any]] = [
        {},
        {"rank": 4, "stop": {"max_iterations": 400, "tolerance": 0}},
        {"stability": True, "resamples": 5, "preset": "recommended"},
        {"starts": 4, "exclude": {"1": [0]}, "diagnose": True},
    ]
    for tensor in (*tensors, labelled):
        for fields in asked:
            job = request(tensor, **fields)
            size = result_size(job.settings(), tensor)
            made = settled(records, jobs.submit("local", job).job)
            assert made.state == "succeeded", made.error
            labels = size.label_copies * len(label_bytes) if tensor is labelled else 0
            assert 0 < store.job(made.id).nbytes() <= size.kept + labels
        study = compare(studies, tensor, ranks=[1, 3], repeats=2)
        wait_for(lambda study=study: records.studies.find(study.id).state in TERMINAL, 60, "it")  # type: ignore[misc]
        for run in records.jobs.list("local", study_id=study.id).items:
            size = result_size(run.settings, tensor, compact=True)
            labels = size.label_copies * len(label_bytes) if tensor is labelled else 0
            assert 0 < store.job(run.id).nbytes() <= size.kept + labels
    found = usage(records)
    assert found.reserved_bytes == 0
    everything = [job.id for job in records.jobs.list("local", limit=500).items]
    assert found.result_bytes == sum(store.job(id).nbytes() for id in everything) > 0


def test_a_checkpoint_takes_no_more_than_was_reserved(tensor: TensorRecord) -> None:
    for fields in (
        {},
        {"starts": 3},
        {"method": "apg"},
        {"preset": "recommended"},
        {"method": "anls-bpp", "beta": 0.1},
    ):
        settings = Settings.model_validate({"rank": 3, "method": "hals", "stop": {"max_iterations": 30}, **fields})
        working = result_size(settings, tensor).working
        for state in sweeps(random_tensor(4, 5, 6), settings):
            assert 2 * len(state.to_bytes()) < working


def test_racing_submissions_never_reserve_more_than_the_quota(
    records: ExecutionRecords, jobs: JobOperations, studies: StudyOperations, tensor: TensorRecord
) -> None:
    size = result_size(request(tensor).settings(), tensor)
    each = size.kept + size.working
    limits = Limits(stored_bytes=tensor.nbytes + 7 * each - 1)

    def submit(_: int) -> bool:
        try:
            jobs.submit("local", request(tensor), limits=limits)
        except QuotaReached:
            return False
        return True

    with ThreadPoolExecutor(20) as pool:
        assert sum(pool.map(submit, range(20))) == 6
    assert usage(records).reserved_bytes == 6 * each
    with pytest.raises(QuotaReached, match="so 0 of the 4 runs fit"):
        compare(studies, tensor, limits, ranks=[20])
    with pytest.raises(QuotaReached, match="this tensor has"):
        records.tensors.add(tensor.model_copy(update={"id": "another", "nbytes": each}), limits)


def test_a_study_that_passes_the_quota_is_refused_with_the_number_of_runs_that_fit(
    records: ExecutionRecords, store: LocalStore, studies: StudyOperations
) -> None:
    tensor = put(records, store, random_tensor(2, 20_000))
    large = {"ranks": [50], "repeats": 1000}  # 24 MB each
    with pytest.raises(QuotaReached, match="so 0 of the 1,000 runs fit"):
        compare(studies, tensor, Limits(stored_bytes=1_000_000), **large)
    assert usage(records).reserved_bytes == 0
    quota = Limits(stored_bytes=500_000_000)
    with pytest.raises(QuotaReached) as refused:
        compare(studies, tensor, quota, **large)
    fitting = int(str(refused.value).rpartition("so ")[2].partition(" ")[0])
    assert 10 <= fitting <= 20
    with pytest.raises(QuotaReached):
        compare(studies, tensor, quota, ranks=[50], repeats=fitting + 1)
    study = compare(studies, tensor, quota, ranks=[50], repeats=fitting)
    assert fitting * 24e6 < usage(records).reserved_bytes <= 500_000_000
    claim = records.claims.claim("w")
    assert claim is not None
    assert records.studies.cancel("local", study.id).runs.cancelled == fitting - 1
    one = usage(records).reserved_bytes
    assert 24e6 < one < 200e6
    records.claims.cancel(claim, None)
    jobs = StudyOperations(records, store, records._redis.configuration)._jobs
    jobs.settle(claim.job_id)
    assert usage(records).reserved_bytes == 0
    assert usage(records).result_bytes == store.job(claim.job_id).nbytes()


def test_what_was_reserved_is_released_however_a_job_ends(
    records: ExecutionRecords, jobs: JobOperations, studies: StudyOperations, tensor: TensorRecord
) -> None:
    for _ in range(4):
        jobs.submit("local", request(tensor))
    held = usage(records).reserved_bytes // 4
    first = records.claims.claim("w")
    assert first is not None
    assert records.claims.crash(first, "it died", is_own_fault=False)
    assert usage(records).reserved_bytes == 4 * held
    claims = [records.claims.claim("w") for _ in range(2)]
    for claim in claims:
        assert claim is not None
        records.claims.fail(claim, FAILED)
    jobs.settle(first.job_id)
    assert usage(records).reserved_bytes == 3 * held
    assert claims[1] is not None
    jobs.delete("local", claims[1].job_id)  # before it is settled
    assert usage(records).reserved_bytes == 2 * held
    for job in records.jobs.list("local", state="queued").items:
        records.jobs.cancel("local", job.id)
    assert usage(records).reserved_bytes == 0
    study = compare(studies, tensor)
    records.jobs.cancel("local", records.jobs.list("local", study_id=study.id).items[0].id)
    while (claim := records.claims.claim("w")) is not None:
        records.claims.fail(claim, FAILED)
        jobs.settle(claim.job_id)
    assert usage(records).reserved_bytes == 0


def test_a_history_beyond_what_was_reserved_counts_as_it_is_published(
    records: ExecutionRecords, jobs: JobOperations, tensor: TensorRecord
) -> None:
    asked = request(tensor, stop={"max_iterations": 10**9})
    size = result_size(asked.settings(), tensor)
    each = size.kept + size.working
    jobs.submit("local", asked, limits=Limits(stored_bytes=tensor.nbytes + each + 50 * ROW_BYTES))
    claim = records.claims.claim("w")
    assert claim is not None
    assert records.claims.publish(claim, [row(n) for n in range(1, FIRST_ITERATIONS + 1)]) == "held"
    assert usage(records).reserved_bytes == each
    assert records.claims.publish(claim, [row(FIRST_ITERATIONS + n) for n in range(1, 51)]) == "held"
    assert usage(records).reserved_bytes == each + 50 * ROW_BYTES
    assert records.claims.publish(claim, [row(FIRST_ITERATIONS + 51)]) == "full"


@pytest.mark.usefixtures("running")
def test_a_job_whose_history_passes_the_quota_stops_with_the_reason_and_its_factors(
    records: ExecutionRecords, store: LocalStore, jobs: JobOperations, tensor: TensorRecord
) -> None:
    asked = request(tensor, **ENDLESS)
    size = result_size(asked.settings(), tensor)
    quota = tensor.nbytes + size.kept + size.working + 500 * ROW_BYTES
    done = settled(records, jobs.submit("local", asked, limits=Limits(stored_bytes=quota)).job)
    assert done.error is not None
    assert (done.state, done.error.kind) == ("failed", "quota")
    assert "history" in done.error.message
    assert "initial" in done.error.remedy
    assert done.progress is not None
    assert done.progress.iteration >= FIRST_ITERATIONS + 500
    assert len(jobs.factors("local", done.id)) == 3
    assert usage(records).stored_bytes <= quota
    assert usage(records).reserved_bytes == 0
