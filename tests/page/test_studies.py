"""Studies: the grid fills as runs end, and the advice comes in words."""

import json
import re
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest
from playwright.sync_api import expect

from tests.support.api import planted, upload
from tests.support.browser import Visitor, spectra
from tests.support.languages import octave, r
from tests.support.stack import wait_for


def test_a_comparison_is_asked_for_with_lists_and_fills_its_grid(visitor: Visitor, lab: httpx.Client) -> None:
    record = upload(lab, planted(10, 9, 8, rank=2, seed=91), "to compare")
    page = visitor.go(f"/new?tensor={record['id']}&kind=compare")
    page.get_by_label("Name").fill("a grid")
    page.get_by_label("Ranks").fill("1, 2")
    page.get_by_label("Methods").fill("hals, anls-bpp")
    page.get_by_label("Sparsities").fill("0.01, 0.1")
    page.get_by_label("Repeats").fill("2")
    expect(page.get_by_text("16 runs")).to_be_visible()
    page.get_by_role("button", name="Start the study").click()
    visitor.heading("a grid")
    grid = page.get_by_role("region", name="Grid of runs")
    expect(grid.locator(".cell")).to_have_count(8)
    expect(page.locator(".heading .state")).to_have_text("succeeded")
    expect(grid.locator(".cell.done")).to_have_count(8)
    expect(page.get_by_role("heading", name=re.compile("^Rank [12], sparsity 0.(01|1) – not sure$"))).to_be_visible()
    expect(page.get_by_text("request a validation to confirm the rank")).to_be_visible()
    expect(grid.locator(".cell.best")).to_have_count(1)
    table = page.get_by_role("region", name="Table of the study")
    expect(table.locator("tbody tr")).to_have_count(8)
    picture = page.get_by_role("img", name="Objective against seconds")
    picture.scroll_into_view_if_needed()
    page.wait_for_function("(picture) => picture.complete && picture.naturalWidth > 0", arg=picture.element_handle())
    grid.get_by_role("link").first.click()
    expect(page.get_by_role("group", name="Component ").first).to_be_visible()


def test_a_choice_ends_with_advice_in_words_and_a_model(visitor: Visitor, lab: httpx.Client) -> None:
    record = upload(lab, planted(12, 10, 8, rank=2, seed=92), "to choose")
    asked = {"kind": "choose", "tensor_id": record["id"], "rank": 4, "seeds": 2, "name": "how many"}
    study = lab.post("/v1/studies", json=asked).json()["id"]
    page = visitor.go(f"/studies/{study}")
    visitor.heading("how many")
    expect(page.locator(".heading .state")).to_have_text("succeeded")
    reported = wait_for(lambda: lab.get(f"/v1/studies/{study}").json()["advice"], what="advice")
    expect(page.get_by_text(reported["reason"])).to_be_visible()
    expect(page.get_by_text("the next component improves the fit far less")).to_be_visible()
    sure = {"very": "very sure", "yes": "sure", "no": "not sure"}[reported["confidence"]]
    count = reported["components"] if reported["components"] is not None else reported["suggestion"]
    expect(page.get_by_role("heading", name=f"{count} component")).to_contain_text(sure)
    expect(page.get_by_role("region", name="Table of the evidence")).to_be_visible()
    page.get_by_role("link", name="Look at the model").click()
    expect(page.get_by_role("group", name="Component ").first).to_be_visible()


def test_a_choice_is_made_again_with_the_zeros_as_missing_by_one_click(visitor: Visitor, lab: httpx.Client) -> None:
    X = np.abs(spectra(seed=4)) + 0.5
    X[2, 5:8, 3] = 0.5
    X[:, 8:16, 4:9] = 0
    record = upload(lab, X, "cut out")
    asked = {"kind": "choose", "tensor_id": record["id"], "rank": 4, "seeds": 2, "name": "both ways"}
    study = lab.post("/v1/studies", json=asked).json()["id"]
    page = visitor.go(f"/studies/{study}")
    page.get_by_role("button", name="Choose with these zeros as missing").click()
    page.wait_for_function("(id) => !location.hash.includes(id)", arg=study)
    [again, _] = [one for one in lab.get("/v1/studies").json()["items"] if one["name"] == "both ways"]
    assert again["request"] == {**{k: asked[k] for k in ("rank", "seeds")}, "zeros": "missing"}
    expect(page.get_by_role("button", name="Choose with these zeros as readings")).to_be_visible()


LINES = [("compare", language) for language in ("JSON", "curl", "Python", "MATLAB", "R")] + [
    ("choose", language) for language in ("Python", "MATLAB", "R")
]


@pytest.mark.parametrize(("kind", "language"), LINES)
def test_the_lines_to_copy_submit_this_very_study(
    visitor: Visitor, lab: httpx.Client, tmp_path: Path, kind: str, language: str
) -> None:
    record = upload(lab, planted(7, 6, 5, rank=2, seed=94), "lines of a study")
    name = f"it's the {language} line to {kind}"
    page = visitor.go(f"/new?tensor={record['id']}&kind={kind}")
    page.get_by_label("Name").fill(name)
    if kind == "compare":
        page.get_by_label("Ranks").fill("2")
        page.get_by_label("Methods").fill("hals")
        page.get_by_label("Sparsities").fill("0.01, 0.1")
        page.get_by_label("Repeats").fill("1")
        asked = {"ranks": [2], "methods": ["hals"], "sparsities": [0.01, 0.1], "repeats": 1}
    else:
        page.get_by_label("Rank").fill("3")
        page.get_by_label("Seeds").fill("2")
        asked = {"rank": 3, "seeds": 2}
    page.get_by_role("tab", name=language, exact=True).click()
    expect(page.get_by_role("tabpanel")).to_contain_text("hals" if kind == "compare" else "seeds")
    text = page.get_by_role("tabpanel").inner_text()
    if language == "JSON":
        assert lab.post("/v1/studies", json=json.loads(text)).status_code == 202
    elif language == "curl":
        subprocess.run(["bash", "-c", text], check=True, capture_output=True)
    elif language == "Python":
        subprocess.run([sys.executable, "-c", text], check=True, capture_output=True)
    else:
        (octave if language == "MATLAB" else r)(text, tmp_path)
    found = [study for study in lab.get("/v1/studies").json()["items"] if study["name"] == name]
    assert len(found) == 1
    request = lab.get(f"/v1/studies/{found[0]['id']}").json()["request"]
    assert {field: request[field] for field in asked} == asked


def test_a_study_is_cancelled_and_deleted_after_a_question(visitor: Visitor, lab: httpx.Client) -> None:
    record = upload(lab, planted(40, 30, 20, seed=93))
    asked = {"kind": "compare", "tensor_id": record["id"], "ranks": [4], "methods": ["hals"], "repeats": 50}
    stop = {"max_iterations": 100_000, "tolerance": 0}
    study = lab.post("/v1/studies", json={**asked, "name": "too long", "stop": stop}).json()["id"]
    page = visitor.go("/studies")
    page.get_by_role("link", name="too long").click()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".heading .state")).to_have_text("cancelled")
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    visitor.heading("Studies")
    assert lab.get(f"/v1/studies/{study}").status_code == 404
