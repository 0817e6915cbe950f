"""Accessibility of the page: keyboard, screen reader, phone, dark mode, any path, no internet."""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Route, expect

from tests.support.api import finished, planted, submit, upload
from tests.support.browser import AWAY, Visitor, serious_violations, spectra, visit
from tests.support.languages import missing_tool
from tests.support.machine.proxy import NGINX, nginx
from tests.support.stack import Server, server, wait_for

SCREENS = ("/", "/tensors/{tensor}", "/new?tensor={tensor}", "/jobs/{job}", "/jobs/{job}/components", "/jobs",
           "/compare?jobs={job},{other}", "/studies", "/studies/{comparison}", "/studies/{choice}",
           "/new?tensor={tensor}&kind=compare", "/new?tensor={tensor}&kind=choose",
           "/tensors", "/operator", "/sign-in")  # fmt: skip
Named = dict[str, Any]


@pytest.fixture(scope="module")
def named(lab_server: Server) -> Named:
    """Something to look at on every screen."""
    with httpx.Client(base_url=lab_server.address, timeout=60, trust_env=False) as lab:
        tensor = upload(lab, spectra(seed=81), "for every screen")["id"]
        asked = {"method": "anls-bpp", "preset": "recommended", "missing": "nan", "negative": "keep"}
        jobs = [finished(lab, submit(lab, tensor, seed=seed, **asked)["id"])["id"] for seed in (0, 1)]
        complete = upload(lab, planted(10, 9, 8, rank=2, seed=83), "for studies")["id"]
        halves = {"split_half": {"mode": 1, "parts": 4}}
        compared = {"kind": "compare", "ranks": [1, 2, 3], "methods": ["hals"], "repeats": 2, "validate": halves}
        chosen = {"kind": "choose", "rank": 4, "seeds": 2}
        studies = [
            lab.post("/v1/studies", json={"tensor_id": complete, **asked}).json()["id"] for asked in (compared, chosen)
        ]
        wait_for(
            lambda: all(lab.get(f"/v1/studies/{study}").json()["state"] == "succeeded" for study in studies),
            what="studies",
        )
        names = ("tensor", "job", "other", "comparison", "choice")
        return dict(zip(names, (tensor, *jobs, *studies), strict=True))


def settled(visitor: Visitor, path: str) -> None:
    """A screen with its charts drawn."""
    visitor.go(path)
    expect(visitor.page.get_by_role("heading", level=1)).to_be_visible()
    visitor.page.wait_for_load_state("networkidle")
    visitor.page.wait_for_function(
        "() => [...document.querySelectorAll('.chart')].every((chart) => chart.data || chart.querySelector('.waiting'))"
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_on_any_screen(
    browser: Browser, lab_server: Server, named: Named, scheme: str
) -> None:
    with visit(browser, lab_server.address, color_scheme=scheme) as visitor:
        found = {}
        for path in SCREENS:
            settled(visitor, path.format(**named))
            found[path] = serious_violations(visitor.page)
        assert not any(found.values()), {path: rules for path, rules in found.items() if rules}


def test_no_screen_is_wider_than_a_phone(browser: Browser, lab_server: Server, named: Named) -> None:
    with visit(browser, lab_server.address, width=360, has_touch=True) as visitor:
        for path in SCREENS:
            settled(visitor, path.format(**named))
            wide = visitor.page.evaluate("document.documentElement.scrollWidth")
            assert wide <= 360, f"{path} is {wide} px wide"


def test_colours_follow_the_system_and_the_switch(browser: Browser, lab_server: Server, named: Named) -> None:
    def paper(visitor: Visitor) -> str:
        return str(visitor.page.evaluate("getComputedStyle(document.body).backgroundColor"))

    with visit(browser, lab_server.address, color_scheme="dark") as visitor:
        settled(visitor, f"/jobs/{named['job']}")
        dark = paper(visitor)
        line = visitor.page.locator("[data-chart]").evaluate("(chart) => chart.data.at(-1).line.color")
        visitor.page.get_by_role("button", name="Colours: as the system").click()
        light = paper(visitor)
        assert light != dark
        visitor.page.wait_for_function(
            "(line) => document.querySelector('[data-chart]').data.at(-1).line.color !== line", arg=line
        )
        visitor.page.reload()
        expect(visitor.page.get_by_role("button", name="Colours: light")).to_be_visible()
        assert paper(visitor) == light


def test_everything_is_done_by_keyboard_alone(visitor: Visitor, lab: httpx.Client) -> None:
    """From the first screen to the components, with Tab, Enter, Space, arrows and letters."""
    page = visitor.go("/")
    sample = lab.get("/v1/samples").json()["items"][0]
    press = page.keyboard.press

    def tab_to(role: str, name: str) -> None:
        # In the screen, not the header, whose "New run" takes the newest tensor.
        wanted = page.locator("main").get_by_role(role, name=name).first  # type: ignore[arg-type]
        wanted.wait_for()
        for _ in range(150):
            press("Tab")
            if wanted.evaluate("(wanted) => wanted === document.activeElement"):
                return
        raise AssertionError(f"Tab never came to {role} {name!r}")

    expect(page.get_by_role("button", name=sample["title"])).to_be_visible()
    press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    press("Enter")
    expect(page.locator("main")).to_be_focused()
    tab_to("button", sample["title"])
    press("Enter")
    expect(page.get_by_label("Facts")).to_be_visible()
    tab_to("slider", "sample")
    press("ArrowRight")
    tab_to("link", "New run")
    press("Enter")
    visitor.heading("New run")
    tab_to("textbox", "Rank")
    press("Control+a")
    page.keyboard.type("3")
    tab_to("textbox", "Name")
    page.keyboard.type("by keyboard")
    tab_to("button", "Run")
    press("Enter")
    visitor.heading("by keyboard")
    expect(page.locator(".state")).to_have_text("succeeded")
    tab_to("link", "Components")
    press("Enter")
    expect(page.get_by_role("group", name="Component ").first).to_be_visible()
    tab_to("button", "Component ")
    press("Space")
    expect(page.get_by_role("button", name="Component ", pressed=False)).to_be_focused()
    tab_to("spinbutton", "Index to look at")
    page.keyboard.type("2")
    press("Enter")
    expect(page.get_by_role("heading", name=re.compile("^sample: "))).to_be_visible()


def test_a_list_that_is_drawn_anew_keeps_the_keyboard_where_it_was(visitor: Visitor, lab: httpx.Client) -> None:
    upload(lab, planted(4, 3, seed=84), "stood upon")
    page = visitor.go("/")
    link = page.get_by_role("link", name="New run on stood upon").first
    link.focus()
    upload(lab, planted(4, 3, seed=85), "came later")
    expect(page.get_by_role("link", name="New run on came later").first).to_be_visible()
    expect(link).to_be_focused()


@pytest.mark.parametrize("lost", ["main.js", "components/element.js", "screens/jobs.js"])
def test_a_part_that_did_not_arrive_is_fetched_again(visitor: Visitor, lost: str) -> None:
    """As when the network changes while the page is loaded."""
    visitor.expected = (AWAY,)
    failed: list[str] = []

    def fail_twice(route: Route) -> None:
        failed.append(route.request.url)
        if len(failed) <= 2:
            route.abort("connectionreset")
        else:
            route.continue_()

    visitor.page.route(f"**/{lost}", fail_twice)
    visitor.go("/jobs")
    visitor.heading("Jobs")
    assert len(failed) >= 3


def test_the_page_works_below_a_path_behind_nginx(browser: Browser, tmp_path: Path) -> None:
    if NGINX is None:
        missing_tool("nginx is not installed")
    with (
        server(tmp_path, min_free_bytes=1, root_path="/ncp", trusted_proxies="127.0.0.1") as running,
        nginx(tmp_path, running.address) as address,
        visit(browser, address) as visitor,
    ):
        page = visitor.go("/")
        visitor.drop(planted(8, 7, 6, seed=82), "below.npy")
        visitor.heading("below")
        assert visitor.drawn("[data-picture=Data]")
        page.get_by_role("link", name="New run").last.click()
        page.get_by_role("button", name="Run", exact=True).click()
        expect(page.locator(".state")).to_have_text("succeeded")
        assert visitor.drawn()


def test_the_policy_allows_no_script_but_the_pages_own_files(lab: httpx.Client) -> None:
    answer = lab.get("/")
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert "<style" not in answer.text
    assert " style=" not in answer.text
    assert all("src=" in script for script in re.findall("<script[^>]*>", answer.text))
