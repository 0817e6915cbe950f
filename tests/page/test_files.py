"""The page at / and its files: nothing from elsewhere, kept by browsers for as long as nothing changes."""

import gzip
import hashlib
import re
from importlib.resources import files

import httpx
import pytest

from sparse_ncp.app.streaming import assets
from tests.support.api import Api, http_client, refused

PLOTLY = "/static/vendor/plotly.min.js"


def test_the_page_loads_nothing_from_elsewhere_and_runs_no_inline_script(client: httpx.Client) -> None:
    page = client.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.split(" ", 1) for part in page.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert not re.search(r"<script(?![^>]*\bsrc=)[^>]*>|\son\w+=", page.text)
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page.text)
    assert not re.search(r"""(src|href)=["']?/""", page.text), "a path from the root breaks below a sub-path"


def test_only_the_page_may_load_anything(client: httpx.Client) -> None:
    for path in ("/v1/methods", "/healthz", PLOTLY, "/nothing"):
        assert client.get(path).headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"


def test_a_browser_that_has_the_page_gets_not_modified(client: httpx.Client) -> None:
    first = client.get("/")
    assert first.headers["cache-control"] == "no-cache"
    again = client.get("/", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert client.head("/").headers["etag"] == first.headers["etag"]


def test_what_the_page_names_is_there_and_may_be_kept_for_good(client: httpx.Client) -> None:
    named = re.findall(r'"(static/[^"]+)"', client.get("/").text)
    for path in [*named, f"static/{assets.version()}/vendor/plotly.min.js"]:
        assert assets.version() in path
        answer = client.get(f"/{path}")
        assert answer.status_code == 200, path
        assert "immutable" in answer.headers["cache-control"]


def test_plotly_comes_from_the_installed_package_compressed_once(client: httpx.Client) -> None:
    script = (files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    plain = client.get(PLOTLY, headers={"Accept-Encoding": "identity"})
    assert (plain.content, plain.headers["content-type"]) == (script, "text/javascript; charset=utf-8")
    assert "content-encoding" not in plain.headers
    with client.stream("GET", PLOTLY, headers={"Accept-Encoding": "br;q=1, gzip"}) as answer:
        packed = b"".join(answer.iter_raw())
    assert answer.headers["content-encoding"] == "gzip"
    assert "Accept-Encoding" in answer.headers["vary"]
    assert answer.headers["etag"] != plain.headers["etag"]
    assert len(packed) < len(script) / 2
    assert hashlib.sha256(gzip.decompress(packed)).digest() == hashlib.sha256(script).digest()
    known = {"If-None-Match": answer.headers["etag"], "Accept-Encoding": "gzip"}
    assert client.get(PLOTLY, headers=known).status_code == 304
    assert client.get(PLOTLY, headers={"Accept-Encoding": "gzip;q=0"}).headers.get("content-encoding") is None


def test_a_page_that_is_older_than_the_server_gets_what_there_is_and_keeps_none_of_it(client: httpx.Client) -> None:
    answer = client.get("/static/0123456789abcdef/vendor/plotly.min.js")
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-cache")


@pytest.mark.parametrize(
    "path", ["", "/", "/nothing.js", "/../main.py", "/%2e%2e/main.py", "/..%2fmain.py", "/%00", "/vendor/", "/a/b/c.js"]
)
def test_nothing_but_the_files_of_the_page_can_be_read(api: Api, path: str) -> None:
    with http_client(api.address) as client:
        refused(client.get(httpx.URL(f"{api.address}/static{path}")), 404)
