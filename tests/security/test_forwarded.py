"""Addresses and origins that callers claim: believed of the proxies that the operator names, and parsed as a whole."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from pydantic import ValidationError

from sparse_ncp.app.auth.api_keys import ApiKeys
from sparse_ncp.worker.config import Configuration
from tests.support.api import holder, refused, running_api
from tests.support.languages import missing_tool
from tests.support.machine.proxy import NGINX, nginx
from tests.support.stack import embedded_redis

RATE = "sparse_ncp.app.routes.account.ATTEMPTS_PER_SECOND"


@pytest.fixture(scope="module")
def shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Configuration]:
    with embedded_redis(tmp_path_factory.mktemp("forwarded"), min_free_bytes=1) as made:
        yield made


@pytest.fixture
def configuration(shared_redis: Configuration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Configuration:
    """A server with a key, where each address may try to sign in once."""
    monkeypatch.setattr(RATE, 0.0001)
    configuration = shared_redis.model_copy(update={"data": tmp_path / "data"})
    ApiKeys(configuration.data).create("ann")
    return configuration


def attempt(caller: httpx.Client, address: str, key: str | None = None) -> int:
    """Try to sign in with this key, or with a wrong one, and claim to come from this address."""
    body = {"key": secrets.token_hex() if key is None else key}
    return caller.post("v1/session", json=body, headers={"X-Forwarded-For": address}).status_code


@pytest.mark.parametrize("trusted", [None, "192.0.2.0/24, ::1"])
def test_a_caller_that_is_no_trusted_proxy_cannot_choose_its_address(
    configuration: Configuration, trusted: str | None
) -> None:
    configured = configuration.model_copy(update={"trusted_proxies": trusted})
    with running_api(configured, keys=True) as api, holder(api.address, None) as caller:
        attempt(caller, "192.0.2.1")
        assert [attempt(caller, f"192.0.2.{number}") for number in range(2, 5)] == [429] * 3
        metrics = caller.get("/metrics", headers={"X-Forwarded-For": "127.0.0.1"})
        refused(metrics, 401, "no-key")


def test_a_trusted_proxy_names_the_address_of_its_caller(configuration: Configuration) -> None:
    trusting = configuration.model_copy(update={"trusted_proxies": "10.1.0.0/16,127.0.0.0/8"})
    with running_api(trusting, keys=True) as api, holder(api.address, None) as proxy:
        assert [attempt(proxy, f"198.51.100.{number}") for number in range(1, 4)] == [401] * 3
        assert attempt(proxy, "198.51.100.1") == 429
        assert attempt(proxy, "203.0.113.9, 198.51.100.1") == 429, "the caller wrote the first, the proxy the second"


def test_one_machine_has_many_addresses_and_one_limit(configuration: Configuration) -> None:
    trusting = configuration.model_copy(update={"trusted_proxies": "127.0.0.1"})
    with running_api(trusting, keys=True) as api, holder(api.address, None) as proxy:
        addresses = ("2001:db8:1:2::1", "2001:db8:1:2:ffff::7", "2001:db8:1:3::1")
        assert [attempt(proxy, address) for address in addresses] == [401, 429, 401]
        assert [attempt(proxy, address) for address in ("203.0.113.50", "::ffff:203.0.113.50")] == [401, 429]


def test_one_key_has_one_limit_wherever_it_is_used(configuration: Configuration) -> None:
    trusting = configuration.model_copy(update={"trusted_proxies": "127.0.0.1"})
    key = ApiKeys(trusting.data).create("bob")
    with running_api(trusting, keys=True) as api, holder(api.address, None) as proxy:
        assert [attempt(proxy, f"198.18.0.{number}", key) for number in range(1, 3)] == [201, 429]
        assert attempt(proxy, "198.18.0.3") == 401


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "https://lab@[", "//"])
def test_an_origin_that_is_no_address_breaks_nothing(configuration: Configuration, origin: str) -> None:
    headers = {"Origin": origin, "Sec-Fetch-Site": "same-origin"}
    with running_api(configuration, keys=True) as api, holder(api.address, None) as caller:
        assert caller.delete("/v1/session", headers=headers).status_code == 204


def test_a_host_with_a_user_in_it_is_not_the_origin_of_a_page(configuration: Configuration) -> None:
    headers = {"Origin": "http://evil.example", "Host": "localhost@evil.example"}
    with running_api(configuration, keys=True) as api, holder(api.address, None) as caller:
        refused(caller.delete("/v1/session", headers=headers), 403, "foreign-page")


def test_behind_nginx_a_caller_cannot_choose_its_address(configuration: Configuration, tmp_path: Path) -> None:
    if NGINX is None:
        missing_tool("nginx is not installed")
    trusting = configuration.model_copy(update={"trusted_proxies": "127.0.0.1"})
    with (
        running_api(trusting, keys=True) as api,
        nginx(tmp_path, api.address) as address,
        holder(address, None) as caller,
    ):
        attempt(caller, "203.0.113.1")
        assert [attempt(caller, f"203.0.113.{number}") for number in range(2, 5)] == [429] * 3
        host = {"Host": "localhost"}
        assert caller.get("metrics", headers=host).status_code == 401, "only nginx is on this machine"


@pytest.mark.parametrize("wrong", ["*", "nginx", "10.1.0.1/16", "127.0.0.1 10.1.0.1", "127.0.0.1:80"])
def test_what_is_no_address_or_network_is_refused(wrong: str) -> None:
    with pytest.raises(ValidationError, match="neither an address nor a network; write"):
        Configuration(trusted_proxies=wrong)
