"""The server describes itself, offline, and the description is true."""

import re

import httpx

from app.refusals import MEANINGS
from solvers import METHODS


def test_docs_load_nothing_from_elsewhere(front: httpx.Client) -> None:
    page = front.get("/docs")
    assert page.status_code == 200
    sources = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(sources) >= 2
    for source in sources:
        assert not source.startswith(("http:", "https:", "//"))
        assert front.get(str(httpx.URL(str(front.base_url)).join("/docs").join(source))).status_code == 200
    assert "http" not in page.text.replace("http-equiv", "")


def test_the_first_page_leads_to_the_docs(front: httpx.Client) -> None:
    page = front.get("/")
    assert "sparse-ncp" in page.text
    for link in re.findall(r'href="([^"]+)"', page.text):
        assert front.get(f"/{link}").status_code in {200, 503}


def test_every_route_tells_its_refusals(front: httpx.Client) -> None:
    document = front.get("/openapi.json").json()
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            refusals = {int(s): told for s, told in operation["responses"].items() if int(s) >= 400}
            assert path == "/healthz" or {422, 500, 503} <= refusals.keys(), (method, path)
            assert "{" not in path or 404 in refusals, (method, path)
            assert all(told["content"] == problem for told in refusals.values()), (method, path)
            assert refusals.keys() <= MEANINGS.keys()
    assert "HTTPValidationError" not in document["components"]["schemas"]
    assert "Problem" in document["components"]["schemas"]
    assert "FieldProblem" in document["components"]["schemas"]


def test_the_document_refers_to_nothing_that_is_missing(front: httpx.Client) -> None:
    answer = front.get("/openapi.json")
    names = set(re.findall(r'"#/components/schemas/([^"]+)"', answer.text))
    assert names <= answer.json()["components"]["schemas"].keys()


def test_the_job_schema_is_the_solvers_own(front: httpx.Client) -> None:
    schemas = front.get("/openapi.json").json()["components"]["schemas"]
    assert schemas["JobRequest"]["properties"]["method"]["enum"] == list(METHODS)
    assert "owner" not in schemas["Job"]["properties"]
    assert "owner" not in schemas["Tensor"]["properties"]


def test_the_methods_are_those_of_the_registry(front: httpx.Client) -> None:
    told = {method["name"]: method for method in front.get("/v1/methods").json()}
    assert list(told) == list(METHODS)
    assert all(told[name]["monotone"] == method.monotone for name, method in METHODS.items())
