"""Claims: the right to run a job. Every write is fenced, so an older claim changes nothing."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal, NamedTuple, TypeAlias

from sparse_ncp.solvers import Settings
from sparse_ncp.solvers.runtime import Resolved
from sparse_ncp.worker.contract import Claim, JobError, JobResult, Preparation, Progress, Reference
from sparse_ncp.worker.records.jobs import Fields, read_fixed, read_progress
from sparse_ncp.worker.records.records import Records
from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.records.redis.connection import RedisConnection
from sparse_ncp.worker.records.tensors import read_axes
from sparse_ncp.worker.records.workers import Leases
from sparse_ncp.worker.study_contract import Measures

# lost: somebody else may have the job, stop; cancel_requested: the owner wants the run to end.
LeaseStatus: TypeAlias = Literal["held", "lost", "cancel_requested"]


class EndedRun(NamedTuple):
    """A run that succeeded beside others in one process."""

    claim: Claim
    result: JobResult
    measures: Measures
    resolved: Resolved
    last: Progress
    nbytes: int


class ClaimRecords:
    def __init__(self, connection: RedisConnection) -> None:
        self._redis = connection

    def claim(self, worker: str) -> Claim | None:
        """Claim the next job in fair order; None if nothing is queued."""
        flat = self._redis.script("claims/claim", worker, self._redis.lease_milliseconds)
        return None if flat is None else _read_claim(flat)

    def claim_more(self, first: Claim, count: int) -> list[Claim]:
        """Further runs of the same study for the process of `first`: none while another owner waits."""
        lease = self._redis.lease_milliseconds
        found = self._redis.script(
            "batches/claim", str(first.batch), str(first.study_id), first.worker, lease, max(0, count)
        )
        return [_read_claim(flat) for flat in found]

    def renew(self, claim: Claim, spent_seconds: float = 0.0) -> LeaseStatus:
        """Renew the lease, and record what the job has cost so far, for the attempt after this one."""
        lease, spent = self._redis.lease_milliseconds, f"{spent_seconds:.3f}"
        status: LeaseStatus = self._redis.script("claims/renew", claim.job_id, claim.fence, lease, spent)
        return status

    def status(self, claim: Claim) -> LeaseStatus:
        """Whether the claim still holds, or any of its batch; renews nothing."""
        if claim.batch is not None:
            return "held" if self._redis.command("SCARD", keys.batch(claim.batch)) else "lost"
        return self.status_of_run(claim)

    def status_of_run(self, claim: Claim) -> LeaseStatus:
        """Whether this very claim still holds."""
        names = ("fence", "state", "cancel_requested")
        fence, state, cancel_requested = self._redis.command("HMGET", keys.job(claim.job_id), *names)
        if fence != str(claim.fence) or state != "running":
            return "lost"
        return "cancel_requested" if cancel_requested == "1" else "held"

    def publish(self, claim: Claim, rows: Sequence[Progress]) -> LeaseStatus:
        """One event per iteration; those that were published before are left out."""
        flat = [part for row in rows for part in (row.iteration, row.model_dump_json())]
        status: LeaseStatus = self._redis.script("claims/publish", claim.job_id, claim.fence, *flat)
        return status

    def save_checkpoint(self, claim: Claim, name: str, iteration: int) -> bool:
        """Point the record to a checkpoint that is already in the store."""
        return bool(self._redis.script("claims/checkpointed", claim.job_id, claim.fence, name, iteration))

    def publish_resolved(self, claim: Claim, resolved: Resolved) -> bool:
        """Tell readers what settings came to that depend on the method or on the tensor."""
        return bool(self._redis.script("claims/resolved", claim.job_id, claim.fence, json.dumps(asdict(resolved))))

    def publish_diagnosing(self, claim: Claim) -> bool:
        """Tell readers that nothing but the diagnosis is left."""
        return bool(self._redis.script("claims/phase", claim.job_id, claim.fence, "diagnosing"))

    def publish_preparation(self, claim: Claim, preparation: Preparation | None) -> bool:
        """Tell readers how far the first sweep of this attempt is; None once it has ended."""
        text = "" if preparation is None else preparation.model_dump_json()
        return bool(self._redis.script("claims/preparing", claim.job_id, claim.fence, text))

    def succeed(self, claim: Claim, result: JobResult | None, measures: Measures | None = None) -> bool:
        """The job has ended; a task of a study that is no run has no result."""
        kept = "" if measures is None else measures.model_dump_json()
        return self._finish(claim, "succeeded", result.model_dump_json() if result else "", "", kept)

    def finish_many(self, runs: Sequence[EndedRun]) -> list[bool]:
        """Runs whose factors and histories are in the store, in one step: for each, whether this claim ended it."""
        flat: list[str | int] = []
        for run in runs:
            claim, last = run.claim, run.last
            resolved = json.dumps(asdict(run.resolved))
            flat += [claim.job_id, claim.fence, run.result.model_dump_json(), run.measures.model_dump_json(), resolved]
            flat += [last.iteration, last.model_dump_json(), run.nbytes]
        found = self._redis.script("batches/finish", self._redis.configuration.stream_seconds, *flat)
        return [bool(ended) for ended in found]

    def cancel(self, claim: Claim, result: JobResult | None) -> bool:
        return self._finish(claim, "cancelled", result.model_dump_json() if result else "", "")

    def fail(self, claim: Claim, error: JobError) -> bool:
        return self._finish(claim, "failed", "", error.model_dump_json())

    def _finish(self, claim: Claim, state: str, result: str, error: str, measures: str = "") -> bool:
        return bool(self._redis.script("claims/finish", claim.job_id, claim.fence, state, result, error, measures))

    def hand_back(self, claim: Claim) -> bool:
        """Return the job to the queue, to be resumed from its checkpoint; the attempt is not counted."""
        return bool(self._redis.script("claims/hand_back", claim.job_id, claim.fence))

    def crash(self, claim: Claim, how: str, is_own_fault: bool = True) -> bool:
        """The attempt's process died: back to the queue, or failed if it keeps dying by itself."""
        configuration = self._redis.configuration
        limits = (configuration.max_crashes, str(configuration.long_attempt_seconds))
        if claim.batch is not None:
            return bool(self._redis.script("batches/crashed", claim.batch, how, int(is_own_fault), *limits))
        return bool(self._redis.script("claims/crashed", claim.job_id, claim.fence, how, int(is_own_fault), *limits))

    # Tasks of a study

    def keep_validation_results(self, claim: Claim, found: Sequence[float]) -> bool:
        """Store the results of the validation checks that are done."""
        return bool(
            self._redis.script("studies/keep_validation_results", claim.job_id, claim.fence, json.dumps(list(found)))
        )

    def publish_choice_progress(self, claim: Claim, stage: str, progress: float) -> bool:
        """Tell readers how far a choice has come."""
        return bool(self._redis.script("studies/progress", claim.job_id, claim.fence, stage, f"{progress:.4f}"))

    def save_choice(self, claim: Claim, advice: str, choice: str) -> bool:
        """Keep what a choice has found, both as JSON; its run ends next."""
        return bool(self._redis.script("studies/chosen", claim.job_id, claim.fence, advice, choice))


class ExecutionRecords(Records):
    """The records of a process that runs jobs: it may claim them, and take back those of dead workers."""

    def __init__(self, connection: RedisConnection) -> None:
        super().__init__(connection)
        self.claims = ClaimRecords(connection)
        self.leases = Leases(connection)


def _read_claim(flat: Sequence[str]) -> Claim:
    fields: Fields = dict(zip(flat[::2], flat[1::2], strict=True))
    request: dict[str, Any] = json.loads(fields["request"])
    published = read_progress(fields)
    return Claim(
        job_id=fields["id"],
        owner=fields["owner"],
        request_id=request.get("request_id"),
        fence=int(fields["fence"]),
        attempt=int(fields["attempt"]),
        sha256=fields["sha256"],
        axes=read_axes(fields.get("labels")),
        initial_job_id=fields.get("initial"),
        mask_sha256=fields.get("mask_sha256"),
        fixed=read_fixed(fields, request),
        settings=Settings.from_stored(request["settings"]),
        checkpoint=fields.get("checkpoint"),
        published=published,
        spent_seconds=max(float(fields.get("spent", 0)), published.seconds if published else 0.0),
        worker=fields["worker"],
        study_id=fields.get("study_id"),
        task=fields.get("task", "run"),
        batch=fields.get("batch"),
        reference=_reference(fields),
        study_request=fields.get("study_request"),
        validation_results=json.loads(fields.get("validation_results", "[]")),
    )


def _reference(fields: Fields) -> Reference | None:
    sha256 = fields.get("reference_sha256")
    return None if sha256 is None else Reference(sha256=sha256, mode=int(fields["reference_mode"]))
