"""Records of jobs: submit, get, list, cancel and delete."""

import json
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias

from pydantic import BaseModel

from sparse_ncp.solvers import Settings
from sparse_ncp.solvers.runtime import RECOMMENDED
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
    Paused,
    Preparation,
    Progress,
)
from sparse_ncp.worker.errors import (
    IdempotencyKeyReused,
    InUse,
    JobNotFinished,
    NotFound,
    OutcomeUnknown,
    PartOfStudy,
    QuotaReached,
    TooManyJobs,
    TooManyRuns,
    Unavailable,
)
from sparse_ncp.worker.owner_limits import UNLIMITED, Limits, OwnerPause
from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.records.redis.connection import RedisConnection
from sparse_ncp.worker.records.redis.lists import find_page, folded
from sparse_ncp.worker.records.redis.versions import check_version, is_readable
from sparse_ncp.worker.study_contract import StudyRequest

Fields: TypeAlias = dict[str, str]


class JobStatus(NamedTuple):
    """State of a job, and whether its history has been moved to the store."""

    state: JobState
    settled: bool


class Submission(NamedTuple):
    """A request for a job, who sent it, and the bytes that its results may take, apart from copies of the labels."""

    owner: str
    request: JobRequest
    key: str | None = None
    limits: Limits = UNLIMITED
    request_id: str | None = None
    warnings: tuple[str, ...] = ()
    nbytes: int = 0
    label_copies: int = 0


class Submitted(NamedTuple):
    """The job of a submission; `replayed` if an earlier submission with the same key has created it."""

    job: Job
    replayed: bool


class JobRecords:
    """Read and write the records of jobs. Runs of jobs are recorded by `ClaimRecords`."""

    def __init__(self, connection: RedisConnection) -> None:
        self._redis = connection

    def submit_many(self, submissions: Sequence[Submission]) -> list[Submitted | Exception]:
        """Queue jobs, durably and in one round trip; return the job or the exception for each submission."""
        hours = self._redis.configuration.idempotency_hours
        calls = [_script_arguments(submission, int(hours * 3_600_000)) for submission in submissions]
        submit, first = partial(self._redis.script_calls, "jobs/submit", calls), str(calls[0][0])
        try:
            answers, repeated = self._redis.repeat_until_known(submit, "job", first)
        except OutcomeUnknown as error:
            return [OutcomeUnknown(str(error), "job", str(id)) for id, *_ in calls]
        outcomes: list[Submitted | Exception] = []
        for submission, (id, *_), answer in zip(submissions, calls, answers, strict=True):
            if isinstance(answer, Exception):
                is_unknown = isinstance(answer, OutcomeUnknown) or (repeated and isinstance(answer, Unavailable))
                outcomes.append(OutcomeUnknown(str(answer), "job", str(id)) if is_unknown else answer)
                continue
            word, *found = answer
            try:
                raise_refusal(word, found, submission.limits, input_ids(submission.request), submission.nbytes)
            except (TooManyJobs, QuotaReached, IdempotencyKeyReused, NotFound) as refusal:
                outcomes.append(refusal)
            else:
                outcomes.append(Submitted(read_job(*_fields(found[0])), word == "replayed"))
        return outcomes

    def replay(self, owner: str, request: JobRequest, key: str) -> Job | None:
        """Return the job that this key has created before, if any, even if its tensor was deleted since."""
        id = find_replay(self._redis, owner, key, digest_of(request), "job")
        return None if id is None else self.get(owner, id)

    def get(self, owner: str, id: str) -> Job:
        """Return a job; raise NotFound if it does not exist or belongs to another owner.

        Raises LaterRecord if a later release has written it.
        """
        for fields, position in map(_fields, self._redis.script("jobs/read", id)):
            if fields["owner"] == owner:
                return read_job(fields, position)
        raise NotFound("job", id)

    def find(self, id: str) -> Job:
        """Return a job of any owner, without its place in the queue."""
        for fields, _ in map(_fields, self._redis.script("jobs/read", id)):
            return read_job(fields, None)
        raise NotFound("job", id)

    def owner_of(self, id: str) -> str:
        """Return the owner of a job."""
        owner: str | None = self.fields(id, "owner")[0]
        if owner is None:
            raise NotFound("job", id)
        return owner

    def fields(self, id: str, *names: str) -> Sequence[Any]:
        """Return fields of a record, which a planned run does not have yet; None for all if there is no such job."""
        found: list[Any] = self._redis.command("HMGET", keys.job(id), *names)
        if not any(found):
            for fields, _ in map(_fields, self._redis.script("jobs/read", id)):
                return [fields.get(name) for name in names]
        return found

    def status(self, id: str) -> JobStatus | None:
        """Return the state of a job; None if it does not exist."""
        state, settled = self.fields(id, "state", "settled")
        return None if state is None else JobStatus(state, settled == "1")

    def preparing(self, id: str) -> Preparation | None:
        """Return how far the first sweep of a job is prepared; None if it is not being prepared."""
        found: str | None = self._redis.command("HGET", keys.job(id), "preparing")
        return read_preparation({"preparing": found}) if found is not None else None

    def cancel(self, owner: str, id: str) -> Job:
        """Cancel a job. A queued job ends at once, a running one after its sweep; repeating this changes nothing."""
        if not self._redis.script("jobs/cancel", owner, id):
            raise NotFound("job", id)
        return self.get(owner, id)

    def rename(self, owner: str, id: str, name: str | None) -> Job:
        """Rename a job, or remove its name, in any state."""
        if not self._redis.script("jobs/rename", owner, id, json.dumps(name), folded(name)):
            raise NotFound("job", id)
        return self.get(owner, id)

    def delete(self, owner: str, id: str) -> None:
        """Delete the record of a finished job; raise JobNotFinished or InUse if that is not possible now."""
        outcome = self._redis.script("jobs/delete", owner, id)
        if outcome == "missing":
            raise NotFound("job", id)
        if outcome == "live":
            raise JobNotFinished(id)
        if outcome == "run":
            raise PartOfStudy(id)
        if outcome == "used":
            raise InUse("job", id)

    def collected(self, id: str) -> str:
        """Return the id of the last event that a running job has in the store and no longer in its stream."""
        (found,) = self.fields(id, "collected")
        return found or "0-0"

    def mark_collected(self, id: str, event_id: str) -> bool:
        """Let the stream of a running job forget this event and all before it; return False if the job has ended."""
        iteration, _, number = event_id.partition("-")
        return bool(self._redis.script("jobs/collected", id, event_id, f"{iteration}-{int(number) + 1}"))

    def with_long_streams(self, events: int) -> Sequence[str]:
        """Return the running jobs whose streams have more events than that."""
        ids = self._redis.command("ZRANGE", keys.LEASES, 0, -1)
        lengths = self._redis.commands(("XLEN", keys.stream(id)) for id in ids)
        return [id for id, length in zip(ids, lengths, strict=True) if length > events]

    def unsettled(self) -> Sequence[str]:
        """Return the ended jobs whose history has not been moved to the store yet."""
        return sorted(self._redis.command("SMEMBERS", keys.UNSETTLED))

    def mark_settled(self, id: str, nbytes: int) -> bool:
        """Record that the history is in the store, and let the stream expire after a while for its readers.

        Returns False if the job was deleted meanwhile.
        """
        return bool(self._redis.script("jobs/settled", id, self._redis.configuration.stream_seconds, nbytes))

    def count_queued(self) -> int:
        """Return the number of queued jobs of all owners."""
        recorded, planned = self._redis.commands((("ZCARD", keys.QUEUED), ("HVALS", keys.PLANNED)))
        return int(recorded) + sum(map(int, planned))

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
        """List jobs, newest first, without those of a later release.

        `name` matches any part of a name; `cursor` continues an earlier page.
        """
        wanted = {"state": state, "method": method, "tensor_id": tensor_id, "study_id": study_id}
        found = find_page(self._redis, "job", owner, wanted, name, limit, cursor)
        existing = map(_fields, self._redis.script("jobs/read", *found.ids))  # with their places in the queue
        items = tuple(read_job(fields, position) for fields, position in existing if is_readable(fields))
        return Page[Job](items=items, next=found.next)


def _script_arguments(submission: Submission, key_milliseconds: int) -> list[str | int]:
    """Return the arguments of the script that submits."""
    owner, request, key, limits, request_id, warnings, nbytes, label_copies = submission
    named = input_ids(request)
    return [
        secrets.token_hex(10),
        owner,
        named["tensor"],
        named["initial"],
        request.priority,
        request.method,
        request_record(request, limits.job_seconds, request_id, warnings),
        idempotency_key(owner, key) if key is not None else "",
        digest_of(request),
        key_milliseconds,
        limits.live_jobs or "",
        limits.stored_bytes or "",
        named["mask"],
        named["fixed"],
        folded(request.name),
        nbytes,
        label_copies,
    ]


def input_ids(request: JobRequest | StudyRequest) -> dict[str, str]:
    """Return the ids that a request names, by the keys of `INPUT_FIELDS`; empty for those not named."""
    found = {"tensor": request.tensor_id}
    for word in ("initial", "mask", "fixed", "reference"):
        named = getattr(request, word, None)
        found[word] = "" if named is None else named.tensor_id if word in ("mask", "reference") else named.job_id
    return found


def _fields(answer: Sequence[Any]) -> tuple[Fields, int | None]:
    """Convert a job as scripts return it: its place in the queue, then names and values of its fields."""
    position, *flat = answer
    return dict(zip(flat[::2], flat[1::2], strict=True)), position or None


def idempotency_key(owner: str, key: str) -> str:
    """Return the name in Redis of a caller's key, which is hashed since it may contain anything."""
    return keys.idempotency(owner, sha256(key.encode()).hexdigest())


NOT_PRESET = object()
# Kind and field of the inputs of a submission, by the word that the script returns for a missing one.
INPUT_FIELDS = {
    "tensor": ("tensor", "tensor_id"),
    "initial": ("job", "initial.job_id"),
    "mask": ("tensor", "mask.tensor_id"),
    "fixed": ("job", "fixed.job_id"),
    "reference": ("tensor", "reference.tensor_id"),
}


def raise_refusal(
    outcome: str, found: Sequence[Any], limits: Limits, named: Mapping[str, str], nbytes: int = 0
) -> None:
    """Raise the exception for a submission that the script has refused."""
    if outcome == "busy" and limits.live_jobs is not None:
        raise TooManyJobs(limits.live_jobs)
    if outcome == "many" and limits.live_runs is not None:
        raise TooManyRuns(limits.live_runs, found[0])
    if outcome == "full" and limits.stored_bytes is not None:
        raise QuotaReached(limits.stored_bytes, found[0], results=nbytes)
    if outcome == "reused":
        raise IdempotencyKeyReused("this Idempotency-Key was used with another body")
    if outcome.startswith("no "):
        word = outcome.removeprefix("no ")
        kind, field = INPUT_FIELDS[word]
        raise NotFound(kind, named[word], field)


def find_replay(redis: RedisConnection, owner: str, key: str, digest: str, kind: str) -> str | None:
    """Return the id of what this key has created before; raise IdempotencyKeyReused if the body differed."""
    found, id = redis.command("HMGET", idempotency_key(owner, key), "digest", kind)
    if found is not None and set(found.split()).isdisjoint(digest.split()):
        raise IdempotencyKeyReused("this Idempotency-Key was used with another body")
    return None if id is None else str(id)


def request_record(
    request: JobRequest, max_seconds: float | None, request_id: str | None, warnings: Sequence[str] = ()
) -> str:
    """Return the stored form of a request, with complete settings, so that new defaults do not change old jobs."""
    settings = settings_record(request.settings(), max_seconds)
    fixed = None if request.fixed is None else list(request.fixed.modes)
    found = {"name": request.name, "settings": settings, "request_id": request_id, "fixed_modes": fixed}
    return json.dumps({**found, "warnings": list(warnings)})


def settings_record(settings: Settings, max_seconds: float | None) -> dict[str, Any]:
    """Return the stored form of settings, with the time limit of the owner if there is none."""
    kept = settings.model_dump(mode="json")
    if kept["stop"]["max_seconds"] is None:
        kept["stop"]["max_seconds"] = max_seconds
    return kept


def digest_of(request: BaseModel) -> str:
    """Return two digests of a request. Two requests are the same if they have one of them in common.

    The first is that of the meaning: explicit defaults do not count, nor do fields that a later release adds. The other
    is that of the fields as they were sent, which stays the same if a later release changes a default. What a preset
    stands for counts in neither, nor does whitespace or order.
    """
    return " ".join(
        sha256(json.dumps(_without_preset(kept), sort_keys=True).encode()).hexdigest()
        for kept in (
            request.model_dump(mode="json", exclude_defaults=True),
            request.model_dump(mode="json", exclude_unset=True),
        )
    )


def _without_preset(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a request without those that its preset has filled in."""
    if fields.get("preset") is None:
        return fields

    def own(given: Mapping[str, Any], preset: Mapping[str, Any]) -> dict[str, Any]:
        kept = {}
        for name, value in given.items():
            default = preset.get(name, NOT_PRESET)
            if isinstance(value, Mapping) and isinstance(default, Mapping):
                kept[name] = own(value, default)
            elif value != default:
                kept[name] = value
        return {name: value for name, value in kept.items() if value != {}}

    return own(fields, RECOMMENDED)


def read_job(fields: Fields, position: int | None) -> Job:
    """Convert a hash of Redis to a job; raise LaterRecord if a later release has written it."""
    check_version("job", fields)
    request: dict[str, Any] = json.loads(fields["request"])
    result = JobResult.model_validate_json(fields["result"]) if "result" in fields else None
    checkpoint = int(fields["checkpoint_iteration"]) if "checkpoint_iteration" in fields else None
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
            "factors_iteration": result.iterations if result else checkpoint,
            "result": result,
            "error": JobError.model_validate_json(fields["error"]) if "error" in fields else None,
            "warnings": request.get("warnings", ()),
            "attempt": int(fields["attempt"]),
            "cancel_requested": fields.get("cancel_requested") == "1",
            "queue_position": position,
            "paused": _paused(fields),
            "created_at": read_time(fields, "created_at"),
            "started_at": read_time(fields, "started_at"),
            "finished_at": read_time(fields, "finished_at"),
        }
    )


def read_fixed(fields: Fields, request: dict[str, Any]) -> FixedModel | None:
    """Return the job and the modes of the fixed factors."""
    return FixedModel(job_id=fields["fixed"], modes=request["fixed_modes"]) if "fixed" in fields else None


def read_progress(fields: Fields) -> Progress | None:
    """Return the last published iteration."""
    return Progress.model_validate_json(fields["progress"]) if "progress" in fields else None


def read_preparation(fields: Fields) -> Preparation | None:
    """Return how far the first sweep of the current attempt is prepared."""
    return Preparation.model_validate_json(fields["preparing"]) if "preparing" in fields else None


def _paused(fields: Fields) -> Paused | None:
    """Return why a queued job waits, apart from its place in the queue."""
    if fields["state"] != "queued":
        return None
    paused = Paused.model_validate_json(fields["paused"]) if "paused" in fields else None
    if "held" not in fields:
        return paused
    held, progress = OwnerPause.model_validate_json(fields["held"]), read_progress(fields)
    return Paused(
        iteration=progress.iteration if progress else 0,
        since=held.since,
        reason="operator",
        done=paused.done if paused else None,
        message=held.message,
    )


def _phase(fields: Fields) -> str | None:
    """Return the phase of a running job."""
    if fields["state"] != "running":
        return None
    if "preparing" in fields:
        preparation = read_preparation(fields)
        return "resampling" if preparation and preparation.step == "resample" else "preparing"
    progress = read_progress(fields)
    return fields.get("phase") or (progress.phase if progress else "preparing")


def read_time(fields: Fields, name: str) -> datetime | None:
    return datetime.fromtimestamp(int(fields[name]) / 1000, UTC) if name in fields else None
