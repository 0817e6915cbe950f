"""Debian's Chromium, driven by Playwright, and a visitor who notes what a page must not do."""

import base64
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from axe_playwright_python.sync_playwright import Axe
from numpy.typing import NDArray
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from tests.support.api import npy
from tests.support.languages import missing_tool

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
# The machine may be busy: a page is given this long for what takes a moment.
PATIENCE_SECONDS = 60
expect.set_options(timeout=PATIENCE_SECONDS * 1000)
# Iterations that a chart draws without thinning them.
WINDOW = 1000
# Console messages of the browser itself while a server is unavailable, or before signing in.
AWAY, SIGNED_OUT = "net::ERR_", "status of 401"
# Console messages when a network interface appears, as in other tests: requests under way are dropped.
NETWORK_CHANGED = "net::ERR_NETWORK_CHANGED"
# Drops a file as a person does: the browser offers no other way to make a drop from outside.
DROP = """(zone, [name, text]) => {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const dropped = new DataTransfer();
    dropped.items.add(new File([bytes], name));
    for (const kind of ["dragenter", "dragover", "drop"])
        zone.dispatchEvent(new DragEvent(kind, {dataTransfer: dropped, bubbles: true, cancelable: true}));
}"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with a profile of its own."""
    path = shutil.which("chromium")
    if path is None:
        missing_tool("Chromium is not installed: the tests of the page need it")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


class Visitor:
    """A browser page. `check` asserts that it logged no error and contacted its own server only."""

    def __init__(self, context: BrowserContext, address: str) -> None:
        self.address = address
        self.context = context
        self.page: Page = context.new_page()
        self.page.set_default_timeout(PATIENCE_SECONDS * 1000)
        self.expected: tuple[str, ...] = ()
        self._errors: list[str] = []
        self._hosts: set[str] = set()
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self._errors.append(str(error)))
        self.page.on("request", lambda request: self._hosts.add(urlsplit(request.url).netloc))

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._errors.append(message.text)

    def go(self, path: str) -> Page:
        """To a screen, by its address: the page is loaded anew."""
        self.page.goto("about:blank")
        self.page.goto(f"{self.address}/#{path}")
        return self.page

    def heading(self, text: str) -> None:
        """Wait for a screen by its heading."""
        expect(self.page.get_by_role("heading", level=1)).to_have_text(text)

    def drop(self, array: NDArray[Any], name: str) -> None:
        """A file onto the page."""
        self.page.locator("[data-drop]").evaluate(DROP, [name, base64.b64encode(npy(array)).decode()])

    def drawn(self, chart: str = "[data-chart]") -> list[Mapping[str, Any]]:
        """The lines of a chart, once it is drawn, as plotly has them."""
        self.page.wait_for_function("(chart) => document.querySelector(chart)?.data?.length", arg=chart)
        lines: list[Mapping[str, Any]] = self.page.locator(chart).first.evaluate(
            "(chart) => chart.data.map(({type, name, x, y, z}) => ({type, name, x: Array.from(x ?? []), "
            "y: Array.from(y ?? []), z}))"
        )
        return lines

    def iterations(self) -> list[int]:
        """Return the points in the chart of a run, in order."""
        shown = [x for line in self.drawn() for x in line["x"] if x is not None]
        return sorted(int(x) for x in shown[: len(shown) // 2])

    def all_iterations(self, last: int) -> list[int]:
        """All that the page has, up to `last`: looked at piece by piece, since a whole long run is thinned."""
        found: set[int] = set()
        for start in range(0, last, WINDOW):
            self.page.locator("[data-chart]").evaluate(
                "(chart, range) => { Plotly.relayout(chart, {'xaxis.range': range}); }", [start, start + WINDOW]
            )
            self.page.wait_for_function(
                "([first, last, end]) => { const x = document.querySelector('[data-chart]').data[0].x.filter(Boolean); "
                "return x[0] >= first && x[0] <= first + 1 && x.at(-1) >= last && x.at(-1) <= end; }",
                # Not beyond the window: that is still the whole run, thinned. A point on each side is drawn with it.
                arg=[max(1, start - 1), min(last, start + WINDOW), start + WINDOW + 2],
            )
            found.update(self.iterations())
        return sorted(iteration for iteration in found if iteration <= last)

    def wait_for_iteration(self, iteration: int) -> None:
        self.page.wait_for_function(
            "(least) => Math.max(0, ...(document.querySelector('[data-chart]')?.data?.[0]?.x ?? [])) >= least",
            arg=iteration,
        )

    def check(self) -> None:
        expected = (*self.expected, NETWORK_CHANGED)
        unexpected = [text for text in self._errors if not any(word in text for word in expected)]
        assert not unexpected, unexpected
        assert self._hosts - {""} <= {urlsplit(self.address).netloc}, "the page called another host"


@contextmanager
def visit(browser: Browser, address: str, width: int = 1280, **settings: Any) -> Iterator[Visitor]:
    """A visitor with cookies and storage of their own; at the end the page must have kept quiet."""
    context = browser.new_context(viewport={"width": width, "height": 900}, **settings)
    try:
        visitor = Visitor(context, address)
        yield visitor
        visitor.check()
    finally:
        context.close()


def serious_violations(page: Page) -> list[str]:
    """Return the accessibility violations that axe-core finds on this page."""
    found = Axe().run(page).response["violations"]
    return [
        f"{rule['id']}: {rule['help']}: {[node['html'][:200] for node in rule['nodes'][:3]]}"
        for rule in found
        if rule["impact"] in ("serious", "critical")
    ]


def spectra(seed: int = 0) -> NDArray[np.float64]:
    """A small tensor with three smooth components, a few missing and negative entries."""
    random = np.random.default_rng(seed)
    peaks = [np.exp(-(((np.arange(n)[:, None] - c) / 4) ** 2)) for n, c in ((30, [5, 15, 24]), (20, [4, 10, 16]))]
    tensor = np.einsum("sr,er,xr->sex", random.random((8, 3)), *peaks) + 0.01 * random.standard_normal((8, 30, 20))
    tensor[2, 5:8, 3] = np.nan
    return np.asarray(tensor)
