"""The estimate of the remaining time: correct where there is one, and absent where it would be a guess."""

import math
from collections.abc import Callable
from typing import cast

import pytest

from ncp_client.history import Preparation, Progress
from ncp_client.http.connection import Connection
from ncp_client.http.events import Event
from ncp_client.job import Job
from ncp_client.progress import Estimate, format_duration, format_iteration, format_preparation

STOP = {"criterion": "relative_error", "tolerance": 1e-8, "patience": 1, "max_iterations": 10_000, "max_seconds": None}


def rows(error: Callable[[int], float], count: int, phase: str = "exact", start: int | None = None) -> list[Progress]:
    """Return iterations of a tenth of a second each."""
    return [
        Progress(n, error(n) ** 2, error(n), 1 - error(n), n / 10, phase, start) for n in range(1, count + 1)
    ]  # fmt: skip


def estimate(made: list[Progress], **stop: object) -> Estimate:
    found = Estimate({**STOP, **stop})
    for row in made:
        found.add(row)
    return found


@pytest.mark.parametrize("factor", [0.6, 0.9, 0.99])
@pytest.mark.parametrize("criterion", ["relative_error", "objective", "relative_objective"])
def test_a_geometric_run_is_foretold(factor: float, criterion: str) -> None:
    """The true end is where the change falls below the tolerance."""

    def error(n: int) -> float:
        return 0.1 + 1e-3 * factor**n

    seen = 60 if factor == 0.99 else 16
    tolerance = 1e-8
    changes = {
        "relative_error": lambda n: error(n - 1) - error(n),
        "objective": lambda n: error(n - 1) ** 2 - error(n) ** 2,
        "relative_objective": lambda n: 1 - error(n) ** 2 / error(n - 1) ** 2,
    }
    end = next(n for n in range(2, 100_000) if changes[criterion](n) < tolerance)
    left = estimate(rows(error, seen), criterion=criterion, tolerance=tolerance).seconds_left()
    assert left == pytest.approx((end - seen) / 10, rel=0.1, abs=0.3)


def test_a_limit_that_comes_first_is_the_estimate() -> None:
    made = rows(lambda n: 0.1 + 0.1 * 0.99**n, 60)
    assert estimate(made, max_seconds=10.0).seconds_left() == pytest.approx(4.0)
    assert estimate(made, max_iterations=80).seconds_left() == pytest.approx(2.0)


@pytest.mark.parametrize(
    "made",
    [
        [],
        rows(lambda n: 0.1 + 0.1 * 0.9**n, 5),
        rows(lambda n: 0.1 + 0.01 * math.sin(n), 100),
        rows(lambda n: 1 - 1e-3 * n, 100),
        rows(lambda n: 0.1 + 0.1 * 0.9**n, 50, "compressed"),
        rows(lambda n: 0.1 + 0.1 * 0.9**n, 50, "start", 2),
    ],
    ids=["nothing", "too little", "a cycle", "a straight fall", "another tensor", "a trial start"],
)
def test_where_nothing_can_be_said_nothing_is_said(made: list[Progress]) -> None:
    assert estimate(made).seconds_left() is None


def test_a_tolerance_of_zero_leaves_only_the_limits() -> None:
    found = estimate(rows(lambda n: 0.1 + 0.1 * 0.9**n, 50), tolerance=0.0, max_iterations=100)
    assert found.seconds_left() is None
    assert found.seconds_to_limit() == pytest.approx(5.0)


def test_trial_starts_do_not_count_against_the_iterations() -> None:
    starts = rows(lambda n: 0.5, 30, "start", 1)
    found = estimate([*starts, *rows(lambda n: 0.1 + 0.1 * 0.9**n, 50)], tolerance=0.0, max_iterations=100)
    assert found.seconds_to_limit() == pytest.approx(5.0)


def test_a_line_has_iteration_objective_error_rate_and_remaining_time() -> None:
    made = rows(lambda n: 0.1 + 0.1 * 0.9**n, 50)
    line = format_iteration(made[-1], estimate(made))
    assert line.startswith("iteration 50, 10/s, objective 0.0101")
    assert len(line) < 70
    assert "error 0.100515, ≈ " in line
    assert format_iteration(rows(lambda n: 0.5, 1, "start", 3)[0], estimate([])).startswith(
        "iteration 1 (start 3), 10/s"
    )


def test_durations_are_formatted_in_words() -> None:
    assert [format_duration(seconds) for seconds in (0.4, 59, 90, 3600, 7290)] == [
        "0 s",
        "59 s",
        "2 min",
        "1 h 0 min",
        "2 h 2 min",
    ]


def test_a_preparation_is_formatted_as_one_line() -> None:
    assert format_preparation(Preparation("check", 0.456)) == "preparing: checking the stored tensor, 46%"
    assert format_preparation(Preparation("sweep", 0.0)) == "preparing: first sweep"
    assert format_preparation(Preparation("a later one", 0.5)) == "preparing: a later one, 50%"


def test_a_watcher_gets_the_preparation_and_every_iteration_once(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = {"iteration": 1, "objective": 1.0, "relative_error": 0.5, "fit": 0.5, "seconds": 0.1}
    record = {"id": "x", "state": "queued", "progress": None}
    stream = [
        Event("0-1", "state", {"state": "running", "attempt": 1}),
        Event("0-1", "preparing", {"step": "check", "share": 0.5}),
        Event("1-0", "progress", numbers),
        Event("1-1", "end", {**record, "state": "succeeded", "preparing": None}),
    ]
    monkeypatch.setattr("ncp_client.job.follow_events", lambda *_: iter(stream))
    job, heard = Job(cast(Connection, None), record), list[Preparation | None]()
    assert job.preparation is None
    rows = list(job.watch(on_preparation=lambda preparation: heard.extend([preparation, job.preparation])))
    assert [found.iteration for found in rows] == [1]
    assert heard == [Preparation("check", 0.5)] * 2
    assert (job.state, job.preparation) == ("succeeded", None)


def test_a_watcher_gets_the_message_of_a_job_that_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    paused = {"iteration": 7, "since": "2026-11-19T10:00:00Z", "reason": "others", "done": 0.37}
    paused["message"] = "gives way to other users, 37 % done"
    record = {"id": "x", "state": "running", "progress": None, "paused": None}
    stream = [
        Event("7-1", "state", {"state": "queued", "attempt": 0, "paused": paused}),
        Event("7-2", "state", {"state": "running", "attempt": 1}),
        Event("7-3", "end", {**record, "state": "succeeded"}),
    ]
    monkeypatch.setattr("ncp_client.job.follow_events", lambda *_: iter(stream))
    job, seen = Job(cast(Connection, None), record), list[tuple[str, str]]()
    assert list(job.watch(on_pause=lambda message: seen.append((job.state, message)))) == []
    assert seen == [("queued", "gives way to other users, 37 % done")]
    assert job.record["paused"] is None
