"""Redis does not answer for longer than a lease: it hangs, or it is down."""

import time
from pathlib import Path

import httpx

from tests.support.api import http_client, refused, running_api
from tests.support.jobs import LONG, LONGER, Backend, job_process, reached
from tests.support.processes import frozen, redis_process
from tests.support.stack import embedded_redis, restartable_redis, wait_for, worker
from tests.support.watcher import is_gapless, watch

LEASE_SECONDS = 3.0
# A request is refused within this time if Redis does not respond.
REFUSED_SECONDS = 4.0
MINUTE = 60.0
SHORT = {"rank": 2, "stop": {"max_iterations": 3}}


def is_refused_for_now(caller: httpx.Client) -> None:
    asked = time.monotonic()
    problem = caller.get("/v1/jobs")
    assert time.monotonic() - asked < REFUSED_SECONDS
    refused(problem, 503, "unavailable")
    assert int(problem.headers["Retry-After"]) > 0


def test_a_silent_redis_stops_no_job_and_everything_recovers_by_itself(tmp_path: Path) -> None:
    with (
        embedded_redis(tmp_path, lease_seconds=LEASE_SECONDS, keep_alive_seconds=1.0) as configuration,
        worker(configuration) as running,
        running_api(configuration) as served,
        http_client(served.address) as caller,
    ):
        backend = Backend(configuration)
        job = backend.submit(**LONGER)
        with watch(served.address, job.id) as watcher:
            reached(backend.records, job, 20)
            computing = job_process(running.pid)
            with frozen([redis_process(configuration)]):
                since, worked = time.monotonic(), sum(computing.cpu_times()[:2])
                is_refused_for_now(caller)
                wait_for(
                    lambda: time.monotonic() - since > 3 * LEASE_SECONDS and sum(computing.cpu_times()[:2]) > worked,
                    what="three leases, with the job computing",
                )
            assert wait_for(lambda: caller.get("/v1/jobs").status_code == 200, what="the API to recover")
            assert backend.as_if_nothing_happened(job, 180).attempt == 1
            assert is_gapless(watcher.until_end())
            assert watcher.connections == 1
        assert backend.as_if_nothing_happened(backend.submit(**SHORT)).attempt == 1


def test_a_job_that_ends_while_redis_is_away_for_a_minute_has_lost_nothing(tmp_path: Path) -> None:
    """The run ends long before it can be reported; it waits, and so does the job behind it."""
    with (
        restartable_redis(tmp_path, lease_seconds=LEASE_SECONDS, keep_alive_seconds=1.0) as (configuration, restart),
        worker(configuration) as running,
        running_api(configuration) as served,
        http_client(served.address) as caller,
    ):
        backend = Backend(configuration)
        job, behind = backend.submit(**LONG), backend.submit(**SHORT)
        with watch(served.address, job.id) as watcher:
            reached(backend.records, job, 20)
            computing = job_process(running.pid)

            def a_minute() -> None:
                since = time.monotonic()
                is_refused_for_now(caller)
                wait_for(lambda: list(backend.folder(job).glob("factors-*/manifest.json")), what="the run to end")
                wait_for(lambda: time.monotonic() - since > MINUTE, 2 * MINUTE, "a minute")
                is_refused_for_now(caller)
                assert computing.is_running()

            restart(a_minute)
            assert wait_for(lambda: caller.get("/v1/jobs").status_code == 200, what="the API to recover")
            assert backend.as_if_nothing_happened(job).attempt == 1
            assert is_gapless(watcher.until_end())
        assert backend.as_if_nothing_happened(behind).attempt == 1
