"""Records of studies: runs are claimed together and returned one by one; a study is cancelled and deleted as one."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter

from sparse_ncp.solvers import Result, Settings, State, diagnose, sweeps, synthetic
from sparse_ncp.solvers.studies.comparison import ComparisonState
from sparse_ncp.solvers.studies.runs import Run
from sparse_ncp.solvers.studies.settings import Cell, ComparisonSettings
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.contract import JobError, JobResult, TensorRecord
from sparse_ncp.worker.errors import InUse, NotFound, StoreUnavailable, StudyNotFinished, TooManyJobs
from sparse_ncp.worker.execution.study_endings import end_comparisons
from sparse_ncp.worker.operations.cleanup import Cleanup
from sparse_ncp.worker.operations.studies import StudyOperations
from sparse_ncp.worker.operations.study_tables import StudyTables
from sparse_ncp.worker.operations.tensors import TensorOperations
from sparse_ncp.worker.owner_limits import Limits
from sparse_ncp.worker.records.claims import ExecutionRecords
from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.records.redis.connection import connect
from sparse_ncp.worker.records.studies import FORMER_FIELDS, EndingStudy
from sparse_ncp.worker.store.local import LocalStore
from sparse_ncp.worker.study_contract import Measures, Study, StudyRequest
from tests.support.jobs import put, queue_job, random_tensor, request

FAILED = JobError(kind="input", message="no", remedy="none")


@pytest.fixture
def studies(records: ExecutionRecords, store: LocalStore, configuration: Configuration) -> StudyOperations:
    return StudyOperations(records, store, configuration)


def submitted(studies: StudyOperations, tensor: TensorRecord, limits: Limits | None = None, **fields: Any) -> Study:
    body = {"kind": "compare", "tensor_id": tensor.id, "ranks": [2], "methods": ["hals"], "repeats": 4, **fields}
    made = TypeAdapter(StudyRequest).validate_python(body)
    return studies.submit("local", made, limits=limits or Limits())[0]


def solved(settings: Settings) -> State:
    """The last state of a run on the tensor of these tests."""
    *_, last = sweeps(random_tensor(4, 5, 6), settings)
    return last


def failed(records: ExecutionRecords, count: int) -> None:
    for _ in range(count):
        claim = records.claims.claim("w")
        assert claim is not None
        assert records.claims.fail(claim, FAILED)


def test_one_process_claims_tiny_runs_together_but_not_beyond_another_owner(
    records: ExecutionRecords, studies: StudyOperations, tensor: TensorRecord, tensors: TensorOperations
) -> None:
    study = submitted(studies, tensor)
    first = records.claims.claim("w")
    assert first is not None
    assert (first.study_id, first.task) == (study.id, "run")
    (second,) = records.claims.claim_more(first, 1)
    assert second.batch == first.batch
    assert records.claims.status(first) == "held"
    theirs = tensor.model_copy(update={"id": "theirs", "owner": "ann"})
    records.tensors.add(theirs)
    queue_job(records, "ann", request(theirs))
    assert records.claims.claim_more(first, 5) == []
    other = records.claims.claim("w")
    assert other is not None
    assert other.owner == "ann"
    assert len(records.claims.claim_more(first, 5)) == 2


def test_a_job_that_comes_first_of_the_same_owner_is_not_passed_by(
    records: ExecutionRecords, studies: StudyOperations, tensor: TensorRecord
) -> None:
    submitted(studies, tensor)
    first = records.claims.claim("w")
    assert first is not None
    urgent, _ = queue_job(records, "local", request(tensor, priority=5))
    assert records.claims.claim_more(first, 5) == []
    following = records.claims.claim("w")
    assert following is not None
    assert following.job_id == urgent.id


def test_runs_whose_process_died_by_itself_go_on_alone(
    records: ExecutionRecords, studies: StudyOperations, tensor: TensorRecord
) -> None:
    """Any of them may have caused the crash."""
    study = submitted(studies, tensor)
    first = records.claims.claim("w")
    assert first is not None
    together = [first, *records.claims.claim_more(first, 2)]
    assert records.claims.crash(first, "its process ended with 1")
    assert records.claims.status(first) == "lost"
    assert not any(records.claims.fail(claim, FAILED) for claim in together)
    assert records.studies.find(study.id).runs.queued == 4
    again = [records.claims.claim("w") for _ in range(3)]
    assert [claim.batch for claim in again if claim] == [None] * 3
    last = records.claims.claim("w")
    assert last is not None
    assert last.batch is not None


def test_a_killed_process_gives_all_its_runs_back_to_be_shared_again(
    records: ExecutionRecords, studies: StudyOperations, tensor: TensorRecord
) -> None:
    submitted(studies, tensor)
    first = records.claims.claim("w")
    assert first is not None
    records.claims.claim_more(first, 2)
    assert records.claims.crash(first, "its process was killed by SIGKILL", is_own_fault=False)
    again = records.claims.claim("w")
    assert again is not None
    assert (again.job_id, again.fence) == (first.job_id, 2)
    assert again.batch is not None


def test_a_study_fails_only_if_every_run_does(
    records: ExecutionRecords, studies: StudyOperations, tensor: TensorRecord
) -> None:
    study = submitted(studies, tensor)
    failed(records, 3)
    assert records.studies.find(study.id).state == "running"
    failed(records, 1)
    done = records.studies.find(study.id)
    assert (done.state, done.error) == ("failed", FAILED)
    kinds = [event.kind for event in studies.events_after(study.id)]
    assert kinds == ["state", "state", "run", "run", "run", "run", "state", "end"]


def test_a_cancel_that_was_interrupted_is_finished_by_the_next_claim(
    records: ExecutionRecords, studies: StudyOperations, tensor: TensorRecord
) -> None:
    study = submitted(studies, tensor)
    for claim in [records.claims.claim("w") for _ in range(2)]:
        assert claim is not None
        assert records.claims.hand_back(claim)
    assert records._redis.script("studies/cancel", "local", study.id, 0, 1) == 1
    assert records.studies.find(study.id).runs.cancelled == 2  # one of three with a record, and the one without
    assert records.claims.claim("w") is None
    assert records.studies.find(study.id).state == "cancelled"


def test_a_study_is_one_live_job_until_its_last_run_has_ended(
    records: ExecutionRecords, studies: StudyOperations, tensor: TensorRecord
) -> None:
    one = Limits(live_jobs=1)
    submitted(studies, tensor, one)
    failed(records, 3)
    with pytest.raises(TooManyJobs):
        queue_job(records, "local", request(tensor), None, one)
    failed(records, 1)
    queue_job(records, "local", request(tensor), None, one)
    with pytest.raises(TooManyJobs):
        submitted(studies, tensor, one)


def test_what_a_live_study_needs_cannot_be_deleted(
    records: ExecutionRecords,
    studies: StudyOperations,
    tensors: TensorOperations,
    tensor: TensorRecord,
    store: LocalStore,
) -> None:
    true = put(records, store, random_tensor(4, 2))
    study = submitted(studies, tensor, reference={"tensor_id": true.id, "mode": 1})
    for needed in (tensor, true):
        with pytest.raises(InUse):
            tensors.delete("local", needed.id)
    with pytest.raises(StudyNotFinished):
        studies.delete("local", study.id)
    records.studies.cancel("local", study.id)
    for needed in (tensor, true):
        tensors.delete("local", needed.id)
    assert studies.get("local", study.id).state == "cancelled"


def test_a_deletion_that_was_interrupted_is_finished_by_the_cleanup(
    records: ExecutionRecords,
    studies: StudyOperations,
    tensor: TensorRecord,
    store: LocalStore,
    configuration: Configuration,
) -> None:
    study = submitted(studies, tensor)
    failed(records, 4)
    records.studies.delete("local", study.id)
    with pytest.raises(NotFound):
        studies.get("local", study.id)
    assert len(records.jobs.list("local").items) == 4
    list(Cleanup(records, store, configuration).run())
    assert records.jobs.list("local").items == ()
    assert records.stats.usage("local").jobs.failed == 0


def test_retention_removes_a_study_with_its_runs_and_no_run_alone(
    records: ExecutionRecords,
    studies: StudyOperations,
    tensor: TensorRecord,
    store: LocalStore,
    configuration: Configuration,
) -> None:
    study = submitted(studies, tensor)
    failed(records, 3)
    at_once = configuration.model_copy(update={"keep_jobs_days": 0})
    assert list(Cleanup(records, store, at_once).run()) == []
    failed(records, 1)
    dry = list(Cleanup(records, store, at_once, dry_run=True).run())
    assert [(removed.kind, removed.name) for removed in dry] == [("study", study.id)]
    assert [removed.kind for removed in Cleanup(records, store, at_once).run()] == ["study"]
    assert records.jobs.list("local").items == ()
    assert records.studies.list("local").items == ()


def test_thousands_of_runs_are_queued_in_one_step(
    records: ExecutionRecords, studies: StudyOperations, tensor: TensorRecord
) -> None:
    study = submitted(studies, tensor, repeats=1000, betas=[0.0, 0.1, 0.2])
    assert study.runs.queued == study.runs.total == 3000
    assert records.stats.usage("local").live_studies == 1
    order = [records.claims.claim("w") for _ in range(4)]
    assert [claim and (claim.settings.seed, claim.settings.beta) for claim in order] == [
        (0, 0.0), (0, 0.1), (0, 0.2), (1, 0.0),
    ]  # fmt: skip
    assert records.studies.cancel("local", study.id).runs.cancelled == 2996


def test_a_study_that_was_recorded_before_the_first_release_is_read_and_runs(
    records: ExecutionRecords, studies: StudyOperations, tensor: TensorRecord, configuration: Configuration
) -> None:
    choose = TypeAdapter(StudyRequest).validate_python({"kind": "choose", "tensor_id": tensor.id})
    study, _ = studies.submit("local", choose, limits=Limits())
    with connect(configuration) as client:
        for name, former in FORMER_FIELDS.items():
            client.hset(keys.study(study.id), former, client.hget(keys.study(study.id), name))
            client.hdel(keys.study(study.id), name)
    assert studies.get(study.owner, study.id) == study
    assert records.studies.shape(study.id) == tensor.shape
    claim = records.claims.claim("worker")
    assert claim is not None
    assert claim.study_request is not None


class TestEndings:
    """A comparison ends with its recommendation, made by a worker and not by a reader."""

    @pytest.fixture
    def done(
        self, records: ExecutionRecords, studies: StudyOperations, tensor: TensorRecord, store: LocalStore
    ) -> Study:
        """A comparison whose runs have all ended, the last two by being cancelled."""
        study = submitted(studies, tensor)
        for _ in range(2):
            claim = records.claims.claim("w")
            assert claim is not None
            state = solved(claim.settings)
            result = JobResult.from_state(state)
            store.job(claim.job_id).save_factors(claim.fence, state, result)
            assert records.claims.succeed(claim, result, Measures())
        records.studies.cancel("local", study.id)
        return records.studies.find(study.id)

    def test_the_end_waits_for_the_recommendation(
        self,
        records: ExecutionRecords,
        studies: StudyOperations,
        store: LocalStore,
        configuration: Configuration,
        done: Study,
    ) -> None:
        assert (done.state, done.runs.succeeded, done.runs.cancelled) == ("running", 2, 2)
        assert studies.get("local", done.id).recommendation is None
        with pytest.raises(StudyNotFinished):
            studies.delete("local", done.id)
        for _ in range(2):  # the second call finds nothing to do
            end_comparisons(records, store, configuration)
        ended = records.studies.find(done.id)
        assert ended.state == "cancelled"
        assert ended.recommendation is not None
        assert ended.recommendation.rank == 2
        events = studies.events_after(done.id)
        assert [event.kind for event in events][-2:] == ["state", "end"]
        assert sum(event.kind == "end" for event in events) == 1
        assert studies.get("local", done.id).recommendation == ended.recommendation

    def test_one_process_at_a_time_makes_it_and_another_goes_on_if_that_one_dies(
        self,
        records: ExecutionRecords,
        store: LocalStore,
        configuration: Configuration,
        done: Study,
    ) -> None:
        first = records.endings.take()
        assert first == EndingStudy(done.id, 1)
        assert records.endings.take() is None
        with connect(configuration) as client:
            client.zadd(keys.ENDING, {done.id: 0})  # as if the reservation had expired
        end_comparisons(records, store, configuration)
        assert records.studies.find(done.id).state == "cancelled"
        records.endings.renew(done.id)
        assert not records.endings.end(done.id, None)
        assert records.studies.find(done.id).recommendation is not None

    def test_a_reservation_from_before_a_backward_step_of_the_clock_does_not_count(
        self, records: ExecutionRecords, configuration: Configuration, done: Study
    ) -> None:
        with connect(configuration) as client:
            client.zadd(keys.ENDING, {done.id: 9e12})
        assert records.endings.take() == EndingStudy(done.id, 1)

    def test_it_is_made_once_the_disk_is_available_again(
        self,
        records: ExecutionRecords,
        store: LocalStore,
        configuration: Configuration,
        done: Study,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def fail(*_: object) -> None:
            raise StoreUnavailable("the disk is away")

        with monkeypatch.context() as patched:
            patched.setattr(StudyTables, "_factors", fail)
            for _ in range(configuration.max_crashes + 1):
                end_comparisons(records, store, configuration)
                with connect(configuration) as client:
                    client.zadd(keys.ENDING, {done.id: 0})
            assert records.studies.find(done.id).state == "running"
        end_comparisons(records, store, configuration)
        assert records.studies.find(done.id).recommendation is not None

    def test_a_comparison_ends_without_it_if_every_attempt_crashes_or_fails(
        self,
        records: ExecutionRecords,
        store: LocalStore,
        configuration: Configuration,
        done: Study,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def fail(*_: object) -> None:
            raise AssertionError("made again after crashes")

        for _ in range(configuration.max_crashes):
            assert records.endings.take() is not None
            with connect(configuration) as client:
                client.zadd(keys.ENDING, {done.id: 0})
        monkeypatch.setattr(StudyTables, "recommendation", fail)
        end_comparisons(records, store, configuration)
        ended = records.studies.find(done.id)
        assert (ended.state, ended.recommendation) == ("cancelled", None)

    def test_a_server_and_python_recommend_the_same_for_the_same_runs(
        self,
        records: ExecutionRecords,
        studies: StudyOperations,
        store: LocalStore,
        configuration: Configuration,
    ) -> None:
        """The rank is recommended for its core consistency, which only the diagnosis of each run computes."""
        X = synthetic.planted((12, 10, 8), rank=2, seed=2).tensor
        grid: dict[str, Any] = {"ranks": [1, 2, 3], "methods": ["hals", "anls-bpp"], "repeats": 2, "seed": 4}
        study = submitted(studies, put(records, store, X), **grid)
        runs = []
        while (claim := records.claims.claim("w")) is not None:
            *_, state = sweeps(X, claim.settings, threads=1)
            factors, result = state.outcome()[0], JobResult.from_state(state)
            diagnostics = diagnose(X, factors, threads=1)
            assert diagnostics is not None
            store.job(claim.job_id).save_factors(claim.fence, state, result)
            assert records.claims.succeed(claim, result, Measures(core_consistency=diagnostics.core_consistency))
            cell = Cell(rank=claim.settings.rank, method=claim.settings.method, beta=0.0, sparsity=None)
            repeat = claim.settings.seed - 4
            runs.append(Run.of(cell, repeat, Result.of(state, diagnostics)))
        end_comparisons(records, store, configuration)
        found = records.studies.find(study.id).recommendation
        state_in_python = ComparisonState(ComparisonSettings.model_validate(grid), X.shape, tuple(runs))
        in_python = state_in_python.recommendation
        assert found is not None
        assert in_python is not None
        assert any("core consistency" in sentence for sentence in found.sentences)
        assert replace(found, best=None) == replace(in_python, best=None)
        assert ComparisonState.from_bytes(state_in_python.to_bytes()).recommendation == in_python
