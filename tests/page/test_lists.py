"""Lists: live states, filters and search, comparison of jobs, and the use of the quota."""

import re
from typing import Any

import httpx
from playwright.sync_api import expect

from tests.support.api import finished, planted, submit, upload
from tests.support.browser import Visitor

SHORT: dict[str, Any] = {"rank": 2, "stop": {"max_iterations": 30, "tolerance": 0}}


def two_jobs(lab: httpx.Client, word: str) -> list[dict[str, Any]]:
    record = upload(lab, planted(8, 7, 6, seed=61), f"tensor of {word}")
    made = [
        submit(lab, record["id"], name=f"{word} one", method="hals", **SHORT),
        submit(lab, record["id"], name=f"{word} two", method="mu", seed=4, **SHORT),
    ]
    return [finished(lab, job["id"]) for job in made]


def test_the_list_follows_its_jobs_filters_and_searches(visitor: Visitor, lab: httpx.Client) -> None:
    two_jobs(lab, "filtered")
    page = visitor.go("/jobs")
    search = page.get_by_role("searchbox", name="Name")
    search.fill("filtered")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(2)
    page.get_by_label("Method").select_option("mu")
    expect(rows).to_have_count(1)
    expect(rows.first).to_contain_text("filtered two")
    page.get_by_label("State").select_option("failed")
    expect(page.get_by_text("No jobs.")).to_be_visible()
    page.get_by_label("State").select_option("")
    page.get_by_label("Method").select_option("")
    expect(rows).to_have_count(2)
    record = upload(lab, planted(8, 7, 6, seed=62))
    submit(lab, record["id"], name="filtered three", method="hals", **SHORT)
    expect(rows).to_have_count(3)  # without being asked
    expect(rows.first).to_contain_text("filtered three")
    expect(rows.first).to_contain_text("succeeded")
    page.reload()
    expect(search).to_have_value("filtered")
    expect(rows).to_have_count(3)


def test_a_job_is_renamed_and_deleted_after_a_question(visitor: Visitor, lab: httpx.Client) -> None:
    job = two_jobs(lab, "unwanted")[0]
    page = visitor.go("/jobs?name=unwanted")
    page.get_by_role("button", name="Rename unwanted one").click()
    page.get_by_role("dialog").get_by_label("Name").fill("unwanted after all")
    page.get_by_role("dialog").get_by_role("button", name="Rename").click()
    page.get_by_role("button", name="Delete unwanted after all").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("cannot be brought back")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert lab.get(f"/v1/jobs/{job['id']}").json()["name"] == "unwanted after all"
    page.get_by_role("button", name="Delete unwanted after all").click()
    dialog.get_by_role("button", name="Delete").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    assert lab.get(f"/v1/jobs/{job['id']}").status_code == 404


def test_jobs_are_compared_in_one_chart_with_only_the_settings_that_differ(visitor: Visitor, lab: httpx.Client) -> None:
    two_jobs(lab, "compared")
    page = visitor.go("/jobs?name=compared")
    page.get_by_label("Compare compared one").check()
    page.get_by_label("Compare compared two").check()
    page.get_by_role("link", name="Compare 2 jobs").click()
    visitor.heading("Compare")
    assert {line["name"] for line in visitor.drawn()} == {"compared one", "compared two"}
    settings = page.locator("tbody").first
    expect(settings.locator("code")).to_have_text(["method", "seed"])
    expect(settings).to_contain_text("hals")


def test_factors_are_offered_in_every_format(visitor: Visitor, lab: httpx.Client) -> None:
    job = two_jobs(lab, "taken home")[0]
    page = visitor.go(f"/jobs/{job['id']}")
    page.get_by_role("button", name="Download", exact=True).click()
    dialog = page.get_by_role("dialog")
    link = dialog.get_by_role("link", name="Download the factors")
    for kind in ("npz", "mat", "csv", "nc"):
        dialog.get_by_label("Format").select_option(kind)
        dialog.get_by_role("radio", name="norm 1").check(force=True)
        address = link.get_attribute("href") or ""
        assert f"format={kind}" in address
        assert "scale=unit" in address
        assert httpx.get(address, trust_env=False).status_code == 200
    with page.expect_download() as download:
        link.click()
    assert download.value.suggested_filename.endswith("factors.nc")
    others = dialog.get_by_role("link").evaluate_all("(all) => all.map((one) => one.href)")
    assert {httpx.get(address, trust_env=False).status_code for address in others} == {200}


def test_the_used_part_of_the_quota_is_shown(visitor: Visitor, lab: httpx.Client) -> None:
    two_jobs(lab, "counted")
    page = visitor.go("/jobs")
    card = page.get_by_role("region", name="What you use")
    expect(card).to_contain_text(re.compile(r"Stored\d[\d.]* [kM]?B"))
    expect(card).to_contain_text("succeeded")
