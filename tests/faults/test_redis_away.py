"""Redis is there but does not answer, for longer than a lease."""

import time
from pathlib import Path

from tests.app.api import api, client, refused
from tests.faults.acts import frozen, redis_process
from tests.faults.watcher import is_gapless, watch
from tests.stack import embedded_redis, wait_for, worker
from tests.worker.lab import job_process, reached
from tests.worker.running import LONGER, Lab

LEASE_SECONDS = 3.0


def test_a_silent_redis_stops_no_job_and_everything_recovers_by_itself(tmp_path: Path) -> None:
    with (
        embedded_redis(tmp_path, lease_seconds=LEASE_SECONDS, keep_alive_seconds=1.0) as configuration,
        worker(configuration) as running,
        api(configuration) as served,
        client(served.address) as caller,
    ):
        lab = Lab(configuration)
        job = lab.submit(**LONGER)
        with watch(served.address, job.id) as watcher:
            reached(lab.records, job, 20)
            computing = job_process(running.pid)
            with frozen([redis_process(configuration)]):
                since, worked = time.monotonic(), sum(computing.cpu_times()[:2])
                problem = caller.get("/v1/jobs")
                refused(problem, 503, "unavailable")
                assert int(problem.headers["Retry-After"]) > 0
                wait_for(
                    lambda: time.monotonic() - since > 3 * LEASE_SECONDS and sum(computing.cpu_times()[:2]) > worked,
                    what="three leases, with the job computing",
                )
            assert wait_for(lambda: caller.get("/v1/jobs").status_code == 200, what="the API to recover")
            assert lab.as_if_nothing_happened(job, 180).attempt == 1
            assert is_gapless(watcher.until_end())
            assert watcher.connections == 1
        again = lab.submit(rank=2, stop={"max_iterations": 3})
        assert lab.as_if_nothing_happened(again).attempt == 1
