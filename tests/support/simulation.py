"""A lab of many owners on a simulated clock: the real scripts in a real Redis, with workers that only count."""

import bisect
import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import NamedTuple

import numpy as np

from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.contract import Claim, JobRequest
from sparse_ncp.worker.execution.heartbeat import pause_seconds
from sparse_ncp.worker.records.claims import ClaimRecords
from sparse_ncp.worker.records.jobs import digest_of, request_record
from sparse_ncp.worker.records.owners import OwnerRecords
from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.records.redis.connection import RedisConnection, connect
from sparse_ncp.worker.records.workers import Leases

CLOCK = "simulation:clock"
REAL_CLOCK = """local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
"""
SIMULATED_CLOCK = f"local function now() return tonumber(redis.call('GET', '{CLOCK}')) end\n"


class SimulatedRedis(RedisConnection):
    """A connection whose scripts and callers read a clock that `set_clock` sets."""

    def script_source(self, name: str) -> str:
        source = super().script_source(name)
        assert source.count(REAL_CLOCK) == 1
        return source.replace(REAL_CLOCK, SIMULATED_CLOCK)

    def set_clock(self, seconds: float) -> None:
        self.command("SET", CLOCK, round(1000 * seconds))

    def now(self) -> int:
        return int(self.command("GET", CLOCK))


class Interval(NamedTuple):
    """One attempt of a job: its owner used a worker from `start` to `end`, and `lost` seconds of it for resuming."""

    owner: str
    start: float
    end: float
    lost: float


class SimulatedLab:
    """Workers, owners and their jobs.

    Parameters
    ----------
    configuration : Configuration
        Where Redis is, which must be empty, and the length of a turn.
    workers : int
        Number of jobs that run at once.
    resume_seconds : float
        What it costs to resume a job that has given way.
    sweep_seconds : float
        A job gives way after a sweep.
    """

    def __init__(
        self, configuration: Configuration, workers: int, resume_seconds: float = 0.5, sweep_seconds: float = 1.0
    ) -> None:
        self.longest_turn = configuration.turn_seconds + pause_seconds(configuration) + sweep_seconds
        settings = {"redis_url": configuration.redis_url, "lease_seconds": 1e6}
        self.redis = SimulatedRedis(connect(configuration), configuration.model_copy(update=settings))
        self.claims = ClaimRecords(self.redis)
        self.owners = OwnerRecords(self.redis)
        self.time = 0.0
        self.intervals: list[Interval] = []
        self.waited: dict[str, float] = defaultdict(float)  # the longest that a job of an owner waited for its start
        self.weights: dict[str, float] = {}
        self.finished: list[str] = []
        self.pauses = 0
        self._resume_seconds = resume_seconds
        self._sweep_seconds = sweep_seconds
        self._pause = pause_seconds(configuration)
        self._left: dict[str, float] = {}
        self._submitted: dict[str, float] = {}
        self._idle = list(range(workers))
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        body = JobRequest.model_validate({"tensor_id": "none", "rank": 2, "method": "hals"})
        self._record, self._digest = request_record(body, None, None), digest_of(body)
        # A flush for each of a hundred thousand writes would take minutes.
        self.redis.command("CONFIG SET", "appendfsync", "no")
        self.redis.set_clock(0)
        self._leases = Leases(self.redis)
        self._leases.heartbeat("worker", workers)

    def close(self) -> None:
        self.redis.command("CONFIG SET", "appendfsync", "always")
        self.redis.close()

    def submit(self, owner: str, seconds: Sequence[float], priority: int = 0) -> None:
        """Queue one job for each length. Workers look for them when time passes."""
        calls: list[list[str | int]] = []
        for length in seconds:
            id = f"{next(self._numbers):020x}"
            self._left[id], self._submitted[id] = length, self.time
            self.redis.command("HSET", f"ncp:tensor:{owner}", "owner", owner, "sha256", "0")
            calls.append(
                [id, owner, owner, "", priority, "hals", self._record, "", self._digest, 1, "", "", "", "", "", 0, 0]
            )
        for answer in self.redis.script_calls("jobs/submit", calls):
            assert answer[0] == "made", answer

    def fill(
        self,
        owners: int,
        jobs: int,
        weights: Sequence[float],
        random: Random,
        lengths: Sequence[tuple[float, float]],
        mean_seconds: float = 120.0,
    ) -> None:
        """Queue so many jobs, as much work for each owner as the owner's weight, with lengths that differ by owner."""
        for number in range(owners):
            owner, weight = f"owner {number}", weights[number % len(weights)]
            self.weights[owner] = weight
            if weight != 1:
                self.owners.set_weight(owner, weight)
            drawn = [random.uniform(*lengths[number % len(lengths)]) for _ in range(jobs // owners)]
            scale = weight * mean_seconds * len(drawn) / sum(drawn)
            self.submit(owner, [scale * length for length in drawn])

    def unfairness(self) -> tuple[float, int]:
        """Return the largest deviation from a fair share in windows of ten turns, and the number of windows.

        Only as long as each owner has work left, and with turns as long as the longest: a turn ends with a sweep, after
        a heartbeat.
        """
        end = min(max(one.end for one in self.intervals if one.owner == owner) for owner in self.weights)
        return largest_unfairness(self.intervals, self.weights, 10 * self.longest_turn, end, self.longest_turn)

    def at(self, time: float, act: Callable[[], None]) -> None:
        """Do something at a time."""
        heapq.heappush(self._events, (time, next(self._numbers), act))

    def run(self, until: float = float("inf")) -> None:
        """Let time pass, until nothing is left to do."""
        self._claim()
        while self._events and self._events[0][0] <= until:
            time, _, act = heapq.heappop(self._events)
            self.pass_time(time - self.time)
            act()
            self._claim()
        if until < math.inf:
            self.pass_time(until - self.time)

    def pass_time(self, seconds: float) -> None:
        """Set the clock, while workers do nothing."""
        self.time += seconds
        self.redis.set_clock(self.time)

    def expire_leases_after(self, seconds: float) -> None:
        """Let the leases of all running jobs run out after this time from now."""
        for id in self.redis.command("ZRANGE", keys.LEASES, 0, -1):
            self.redis.command("ZADD", keys.LEASES, round(1000 * (self.time + seconds)), id)

    def reap(self) -> list[str]:
        """Return jobs of dead workers to the queue."""
        return self._leases.reap()

    def _claim(self) -> None:
        while self._idle and (claim := self.claims.claim("worker")) is not None:
            _Process(self, claim, self._idle.pop())

    @property
    def lost_share(self) -> float:
        """Fraction of the time of the workers that was spent on resuming jobs."""
        return sum(one.lost for one in self.intervals) / sum(one.end - one.start for one in self.intervals)


class _Process:
    """One attempt of a job on a worker."""

    def __init__(self, lab: SimulatedLab, claim: Claim, worker: int) -> None:
        self._lab = lab
        self._claim = claim
        self._worker = worker
        self._start = lab.time
        waited = lab.time - lab._submitted.pop(claim.job_id, lab.time)
        lab.waited[claim.owner] = max(lab.waited[claim.owner], waited)
        self._lost = lab._resume_seconds if claim.fence > 1 else 0.0
        self._ended = False
        lab.at(self._start + self._lost + lab._left[claim.job_id], self._end)
        lab.at(self._start + lab._pause, self._renew)

    def _computed(self) -> float:
        return self._lab.time - self._start - self._lost

    def _status(self) -> str:
        has_swept = self._computed() >= self._lab._sweep_seconds
        return self._lab.claims.renew(self._claim, 0.0, self._lab._resume_seconds if has_swept else None)

    def _renew(self) -> None:
        if self._ended:
            return
        lab = self._lab
        if self._status() in ("yield", "paused"):
            sweeps = int(self._computed() / lab._sweep_seconds) + 1
            lab.at(self._start + self._lost + sweeps * lab._sweep_seconds, self._give_way)
        lab.at(lab.time + lab._pause, self._renew)

    def _give_way(self) -> None:
        if self._ended or self._status() not in ("yield", "paused"):
            return
        self._lab._left[self._claim.job_id] -= self._computed()
        assert self._lab.claims.hand_back(self._claim)
        self._lab.pauses += 1
        self._leave()

    def _end(self) -> None:
        if not self._ended:
            assert self._lab.claims.succeed(self._claim, None)
            self._lab.finished.append(self._claim.job_id)
            self._leave()

    def _leave(self) -> None:
        self._ended = True
        self._lab.intervals.append(Interval(self._claim.owner, self._start, self._lab.time, self._lost))
        self._lab._idle.append(self._worker)


def largest_unfairness(
    intervals: Sequence[Interval], weights: Mapping[str, float], turns_seconds: float, end: float, step: float
) -> tuple[float, int]:
    """Return the largest deviation from a fair share in windows before `end`, and the number of windows.

    A window begins every `step` seconds, and lasts until each owner has used workers for `turns_seconds`. All owners
    must have jobs waiting or running until `end`.
    """
    used = {owner: _Usage([one for one in intervals if one.owner == owner]) for owner in weights}
    worst, windows, start = 0.0, 0, 0.0
    while (stop := max(one.time_at(one.until(start) + turns_seconds) for one in used.values())) <= end:
        got = {owner: one.until(stop) - one.until(start) for owner, one in used.items()}
        per_weight = sum(got.values()) / sum(weights.values())
        worst = max(worst, *(abs(got[owner] / (weights[owner] * per_weight) - 1) for owner in weights))
        windows, start = windows + 1, start + step
    return worst, windows


class _Usage:
    """Worker time that an owner has used up to a time, and the reverse."""

    def __init__(self, intervals: Sequence[Interval]) -> None:
        changes: dict[float, int] = defaultdict(int)
        for one in intervals:
            changes[one.start] += 1
            changes[one.end] -= 1
        self._times, self._totals, rate = [0.0], [0.0], 0
        for time in sorted(changes):
            self._totals.append(self._totals[-1] + rate * (time - self._times[-1]))
            self._times.append(time)
            rate += changes[time]

    def until(self, time: float) -> float:
        return float(np.interp(time, self._times, self._totals))

    def time_at(self, total: float) -> float:
        if total > self._totals[-1]:
            return math.inf
        place = bisect.bisect_left(self._totals, total)
        return float(np.interp(total, self._totals[place - 1 : place + 1], self._times[place - 1 : place + 1]))
