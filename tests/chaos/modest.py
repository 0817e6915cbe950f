"""An owner of few small jobs beside a greedy one: each job has to begin within a few turns."""

import threading
import time
from contextlib import suppress
from itertools import count

from sparse_ncp.worker.contract import JobRequest
from sparse_ncp.worker.errors import Unavailable
from tests.chaos.jobs import MODEST, Jobs
from tests.chaos.server import TURN_SECONDS, ChaosServer

PLACE = 1
POLL_SECONDS = 0.1
PAUSE_SECONDS = 1.0
# In time in which there is a worker. Turns are longer than TURN_SECONDS on a busy machine, where a resume takes long.
MOST_TURNS = 20


class Modest(threading.Thread):
    """Submits a job of three sweeps after the other, and measures how long each waits for a worker."""

    def __init__(self, server: ChaosServer, jobs: Jobs) -> None:
        super().__init__(name="modest owner", daemon=True)
        self._server = server
        self._jobs = jobs
        self._ended = threading.Event()
        self.waits: list[float] = []

    def run(self) -> None:
        for number in count():
            if self._ended.wait(PAUSE_SECONDS):
                return
            tensor_id = self._jobs.tensor_id(MODEST, PLACE)
            request = JobRequest(tensor_id=tensor_id, method="hals", rank=3, seed=number, stop={"max_iterations": 3})
            self.waits.append(self._wait(self._jobs.add(MODEST, PLACE, request).id))

    def _wait(self, id: str) -> float:
        """Return the seconds until a job begins, without those in which there is no Redis or no worker."""
        waited, before = 0.0, time.monotonic()
        while not self._ended.is_set():
            time.sleep(POLL_SECONDS)
            is_served = False
            with suppress(Unavailable):
                if self._server.records.jobs.get(MODEST, id).state != "queued":
                    return waited
                is_served = self._server.records.stats.queue().live_workers > 0
            now = time.monotonic()
            waited += now - before if is_served else 0.0
            before = now
        return waited

    def end(self) -> list[str]:
        """Stop, and return the complaints."""
        self._ended.set()
        self.join()
        late = [waited for waited in self.waits if waited > MOST_TURNS * TURN_SECONDS]
        return [f"a small job of a modest owner waited {waited:.0f} s for a worker" for waited in late]

    def __str__(self) -> str:
        waits = sorted(self.waits) or [0.0]
        middle, longest = waits[len(waits) // 2], waits[-1]
        return f"{len(self.waits)} small jobs began after {middle:.1f} s (median), {longest:.1f} s (longest)"
