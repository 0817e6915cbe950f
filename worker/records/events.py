"""Live events of jobs, until their history is in the store, and of studies."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sparse_ncp.worker.contract import Event, Progress, parse_event_id
from sparse_ncp.worker.records.jobs import JobRecords
from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.records.redis.connection import RedisConnection
from sparse_ncp.worker.records.studies import StudyRecords

START = "0-0"


class Piece(NamedTuple):
    """Consecutive events in the form in which the store keeps them: iterations, and changes of state."""

    rows: Sequence[Progress]
    changes: Sequence[Event]
    last_id: str


class EventRecords:
    """Read the event streams of jobs and studies."""

    def __init__(self, connection: RedisConnection, jobs: JobRecords, studies: StudyRecords) -> None:
        self._redis = connection
        self._jobs = jobs
        self._studies = studies

    def stream_key(self, id: str) -> str:
        """Return the key of the stream of a job or study; `event` converts its entries."""
        return keys.stream(id)

    @property
    def preparations_key(self) -> str:
        """Key of the stream of preparations, whose entries have `id` and `payload`."""
        return keys.PREPARING

    def is_stored(self, entry: Mapping[str, str]) -> bool:
        """Return whether an entry only says that the remaining events are in the store."""
        return entry["kind"] == "stored"

    def event(self, id: str, entry_id: str, entry: Mapping[str, str]) -> Event:
        """Convert an entry of a stream to an event. The last event contains the job or the study."""
        payload = entry["payload"]
        if entry["kind"] == "end" and entry.get("of") == "study":
            payload = self._studies.find(id).model_dump_json(exclude={"owner", "table", "choice"})
        elif entry["kind"] == "end":
            payload = self._jobs.find(id).model_dump_json(exclude={"owner"})
        return Event.model_validate({"id": entry_id, "kind": entry["kind"], "payload": payload})

    def after(self, job_id: str, event_id: str, count: int) -> list[Event]:
        """Return at most `count` events after the one with this id, in order."""
        iteration, number = parse_event_id(event_id)
        entries = self._redis.command("XRANGE", keys.stream(job_id), f"({iteration}-{number}", "+", "COUNT", count)
        if not entries and iteration == 0 and not self._redis.command("EXISTS", keys.job(job_id)):
            entries = self._entries_of_planned(job_id)[number : number + count]
        return [self.event(job_id, entry_id, entry) for entry_id, entry in entries]

    def _entries_of_planned(self, job_id: str) -> list[tuple[str, dict[str, str]]]:
        """Return the events that a planned run would have if it had a record; none for anything else."""
        (state,) = self._jobs.fields(job_id, "state")
        states = {"queued": ["queued"], "cancelled": ["queued", "cancelled"]}.get(state, [])
        entries = [{"kind": "state", "payload": f'{{"state":"{one}","attempt":0}}'} for one in states]
        if state == "cancelled":
            entries.append({"kind": "end", "payload": ""})
        return [(f"0-{number}", entry) for number, entry in enumerate(entries, 1)]

    def history(self, job_id: str, after: int, count: int) -> list[Progress]:
        """Return the progress of at most `count` iterations after `after`."""
        rows: list[Progress] = []
        last_id = f"{after}-0"
        while len(rows) < count and (piece := self.piece(job_id, last_id, count - len(rows))) is not None:
            rows += piece.rows
            last_id = piece.last_id
        return rows

    def piece(self, job_id: str, event_id: str, count: int) -> Piece | None:
        """Return at most `count` events after the one with this id; None if there are none."""
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

    def length(self, job_id: str) -> int:
        """Return the number of events in the stream of a job."""
        return int(self._redis.command("XLEN", keys.stream(job_id)))

    def count_of_study(self, study_id: str) -> int:
        """Return the number of events of a study, which is the id of the last one."""
        return int(self._redis.command("HGET", keys.study(study_id), "events") or 0)

    def changes_of(self, job_ids: Sequence[str]) -> list[list[Event]]:
        """Return the changes of state of many jobs, in one round trip."""
        found = self._redis.commands(("XRANGE", keys.stream(id), "-", "+") for id in job_ids)
        return [
            [Event.model_validate({"id": entry_id, **entry}) for entry_id, entry in entries if entry["kind"] == "state"]
            for entries in found
        ]
