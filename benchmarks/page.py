"""The page in a real browser: `make bench-page`, or python -m benchmarks.page [first frames memory]

    first    bytes of the first load, and the time until a list of 1,000 jobs can be used
    frames   how smoothly the page runs while 200 iterations a second arrive
    memory   of the tab after 100,000 iterations

The tables are printed and written to benchmarks/page.md. Parts that were not asked for stay as they are there.
Iterations are published as a worker does, at the pace that is wanted, and come through Redis and the API.
"""

import argparse
import os
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from playwright.sync_api import Browser, CDPSession, Page
from tqdm import tqdm

from benchmarks.load.figure import Figure, at_least, at_most
from benchmarks.load.parts import Front, front, processor
from sparse_ncp.solvers.tensor.threads import available_cores
from sparse_ncp.worker.contract import Claim, Progress
from sparse_ncp.worker.records.claims import ExecutionRecords
from tests.support.api import npy
from tests.support.browser import Visitor, chromium, visit

RESULTS = Path(__file__).with_name("page.md")
JOBS = 1000
ROUNDS = 7
SECONDS = 15
PER_SECOND = 200
ITERATIONS = 100_000
TITLES = {
    "first": "The first load, with 1,000 jobs",
    "frames": "While 200 iterations a second arrive",
    "memory": "After 100,000 iterations",
}
# Notes when the screen can be used: its rows are there, and the thread that answers clicks is free again.
USABLE = """new MutationObserver((_, observer) => {
    if (!document.querySelector('SELECTOR')) return;
    observer.disconnect();
    setTimeout(() => { window.usableAt = performance.now(); });
}).observe(document, {childList: true, subtree: true});"""
COUNT_FRAMES = """(seconds) => new Promise((resolve) => {
    const times = [];
    const begin = performance.now();
    const frame = (now) => {
        times.push(now);
        if (now - begin < 1000 * seconds) requestAnimationFrame(frame);
        else resolve(times);
    };
    requestAnimationFrame(frame);
})"""
COUNT_DRAWINGS = """() => {
    const chart = document.querySelector('[data-chart]');
    window.drawings = window.shown = 0;
    chart.on('plotly_afterplot', () => { window.drawings++; window.shown = Math.max(...chart.data[0].x); });
}"""
Part = Callable[[Browser, Front], Iterator[Figure]]


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.page", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(TITLES)}; all by default")
    asked = parser.parse_args()
    if unknown := set(asked.parts) - TITLES.keys():
        parser.error(f"there is no part {', '.join(sorted(unknown))}; choose of {', '.join(TITLES)}")
    parts: Mapping[str, Part] = {"first": first_load, "frames": frames, "memory": memory}
    with chromium() as browser:
        for name in asked.parts or TITLES:
            with front(keep_alive_seconds=5) as server:
                write(name, list(parts[name](browser, server)), browser.version)
    print(RESULTS.read_text())


def submit(server: Front, count: int) -> str:
    """Queue jobs on one small tensor, and return the id of the first."""
    with httpx.Client(base_url=f"{server.address}/v1", timeout=60, trust_env=False) as client:
        tensor = client.post("/tensors", content=npy(np.ones((4, 3)))).raise_for_status().json()["id"]
        jobs = [
            client.post(
                "/jobs", json={"tensor_id": tensor, "rank": 1, "method": "hals", "name": f"job {number}"}
            ).raise_for_status()
            for number in tqdm(range(count), "submit", leave=False, disable=count == 1)
        ]
        return str(jobs[0].json()["id"])


def first_load(browser: Browser, server: Front) -> Iterator[Figure]:
    submit(server, JOBS)
    for name, path, selector in (
        ("data, the first screen", "/", "[data-samples] button"),
        ("list of jobs", "/jobs", "tbody tr"),
    ):
        cold, warm, received = [], [], {}
        for _ in tqdm(range(ROUNDS), name, leave=False):
            with visit(browser, server.address) as visitor:
                visitor.page.add_init_script(USABLE.replace("SELECTOR", selector))
                received = bytes_of(visitor, path)
                cold.append(usable_at(visitor.page))
                visitor.page.reload()
                warm.append(usable_at(visitor.page))
        total = sum(received.values())
        yield Figure(f"{name}: received by an empty cache", f"{total / 1000:.0f} kB in {len(received)} answers")
        for cache, times in (("empty", cold), ("full", warm)):
            yield at_most(f"{name}: can be used, {cache} cache, fastest of {ROUNDS}", min(times) / 1000, 1, "s")
            yield Figure(f"{name}: the same, median", f"{statistics.median(times) / 1000:.3g} s")
    plotly = httpx.get(f"{server.address}/static/vendor/plotly.min.js", trust_env=False)
    yield Figure("plotly's script, where the first chart is", f"{int(plotly.headers['content-length']) / 1000:.0f} kB")


def bytes_of(visitor: Visitor, path: str) -> dict[str, float]:
    """Record the encoded size of each response."""
    session, received = visitor.context.new_cdp_session(visitor.page), {}
    session.send("Network.enable")
    session.on(
        "Network.loadingFinished", lambda event: received.update({event["requestId"]: event["encodedDataLength"]})
    )
    visitor.page.goto(f"{visitor.address}/#{path}")
    usable_at(visitor.page)
    return dict(received)  # a copy: the loads that follow are counted too


def usable_at(page: Page) -> float:
    page.wait_for_function("() => window.usableAt")
    return float(page.evaluate("window.usableAt"))


def claim_new_job(server: Front) -> tuple[str, ExecutionRecords, Claim]:
    job_id, records = submit(server, 1), ExecutionRecords.of(server.configuration)
    claim = records.claims.claim("benchmark")
    assert claim is not None
    return job_id, records, claim


def rows(begin: int, end: int) -> list[Progress]:
    """Return an objective that falls as in a real run."""
    return [
        Progress(
            iteration=number,
            objective=1e3 / number + 1,
            relative_error=0.5 / number + 0.05,
            fit=0.95 - 0.5 / number,
            seconds=number / PER_SECOND,
        )
        for number in range(begin, end)
    ]


def frames(browser: Browser, server: Front) -> Iterator[Figure]:
    job_id, records, claim = claim_new_job(server)
    with visit(browser, server.address) as visitor:
        visitor.go(f"/jobs/{job_id}")
        records.claims.publish(claim, rows(1, 2))
        visitor.drawn()
        session = metrics_session(visitor)
        before = metrics(session)
        # The page counts by itself while this thread publishes: frames, and drawings, since who draws nothing is quick.
        visitor.page.evaluate(COUNT_DRAWINGS)
        visitor.page.evaluate(f"() => {{ window.counting = ({COUNT_FRAMES})({SECONDS}); }}")
        pace = PER_SECOND // 10
        started = time.monotonic()
        for batch in tqdm(range(SECONDS * 10), "publish", leave=False):
            records.claims.publish(claim, rows(2 + batch * pace, 2 + (batch + 1) * pace))
            time.sleep(max(0.0, started + (batch + 1) / 10 - time.monotonic()))
        times = np.array(visitor.page.evaluate("() => window.counting"))
        drawings, shown = visitor.page.evaluate("() => [window.drawings, window.shown]")
        after = metrics(session)
        visitor.wait_for_iteration(SECONDS * PER_SECOND)
        gaps = np.diff(times)
    records.close()
    yield at_least("drawings of the chart a second", drawings / SECONDS, 1, "drawings")
    yield Figure("of the iterations that had come, drawn at the end", f"{shown / (SECONDS * PER_SECOND):.0%}")
    yield at_least("frames a second", 1000 / gaps.mean(), 30, "frames")
    yield at_most("the longest gap between two frames", gaps.max(), 500, "ms")
    yield Figure("gaps over 50 ms", f"{(gaps > 50).mean():.1%} of the frames")
    yield Figure("the page's thread is busy", f"{(after['TaskDuration'] - before['TaskDuration']) / SECONDS:.0%}")


def memory(browser: Browser, server: Front) -> Iterator[Figure]:
    job_id, records, claim = claim_new_job(server)
    with visit(browser, server.address) as visitor:
        visitor.go(f"/jobs/{job_id}")
        records.claims.publish(claim, rows(1, 3))
        visitor.drawn()
        session = metrics_session(visitor)
        before = heap(session)
        for start in tqdm(range(3, ITERATIONS, 500), "publish", leave=False):
            records.claims.publish(claim, rows(start, min(start + 500, ITERATIONS + 1)))
        visitor.wait_for_iteration(ITERATIONS)
        after = heap(session)
        points = sum(len(line["x"]) for line in visitor.drawn())
    records.close()
    yield Figure("before the first iterations", f"{before:.1f} MB of JavaScript's heap")
    yield at_most("after all of them", after, 64, "MB")
    yield Figure("points drawn", f"{points:,}")


def metrics_session(visitor: Visitor) -> CDPSession:
    session = visitor.context.new_cdp_session(visitor.page)
    session.send("Performance.enable")
    return session


def metrics(session: CDPSession) -> dict[str, float]:
    answer: dict[str, Any] = session.send("Performance.getMetrics")
    return {one["name"]: one["value"] for one in answer["metrics"]}


def heap(session: CDPSession) -> float:
    """Return the megabytes in use after garbage collection, typed arrays included."""
    session.send("HeapProfiler.collectGarbage")
    usage: dict[str, float] = session.send("Runtime.getHeapUsage")
    return (usage["usedSize"] + usage.get("backingStorageSize", 0)) / 1e6


def write(part: str, figures: list[Figure], browser: str) -> None:
    """Replace the table of one part in the file."""
    lines = [f"| {one.subject} | {one.found} | {one.limit} | {one.verdict} |" for one in figures]
    busy = f"Other processes asked for {os.getloadavg()[0]:.0f} cores meanwhile."
    table = "\n".join([busy, "", "| | found | wanted | kept |", "|---|---|---|---|", *lines])
    known = dict(re.findall(r"^## (.*?)\n\n(.*?)(?=\n\n## |\Z)", read(), re.MULTILINE | re.DOTALL))
    known[TITLES[part]] = table
    head = f"# The page\n\nBy `make bench-page` on {available_cores()} cores of {processor()}, Chromium {browser}."
    parts = [f"## {title}\n\n{known[title].strip()}" for title in TITLES.values() if title in known]
    RESULTS.write_text("\n\n".join([head, *parts]) + "\n")


def read() -> str:
    return RESULTS.read_text() if RESULTS.exists() else ""


if __name__ == "__main__":
    main()
