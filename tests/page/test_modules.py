"""Modules of the page that compute something, run in the browser itself."""

import base64
import hashlib
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser

from tests.support.api import npy
from tests.support.browser import Visitor, visit
from tests.support.stack import Server

LOAD = "const module = await import(new URL(path, document.querySelector('script[type=module]').src)); "


def run(visitor: Visitor, path: str, body: str, value: Any = None) -> Any:
    """Run `body`, which may use `module` and `value`, on a module of the page."""
    return visitor.page.evaluate(f"async ([path, value]) => {{ {LOAD} {body} }}", [path, value])


@pytest.fixture(scope="module")
def visitor(browser: Browser, lab_server: Server) -> Iterator[Visitor]:
    """One opened page for all tests of this file, which call functions and change nothing."""
    with visit(browser, lab_server.address) as made:
        made.go("/")
        made.heading("Data")
        yield made


@pytest.mark.parametrize("length", [0, 1, 55, 56, 63, 64, 65, 119, 120, 1000, 70_001])
def test_the_digest_is_the_servers_however_the_file_is_cut(visitor: Visitor, length: int) -> None:
    content = np.random.default_rng(length).bytes(length)
    found = run(
        visitor,
        "api/sha256.js",
        "const bytes = Uint8Array.from(atob(value), (one) => one.charCodeAt(0)); const hash = new module.Sha256();"
        "for (let start = 0; start < bytes.length; start += 37) hash.update(bytes.subarray(start, start + 37));"
        "return hash.hex();",
        base64.b64encode(content).decode(),
    )
    assert found == hashlib.sha256(content).hexdigest()


def test_a_hundred_thousand_iterations_stay_and_few_are_drawn(visitor: Visitor) -> None:
    kept, drawn, peak = run(
        visitor,
        "charts/series.js",
        "const page = document.querySelector('script[type=module]').src;"
        "const { thin } = await import(new URL('charts/downsample.js', page));"
        "const series = new module.Series();"
        "for (let i = 1; i <= 100000; i++) series.push({iteration: i, objective: i === 77777 ? 9 : 1 / i, "
        "relative_error: 1 / i, seconds: i / 100, phase: 'exact', start: null});"
        "series.push({iteration: 5, objective: 0, relative_error: 0, seconds: 0, phase: 'exact', start: null});"
        "const places = thin(series.objective, 0, series.length, 1500);"
        "return [series.length, places.length, places.includes(77776)];",
    )
    assert kept == 100_000, "each once"
    assert drawn <= 1600
    assert peak, "a single high point is drawn"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("250:253", [250, 251, 252, 253]),
        ("0:0.1:0.3", [0, 0.1, 0.2, 0.3]),
        ("1\n2.5\n-3e2\n", [1, 2.5, -300]),
        ("a\tb\tc", ["a", "b", "c"]),
        ("1, 2, x", ["1", "2", "x"]),
        ("left, upper\nright", ["left, upper", "right"]),
    ],
)
def test_axes_are_read_as_people_paste_them(visitor: Visitor, text: str, values: list[Any]) -> None:
    assert run(visitor, "forms/axes-editor.js", "return module.parseValues(value);", text) == values


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["<f8", "<f4"])
def test_factors_are_read_as_numpy_writes_them(visitor: Visitor, kind: str, order: Any) -> None:
    factor = np.asarray(np.random.default_rng(0).random((7, 3)), dtype=kind, order=order)
    assert np.array_equal(np.load(io.BytesIO(npy(factor))), factor)
    found = run(
        visitor,
        "api/npy.js",
        "const bytes = Uint8Array.from(atob(value), (one) => one.charCodeAt(0));"
        "return module.columns(module.parseNpy(bytes.buffer)).map((one) => Array.from(one));",
        base64.b64encode(npy(factor)).decode(),
    )
    np.testing.assert_array_equal(np.array(found), factor.T.astype(float))
