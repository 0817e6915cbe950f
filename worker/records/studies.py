"""Records of studies: submit, get, list, cancel, delete. Their runs are records of jobs."""

import json
import math
import secrets
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate, chain, repeat, takewhile
from typing import Any, NamedTuple

from pydantic import BaseModel

from sparse_ncp.solvers.studies.recommendation import Recommendation
from sparse_ncp.solvers.studies.settings import ComparisonSettings
from sparse_ncp.worker.contract import TERMINAL, JobRequest, JobResult, Page, Task
from sparse_ncp.worker.errors import InUse, NotFound, OutcomeUnknown, QuotaReached, StudyNotFinished, Unavailable
from sparse_ncp.worker.owner_limits import UNLIMITED, Limits
from sparse_ncp.worker.records.jobs import (
    Fields,
    digest_of,
    find_replay,
    idempotency_key,
    input_ids,
    raise_refusal,
    read_time,
)
from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.records.redis.connection import RedisConnection, below
from sparse_ncp.worker.records.redis.versions import check_version, is_readable
from sparse_ncp.worker.study_contract import ChooseRequest, CompareFields, Measures, Study, StudyRequest

# Runs that one script ends or deletes: it blocks Redis for a few milliseconds.
BATCH = 500
# Leases for which one process may be silent while it makes a recommendation.
ENDING_LEASES = 4
# Names of fields in records from before 0.1.0.
FORMER_FIELDS = {"details": "told", "settings": "asked"}  # language: stored name


class PlannedCell(NamedTuple):
    """Common part of all runs of a cell.

    With a title, `text` is the part of their settings that differs between cells; otherwise the whole request.
    `reserved` are the bytes that a result may take, apart from so many copies of the labels.
    """

    task: Task
    method: str
    shared: bool
    text: str
    title: str | None = None
    reserved: int = 0
    labels: int = 0


@dataclass(frozen=True)
class Plan:
    """The runs of a study in their order: run k of every cell before run k + 1 of any, then the validation.

    `common` is the part of the request that all runs share. Texts are JSON, to be joined. `working` are bytes that runs
    take in addition while they run.
    """

    common: str
    cells: Sequence[PlannedCell]
    seeds: Sequence[int]
    validation: PlannedCell | None = None
    working: int = 0

    @property
    def cells_in_order(self) -> Iterator[PlannedCell]:
        """The cell of each run, in their order."""
        yield from chain(*repeat(self.cells, len(self.seeds)), [self.validation] if self.validation else [])

    def fitting(self, room: int, label_bytes: int) -> int:
        """Return how many runs fit into the room that a quota has left."""
        sizes = accumulate(cell.reserved + cell.labels * label_bytes for cell in self.cells_in_order)
        return sum(1 for _ in takewhile(lambda size: size <= room - self.working, sizes))

    @property
    def count(self) -> int:
        """The number of runs, with the validation."""
        return len(self.cells) * len(self.seeds) + (self.validation is not None)


class RunRecord(NamedTuple):
    """The part of a run's record that a table needs."""

    id: str
    cell: int
    repeat: int
    state: str
    result: JobResult | None
    error: str | None
    measures: Measures


class StudyRecords:
    def __init__(self, connection: RedisConnection) -> None:
        self._redis = connection

    def submit(
        self,
        owner: str,
        request: StudyRequest,
        plan: Plan,
        shape: Sequence[int],
        key: str | None = None,
        limits: Limits = UNLIMITED,
        single: JobRequest | None = None,
    ) -> tuple[Study, bool]:
        """Record the plan of a study durably and queue its first run; a repeated key and body return it and True.

        `single` is the request of a study's only run, which names its inputs.
        """
        named = {"reference": "", **input_ids(single or request)}
        settings: BaseModel = request
        if isinstance(request, ChooseRequest):
            settings = request.settings()
        elif isinstance(request, CompareFields):
            settings = request.grid
        reference = request.reference if isinstance(request, CompareFields) else None
        cells = [*plan.cells, *([] if plan.validation is None else [plan.validation])]
        parts = [json.dumps({**cell._asdict(), "shared": int(cell.shared)}) for cell in cells]
        of_cells, of_validation = parts[: len(plan.cells)], parts[len(plan.cells) :]
        nbytes = sum(cell.reserved for cell in plan.cells_in_order) + plan.working
        id = secrets.token_hex(7) + keys.ID_OF_STUDY
        submit = partial(
            self._redis.script,
            "studies/submit",
            id,
            owner,
            request.kind,
            json.dumps({"name": request.name, "request": request.recorded_fields(), "shape": shape}),
            settings.model_dump_json(by_alias=True),  # in full, so that later defaults do not change old studies
            request.priority,
            idempotency_key(owner, key) if key is not None else "",
            digest_of(request),
            int(self._redis.configuration.idempotency_hours * 3_600_000),
            limits.live_jobs or "",
            limits.stored_bytes or "",
            limits.live_runs or "",
            *(named[word] for word in ("tensor", "initial", "mask", "fixed", "reference")),
            reference.mode if reference else "",
            plan.common,
            len(plan.cells),
            len(plan.seeds),
            plan.count,
            nbytes,
            sum(cell.labels for cell in plan.cells_in_order),
            *of_cells,
            *plan.seeds,
            *of_validation,
        )

        def record() -> tuple[Study, bool]:
            outcome, *found = submit()
            if outcome == "full" and limits.stored_bytes is not None:
                taken, label_bytes = found
                fitting = plan.fitting(limits.stored_bytes - taken, label_bytes), plan.count
                raise QuotaReached(limits.stored_bytes, taken, results=nbytes, fitting=fitting)
            raise_refusal(outcome, found, limits, named)
            try:
                return self.get(owner, found[0]), outcome == "replayed"
            except Unavailable as error:  # it is recorded
                raise OutcomeUnknown(str(error)) from error

        return self._redis.repeat_until_known(record, "study", id)[0]

    def replay(self, owner: str, request: StudyRequest, key: str) -> Study | None:
        """Return the study that an earlier request with this key made; None if there is none."""
        id = find_replay(self._redis, owner, key, digest_of(request), "study")
        return None if id is None else self.get(owner, id)

    def get(self, owner: str, id: str) -> Study:
        """Return a study without its table; NotFound if it does not exist or belongs to another owner."""
        study = self.find(id)
        if study.owner != owner:
            raise NotFound("study", id)
        return study

    def find(self, id: str) -> Study:
        """Return a study of any owner, without its table; raise LaterRecord if a later release has written it."""
        fields = self._redis.command("HGETALL", keys.study(id))
        if not fields or fields["state"] == "deleted":
            raise NotFound("study", id)
        check_version("study", fields)
        return self._study(fields)

    def list(self, owner: str, limit: int = 50, cursor: str | None = None) -> Page[Study]:
        """Return one page of studies, newest first, without tables and without those of a later release."""
        bounds = (below(cursor), "-inf", "WITHSCORES", "LIMIT", 0, limit + 1)
        found = self._redis.command("ZREVRANGEBYSCORE", keys.studies(owner), *bounds)
        fields = self._redis.hashes(keys.study(id) for id, _ in found[:limit])
        following = str(int(found[limit - 1][1])) if len(found) > limit else None
        items = (self._study(one) for one in fields if one["state"] != "deleted" and is_readable(one))
        return Page[Study](items=tuple(study.model_copy(update={"choice": None}) for study in items), next=following)

    def cancel(self, owner: str, id: str) -> Study:
        """Cancel a study: no further run starts, and running ones end after their sweep. Results are kept."""
        place = 0
        while place >= 0:
            place = self._redis.script("studies/cancel", owner, id, place, BATCH)
        if place == -2:
            raise NotFound("study", id)
        return self.get(owner, id)

    def delete(self, owner: str, id: str) -> None:
        """Delete a study that has ended, but not its runs: `erase` deletes them."""
        outcome = self._redis.script("studies/delete", owner, id)
        if outcome == "missing":
            raise NotFound("study", id)
        if outcome == "live":
            raise StudyNotFinished(id)
        if outcome == "used":
            raise InUse("study", id)

    def erase(self, id: str) -> Sequence[str]:
        """Delete the records of some runs of a deleted study, and return their ids; empty once all are deleted."""
        erased: list[str] = self._redis.script("studies/erase", id, BATCH)
        return erased

    # The data of tables and plots

    def grid(self, id: str) -> ComparisonSettings:
        """Return the settings of a comparison."""
        return ComparisonSettings.model_validate_json(self._text(id, "settings"))

    def shape(self, id: str) -> tuple[int, ...]:
        """Return the shape of a study's tensor, which may have been deleted since."""
        return tuple(json.loads(self._text(id, "details"))["shape"])

    def checked(self, id: str) -> tuple[float, ...]:
        """Return the results of the validation checks that are done."""
        return tuple(json.loads(self._redis.command("HGET", keys.study(id), "checked") or "[]"))

    def runs(self, id: str) -> Sequence[RunRecord]:
        """Return every run, those without a record last."""
        names = ("cell", "repeat", "state", "result", "error", "measures", "task")
        found: list[Sequence[Any]] = []
        while page := self._redis.script("studies/runs", id, len(found), BATCH, *names):
            found += page
        recorded = [
            RunRecord(
                run,
                int(cell or 0),
                int(repeat or 0),
                state or "",
                None if result is None else JobResult.model_validate_json(result),
                None if error is None else json.loads(error)["message"],
                Measures() if not measures else Measures.model_validate_json(measures),
            )
            for run, cell, repeat, state, result, error, measures, task in found
            if task in ("run", "choose")
        ]
        return [*recorded, *self._unrecorded(id, {run for run, *_ in found})]

    def _unrecorded(self, id: str, recorded: Set[str]) -> Sequence[RunRecord]:
        """Return the runs of a study's plan that have no record."""
        names = ("cells", "repeats", "taken", "cancelled_from")
        cells, repeats, taken, cancelled_from = self._redis.command("HMGET", keys.study(id), *names)
        if cells is None:  # a study from before there were plans
            return []
        state = "queued" if cancelled_from is None else "cancelled"
        places = range(int(cancelled_from or taken), int(cells) * int(repeats))
        found = ((place, f"{id.removesuffix(keys.ID_OF_STUDY)}{place + 1:06x}") for place in places)
        return [
            RunRecord(run, place % int(cells), place // int(cells), state, None, None, Measures())
            for place, run in found
            if run not in recorded
        ]

    def matches(self, id: str) -> dict[int, tuple[float, ...]]:
        """Return the stored factor matches between repeats, by cell."""
        found = self._redis.command("HGET", keys.study(id), "matches")
        return {int(cell): tuple(values) for cell, values in json.loads(found or "{}").items()}

    def keep_matches(self, id: str, matches: Mapping[int, Sequence[float]]) -> None:
        """Store factor matches of cells whose runs have all ended: they do not change any more."""
        if self._redis.command("EXISTS", keys.study(id)):
            self._redis.command("HSET", keys.study(id), "matches", json.dumps(matches))

    def _text(self, id: str, field: str) -> str:
        now, former = self._redis.command("HMGET", keys.study(id), field, FORMER_FIELDS[field])
        text: str = now or former
        return text

    def _study(self, fields: Fields) -> Study:
        details: dict[str, Any] = json.loads(fields.get("details") or fields[FORMER_FIELDS["details"]])
        total, ended = int(fields["total"]), sum(int(fields[state]) for state in TERMINAL)
        progress = float(fields.get("progress", 0)) if fields["kind"] == "choose" else ended / total
        job_id = self._redis.command("LINDEX", keys.runs(fields["id"]), 0) if fields["kind"] != "compare" else None
        result = self._redis.command("HGET", keys.job(job_id), "result") if job_id else None
        over = fields["state"] in TERMINAL
        error = "error" if fields["state"] == "failed" else "validation_error"
        return Study.model_validate(
            {
                "id": fields["id"],
                "owner": fields["owner"],
                "name": details["name"],
                "kind": fields["kind"],
                "tensor_id": fields["tensor_id"],
                "priority": int(fields["priority"]),
                "request": details["request"],
                "state": fields["state"],
                "runs": {
                    "total": total,
                    **{
                        state: int(fields[state]) for state in ("queued", "running", "succeeded", "failed", "cancelled")
                    },
                },
                "progress": 1.0 if fields["state"] == "succeeded" else progress,
                "stage": fields.get("stage"),
                "seconds_left": None if over else self._seconds_left(fields, progress),
                "advice": json.loads(fields["advice"]) if "advice" in fields else None,
                "recommendation": json.loads(fields.get("recommendation", "null")),
                "choice": json.loads(fields["choice"]) if "choice" in fields else None,
                "result": None if result is None else json.loads(result),
                "job_id": job_id,
                "error": json.loads(fields.get(error, "null")),
                "cancel_requested": fields.get("cancel_requested") == "1",
                "created_at": read_time(fields, "created_at"),
                "started_at": read_time(fields, "started_at"),
                "finished_at": read_time(fields, "finished_at"),
            }
        )

    def _seconds_left(self, fields: Fields, progress: float) -> float | None:
        """Estimate the seconds left from the time that the finished part took."""
        if "started_at" not in fields or progress <= 0:
            return None
        passed = max(0.0, (self._redis.now() - int(fields["started_at"])) / 1000)
        return math.ceil(10 * passed * (1 - progress) / progress) / 10


class EndingStudy(NamedTuple):
    """A comparison whose runs have all ended, and how often a process has begun to make its recommendation."""

    id: str
    attempt: int


class EndingRecords:
    """End comparisons. The API does not use this class, since a recommendation may take minutes to make."""

    def __init__(self, connection: RedisConnection) -> None:
        self._redis = connection
        self._lease = ENDING_LEASES * connection.lease_milliseconds

    def take(self) -> EndingStudy | None:
        """Reserve and return a comparison that lacks only its recommendation; None if none is due."""
        found = self._redis.script("studies/take_ending", self._lease)
        return EndingStudy(found[0], int(found[1])) if found else None

    def renew(self, id: str) -> None:
        """Reserve a comparison for longer, while its recommendation is made."""
        self._redis.command("ZADD", keys.ENDING, "XX", self._redis.now() + self._lease, id)

    def postpone(self, id: str) -> None:
        """Leave a comparison to be taken again when its reservation expires, without counting this attempt."""
        self._redis.command("HDEL", keys.study(id), "ending_attempts")

    def end(self, id: str, recommendation: Recommendation | None) -> bool:
        """Store the recommendation and end the comparison; False if another process has ended it."""
        text = "" if recommendation is None else json.dumps(asdict(recommendation))
        return bool(self._redis.script("studies/end", id, text))
