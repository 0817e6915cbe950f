"""Records of jobs, as the API sees them: submit, look, list, cancel, delete."""

import json
import secrets
from collections.abc import Iterator
from hashlib import sha256
from itertools import islice

from worker import keys
from worker.contract import Job, JobRequest, JobState, Page
from worker.errors import InUse, KeyReused, NotFound, QuotaReached, StillLive, TooManyJobs
from worker.job_fields import Fields, job_from
from worker.limits import UNLIMITED, Limits
from worker.link import Link, away_is_unavailable

# Records looked at in one go while filtering a list: one or two milliseconds.
BATCH = 1000


class JobRecords(Link):
    def submit(
        self,
        owner: str,
        request: JobRequest,
        key: str | None = None,
        limits: Limits = UNLIMITED,
        request_id: str | None = None,
    ) -> tuple[Job, bool]:
        """Queue a job; durable when this returns. The same key and body give the same job again: (job, True).

        TooManyJobs or QuotaReached if the owner may not have another.
        """
        initial = request.initial.job_id if request.initial else ""
        name = _key_name(owner, key) if key is not None else ""
        outcome, *found = self._run(
            "submit",
            secrets.token_hex(10),
            owner,
            request.tensor_id,
            initial,
            request.priority,
            request.method,
            _stored(request, limits.job_seconds, request_id),
            name,
            _digest(request),
            int(self._configuration.idempotency_hours * 3_600_000),
            limits.live_jobs or "",
            limits.stored_bytes or "",
        )
        if outcome == "busy" and limits.live_jobs is not None:
            raise TooManyJobs(limits.live_jobs)
        if outcome == "full" and limits.stored_bytes is not None:
            raise QuotaReached(limits.stored_bytes, found[0])
        if outcome == "reused":
            raise KeyReused("this Idempotency-Key was used with another body")
        if outcome.startswith("no "):
            if outcome == "no tensor":
                raise NotFound("tensor", request.tensor_id)
            raise NotFound("job", initial, field="initial.job_id")
        return self.job(owner, found[0]), outcome == "replayed"

    def replay(self, owner: str, request: JobRequest, key: str) -> Job | None:
        """The job that this key has made already, whatever has become of its tensor since."""
        digest, id = self._call("HMGET", _key_name(owner, key), "digest", "job")
        if id is None:
            return None
        if digest != _digest(request):
            raise KeyReused("this Idempotency-Key was used with another body")
        return self.job(owner, id)

    def job(self, owner: str, id: str) -> Job:
        fields = self._fields(id)
        if fields.get("owner") != owner:
            raise NotFound("job", id)
        return job_from(fields, self._positions([fields])[0])

    def jobs(
        self,
        owner: str,
        state: JobState | None = None,
        method: str | None = None,
        tensor_id: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[Job]:
        """The newest first, filtered; `next` continues after the last one given."""
        wanted = {"state": state, "method": method, "tensor_id": tensor_id}
        filters = {name: value for name, value in wanted.items() if value is not None}
        found = list(islice(self._matching(owner, cursor, filters, limit + 1), limit + 1))
        fields = self._many_fields([id for id, _ in found[:limit]])
        items = tuple(map(job_from, fields, self._positions(fields)))
        return Page[Job](items=items, next=found[limit - 1][1] if len(found) > limit else None)

    def _matching(
        self, owner: str, cursor: str | None, filters: dict[str, str], wanted: int
    ) -> Iterator[tuple[str, str]]:
        """Id and sequence of the jobs that match, found where they lie: only those are sent."""
        start = f"({cursor}" if cursor is not None and cursor.isdecimal() else "+inf"
        looked = BATCH if filters else wanted
        while start:
            start, *flat = self._run("matching_jobs", owner, start, wanted, looked, json.dumps(filters))
            yield from zip(flat[::2], flat[1::2], strict=True)

    def cancel(self, owner: str, id: str) -> Job:
        """A queued job ends at once, a running one after its sweep; asking again changes nothing."""
        if not self._run("cancel", owner, id):
            raise NotFound("job", id)
        return self.job(owner, id)

    def delete_job(self, owner: str, id: str) -> None:
        """Forget an ended job; then call `Store.remove_job`."""
        outcome = self._run("delete_job", owner, id)
        if outcome == "missing":
            raise NotFound("job", id)
        if outcome == "live":
            raise StillLive(id)
        if outcome == "used":
            raise InUse("job", id)

    def count_queued(self) -> int:
        return sum(self._queue_lengths().values())

    def _fields(self, id: str) -> Fields:
        fields: Fields = self._call("HGETALL", keys.job(id))
        return fields

    def _ranks(self, queued: list[Fields]) -> list[int | None]:
        """How many jobs of the same owner come before each, in one round trip; None if it has left the queue."""
        with away_is_unavailable():
            pipe = self._redis.pipeline(transaction=False)
            for fields in queued:
                pipe.zrank(keys.queue(fields["owner"]), fields["id"])
            return list(pipe.execute())

    def _many_fields(self, ids: list[str]) -> list[Fields]:
        """The records that are still there, in one round trip."""
        with away_is_unavailable():
            pipe = self._redis.pipeline(transaction=False)
            for id in ids:
                pipe.hgetall(keys.job(id))
            return [fields for fields in pipe.execute() if fields]

    def _queue_lengths(self) -> dict[str, int]:
        """Of every owner who waits, in two round trips."""
        owners = sorted(self._call("SMEMBERS", keys.WAITING))
        with away_is_unavailable():
            pipe = self._redis.pipeline(transaction=False)
            for owner in owners:
                pipe.zcard(keys.queue(owner))
            return dict(zip(owners, pipe.execute(), strict=True))

    def _positions(self, jobs: list[Fields]) -> list[int | None]:
        """Owners take turns: of every other owner, as many jobs may come first as of the job's own."""
        queued = [fields for fields in jobs if fields["state"] == "queued"]
        if not queued:
            return [None] * len(jobs)
        lengths = self._queue_lengths()
        places: dict[str, int] = {}
        for fields, ahead in zip(queued, self._ranks(queued), strict=True):
            others = [length for owner, length in lengths.items() if owner != fields["owner"]]
            if ahead is not None:
                places[fields["id"]] = 1 + ahead + sum(min(length, ahead) for length in others)
        return [places.get(fields["id"]) for fields in jobs]


def _key_name(owner: str, key: str) -> str:
    """A caller's key may be anything; its digest may not."""
    return keys.idempotency(owner, sha256(key.encode()).hexdigest())


def _stored(request: JobRequest, max_seconds: float | None, request_id: str | None) -> str:
    """What the record keeps as it was asked. The settings are complete, so later defaults do not change old jobs."""
    settings = request.settings().model_dump(mode="json")
    if settings["stop"]["max_seconds"] is None:
        settings["stop"]["max_seconds"] = max_seconds
    return json.dumps({"name": request.name, "settings": settings, "study_id": None, "request_id": request_id})


def _digest(request: JobRequest) -> str:
    """Of the parsed body: spaces, the order of fields and defaults spelled out make no difference."""
    canonical = json.dumps(request.model_dump(mode="json"), sort_keys=True)
    return sha256(canonical.encode()).hexdigest()
