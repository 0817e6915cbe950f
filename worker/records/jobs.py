"""Records of jobs, as the API sees them: submit, get, list, cancel, delete."""

import json
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias

from pydantic import BaseModel

from sparse_ncp.solvers import Settings
from sparse_ncp.worker.contract import (
    FixedModel,
    InitialJob,
    Job,
    JobError,
    JobRequest,
    JobResult,
    JobState,
    MaskTensor,
    Page,
    Preparation,
    Progress,
)
from sparse_ncp.worker.errors import (
    IdempotencyKeyReused,
    InUse,
    JobNotFinished,
    NotFound,
    PartOfStudy,
    QuotaReached,
    TooManyJobs,
)
from sparse_ncp.worker.owner_limits import UNLIMITED, Limits
from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.records.redis.connection import RedisConnection
from sparse_ncp.worker.records.redis.lists import find_page, folded

Fields: TypeAlias = dict[str, str]


class JobStatus(NamedTuple):
    """The state of a job, and whether its history has been moved to the store."""

    state: JobState
    settled: bool


class Submission(NamedTuple):
    """A request for a job, and who sent it."""

    owner: str
    request: JobRequest
    key: str | None = None
    limits: Limits = UNLIMITED
    request_id: str | None = None


class Submitted(NamedTuple):
    """The job of a submission; `replayed` if an earlier one with the same key has made it."""

    job: Job
    replayed: bool


class JobRecords:
    def __init__(self, connection: RedisConnection) -> None:
        self._redis = connection

    def submit(
        self,
        owner: str,
        request: JobRequest,
        key: str | None = None,
        limits: Limits = UNLIMITED,
        request_id: str | None = None,
    ) -> Submitted:
        """Queue a job; durable when this returns. The same key and body give the same job again.

        TooManyJobs or QuotaReached if the owner may not have another.
        """
        (outcome,) = self.submit_many([Submission(owner, request, key, limits, request_id)])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def submit_many(self, submissions: Sequence[Submission]) -> list[Submitted | Exception]:
        """Queue each in turn, as if it were alone, with one flush to the disk for all; or why it was refused."""
        hours = self._redis.configuration.idempotency_hours
        calls = [_script_arguments(submission, int(hours * 3_600_000)) for submission in submissions]
        answers = self._redis.script_calls("jobs/submit", calls)
        return [
            _submitted_or_refusal(submission, answer) for submission, answer in zip(submissions, answers, strict=True)
        ]

    def replay(self, owner: str, request: JobRequest, key: str) -> Job | None:
        """The job that this key has made already, whatever has become of its tensor since."""
        id = find_replay(self._redis, owner, key, digest_of(request), "job")
        return None if id is None else self.get(owner, id)

    def get(self, owner: str, id: str) -> Job:
        """NotFound if there is none, or it is another owner's."""
        for job in self._read_existing([id]):
            if job.owner == owner:
                return job
        raise NotFound("job", id)

    def find(self, id: str) -> Job:
        """Whoever it belongs to, and without its place in the queue."""
        fields: Fields = self._redis.command("HGETALL", keys.job(id))
        if not fields:
            raise NotFound("job", id)
        return read_job(fields, None)

    def owner_of(self, id: str) -> str:
        owner: str | None = self._redis.command("HGET", keys.job(id), "owner")
        if owner is None:
            raise NotFound("job", id)
        return owner

    def status(self, id: str) -> JobStatus | None:
        """None if there is no such job."""
        state, settled = self._redis.command("HMGET", keys.job(id), "state", "settled")
        return None if state is None else JobStatus(state, settled == "1")

    def preparing(self, id: str) -> Preparation | None:
        """How far the job is in preparing its first sweep; None if it is not, or is not there."""
        found: str | None = self._redis.command("HGET", keys.job(id), "preparing")
        return read_preparation({"preparing": found}) if found is not None else None

    def cancel(self, owner: str, id: str) -> Job:
        """A queued job ends at once, a running one after its sweep; asking again changes nothing."""
        if not self._redis.script("jobs/cancel", owner, id):
            raise NotFound("job", id)
        return self.get(owner, id)

    def rename(self, owner: str, id: str, name: str | None) -> Job:
        """Give a job another name, or none; in any state."""
        if not self._redis.script("jobs/rename", owner, id, json.dumps(name), folded(name)):
            raise NotFound("job", id)
        return self.get(owner, id)

    def delete(self, owner: str, id: str) -> None:
        """Delete the record of an ended job. JobNotFinished or InUse if it cannot be deleted now."""
        outcome = self._redis.script("jobs/delete", owner, id)
        if outcome == "missing":
            raise NotFound("job", id)
        if outcome == "live":
            raise JobNotFinished(id)
        if outcome == "run":
            raise PartOfStudy(id)
        if outcome == "used":
            raise InUse("job", id)

    def unsettled(self) -> Sequence[str]:
        """Jobs that have ended, and whose history has not been moved to the store yet."""
        return sorted(self._redis.command("SMEMBERS", keys.UNSETTLED))

    def mark_settled(self, id: str, nbytes: int) -> bool:
        """The history is in the store, so the stream may go, a little later for those who are reading it.

        False if the job was deleted meanwhile.
        """
        return bool(self._redis.script("jobs/settled", id, self._redis.configuration.stream_seconds, nbytes))

    def count_queued(self) -> int:
        return int(self._redis.command("ZCARD", keys.QUEUED))

    def list(
        self,
        owner: str,
        state: JobState | None = None,
        method: str | None = None,
        tensor_id: str | None = None,
        study_id: str | None = None,
        name: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[Job]:
        """The newest first, filtered, `name` by a part of it; `next` continues after the last one given."""
        wanted = {"state": state, "method": method, "tensor_id": tensor_id, "study_id": study_id}
        found = find_page(self._redis, "job", owner, wanted, name, limit, cursor)
        return Page[Job](items=self._read_existing(found.ids), next=found.next)

    def _read_existing(self, ids: Sequence[str]) -> tuple[Job, ...]:
        """Without those that were deleted meanwhile, in one round trip."""
        return tuple(map(_read, self._redis.script("jobs/read", *ids)))


def _script_arguments(submission: Submission, key_milliseconds: int) -> list[str | int]:
    """Of the script that submits."""
    owner, request, key, limits, request_id = submission
    named = _input_ids(request)
    return [
        secrets.token_hex(10),
        owner,
        named["tensor"],
        named["initial"],
        request.priority,
        request.method,
        request_record(request, limits.job_seconds, request_id),
        idempotency_key(owner, key) if key is not None else "",
        digest_of(request),
        key_milliseconds,
        limits.live_jobs or "",
        limits.stored_bytes or "",
        named["mask"],
        named["fixed"],
        folded(request.name),
    ]


def _input_ids(request: JobRequest) -> dict[str, str]:
    """The ids in a request, by the words of `INPUT_FIELDS`; empty for what it does not name."""
    return {
        "tensor": request.tensor_id,
        "initial": request.initial.job_id if request.initial else "",
        "mask": request.mask.tensor_id if request.mask else "",
        "fixed": request.fixed.job_id if request.fixed else "",
    }


def _submitted_or_refusal(submission: Submission, answer: Any) -> Submitted | Exception:
    if isinstance(answer, Exception):
        return answer
    outcome, *found = answer
    try:
        raise_refusal(outcome, found, submission.limits, _input_ids(submission.request))
    except (TooManyJobs, QuotaReached, IdempotencyKeyReused, NotFound) as refusal:
        return refusal
    return Submitted(_read(found[0]), outcome == "replayed")


def _read(answer: Sequence[Any]) -> Job:
    """A job as the scripts give it: its place in the queue, then its fields in turn."""
    position, *flat = answer
    return read_job(dict(zip(flat[::2], flat[1::2], strict=True)), position or None)


def idempotency_key(owner: str, key: str) -> str:
    """By digest: a caller's key may be anything."""
    return keys.idempotency(owner, sha256(key.encode()).hexdigest())


# What a submission names, by the word for what is missing: kind and field.
INPUT_FIELDS = {
    "tensor": ("tensor", "tensor_id"),
    "initial": ("job", "initial.job_id"),
    "mask": ("tensor", "mask.tensor_id"),
    "fixed": ("job", "fixed.job_id"),
    "reference": ("tensor", "reference.tensor_id"),
}


def raise_refusal(outcome: str, found: Sequence[Any], limits: Limits, named: Mapping[str, str]) -> None:
    """Raise what a script that submits has refused."""
    if outcome == "busy" and limits.live_jobs is not None:
        raise TooManyJobs(limits.live_jobs)
    if outcome == "full" and limits.stored_bytes is not None:
        raise QuotaReached(limits.stored_bytes, found[0])
    if outcome == "reused":
        raise IdempotencyKeyReused("this Idempotency-Key was used with another body")
    if outcome.startswith("no "):
        word = outcome.removeprefix("no ")
        kind, field = INPUT_FIELDS[word]
        raise NotFound(kind, named[word], field)


def find_replay(redis: RedisConnection, owner: str, key: str, digest: str, kind: str) -> str | None:
    """The id of what this key has made already; IdempotencyKeyReused if that was something else."""
    found, id = redis.command("HMGET", idempotency_key(owner, key), "digest", kind)
    if found is not None and found != digest:
        raise IdempotencyKeyReused("this Idempotency-Key was used with another body")
    return None if id is None else str(id)


def request_record(request: JobRequest, max_seconds: float | None, request_id: str | None) -> str:
    """What the record keeps of a request. The settings are complete, so later defaults do not change old jobs."""
    settings = settings_record(request.settings(), max_seconds)
    fixed = None if request.fixed is None else list(request.fixed.modes)
    return json.dumps({"name": request.name, "settings": settings, "request_id": request_id, "fixed_modes": fixed})


def settings_record(settings: Settings, max_seconds: float | None) -> dict[str, Any]:
    """Settings as a record keeps them; a run without a time limit gets its owner's."""
    kept = settings.model_dump(mode="json")
    if kept["stop"]["max_seconds"] is None:
        kept["stop"]["max_seconds"] = max_seconds
    return kept


def digest_of(request: BaseModel) -> str:
    """Of the parsed body: spaces, the order of fields and defaults spelled out make no difference.

    Nor does a field that a later version adds, so that a caller may repeat itself over an upgrade.
    """
    canonical = json.dumps(request.model_dump(mode="json", exclude_defaults=True), sort_keys=True)
    return sha256(canonical.encode()).hexdigest()


def read_job(fields: Fields, position: int | None) -> Job:
    """The job that a hash in Redis holds."""
    request: dict[str, Any] = json.loads(fields["request"])
    result = JobResult.model_validate_json(fields["result"]) if "result" in fields else None
    return Job.model_validate(
        {
            "id": fields["id"],
            "owner": fields["owner"],
            "name": json.loads(fields["name"]) if "name" in fields else request["name"],
            "study_id": fields.get("study_id"),
            "settings": Settings.from_stored(request["settings"]),
            "tensor_id": fields["tensor_id"],
            "priority": int(fields["priority"]),
            "initial": InitialJob(job_id=fields["initial"]) if "initial" in fields else None,
            "mask": MaskTensor(tensor_id=fields["mask"]) if "mask" in fields else None,
            "fixed": read_fixed(fields, request),
            "state": fields["state"],
            "resolved": json.loads(fields["resolved"]) if "resolved" in fields else None,
            "phase": _phase(fields),
            "preparing": read_preparation(fields),
            "progress": read_progress(fields),
            "factors_iteration": result.iterations if result else _read_integer(fields, "checkpoint_iteration"),
            "result": result,
            "error": JobError.model_validate_json(fields["error"]) if "error" in fields else None,
            "attempt": int(fields["attempt"]),
            "cancel_requested": fields.get("cancel_requested") == "1",
            "queue_position": position,
            "created_at": read_time(fields, "created_at"),
            "started_at": read_time(fields, "started_at"),
            "finished_at": read_time(fields, "finished_at"),
        }
    )


def read_fixed(fields: Fields, request: dict[str, Any]) -> FixedModel | None:
    """The factors that stay, and whose they are."""
    return FixedModel(job_id=fields["fixed"], modes=request["fixed_modes"]) if "fixed" in fields else None


def read_progress(fields: Fields) -> Progress | None:
    """The last iteration that was published."""
    return Progress.model_validate_json(fields["progress"]) if "progress" in fields else None


def read_preparation(fields: Fields) -> Preparation | None:
    """How far the present attempt is in preparing its first sweep."""
    return Preparation.model_validate_json(fields["preparing"]) if "preparing" in fields else None


def _phase(fields: Fields) -> str | None:
    """What a running job is doing."""
    if fields["state"] != "running":
        return None
    if "preparing" in fields:
        return "preparing"
    progress = read_progress(fields)
    return fields.get("phase") or (progress.phase if progress else "preparing")


def _read_integer(fields: Fields, name: str) -> int | None:
    return int(fields[name]) if name in fields else None


def read_time(fields: Fields, name: str) -> datetime | None:
    return datetime.fromtimestamp(int(fields[name]) / 1000, UTC) if name in fields else None
