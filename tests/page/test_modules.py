"""Modules of the page that compute something, run in the browser itself."""

import base64
import hashlib
import io
from typing import Any

import numpy as np
import pytest

from tests.support.api import npy
from tests.support.browser import Visitor

LOAD = "const module = await import(new URL(path, document.querySelector('script[type=module]').src)); "


def run(visitor: Visitor, path: str, body: str, value: Any = None) -> Any:
    """Run `body`, which may use `module` and `value`, on a module of the page."""
    return visitor.page.evaluate(f"async ([path, value]) => {{ {LOAD} {body} }}", [path, value])


@pytest.fixture(autouse=True)
def opened(visitor: Visitor) -> None:
    visitor.go("/")
    visitor.heading("Data")


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


def cell(rank: int, error: float, beta: float = 0.0, **known: Any) -> dict[str, Any]:
    """A row of a comparison's table, of three repeats that agree."""
    spreads = {"objective": 1.0, "seconds": 1.0, "components": rank, "sparsity": 0.2, "factor_match": 0.99} | known
    row = {name: {"mean": value, "deviation": 0.0} for name, value in spreads.items() if name != "method"}
    reported = {"rank": rank, "method": known.get("method", "hals"), "beta": beta, "asked_sparsity": None, "runs": 3}
    return reported | row | {"relative_error": {"mean": error, "deviation": 0.0}, "failures": 0, "best": "0" * 16}


def of_rank(rank: int, halves: float | None = None, core: float | None = None, held: Any = None) -> dict[str, Any]:
    return {
        "rank": rank,
        "core_consistency": core,
        "split_half": None if halves is None else {"congruence": [0.999, halves], "passed": halves > 0.95},
        "holdout": held and {"relative_error": held},
    }


ERRORS = {2: 0.2, 3: 0.05, 4: 0.048}
AGREE_UP_TO_3 = [of_rank(2, 0.99, 99.0), of_rank(3, 0.98, 95.0), of_rank(4, 0.4, 12.0)]


@pytest.mark.parametrize(
    ("rows", "ranks", "title", "words"),
    [
        (
            [cell(rank, error) for rank, error in ERRORS.items()],
            AGREE_UP_TO_3,
            "Rank 3 – all checks agree",
            ["Rank 3: halves of the data give the same components (congruence 0.98)", "Rank 4: halves of the data give "
             "different components (congruence 0.4); the core consistency is low (12)", "0.2 with rank 2"],
        ),
        (
            [cell(rank, error) for rank, error in ERRORS.items()],
            [of_rank(2, held=[0.3, 0.31]), of_rank(3, held=[0.1, 0.11]), of_rank(4, held=[0.099, 0.111])],
            "Rank 3 – all checks agree",
            ["it predicts entries that were held out as well as any", "0.305 with rank 2, 0.105 with rank 3"],
        ),
        (
            [cell(rank, error) for rank, error in ERRORS.items()],
            [of_rank(rank) for rank in ERRORS],
            "Rank 4 – not sure",
            ["Higher ranks were not tried", "ask for a validation"],
        ),
        (
            [cell(rank, error, factor_match=0.5) for rank, error in ERRORS.items()],
            [of_rank(rank) for rank in ERRORS],
            "Rank 3 – not sure",
            ["No rank passes every check", "repeats find different components (match 0.5)"],
        ),
        ([cell(3, 0.05)], [of_rank(3)], "Rank 3 – not sure", ["Only rank 3 was tried"]),
        (
            [cell(2, 0.2), cell(4, 0.04), cell(3, 0.05), cell(3, 0.0503, 0.1, sparsity=0.6), cell(3, 0.08, 1.0),
             cell(3, 0.0501, 9.0, components=1)],
            AGREE_UP_TO_3,
            "Rank 3, β 0.1 – all checks agree",
            ["β 0.1 is the largest that costs nothing: relative error 0.0503, 3 components, 60 % zeros in mode 1",
             "β 1 costs: relative error 0.08"],
        ),
        (
            [cell(2, 0.2), cell(4, 0.04), cell(3, 0.05, method="mu", seconds=9.0), cell(3, 0.05, seconds=2.0)],
            AGREE_UP_TO_3,
            "Rank 3 – all checks agree",
            ["hals takes 2.00 s to an objective of 1; mu 9.00 s to 1"],
        ),
    ],
)  # fmt: skip
def test_a_comparison_is_put_into_words_that_its_table_bears(
    visitor: Visitor, rows: list[Any], ranks: list[Any], title: str, words: list[str]
) -> None:
    path = "components/comparison-advice.js"
    reported = run(visitor, path, "return module.comparisonAdvice(value);", {"mode": 1, "rows": rows, "ranks": ranks})
    assert reported["title"] == title
    assert all(one in " ".join(reported["sentences"]) for one in words), reported["sentences"]


def test_a_comparison_without_an_ended_run_says_nothing(visitor: Visitor) -> None:
    rows = [cell(3, 0.05) | {"relative_error": None}]
    path = "components/comparison-advice.js"
    assert run(visitor, path, "return module.comparisonAdvice(value);", {"rows": rows, "ranks": []}) is None


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
