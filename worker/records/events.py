"""Live events: the stream that a run fills until its history is in the store, and that of a study, which stays."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sparse_ncp.worker.contract import Event, Progress
from sparse_ncp.worker.records.jobs import JobRecords
from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.records.redis.connection import RedisConnection
from sparse_ncp.worker.records.studies import StudyRecords

START = "0-0"


class Piece(NamedTuple):
    """Consecutive events as the store keeps them: iterations, and all others, the end without its job."""

    rows: Sequence[Progress]
    changes: Sequence[Event]
    last_id: str


class EventRecords:
    def __init__(self, connection: RedisConnection, jobs: JobRecords, studies: StudyRecords) -> None:
        self._redis = connection
        self._jobs = jobs
        self._studies = studies

    def stream_key(self, id: str) -> str:
        """For a reader that follows many jobs and studies at once; it turns each entry into an event with `event`."""
        return keys.stream(id)

    @property
    def preparations_key(self) -> str:
        """A stream of how far jobs are in preparing their first sweeps, each entry with `id` and `payload`."""
        return keys.PREPARING

    def is_stored(self, entry: Mapping[str, str]) -> bool:
        """Whether an entry of the stream only says that the store has the rest."""
        return entry["kind"] == "stored"

    def event(self, id: str, entry_id: str, entry: Mapping[str, str]) -> Event:
        """One entry of the stream. The last one carries the job or the study as it ended."""
        payload = entry["payload"]
        if entry["kind"] == "end":
            payload = self._study_json(id) if entry.get("of") == "study" else self._job_json(id)
        return Event.model_validate({"id": entry_id, "kind": entry["kind"], "payload": payload})

    def after(self, job_id: str, event_id: str, count: int) -> list[Event]:
        """At most `count` events after the one with this id, in order."""
        iteration, number = parse_event_id(event_id)
        entries = self._redis.command("XRANGE", keys.stream(job_id), f"({iteration}-{number}", "+", "COUNT", count)
        return [self.event(job_id, entry_id, entry) for entry_id, entry in entries]

    def history(self, job_id: str, after: int, count: int) -> list[Progress]:
        """The numbers of at most `count` iterations after `after`."""
        rows: list[Progress] = []
        last_id = f"{after}-0"
        while len(rows) < count and (piece := self.piece(job_id, last_id, count - len(rows))) is not None:
            rows += piece.rows
            last_id = piece.last_id
        return rows

    def piece(self, job_id: str, event_id: str, count: int) -> Piece | None:
        """At most `count` events after the one with this id; None if there are none."""
        entries = self._redis.command("XRANGE", keys.stream(job_id), f"({event_id}", "+", "COUNT", count)
        if not entries:
            return None
        rows = [entry["payload"] for _, entry in entries if entry["kind"] == "progress"]
        changes = [(entry_id, entry) for entry_id, entry in entries if entry["kind"] != "progress"]
        return Piece(
            [Progress.model_validate_json(row) for row in rows],
            [Event.model_validate({"id": entry_id, **entry}) for entry_id, entry in changes],
            entries[-1][0],
        )

    def count_of_study(self, study_id: str) -> int:
        """How many events a study has had so far, which is the id of the last."""
        return int(self._redis.command("HGET", keys.study(study_id), "events") or 0)

    def changes_of(self, job_ids: Sequence[str]) -> list[list[Event]]:
        """The changes of state so far of many jobs, in one round trip."""
        found = self._redis.commands(("XRANGE", keys.stream(id), "-", "+") for id in job_ids)
        return [
            [Event.model_validate({"id": entry_id, **entry}) for entry_id, entry in entries if entry["kind"] == "state"]
            for entries in found
        ]

    def _study_json(self, study_id: str) -> str:
        return self._studies.find(study_id).model_dump_json(exclude={"owner", "table", "choice"})

    def _job_json(self, job_id: str) -> str:
        return self._jobs.find(job_id).model_dump_json(exclude={"owner"})


def parse_event_id(text: str) -> tuple[int, int]:
    """`<iteration>-<n>` as numbers; anything else is before the first event."""
    first, _, second = text.partition("-")
    if not (first.isdecimal() and second.isdecimal()):
        return 0, 0
    return int(first), int(second)
