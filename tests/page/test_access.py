"""Keys: a user signs in once, sees only their own data, and is signed out when the key is revoked."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect

from sparse_ncp.app.auth.api_keys import ApiKeys
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.owner_limits import Limits
from tests.support.api import Api, holder, planted, running_api, submit, upload
from tests.support.browser import SIGNED_OUT, Visitor, visit
from tests.support.stack import embedded_redis


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Configuration, Api]]:
    """A server that asks for keys; nothing runs on it."""
    with embedded_redis(tmp_path_factory.mktemp("closed"), min_free_bytes=1, keep_alive_seconds=0.5) as configuration:
        ApiKeys(configuration.data).create("first", False, Limits())  # the first key closes it
        with running_api(configuration, keys=True) as api:
            yield configuration, api


@pytest.fixture
def stranger(browser: Browser, closed: tuple[Configuration, Api]) -> Iterator[Visitor]:
    with visit(browser, closed[1].address) as made:
        yield made


def new_key(folder: Path, name: str, admin: bool = False) -> str:
    return ApiKeys(folder).create(name, admin, Limits(stored_bytes=10**6))


def sign_in(visitor: Visitor, key: str) -> None:
    visitor.page.get_by_label("Key").fill(key)
    visitor.page.get_by_role("button", name="Sign in").click()


def test_a_key_is_pasted_once_and_ends_with_a_sign_out(stranger: Visitor, closed: tuple[Configuration, Api]) -> None:
    configuration, api = closed
    key = new_key(configuration.data, "ann")
    with holder(api.address, key) as ann:
        upload(ann, planted(4, 3, seed=71), "hers")
    stranger.expected = (SIGNED_OUT,)  # the wrong key
    page = stranger.go("/tensors")
    stranger.heading("Sign in")
    sign_in(stranger, "ncp_wrong")
    expect(page.get_by_role("alert")).to_be_visible()
    sign_in(stranger, key)
    stranger.heading("Tensors")  # where they wanted to go
    expect(page.get_by_role("link", name="hers", exact=True)).to_be_visible()
    expect(page.locator("[data-owner]")).to_have_text("ann")
    expect(page.get_by_role("link", name="Operator")).to_be_hidden()
    page.reload()
    stranger.heading("Tensors")
    kept = page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie, location.href])")
    assert key not in kept
    cookie = stranger.context.cookies()[0]
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert key not in cookie["value"]
    page.get_by_role("button", name="Sign out").click()
    stranger.heading("Sign in")
    page.goto(f"{api.address}/#/jobs")
    stranger.heading("Sign in")


def test_a_revoked_key_ends_what_is_open(stranger: Visitor, closed: tuple[Configuration, Api]) -> None:
    configuration, api = closed
    key = new_key(configuration.data, "bob")
    stranger.expected = (SIGNED_OUT,)
    page = stranger.go("/jobs")
    sign_in(stranger, key)
    stranger.heading("Jobs")
    ApiKeys(configuration.data).revoke("bob")
    stranger.heading("Sign in")  # the list asks again by itself
    assert httpx.get(f"{api.address}/v1/jobs", trust_env=False).status_code == 401
    expect(page.locator("[data-owner]")).to_have_text("")


def test_an_operator_sees_everybody_and_cancels_any_job(stranger: Visitor, closed: tuple[Configuration, Api]) -> None:
    configuration, api = closed
    with holder(api.address, new_key(configuration.data, "carl")) as carl:
        job = submit(carl, upload(carl, planted(4, 3, seed=72))["id"], name="carl's job")
        page = stranger.go("/operator")
        sign_in(stranger, new_key(configuration.data, "root", admin=True))
        stranger.heading("Operator")
        expect(page.get_by_role("region", name="Server")).to_contain_text("none: start one with ncp worker")
        page.get_by_role("button", name="carl", exact=True).click()
        page.get_by_role("button", name="Cancel carl's job of carl").click()
        page.get_by_role("dialog").get_by_role("button", name="Cancel the job").click()
        expect(page.locator("[data-jobs] .state")).to_have_text("cancelled")
        assert carl.get(f"/v1/jobs/{job['id']}").json()["state"] == "cancelled"
