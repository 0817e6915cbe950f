"""Claims of jobs, and the writes that only the holder of a claim may make."""

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
from sparse_ncp.worker.records.studies import EndingRecords
from sparse_ncp.worker.records.tensors import read_axes
from sparse_ncp.worker.records.workers import Leases
from sparse_ncp.worker.study_contract import Measures

# lost: another worker may have the job; cancel_requested: the owner has cancelled it; full: it passes the quota.
# paused: the operator has paused the owner, so the job must be handed back; yield: it should give way after saving.
LeaseStatus: TypeAlias = Literal["held", "lost", "cancel_requested", "full", "paused", "yield"]
# Iterations whose history is reserved at submission, more as they are published, and the stored bytes of each.
FIRST_ITERATIONS, ROW_BYTES = 1000, 40


class EndedRun(NamedTuple):
    """A run that succeeded in a batch."""

    claim: Claim
    result: JobResult
    measures: Measures
    resolved: Resolved
    last: Progress
    nbytes: int


class ClaimRecords:
    """Claim jobs, and write their progress and outcome. Writes with an older claim change nothing."""

    def __init__(self, connection: RedisConnection) -> None:
        self._redis = connection

    def claim(self, worker: str) -> Claim | None:
        """Claim the next job in fair order; return None if nothing is queued."""
        flat = self._redis.script("claims/claim", worker, self._redis.lease_milliseconds)
        return None if flat is None else _read_claim(flat)

    def claim_more(self, first: Claim, count: int) -> list[Claim]:
        """Claim further runs of the same study for the process of `first`; none while another owner waits."""
        lease = self._redis.lease_milliseconds
        found = self._redis.script(
            "batches/claim", str(first.batch), str(first.study_id), first.worker, lease, max(0, count)
        )
        return [_read_claim(flat) for flat in found]

    def renew(self, claim: Claim, spent_seconds: float = 0.0, resume_seconds: float | None = None) -> LeaseStatus:
        """Renew the lease, and record the computing time so far for later attempts.

        Parameters
        ----------
        claim : Claim
            The claim.
        spent_seconds : float
            Computing time of all attempts.
        resume_seconds : float, optional
            Seconds that a hand-back and a resume take; None before the first new sweep of this attempt.

        Returns
        -------
        LeaseStatus
            The status of the claim, which includes whether the job should give way.
        """
        lease, cost = self._redis.lease_milliseconds, "" if resume_seconds is None else f"{resume_seconds:.3f}"
        status: LeaseStatus = self._redis.script(
            "claims/renew", claim.job_id, claim.fence, lease, f"{spent_seconds:.3f}", cost
        )
        return status

    def status(self, claim: Claim) -> LeaseStatus:
        """Return whether the claim, or any claim of its batch, is still held. Renews nothing."""
        if claim.batch is not None:
            return "held" if self._redis.command("SCARD", keys.batch(claim.batch)) else "lost"
        return self.status_of_run(claim)

    def status_of_run(self, claim: Claim) -> LeaseStatus:
        """Return whether this claim is still held, regardless of its batch."""
        names = ("fence", "state", "cancel_requested")
        fence, state, cancel_requested = self._redis.command("HMGET", keys.job(claim.job_id), *names)
        if fence != str(claim.fence) or state != "running":
            return "lost"
        return "cancel_requested" if cancel_requested == "1" else "held"

    def publish(self, claim: Claim, rows: Sequence[Progress]) -> LeaseStatus:
        """Publish one event per iteration, except for iterations that were published before."""
        flat = [part for row in rows for part in (row.iteration, row.model_dump_json())]
        reserved = (FIRST_ITERATIONS, ROW_BYTES)
        status: LeaseStatus = self._redis.script("claims/publish", claim.job_id, claim.fence, *reserved, *flat)
        return status

    def save_checkpoint(self, claim: Claim, name: str, iteration: int) -> bool:
        """Point the record to a checkpoint that is already in the store."""
        return bool(self._redis.script("claims/checkpointed", claim.job_id, claim.fence, name, iteration))

    def publish_resolved(self, claim: Claim, resolved: Resolved) -> bool:
        """Publish the values of settings that depend on the method or the tensor."""
        return bool(self._redis.script("claims/resolved", claim.job_id, claim.fence, json.dumps(asdict(resolved))))

    def publish_diagnosing(self, claim: Claim) -> bool:
        """Publish that only the diagnosis is left."""
        return bool(self._redis.script("claims/phase", claim.job_id, claim.fence, "diagnosing"))

    def publish_preparation(self, claim: Claim, preparation: Preparation | None) -> bool:
        """Publish how far the first sweep is prepared; None once it has ended."""
        text = "" if preparation is None else preparation.model_dump_json()
        return bool(self._redis.script("claims/preparing", claim.job_id, claim.fence, text))

    def succeed(self, claim: Claim, result: JobResult | None, measures: Measures | None = None) -> bool:
        """End the job as succeeded. Tasks of a study that are not decompositions have no result."""
        kept = "" if measures is None else measures.model_dump_json()
        return self._finish(claim, "succeeded", result.model_dump_json() if result else "", "", kept)

    def finish_many(self, runs: Sequence[EndedRun]) -> list[bool]:
        """End runs whose files are in the store, in one step; return for each whether its claim was still held."""
        flat: list[str | int] = []
        for run in runs:
            claim, last = run.claim, run.last
            resolved = json.dumps(asdict(run.resolved))
            flat += [claim.job_id, claim.fence, run.result.model_dump_json(), run.measures.model_dump_json(), resolved]
            flat += [last.iteration, last.model_dump_json(), run.nbytes]
        found = self._redis.script("batches/finish", self._redis.configuration.stream_seconds, *flat)
        return [bool(ended) for ended in found]

    def cancel(self, claim: Claim, result: JobResult | None) -> bool:
        """End the job as cancelled, with the result so far, if any."""
        return self._finish(claim, "cancelled", result.model_dump_json() if result else "", "")

    def fail(self, claim: Claim, error: JobError) -> bool:
        """End the job as failed."""
        return self._finish(claim, "failed", "", error.model_dump_json())

    def _finish(self, claim: Claim, state: str, result: str, error: str, measures: str = "") -> bool:
        return bool(self._redis.script("claims/finish", claim.job_id, claim.fence, state, result, error, measures))

    def hand_back(self, claim: Claim) -> bool:
        """Return the job to the queue without counting the attempt."""
        return bool(self._redis.script("claims/hand_back", claim.job_id, claim.fence))

    def crash(self, claim: Claim, how: str, is_own_fault: bool = True) -> bool:
        """Return a job whose process died to the queue; fail it after too many crashes without progress."""
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
        """Publish the progress of a choice."""
        return bool(self._redis.script("studies/progress", claim.job_id, claim.fence, stage, f"{progress:.4f}"))

    def save_choice(self, claim: Claim, advice: str, choice: str) -> bool:
        """Save the result of a choice, both parts as JSON."""
        return bool(self._redis.script("studies/chosen", claim.job_id, claim.fence, advice, choice))


class ExecutionRecords(Records):
    """Records for processes that run jobs, which may claim them and take back those of dead workers."""

    def __init__(self, connection: RedisConnection) -> None:
        super().__init__(connection)
        self.claims = ClaimRecords(connection)
        self.leases = Leases(connection)
        self.endings = EndingRecords(connection)


def _read_claim(flat: Sequence[str]) -> Claim:
    fields: Fields = dict(zip(flat[::2], flat[1::2], strict=True))
    request: dict[str, Any] = json.loads(fields["request"])
    published, reference = read_progress(fields), fields.get("reference_sha256")
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
        reference=Reference(sha256=reference, mode=int(fields["reference_mode"])) if reference else None,
        study_request=fields.get("study_request"),
        validation_results=json.loads(fields.get("validation_results", "[]")),
    )
