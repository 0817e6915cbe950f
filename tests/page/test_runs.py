"""A run from the form to its components, as a user clicks through it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from playwright.sync_api import expect

from tests.solvers.real_data.patterns import UNIDENTIFIED, banded
from tests.support.api import finished, planted, read_factors, submit, upload
from tests.support.browser import Visitor, spectra
from tests.support.languages import octave, r

SETTINGS = {"rank": 3, "preset": "recommended", "missing": "nan", "negative": "keep", "seed": 3}


def labelled(lab: httpx.Client, seed: int) -> dict[str, Any]:
    record = upload(lab, spectra(seed), f"mixtures {seed}")
    axes = [
        {"name": "sample", "values": [f"S{place}" for place in range(8)]},
        {"name": "emission", "unit": "nm", "values": list(range(300, 420, 4))},
        {"name": "excitation", "unit": "nm", "values": list(range(240, 300, 3))},
    ]
    assert lab.put(f"/v1/tensors/{record['id']}/axes", json=axes).status_code == 200
    return record


def test_a_run_is_submitted_watched_and_ends_in_components(visitor: Visitor, lab: httpx.Client) -> None:
    record = labelled(lab, seed=11)
    page = visitor.go(f"/new?tensor={record['id']}")
    page.get_by_label("Rank").fill("3")
    page.get_by_label("Name").fill("three dyes")
    expect(page.get_by_text("of memory beside the tensor")).to_be_visible()
    page.get_by_role("button", name="Run", exact=True).click()
    visitor.heading("three dyes")
    expect(page.locator(".state")).to_have_text("succeeded")
    job = lab.get("/v1/jobs", params={"name": "three dyes"}).json()["items"][0]
    assert (job["settings"]["missing"], job["settings"]["negative"]) == ("nan", "keep"), "asked for by the entries"
    history = lab.get(f"/v1/jobs/{job['id']}/history").json()
    page.wait_for_function(  # the chart is drawn at intervals
        "(last) => document.querySelector('[data-chart]').data.some(({x}) => Array.from(x ?? []).includes(last))",
        arg=history[-1]["iteration"],
    )
    assert visitor.iterations() == [row["iteration"] for row in history]

    page.get_by_role("link", name="Look at its 3 components").click()
    rows = page.get_by_role("group", name="Component ")
    expect(rows).to_have_count(3)
    factors = read_factors(lab.get(f"/v1/jobs/{job['id']}/factors", params={"order": "share"}).content)
    peaks = page.get_by_role("img", name="emission (nm): largest at")
    reported = [peaks.nth(place).get_attribute("aria-label") or "" for place in range(3)]
    assert [text.split("largest at ")[1] for text in reported] == [
        f"{300 + 4 * int(np.argmax(column))} nm" for column in factors[1].T
    ], "the largest first, labelled with the axes"
    first = rows.first.get_by_role("button")
    first.click()
    expect(first).to_have_attribute("aria-pressed", "false")
    expect(peaks).to_have_count(2)
    page.get_by_role("button", name="emission (nm)").click()
    curves = [line for line in visitor.drawn("dialog .chart") if line["name"]]
    assert len(curves) == 2, "what is hidden stays hidden"
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Show all").click()
    expect(peaks).to_have_count(3)


def test_bands_and_replicability_stand_beside_the_components(visitor: Visitor, lab: httpx.Client) -> None:
    record = labelled(lab, seed=14)
    asked = {**SETTINGS, "method": "anls-bpp", "stability": True, "resamples": 6}
    job = finished(lab, submit(lab, record["id"], **asked)["id"])
    page = visitor.go(f"/jobs/{job['id']}/components")
    rows = page.get_by_role("group", name="Component ")
    expect(rows).to_have_count(3)
    found = lab.get(f"/v1/jobs/{job['id']}/stability").json()
    order = np.argsort(-np.array(job["result"]["weights"]))
    for place, column in enumerate(order):
        expect(rows.nth(place).get_by_text("replicability")).to_contain_text(f"{found['replicability'][column]:.2f}")
    expect(rows.first.locator("path.band")).to_have_count(2)  # of the two spectra; the samples have none
    page.get_by_role("button", name="emission (nm)").click()
    lines = visitor.drawn("dialog .chart")
    assert len(lines) == 9
    factors = read_factors(lab.get(f"/v1/jobs/{job['id']}/factors").content)
    peak = factors[1][:, order[0]].max()
    upper = [row[order[0]] / peak for row in found["modes"][1]["upper"]]
    np.testing.assert_allclose(lines[1]["y"], upper, rtol=1e-6)
    expect(page.get_by_text("How sure are these components?")).to_have_count(0)


def test_a_study_says_how_sure_the_components_of_an_ended_run_are(visitor: Visitor, lab: httpx.Client) -> None:
    record = labelled(lab, seed=15)
    job = finished(lab, submit(lab, record["id"], **{**SETTINGS, "method": "anls-bpp"})["id"])
    page = visitor.go(f"/jobs/{job['id']}/components")
    page.get_by_role("button", name="How sure are these components?").click()
    page.wait_for_url("**/studies/*")
    expect(page.locator(".state")).to_have_text("succeeded")
    expect(page.get_by_role("heading", name="How sure is each component?")).to_be_visible()
    (study,) = (one for one in lab.get("/v1/studies").json()["items"] if one["request"].get("job_id") == job["id"])
    cells = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="1", exact=True)).get_by_role("cell")
    expect(cells.nth(1)).to_have_text(f"{study['result']['stability']['replicability'][0]:.3f}")
    page.get_by_role("link", name="Show the bands").click()
    expect(page.get_by_role("group", name="Component ").first.locator("path.band")).to_have_count(2)


def test_a_point_of_the_diagnostics_opens_data_model_and_residual(visitor: Visitor, lab: httpx.Client) -> None:
    record = labelled(lab, seed=12)
    job = finished(lab, submit(lab, record["id"], **{**SETTINGS, "method": "anls-bpp"})["id"])
    visitor.go(f"/jobs/{job['id']}/components")
    page = visitor.page
    residuals = "[aria-label^='Squared residual']"
    reported = lab.get(f"/v1/jobs/{job['id']}/diagnostics").json()["modes"][0]
    assert visitor.drawn(residuals)[0]["y"] == reported["residual"]
    # The third bar of eight, in the middle of its foot.
    page.locator(residuals).scroll_into_view_if_needed()
    box = page.locator(f"{residuals} .bars .point").nth(2).bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] - 5)
    page.locator(f"{residuals} .hoverlayer .hovertext").first.wait_for()
    page.mouse.down()
    page.mouse.up()
    expect(page.get_by_role("heading", name="sample: S2")).to_be_visible()
    seen = lab.get(f"/v1/jobs/{job['id']}/model", params={"fix": "1:2"}).json()
    for picture, name in (("Data", "tensor"), ("Model", "model"), ("Residual", "residual")):
        assert visitor.drawn(f"[data-picture={picture}]")[0]["z"] == seen[name]["values"]
    page.get_by_role("radio", name="leverage").check(force=True)
    page.wait_for_function(
        "([chart, first]) => document.querySelector(chart).data[0].y[0] === first",
        arg=[residuals, reported["leverage"][0]],
    )


def test_a_model_that_is_large_where_nothing_was_read_is_marked(visitor: Visitor, lab: httpx.Client) -> None:
    asked = {"preset": "recommended", "method": "anls-bpp", **UNIDENTIFIED}
    job = finished(lab, submit(lab, upload(lab, banded())["id"], **asked)["id"])
    [warning] = [text for text in job["result"]["warnings"] if "not determined by the readings" in text]
    page = visitor.go(f"/jobs/{job['id']}")
    expect(page.locator(".note.warning", has_text=warning)).to_be_visible()
    found = lab.get(f"/v1/jobs/{job['id']}/diagnostics").json()
    page = visitor.go(f"/jobs/{job['id']}/components")
    note = page.locator(".note.warning", has_text="Where entries are missing")
    expect(note).to_contain_text(f"in component {found['unobserved']['component']}.")
    shares = [f"{place}: {100 * one['unobserved']:.1f} %" for place, one in enumerate(found["components"], 1)]
    expect(note).to_contain_text(" · ".join(shares))


def test_the_form_has_every_field_of_the_schema_with_its_advice(visitor: Visitor, lab: httpx.Client) -> None:
    record = upload(lab, planted(6, 5, 4, seed=41))
    schemas = lab.get("/openapi.json").json()["components"]["schemas"]
    page = visitor.go(f"/new?tensor={record['id']}")
    page.get_by_text("All other settings").click()
    names = set(page.locator("form [name]").evaluate_all("(all) => all.map((one) => one.name)"))
    fields = schemas["JobRequest"]["properties"]
    plain = {name for name, field in fields.items() if "$ref" not in json.dumps(field)}
    assert plain <= names
    assert {f"stop.{name}" for name in schemas["Stop"]["properties"]} <= names
    assert {"initial.job_id", "mask.tensor_id", "fixed.job_id", "fixed.modes"} <= names
    expect(page.get_by_text(fields["seed"]["description"])).to_be_visible()
    accelerate = page.get_by_label("Accelerate")
    expect(accelerate.locator("option").first).to_have_text("default: auto")
    page.get_by_label("Preset").select_option("")
    expect(accelerate.locator("option").first).to_have_text("default: none")


def test_a_refusal_is_shown_at_its_field_before_the_form_is_sent(visitor: Visitor, lab: httpx.Client) -> None:
    record = upload(lab, planted(6, 5, 4, seed=42))
    page = visitor.go(f"/new?tensor={record['id']}")
    page.get_by_label("Rank").fill("100000000")
    expect(page.get_by_label("Rank")).to_have_attribute("aria-invalid", "true")
    page.get_by_label("Rank").fill("2")
    expect(page.get_by_label("Rank")).not_to_have_attribute("aria-invalid", "true")
    before = lab.get("/v1/usage").json()["jobs"]
    page.get_by_label("Sparsity", exact=True).fill("0.1")
    page.get_by_label("β (beta)").fill("0.1, 0.2, 0")
    visitor.expected = ("status of 422",)
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_label("Sparsity", exact=True)).to_have_attribute("aria-invalid", "true")
    assert lab.get("/v1/usage").json()["jobs"] == before


def snippet(visitor: Visitor, language: str) -> str:
    visitor.page.get_by_role("tab", name=language, exact=True).click()
    return visitor.page.get_by_role("tabpanel").inner_text()


@pytest.mark.parametrize("language", ["JSON", "curl", "Python", "MATLAB", "R"])
def test_the_lines_to_copy_submit_this_very_run(
    visitor: Visitor, lab: httpx.Client, tmp_path: Path, language: str
) -> None:
    record = upload(lab, planted(7, 6, 5, seed=43), "lines")
    name = f"it's the {language} line"
    page = visitor.go(f"/new?tensor={record['id']}")
    page.get_by_label("Rank").fill("2")
    page.get_by_label("Name").fill(name)
    page.get_by_label("β (beta)").fill("0.1, 0.2, 0")
    page.get_by_text("All other settings").click()
    page.get_by_label("max iterations").fill("40")
    page.get_by_label("Rescale").select_option("false")
    expect(page.get_by_role("tabpanel")).to_contain_text("40")
    text = snippet(visitor, language)
    if language == "JSON":
        assert lab.post("/v1/jobs", json=json.loads(text)).status_code == 202
    elif language == "curl":
        subprocess.run(["bash", "-c", text], check=True, capture_output=True)
    elif language == "Python":
        subprocess.run([sys.executable, "-c", text], check=True, capture_output=True)
    else:
        (octave if language == "MATLAB" else r)(text, tmp_path)
    found = lab.get("/v1/jobs", params={"name": name}).json()["items"]
    (settings,) = [job["settings"] for job in found if job["name"] == name]
    asked = {"rank": 2, "beta": [0.1, 0.2, 0.0], "rescale": False, "preset": "recommended", "method": "anls-bpp"}
    assert {field: settings[field] for field in asked} == asked
    assert settings["stop"]["max_iterations"] == 40


def test_a_run_can_be_repeated_with_its_settings(visitor: Visitor, lab: httpx.Client) -> None:
    record = upload(lab, planted(7, 6, 5, seed=44))
    stop = {"max_iterations": 30, "tolerance": 0.5, "criterion": "objective"}
    job = finished(lab, submit(lab, record["id"], method="hals", alpha=[0.0, 0.1, 0.0], seed=9, stop=stop)["id"])
    page = visitor.go(f"/jobs/{job['id']}")
    page.get_by_role("link", name="Run again").click()
    page.get_by_label("Name").fill("again")
    page.get_by_role("button", name="Run", exact=True).click()
    visitor.heading("again")
    again = lab.get("/v1/jobs", params={"name": "again"}).json()["items"][0]
    assert again["settings"] == job["settings"]


def test_flagged_samples_are_left_out_by_one_click_and_both_fits_stand_side_by_side(
    visitor: Visitor, lab: httpx.Client
) -> None:
    X = planted(8, 6, 5, seed=7)
    random = np.random.default_rng(3)
    X = X + 0.02 * X.mean() * random.random(X.shape)
    X[4] = X[4][::-1, ::-1] * random.random((6, 5)) * 3
    tensor = upload(lab, X, "one is spoilt")
    names = ["blank", "river", "lake", "sea", "spill", "pond", "well", "tap"]
    axes = [
        {"name": "sample", "values": names},
        {"name": "emission", "values": list(range(6))},
        {"name": "excitation", "values": list(range(5))},
    ]
    lab.put(f"/v1/tensors/{tensor['id']}/axes", json=axes).raise_for_status()
    job = finished(lab, submit(lab, tensor["id"], rank=3, method="anls-bpp", penalty="l1", seed=1, name="all")["id"])
    page = visitor.go(f"/jobs/{job['id']}/components")
    expect(page.get_by_role("heading", name="Outlying samples")).to_be_visible()
    expect(page.get_by_label("sample spill")).to_be_checked()
    expect(page.get_by_text('exclude={"1":["spill"]}')).to_be_visible()
    page.get_by_role("button", name="Fit again without them").click()
    visitor.heading("all, without some")
    expect(page.get_by_role("heading", name="Before and after")).to_be_visible()
    scores = page.get_by_role("region", name="Scores of excluded samples")
    expect(scores.get_by_role("rowheader")).to_have_text("sample spill")
    matched = page.get_by_role("region", name="Components before and after")
    expect(matched.locator("tbody tr")).to_have_count(3)
    [again] = [one for one in lab.get("/v1/jobs").json()["items"] if one["name"] == "all, without some"]
    assert again["settings"]["exclude"] == {"1": ["spill"]}
    assert {**again["settings"], "exclude": None} == job["settings"]
