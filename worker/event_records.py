"""The events of a job: live from its stream, or rebuilt from the stored history with the same ids."""

from collections.abc import Mapping

from worker import keys
from worker.configuration import Configuration
from worker.contract import TERMINAL, Event, Progress
from worker.errors import NotFound
from worker.job_fields import job_from
from worker.job_records import JobRecords
from worker.results import JobFolder
from worker.store import Store

START = "0-0"


class EventRecords(JobRecords):
    def stream_key(self, job_id: str) -> str:
        """For a reader that follows many jobs at once; it turns each entry into an event with `event`."""
        return keys.stream(job_id)

    def event(self, job_id: str, entry_id: str, entry: Mapping[str, str]) -> Event:
        """One entry of the stream. The last one carries the job as it ended."""
        payload = self._job_json(job_id) if entry["kind"] == "end" else entry["payload"]
        return Event.model_validate({"id": entry_id, "kind": entry["kind"], "payload": payload})

    def events_after(self, job_id: str, after: str | None = None, count: int = 1000) -> list[Event]:
        """At most `count` events after the one called `after`, in order, each exactly once."""
        place = parse_event_id(after or START)
        fields = self._fields(job_id)
        if not fields:
            raise NotFound("job", job_id)
        if fields.get("settled") == "1":
            return self._stored_events(job_id, place, count)
        start = f"({place[0]}-{place[1]}"
        entries = self._call("XRANGE", keys.stream(job_id), start, "+", "COUNT", count)
        return [self.event(job_id, entry_id, entry) for entry_id, entry in entries]

    def history(self, owner: str, id: str, after: int = 0) -> list[Progress]:
        """The numbers of every iteration after `after`."""
        self.job(owner, id)
        if self._fields(id).get("settled") == "1":
            return self._folder(id).history(after)
        return [row for row in self._live_history(id, after) if row.iteration > after]

    def settle(self, job_id: str) -> None:
        """Move the history of an ended job to the store; its stream stays a little for those who are reading it."""
        entries = self._call("XRANGE", keys.stream(job_id), "-", "+")
        changes = [
            Event.model_validate({"id": entry_id, **entry})
            for entry_id, entry in entries
            if entry["kind"] != "progress"
        ]
        rows = [Progress.model_validate_json(entry["payload"]) for _, entry in entries if entry["kind"] == "progress"]
        folder = self._folder(job_id)
        try:
            with folder.settling():
                if self._fields(job_id).get("settled") != "1":  # else the stream may have expired
                    folder.save_history(rows, changes)
                folder.tidy()
        except FileNotFoundError:
            if self._fields(job_id):  # else the job was deleted under our hands
                raise
        if not self._run("settled", job_id, self._configuration.stream_seconds, folder.nbytes()):
            self._store.remove_job(job_id)

    def clear_up(self, job_id: str) -> None:
        """After an attempt that lost its claim: what it wrote late goes, if the job has ended."""
        fields = self._fields(job_id)
        if not fields:
            self._store.remove_job(job_id)
        elif fields["state"] in TERMINAL:
            self.settle(job_id)

    def has_ended(self, job_id: str) -> bool:
        return self._fields(job_id).get("state") in TERMINAL

    def unsettled(self) -> list[str]:
        """Jobs that ended while nobody could move their history."""
        return sorted(self._call("SMEMBERS", keys.UNSETTLED))

    def _live_history(self, job_id: str, after: int) -> list[Progress]:
        entries = self._call("XRANGE", keys.stream(job_id), f"{after + 1}-0", "+")
        return [Progress.model_validate_json(entry["payload"]) for _, entry in entries if entry["kind"] == "progress"]

    def _stored_events(self, job_id: str, place: tuple[int, int], count: int) -> list[Event]:
        folder = self._folder(job_id)
        rows = [
            Event(id=f"{row.iteration}-0", kind="progress", payload=row.model_dump_json())
            for row in folder.history(place[0], count)
        ]
        changes = [change for change in folder.changes() if parse_event_id(change.id) > place]
        merged = sorted([*rows, *changes], key=lambda event: parse_event_id(event.id))[:count]
        return [self.event(job_id, event.id, event.model_dump()) for event in merged]

    def _job_json(self, job_id: str) -> str:
        fields = self._fields(job_id)
        if not fields:
            raise NotFound("job", job_id)
        return job_from(fields, None).model_dump_json(exclude={"owner"})

    def _folder(self, job_id: str) -> JobFolder:
        return self._store.job(job_id)

    @property
    def _store(self) -> Store:
        return store_of(self._configuration)


def store_of(configuration: Configuration) -> Store:
    return Store(configuration.data)


def parse_event_id(text: str) -> tuple[int, int]:
    """`<iteration>-<n>` as numbers; anything else is before the first event."""
    first, _, second = text.partition("-")
    if not (first.isdecimal() and second.isdecimal()):
        return 0, 0
    return int(first), int(second)
