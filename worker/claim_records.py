"""Records of jobs, as those who run them see them. Every write is fenced: an older claim changes nothing."""

from collections.abc import Sequence
from typing import Literal, TypeAlias

from worker import keys
from worker.contract import Claim, JobError, JobResult, Progress
from worker.job_fields import claim_from
from worker.leases import Leases

# lost: somebody else may have the job, stop; cancel: the owner asked to stop.
Standing: TypeAlias = Literal["kept", "lost", "cancel"]


class ClaimRecords(Leases):
    def claim(self, worker: str) -> Claim | None:
        """The next job in fair order, or None if nothing is queued."""
        flat = self._run("claim", worker, self._lease_milliseconds)
        return None if flat is None else claim_from(dict(zip(flat[::2], flat[1::2], strict=True)))

    def renew(self, claim: Claim, spent_seconds: float = 0.0) -> Standing:
        """Keep the lease; say what the job has cost so far, for the attempt after this one."""
        spent = f"{spent_seconds:.3f}"
        standing: Standing = self._run("renew", claim.job_id, claim.fence, self._lease_milliseconds, spent)
        return standing

    def standing(self, claim: Claim) -> Standing:
        """Whether the claim still stands; renews nothing."""
        fence, state, cancel = self._call("HMGET", keys.job(claim.job_id), "fence", "state", "cancel_requested")
        if fence != str(claim.fence) or state != "running":
            return "lost"
        return "cancel" if cancel == "1" else "kept"

    def publish(self, claim: Claim, rows: Sequence[Progress]) -> Standing:
        """One event per iteration; those that were published before are left out."""
        flat = [part for row in rows for part in (row.iteration, row.model_dump_json())]
        standing: Standing = self._run("publish", claim.job_id, claim.fence, *flat)
        return standing

    def checkpointed(self, claim: Claim, name: str, iteration: int) -> bool:
        """Point the record to a checkpoint that is already in the store."""
        return bool(self._run("checkpointed", claim.job_id, claim.fence, name, iteration))

    def succeed(self, claim: Claim, result: JobResult) -> bool:
        return self._finish(claim, "succeeded", result.model_dump_json(), "")

    def cancelled(self, claim: Claim, result: JobResult) -> bool:
        return self._finish(claim, "cancelled", result.model_dump_json(), "")

    def fail(self, claim: Claim, error: JobError) -> bool:
        return self._finish(claim, "failed", "", error.model_dump_json())

    def _finish(self, claim: Claim, state: str, result: str, error: str) -> bool:
        return bool(self._run("finish", claim.job_id, claim.fence, state, result, error))

    def hand_back(self, claim: Claim) -> bool:
        """Back to the queue, to be resumed from its checkpoint; the attempt is not counted."""
        return bool(self._run("hand_back", claim.job_id, claim.fence))

    def crashed(self, claim: Claim, how: str) -> bool:
        """The attempt's process died: back to the queue, or failed if it keeps dying. `how` is the last death."""
        return bool(self._run("crashed", claim.job_id, claim.fence, how))
