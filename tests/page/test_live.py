"""Live: every iteration is drawn once, even if the page, the connection or the server fails."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.support.api import finished, planted, submit, upload
from tests.support.browser import AWAY, WINDOW, Visitor, visit
from tests.support.jobs import ENDLESS
from tests.support.machine.proxy import cutting_proxy
from tests.support.processes import kill, part
from tests.support.stack import Server, wait_for

# Lets a test move the clock on the wall, as a sleep does; timers stand still meanwhile.
WALL_CLOCK = """(() => {
    const now = Date.now.bind(Date);
    window.sleptFor = 0;
    Date.now = () => now() + window.sleptFor;
})()"""
AN_HOUR = 3_600_000


def begin(lab: httpx.Client, name: str, **settings: Any) -> str:
    record = upload(lab, planted(120, 90, 60, seed=51))
    job_id: str = submit(lab, record["id"], name=name, **settings)["id"]
    return job_id


def reload(visitor: Visitor, lab_server: Server) -> None:
    visitor.page.reload()


def lose_the_network(visitor: Visitor, lab_server: Server) -> None:
    visitor.context.set_offline(True)
    expect(visitor.page.get_by_text("The server does not answer")).to_be_visible()
    visitor.context.set_offline(False)
    expect(visitor.page.get_by_text("The server does not answer")).to_be_hidden()


def kill_the_server(visitor: Visitor, lab_server: Server) -> None:
    """The API dies at once; the launcher starts another."""
    killed = part(lab_server, "api")
    kill(killed)
    expect(visitor.page.get_by_text("The server does not answer")).to_be_visible()
    wait_for(lambda: part(lab_server, "api").pid != killed.pid, what="another API")
    expect(visitor.page.get_by_text("The server does not answer")).to_be_hidden()


@pytest.mark.parametrize("disturb", [reload, lose_the_network, kill_the_server])
def test_the_chart_moves_and_has_every_iteration_once(
    visitor: Visitor, lab: httpx.Client, lab_server: Server, disturb: Callable[[Visitor, Server], None]
) -> None:
    visitor.expected = (AWAY,)
    job_id = begin(lab, "disturbed", **ENDLESS)
    visitor.go(f"/jobs/{job_id}")
    visitor.wait_for_iteration(20)
    disturb(visitor, lab_server)
    visitor.wait_for_iteration(reached(lab, job_id) + 20)
    result = cancelled_without_a_gap(visitor, lab, job_id)
    facts = visitor.page.locator("[data-facts]")
    expect(facts).to_contain_text(f"{result['iterations']:,}")
    expect(facts).to_contain_text(f"{result['nonzero_components']['all_modes']} of 8")


def reached(lab: httpx.Client, job_id: str) -> int:
    iteration: int = lab.get(f"/v1/jobs/{job_id}").json()["progress"]["iteration"]
    return iteration


def cancelled_without_a_gap(visitor: Visitor, lab: httpx.Client, job_id: str) -> dict[str, Any]:
    lab.post(f"/v1/jobs/{job_id}/cancel")
    expect(visitor.page.locator(".state")).to_have_text("cancelled")
    result: dict[str, Any] = finished(lab, job_id)["result"]
    last = min(result["iterations"], 5 * WINDOW)
    visitor.wait_for_iteration(result["iterations"])
    assert visitor.all_iterations(last) == list(range(1, last + 1))
    return result


def test_a_laptop_that_slept_goes_on_without_a_gap(browser: Browser, lab: httpx.Client, lab_server: Server) -> None:
    """Freeze the page, let its connections die silently, and advance the clock by an hour."""
    with cutting_proxy(lab_server.address) as proxy, visit(browser, proxy.address) as visitor:
        visitor.expected = (AWAY,)
        visitor.page.add_init_script(WALL_CLOCK)
        job_id = begin(lab, "slept over", **ENDLESS)
        visitor.go(f"/jobs/{job_id}")
        visitor.wait_for_iteration(20)
        session = visitor.context.new_cdp_session(visitor.page)
        session.send("Page.setWebLifecycleState", {"state": "frozen"})
        proxy.forget_connections()
        fell_asleep = reached(lab, job_id)
        wait_for(lambda: reached(lab, job_id) > fell_asleep + 100, what="iterations while the page sleeps")
        session.send("Page.setWebLifecycleState", {"state": "active"})
        visitor.page.evaluate(f"window.sleptFor += {AN_HOUR}")
        visitor.wait_for_iteration(reached(lab, job_id) + 20)
        expect(visitor.page.get_by_text("The server does not answer")).to_be_hidden()
        cancelled_without_a_gap(visitor, lab, job_id)


def test_who_stands_on_a_link_with_the_keyboard_still_does_when_the_run_ends(
    visitor: Visitor, lab: httpx.Client
) -> None:
    job_id = begin(lab, "ends while Tab is pressed", **ENDLESS)
    page = visitor.go(f"/jobs/{job_id}")
    expect(page.locator(".state")).to_have_text("running")
    components = page.get_by_role("link", name="Components", exact=True)
    components.focus()
    lab.post(f"/v1/jobs/{job_id}/cancel")
    expect(page.locator(".state")).to_have_text("cancelled")
    expect(page.get_by_role("button", name="Delete")).to_be_visible()
    expect(components).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("group", name="Component ").first).to_be_visible()


def test_a_run_shows_its_state_and_is_cancelled(visitor: Visitor, lab: httpx.Client) -> None:
    job_id, waiting = (begin(lab, name, **ENDLESS) for name in ("endless", "behind it"))
    page = visitor.go(f"/jobs/{job_id}")
    visitor.wait_for_iteration(5)
    facts = page.locator("[data-facts]")
    expect(page.locator(".state")).to_have_text("running")
    expect(facts).to_contain_text("at iteration")  # of the first checkpoint
    before = visitor.iterations()[-1]
    visitor.wait_for_iteration(before + 5)
    page.get_by_role("radio", name="seconds").check(force=True)
    page.wait_for_function(
        "() => document.querySelector('[data-chart]').layout.xaxis.title.text === 'seconds of computing'"
    )
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".state")).to_have_text("cancelled")
    expect(page.get_by_text("it was cancelled")).to_be_visible()
    assert lab.get(f"/v1/jobs/{job_id}").json()["state"] == "cancelled"
    lab.post(f"/v1/jobs/{waiting}/cancel")


def test_partial_components_are_shown_while_the_job_runs(visitor: Visitor, lab: httpx.Client) -> None:
    job_id = begin(lab, "partial", **ENDLESS)
    page = visitor.go(f"/jobs/{job_id}/components")
    expect(page.get_by_text("These are partial factors")).to_be_visible()
    expect(page.get_by_role("group", name="Component ")).to_have_count(8)
    lab.post(f"/v1/jobs/{job_id}/cancel")
    expect(page.locator(".state")).to_have_text("cancelled")
    expect(page.get_by_text("These are partial factors")).to_be_hidden()


def test_zooming_shows_all_iterations_of_the_part_that_is_seen(visitor: Visitor, lab: httpx.Client) -> None:
    record = upload(lab, planted(6, 5, 4, seed=52))
    stop = {"max_iterations": 6000, "tolerance": 0}
    job = finished(lab, submit(lab, record["id"], rank=2, method="mu", stop=stop, diagnose=False)["id"])
    visitor.go(f"/jobs/{job['id']}")
    shown = len(visitor.iterations())
    assert 500 < shown < 3000, "thinned"
    visitor.page.locator("[data-chart]").evaluate("(chart) => Plotly.relayout(chart, {'xaxis.range': [2000, 2300]})")
    visitor.page.wait_for_function("() => document.querySelector('[data-chart]').data[0].x[0] > 1990")
    assert set(range(2000, 2301)) <= set(visitor.iterations())
