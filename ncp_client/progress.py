"""Progress of jobs and studies on standard error, with an estimate of the remaining time."""

import itertools
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from ncp_client.history import Preparation, Progress
from ncp_client.job import Job
from ncp_client.study import Step, Study

if TYPE_CHECKING:
    from rich.console import Console

# Changes that the estimate uses at most and at least, and the fraction of the variance of their logarithms that a
# straight line must explain.
WINDOW = 40
MIN_CHANGES = 12
MIN_R_SQUARED = 0.8
# Seconds between lines where there is no terminal.
LINE_SECONDS = 10.0
Advance = Callable[[int, int], None]
# Steps before the first iteration. Any other step is shown by its name.
STEPS = {
    "check": "checking the stored tensor",
    "scan": "scanning the tensor",
    "weights": "finding the sparsity",
    "start": "making the start",
    "compress": "compressing the tensor",
    "single": "copying in single precision",
    "sweep": "first sweep",
    "resample": "refitting to resampled samples",
}


class Estimate:
    """Estimate of the remaining time of a run.

    The stopping rule compares the change of each iteration with a tolerance. In a converging run the changes fall
    geometrically, so a straight line through their logarithms shows when they reach the tolerance. Otherwise there is
    no estimate, only the limits on iterations and seconds.
    """

    def __init__(self, stop: Mapping[str, Any]) -> None:
        self._stop = stop
        self._rows: deque[Progress] = deque(maxlen=WINDOW + 1)
        self._counted = 0

    def add(self, row: Progress) -> None:
        """Take another iteration into account."""
        if row.phase != "exact" or row.start is not None:
            return  # a trial start or a compressed tensor says nothing about the run that follows
        self._rows.append(row)
        self._counted += 1

    def seconds_left(self) -> float | None:
        """Return the seconds until the tolerance or a limit is reached; None without an estimate."""
        limit, iterations = self.seconds_to_limit(), self._iterations_to_tolerance()
        if limit is None or iterations is None:
            return None
        return min(limit, iterations * self._seconds_each())

    def seconds_to_limit(self) -> float | None:
        """Return the seconds until the nearer limit on iterations or seconds; None before the second iteration."""
        if len(self._rows) < 2:
            return None
        left: float = (self._stop["max_iterations"] - self._counted) * self._seconds_each()
        if self._stop["max_seconds"] is not None:
            left = min(left, self._stop["max_seconds"] - self._rows[-1].seconds)
        return max(0.0, left)

    def _seconds_each(self) -> float:
        first, last = self._rows[0], self._rows[-1]
        return (last.seconds - first.seconds) / (last.iteration - first.iteration)

    def _iterations_to_tolerance(self) -> float | None:
        tolerance, patience = float(self._stop["tolerance"]), int(self._stop["patience"])
        changes = [change for change in self._changes() if change > 0]
        if tolerance <= 0 or len(changes) < MIN_CHANGES:
            return None
        logs = [math.log(change) for change in changes]
        slope, level, r_squared = _fit_line(logs)
        if slope >= 0 or r_squared < MIN_R_SQUARED:
            return None
        return max(0.0, (math.log(tolerance) - level) / slope - (len(logs) - 1)) + patience

    def _changes(self) -> Iterator[float]:
        """Yield the change of each iteration as the stopping rule measures it."""
        rows, criterion = list(self._rows), self._stop["criterion"]
        for before, after in itertools.pairwise(rows):
            if criterion == "relative_error":
                yield abs(before.relative_error - after.relative_error)
            else:
                change = abs(before.objective - after.objective)
                yield change / (abs(before.objective) or 1.0) if criterion == "relative_objective" else change


def _fit_line(values: list[float]) -> tuple[float, float, float]:
    """Return slope, intercept and R² of the least-squares line through values at 0, 1, 2 and so on."""
    count = len(values)
    centre, mean = (count - 1) / 2, sum(values) / count
    spread = sum((place - centre) ** 2 for place in range(count))
    slope = sum((place - centre) * (value - mean) for place, value in enumerate(values)) / spread
    variance = sum((value - mean) ** 2 for value in values)
    return slope, mean - slope * centre, slope**2 * spread / variance if variance else 0.0


def format_duration(seconds: float) -> str:
    """Return a duration as text, such as '12 min'."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def format_iteration(row: Progress, estimate: Estimate) -> str:
    """Return one iteration as a line that fits beside a bar in a terminal of 80 columns."""
    rate = f", {row.iteration / row.seconds:.3g}/s" if row.seconds > 0 else ""
    phase = "" if row.phase == "exact" else f" ({row.phase}{f' {row.start}' if row.start else ''})"
    text = f"iteration {row.iteration}{phase}{rate}, objective {row.objective:.6g}, error {row.relative_error:.6f}"
    left, limit = estimate.seconds_left(), estimate.seconds_to_limit()
    if left is not None:
        return f"{text}, ≈ {format_duration(left)} left"
    return f"{text}, ≤ {format_duration(limit)} left" if limit is not None else text


def format_preparation(preparation: Preparation) -> str:
    """Return a step before the first iteration, or after the last one, as a line."""
    share = f", {preparation.share:.0%}" if preparation.share > 0 else ""
    when = "after the run" if preparation.step == "resample" else "preparing"
    return f"{when}: {STEPS.get(preparation.step, preparation.step)}{share}"


def visible_console() -> "Console | None":
    """Return the console on standard error if it is a terminal or a notebook, else None."""
    from rich.console import Console

    console = Console(stderr=True)
    return console if console.is_terminal or console.is_jupyter else None


def watch_live(job: Job) -> Job:
    """Watch a job until it has ended, with a bar in a terminal or notebook, else with an occasional line."""
    estimate = Estimate(job.record["settings"]["stop"])
    console = visible_console()
    if console is None:
        return _watch_in_lines(job, estimate)
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    with Bar(BarColumn(9), TextColumn("{task.description}"), console=console, transient=True) as bar:
        task = bar.add_task(f"job {job.id} is {job.state}", total=None)

        def preparing(preparation: Preparation) -> None:
            bar.update(task, description=format_preparation(preparation))

        def paused(message: str) -> None:
            bar.update(task, description=f"job {job.id} {message}")

        for row in job.watch(on_preparation=preparing, on_pause=paused):
            estimate.add(row)
            left = estimate.seconds_left()
            total = None if left is None else row.seconds + left
            bar.update(task, description=format_iteration(row, estimate), completed=row.seconds, total=total)
    return job


def watch_study(study: Study) -> Study:
    """Watch a study until it has ended, with a bar in a terminal or notebook, else with an occasional line."""
    console, started, printed_at = visible_console(), time.monotonic(), time.monotonic()
    if console is None:
        for step in study.watch():
            if time.monotonic() - printed_at > LINE_SECONDS:
                printed_at = time.monotonic()
                print(_format_step(step, time.monotonic() - started), file=sys.stderr, flush=True)
        return study
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    with Bar(BarColumn(20), TextColumn("{task.description}"), console=console, transient=True) as bar:
        task = bar.add_task(f"study {study.id} is {study.state}", total=1.0)
        for step in study.watch():
            bar.update(task, description=_format_step(step, time.monotonic() - started), completed=step.progress)
    return study


def _format_step(step: Step, seconds: float) -> str:
    now = step.content
    text = f"{now['done']} of {now['total']} runs" if "done" in now else f"{now['stage']}, {step.progress:.0%}"
    return (
        text
        if step.progress <= 0
        else f"{text}, ≈ {format_duration(seconds * (1 - step.progress) / step.progress)} left"
    )


def _watch_in_lines(job: Job, estimate: Estimate) -> Job:
    printed_at = time.monotonic()

    def print_occasionally(line: Callable[[], str]) -> None:
        nonlocal printed_at
        if time.monotonic() - printed_at > LINE_SECONDS:
            printed_at = time.monotonic()
            print(line(), file=sys.stderr, flush=True)

    for row in job.watch(
        on_preparation=lambda preparation: print_occasionally(lambda: format_preparation(preparation)),
        on_pause=lambda message: print(f"job {job.id} {message}", file=sys.stderr, flush=True),
    ):
        estimate.add(row)
        print_occasionally(partial(format_iteration, row, estimate))
    return job


@contextmanager
def upload_bar() -> Iterator[Advance | None]:
    """Show a bar in a terminal or notebook, and give the function that updates it; elsewhere give None."""
    console = visible_console()
    if console is None:
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = TextColumn("upload"), BarColumn(20), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda sent, total: bar.update(task, completed=sent, total=total)
