"""A study keeps a plan of its runs: few of them have records, and readers see no difference."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.contract import Axis, Job, TensorRecord
from sparse_ncp.worker.errors import JobNotFinished, NotFound, PartOfStudy, TooManyRuns
from sparse_ncp.worker.operations.jobs import JobOperations
from sparse_ncp.worker.operations.studies import StudyOperations
from sparse_ncp.worker.owner_limits import Limits
from sparse_ncp.worker.records.claims import ExecutionRecords
from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.records.redis.connection import connect
from sparse_ncp.worker.store.local import LocalStore
from sparse_ncp.worker.study_contract import Measures
from tests.jobs.test_claims import RESULT
from tests.jobs.test_studies import FAILED, failed, submitted
from tests.support.jobs import queue_job, request, row


@pytest.fixture
def studies(records: ExecutionRecords, store: LocalStore, configuration: Configuration) -> StudyOperations:
    return StudyOperations(records, store, configuration)


def all_jobs(records: ExecutionRecords, limit: int = 3, **filters: Any) -> list[Job]:
    """List the jobs in pages."""
    found: list[Job] = []
    page = records.jobs.list("local", limit=limit, **filters)
    found += page.items
    while page.next is not None:
        page = records.jobs.list("local", limit=limit, cursor=page.next, **filters)
        found += page.items
    return found


@pytest.mark.parametrize(
    "grid",
    [
        {"ranks": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], "repeats": 1000},
        {"ranks": list(range(1, 101)), "betas": [n / 100 for n in range(100)], "repeats": 1},
    ],
    ids=["repeats", "cells"],
)
def test_a_study_of_ten_thousand_runs_costs_redis_little(
    records: ExecutionRecords,
    studies: StudyOperations,
    tensor: TensorRecord,
    configuration: Configuration,
    grid: dict[str, Any],
) -> None:
    submitted(studies, tensor)  # the scripts are loaded
    with connect(configuration) as client:
        client.config_resetstat()
        before = client.info("memory")["used_memory"]
        assert submitted(studies, tensor, **grid).runs.total == 10_000
        assert client.info("memory")["used_memory"] - before < 5 << 20
        assert client.info("commandstats")["cmdstat_evalsha"]["usec"] < 50_000


def test_a_run_is_read_before_it_has_a_record_and_afterwards(
    records: ExecutionRecords, studies: StudyOperations, tensor: TensorRecord
) -> None:
    submitted(studies, tensor, ranks=[2, 3], repeats=3, seed=2**60, betas=[0.1, 1 / 3])
    before = all_jobs(records)
    assert [job.queue_position for job in reversed(before)] == list(range(1, 13))
    assert [(job.settings.rank, job.settings.beta, job.settings.seed) for job in reversed(before)] == [
        (rank, beta, 2**60 + repeat) for repeat in range(3) for rank in (2, 3) for beta in (0.1, 1 / 3)
    ]
    for planned in reversed(before):
        assert records.jobs.get("local", planned.id) == planned.model_copy(update={"queue_position": 1})
        claim = records.claims.claim("w")
        assert claim is not None
        assert (claim.job_id, claim.settings) == (planned.id, planned.settings)
    after = all_jobs(records)
    changed = {"state": "running", "attempt": 1, "queue_position": None, "phase": "preparing"}
    assert [job.model_copy(update={"started_at": None}) for job in after] == [
        job.model_copy(update=changed) for job in before
    ]


def test_lists_have_every_run_once_and_filters_find_it(
    records: ExecutionRecords, studies: StudyOperations, tensor: TensorRecord
) -> None:
    first, _ = queue_job(records, "local", request(tensor, name="first"))
    one = submitted(studies, tensor, methods=["hals", "mu"], repeats=3)
    between, _ = queue_job(records, "local", request(tensor))
    other = submitted(studies, tensor, repeats=2)
    claims = [records.claims.claim("w") for _ in range(3)]
    found = all_jobs(records)
    assert len({job.id for job in found}) == len(found) == 10
    assert [job.study_id for job in found] == [other.id] * 2 + [None] + [one.id] * 6 + [None]
    assert (found[2].id, found[-1].id) == (between.id, first.id)
    assert len(all_jobs(records, study_id=one.id)) == 6
    assert {job.id for job in all_jobs(records, state="running")} == {claim.job_id for claim in claims if claim}
    assert len(all_jobs(records, state="queued")) == 7
    assert len(all_jobs(records, study_id=one.id, method="mu")) == 3
    assert len(all_jobs(records, name="run 3")) == 2
    assert all_jobs(records, tensor_id="another") == []
    assert records.stats.queue().queued == records.stats.usage("local").jobs.queued == records.jobs.count_queued() == 7


def test_a_planned_run_can_be_cancelled_and_renamed_by_its_owner_and_not_deleted(
    records: ExecutionRecords, studies: StudyOperations, tensor: TensorRecord
) -> None:
    study = submitted(studies, tensor)
    fourth, third, second, _ = (job.id for job in all_jobs(records))
    for refused, owner in ((NotFound, "ann"), (JobNotFinished, "local")):
        with pytest.raises(refused):
            records.jobs.delete(owner, third)
    with pytest.raises(NotFound):
        records.jobs.cancel("ann", third)
    assert records.jobs.cancel("local", third).state == "cancelled"
    assert records.jobs.rename("local", second, "mine").name == "mine"
    runs = records.studies.find(study.id).runs
    assert (runs.queued, runs.cancelled) == (3, 1)
    assert [claim and claim.settings.seed for claim in (records.claims.claim("w") for _ in range(4))] == [0, 1, 3, None]
    assert records.jobs.get("local", fourth).state == "running"
    with pytest.raises(PartOfStudy):
        records.jobs.delete("local", third)


def test_a_cancelled_study_answers_for_runs_that_never_had_a_record_until_it_is_deleted(
    records: ExecutionRecords, studies: StudyOperations, tensor: TensorRecord, configuration: Configuration
) -> None:
    with connect(configuration) as client:
        clean = set(client.scan_iter())
    study = submitted(studies, tensor, repeats=600, validate={"split_half": {"mode": 1, "parts": 2}})
    failed(records, 2)
    cancelled = records.studies.cancel("local", study.id)
    assert (cancelled.state, cancelled.runs.failed, cancelled.runs.cancelled) == ("cancelled", 2, 598)
    assert records.claims.claim("w") is None
    states = [job.state for job in all_jobs(records, limit=100)]
    assert (states.count("cancelled"), states.count("failed")) == (598, 2)
    last = all_jobs(records, limit=100)[0]
    assert (last.state, last.cancel_requested, last.started_at) == ("cancelled", True, None)
    assert last.finished_at is not None
    assert [row.runs for row in studies.tables.table(cancelled).rows] == [2]
    with pytest.raises(PartOfStudy):
        records.jobs.delete("local", last.id)
    assert records.stats.usage("local").jobs.cancelled == 598
    assert records.stats.usage("local").live_runs == 0
    studies.delete("local", study.id)
    usage = records.stats.usage("local")
    assert (usage.jobs.failed, usage.jobs.cancelled) == (0, 0)
    with pytest.raises(NotFound):
        records.jobs.get("local", last.id)
    with connect(configuration) as client:
        left = {name.split(":")[1] for name in set(client.scan_iter()) - clean}
    assert left <= {
        "sequence",
        "served",
        "serving",
        "counts",
        "planned",
        "usage",
        "discarded",
        "broker",
        "share",
        "floor",
    }


def test_an_ended_run_is_read_as_before_once_its_record_is_small(
    records: ExecutionRecords,
    studies: StudyOperations,
    jobs: JobOperations,
    tensor: TensorRecord,
    configuration: Configuration,
) -> None:
    study = submitted(studies, tensor, repeats=3)
    claims = [records.claims.claim("w") for _ in range(3)]
    for claim, measures in zip(claims[:2], (Measures(core_consistency=1 / 3), Measures()), strict=True):
        assert claim is not None
        records.claims.publish(claim, [row(1), row(2)])
        assert records.claims.succeed(claim, RESULT, measures)
    first, _, last = claims
    assert first is not None
    assert last is not None
    records.claims.fail(last, FAILED)
    before, runs = all_jobs(records), records.studies.runs(study.id)
    table, events = studies.tables.table(study), studies.events_after(study.id)
    for job in before:
        jobs.settle(job.id)
        jobs.settle(job.id)  # a second time changes nothing
    assert all_jobs(records) == before
    assert records.studies.runs(study.id) == runs
    assert [run.measures.core_consistency for run in runs] == [1 / 3, None, None]
    assert studies.tables.table(study) == table
    assert studies.events_after(study.id) == events
    assert [job.settings.seed for job in all_jobs(records, name="run 3")] == [2]
    assert records.claims.succeed(first, RESULT)  # asked twice, it answers the same
    with connect(configuration) as client:
        assert max(client.memory_usage(keys.job(job.id)) for job in before) < 1000
    assert records.jobs.rename("local", before[0].id, "mine").name == "mine"


def test_runs_keep_the_labels_that_the_tensor_had_when_the_study_was_submitted(
    records: ExecutionRecords, studies: StudyOperations, tensor: TensorRecord, configuration: Configuration
) -> None:
    def labels(letter: str) -> tuple[Axis, ...]:
        return tuple(Axis(name=letter, unit=None, values=list(range(length))) for length in tensor.shape)

    records.tensors.set_axes("local", tensor.id, labels("x"))
    study = submitted(studies, tensor, repeats=2)
    records.tensors.set_axes("local", tensor.id, labels("y"))
    for job in all_jobs(records):
        assert records.tensors.axes_of_job(job.id) == labels("x")
    claims = [records.claims.claim("w") for _ in range(2)]
    assert [claim and claim.axes for claim in claims] == [labels("x")] * 2
    for claim in claims:
        assert claim is not None
        records.claims.fail(claim, FAILED)
    studies.delete("local", study.id)
    with connect(configuration) as client:
        assert len(list(client.scan_iter(match=keys.axes("*")))) == 1


def test_the_limit_on_live_runs_is_exact_under_concurrent_submissions(
    records: ExecutionRecords, studies: StudyOperations, tensor: TensorRecord
) -> None:
    limits = Limits(live_runs=50)

    def submit(_: int) -> bool:
        try:
            submitted(studies, tensor, limits, repeats=8)
        except TooManyRuns:
            return False
        return True

    with ThreadPoolExecutor(20) as pool:
        assert sum(pool.map(submit, range(20))) == 6
    assert records.stats.usage("local").live_runs == 48
    with pytest.raises(TooManyRuns, match="48 runs left of at most 50, so 2 more fit"):
        submitted(studies, tensor, limits, repeats=8)
    submitted(studies, tensor, limits, repeats=2)
    queue_job(records, "local", request(tensor), None, limits)  # no run of a study
    failed(records, 8)
    submitted(studies, tensor, limits, repeats=8)
