"""A client of the event stream that does what browsers do: it connects again with the last id it has seen."""

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import httpx

from sparse_ncp.worker.contract import parse_event_id
from sparse_ncp.worker.records.events import START
from tests.support.api import Sent, http_client, parsed
from tests.support.stack import wait_for

PAUSE_SECONDS = 0.2


class Watcher(threading.Thread):
    def __init__(self, address: str, job_id: str) -> None:
        super().__init__(name=f"watcher of {job_id}", daemon=True)
        self._address = address
        self._job_id = job_id
        self._ended = threading.Event()
        self.connections = 0
        self.seen: list[Sent] = []

    def run(self) -> None:
        while not self._ended.is_set():
            try:
                self._connect()
            except (httpx.TransportError, NotServed):
                self._ended.wait(PAUSE_SECONDS)

    def _connect(self) -> None:
        """A server that says 503 is asked again later; every other refusal ends the watching, and so fails the test."""
        last = {"Last-Event-ID": self.seen[-1].id} if self.seen else {}
        path = f"/v1/jobs/{self._job_id}/events"
        with http_client(self._address) as caller, caller.stream("GET", path, headers=last) as answer:
            if answer.status_code == 503:
                raise NotServed
            assert answer.status_code == 200, answer.status_code
            self.connections += 1
            self._read(answer)

    def _read(self, answer: httpx.Response) -> None:
        """Collect the recorded events. Those of a preparation are not recorded; they repeat the id before them."""
        for sent in parsed(answer):
            if sent.kind == "preparing":
                assert sent.id == (self.seen[-1].id if self.seen else START)
                continue
            self.seen.append(sent)
            if sent.kind == "end" or self._ended.is_set():
                self._ended.set()
                return

    def reached(self, iteration: int) -> None:
        wait_for(lambda: self.seen and parse_event_id(self.seen[-1].id)[0] >= iteration, what=f"iteration {iteration}")

    def until_end(self, seconds: float = 60) -> Sequence[Sent]:
        wait_for(lambda: self.seen and self.seen[-1].kind == "end", seconds, "the end of the stream")
        return self.seen

    def stop(self) -> None:
        self._ended.set()


class NotServed(Exception):
    """The server asks to try again later."""


@contextmanager
def watch(address: str, job_id: str) -> Iterator[Watcher]:
    watcher = Watcher(address, job_id)
    watcher.start()
    try:
        yield watcher
    finally:
        watcher.stop()


def is_gapless(seen: Sequence[Sent]) -> bool:
    """Ids only grow, every iteration comes once and in order, and the end is the end."""
    places = [parse_event_id(sent.id) for sent in seen]
    iterations = [sent.content["iteration"] for sent in seen if sent.kind == "progress"]
    return (
        all(before < after for before, after in itertools.pairwise(places))
        and iterations == list(range(1, len(iterations) + 1))
        and [place for place, sent in enumerate(seen) if sent.kind == "end"] == [len(seen) - 1]
    )
