"""Owners share the workers fairly, by the real scripts on a simulated clock. `tests.support.simulation` says how."""

import random
from collections.abc import Callable, Iterator

import pytest

from sparse_ncp.worker.config import Configuration
from tests.support.simulation import SimulatedLab

Lab = Callable[..., SimulatedLab]
# Lengths of jobs in seconds, for one owner after another: far shorter than a turn, about as long, and far longer.
LENGTHS = ((2, 20), (30, 200), (300, 3000))
HOUR = 3600.0


@pytest.fixture
def lab(configuration: Configuration) -> Iterator[Lab]:
    """A lab with turns of a minute, on an empty Redis."""
    with_labs: list[SimulatedLab] = []

    def make(workers: int, **settings: float) -> SimulatedLab:
        with_labs.append(SimulatedLab(configuration.model_copy(update={"turn_seconds": 60.0}), workers, **settings))
        return with_labs[-1]

    yield make
    for one in with_labs:
        one.close()


@pytest.mark.parametrize(
    ("owners", "jobs", "workers", "weights"), [(10, 120, 2, (1,)), (8, 120, 3, (1, 2)), (6, 90, 1, (1,))]
)
def test_shares_are_fair_in_every_window_of_ten_turns(
    lab: Lab, owners: int, jobs: int, workers: int, weights: tuple[int, ...]
) -> None:
    """At most 2 % of the time is lost. `python -m benchmarks.fairness` repeats it for 50 owners and 10,000 jobs."""
    simulated = lab(workers)
    simulated.fill(owners, jobs, weights, random.Random(owners), LENGTHS)
    simulated.run()
    unfairness, windows = simulated.unfairness()
    assert windows > 20
    assert unfairness < 0.1
    assert simulated.lost_share < 0.02
    assert simulated.pauses > 40


@pytest.mark.parametrize("workers", [1, 2])
def test_small_jobs_of_many_owners_begin_within_a_turn_of_a_greedy_one(lab: Lab, workers: int) -> None:
    simulated = lab(workers)
    simulated.submit("greedy", [10 * HOUR] * 5)
    simulated.run(HOUR)
    for number in range(20):
        simulated.submit(f"modest {number}", [0.5] * 10)
    simulated.run(HOUR + simulated.longest_turn + 200 * 0.5)
    assert len([one for one in simulated.intervals if one.owner != "greedy"]) == 200
    assert simulated.pauses == workers  # twenty owners wait, so each job of the greedy one gives way, once


def test_who_was_alone_is_neither_punished_nor_favoured(lab: Lab) -> None:
    simulated = lab(1)
    simulated.submit("first", [10 * HOUR])
    simulated.run(3 * HOUR)
    simulated.submit("second", [10 * HOUR])
    simulated.run(4 * HOUR)
    since = {one.owner: 0.0 for one in simulated.intervals}
    for one in simulated.intervals:
        since[one.owner] += max(0.0, one.end - max(one.start, 3 * HOUR))
    assert abs(since["first"] - since["second"]) < 2 * simulated.longest_turn


def test_an_idle_server_interrupts_no_job(lab: Lab) -> None:
    simulated = lab(3)
    simulated.submit("ann", [HOUR] * 2)
    simulated.submit("bob", [HOUR])
    simulated.run()
    assert simulated.pauses == 0


def test_an_owner_alone_is_not_interrupted_by_jobs_of_the_same_priority(lab: Lab) -> None:
    simulated = lab(1)
    simulated.submit("ann", [HOUR] * 3)
    simulated.run()
    assert simulated.pauses == 0


def test_a_job_gives_way_to_one_of_its_owner_with_a_higher_priority(lab: Lab) -> None:
    simulated = lab(1)
    simulated.submit("ann", [HOUR])
    simulated.run(1000)
    simulated.submit("ann", [10.0], priority=5)
    simulated.submit("ann", [10.0], priority=-5)
    simulated.run()
    ends = [one.end for one in simulated.intervals]
    assert simulated.pauses == 1
    assert ends[1] < 1000 + 30
    assert ends[2] > HOUR > ends[1]


def test_no_more_jobs_give_way_than_others_need(lab: Lab) -> None:
    simulated = lab(4)
    simulated.submit("ann", [10 * HOUR] * 8)
    simulated.run(0.25 * HOUR)
    simulated.submit("bob", [10 * HOUR])
    simulated.run(0.5 * HOUR)
    assert simulated.pauses == 1


def test_workers_are_shared_by_weight(lab: Lab) -> None:
    simulated = lab(4)
    simulated.owners.set_weight("heavy", 3)
    simulated.submit("light", [10 * HOUR] * 8)
    simulated.submit("heavy", [10 * HOUR] * 8)
    simulated.run(HOUR)
    found = {share.owner: share for share in simulated.owners.shares()}
    assert found["heavy"].recent_seconds / found["light"].recent_seconds == pytest.approx(3, rel=0.05)
    assert found["heavy"].share == pytest.approx(0.75, rel=0.05)


def test_a_job_that_resumes_expensively_has_longer_turns(lab: Lab) -> None:
    simulated = lab(1, resume_seconds=12.0)
    simulated.submit("ann", [10 * HOUR])
    simulated.submit("bob", [10 * HOUR])
    simulated.run(3 * HOUR)
    paused = [one for one in simulated.intervals if one.end < 3 * HOUR]
    assert min(one.end - one.start for one in paused) >= 50 * 12.0
    assert simulated.lost_share <= 0.02


def test_the_jobs_of_a_paused_owner_wait_and_his_running_ones_are_handed_back(lab: Lab) -> None:
    simulated = lab(2)
    simulated.submit("ann", [HOUR] * 3)
    simulated.run(10)
    simulated.owners.pause("ann", "the instrument is being calibrated")
    simulated.run(HOUR)
    assert simulated.pauses == 2
    assert simulated.claims.claim("worker") is None
    (share,) = simulated.owners.shares()
    assert (share.running, share.queued) == (0, 3)
    assert share.paused is not None
    assert share.paused.message == "paused by the operator: the instrument is being calibrated"
    simulated.owners.resume("ann")
    simulated.run(3 * HOUR)
    assert len(simulated.finished) == 3


def test_a_pause_is_no_credit(lab: Lab) -> None:
    """When it ends, the owner does not have the worker alone until the lost time is made up."""
    simulated = lab(1)
    simulated.owners.pause("ann")
    simulated.submit("ann", [10 * HOUR])
    simulated.submit("bob", [10 * HOUR])
    simulated.run(2 * HOUR)
    simulated.owners.resume("ann")
    simulated.run(3 * HOUR)
    bob = sum(max(0.0, one.end - max(one.start, 2 * HOUR)) for one in simulated.intervals if one.owner == "bob")
    assert bob == pytest.approx(HOUR / 2, rel=0.1)


def test_the_time_of_a_dead_worker_is_not_charged(lab: Lab) -> None:
    """A job whose worker has died is charged until its lease ran out, however late it is taken back."""
    simulated = lab(1)
    simulated.submit("ann", [HOUR])
    claim = simulated.claims.claim("worker")
    assert claim is not None
    simulated.expire_leases_after(15.0)
    simulated.pass_time(8 * HOUR)
    assert simulated.reap() == [claim.job_id]
    (share,) = simulated.owners.shares()
    assert share.recent_seconds < 16
