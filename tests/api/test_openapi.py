"""The server describes itself, offline, and the description is true."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from sparse_ncp.app.routes.openapi import DESCRIPTIONS
from sparse_ncp.solvers import METHODS, Settings, solve
from sparse_ncp.solvers.settings import RECOMMENDED
from tests.fuzz.document import contradictions
from tests.support.api import Api, npy, planted, read_factors, refused, upload
from tests.support.stack import server

# Of a schema in this document: what JSON Schema knows, and OpenAPI's example.
WORDS = {
    "additionalProperties", "anyOf", "const", "default", "deprecated", "description", "enum", "example",
    "exclusiveMaximum", "exclusiveMinimum", "format", "items", "maxItems", "maxLength", "maximum", "minItems",
    "minLength", "minimum", "oneOf", "pattern", "properties", "$ref", "required", "title", "type",
}  # fmt: skip
# What a user of the generated package writes.
GENERATED = """
import io, json, sys, time
from ncp_generated import Client
from ncp_generated.api.factors import get_factors
from ncp_generated.api.jobs import get_job, submit_job
from ncp_generated.api.tensors import upload_tensor
from ncp_generated.models import JobRequest, Stop
from ncp_generated.types import File

with Client(base_url=sys.argv[1]) as client:
    tensor = upload_tensor.sync(client=client, body=File(payload=open("tensor.npy", "rb")), name="generated")
    stop = Stop(max_iterations=200)
    asked = JobRequest(rank=4, tensor_id=tensor.id, sparsity=0.05, preset="recommended", stop=stop)
    job = submit_job.sync(client=client, body=asked)
    while not job.finished_at:
        time.sleep(0.1)
        job = get_job.sync(job.id, client=client)
    open("factors.npz", "wb").write(get_factors.sync(job.id, client=client).payload.read())
print(json.dumps({"job": job.to_dict()}))
"""
KEPT = [not_a_server_error, status_code_conformance, response_schema_conformance]


def test_docs_load_nothing_from_elsewhere(client: httpx.Client) -> None:
    page = client.get("/docs")
    assert page.status_code == 200
    sources = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(sources) >= 2
    for source in sources:
        assert not source.startswith(("http:", "https:", "//"))
        assert client.get(str(httpx.URL(str(client.base_url)).join("/docs").join(source))).status_code == 200
    assert "http" not in page.text.replace("http-equiv", "")


def test_the_first_page_leads_to_the_docs(client: httpx.Client) -> None:
    page = client.get("/")
    assert "sparse-ncp" in page.text
    for link in re.findall(r'href="([^"]+)"', page.text):
        assert client.get(f"/{link}").status_code in {200, 503}


def test_every_route_documents_its_refusals(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            error_responses = {int(s): reported for s, reported in operation["responses"].items() if int(s) >= 400}
            assert path == "/healthz" or {422, 500, 503} <= error_responses.keys(), (method, path)
            assert "{" not in path or 404 in error_responses, (method, path)
            assert all(reported["content"] == problem for reported in error_responses.values()), (method, path)
            assert error_responses.keys() <= DESCRIPTIONS.keys()
    assert "HTTPValidationError" not in document["components"]["schemas"]
    assert "Problem" in document["components"]["schemas"]
    assert "FieldProblem" in document["components"]["schemas"]


def test_the_document_refers_to_nothing_that_is_missing(client: httpx.Client) -> None:
    answer = client.get("/openapi.json")
    names = set(re.findall(r'"#/components/schemas/([^"]+)"', answer.text))
    assert names <= answer.json()["components"]["schemas"].keys()


def test_the_job_schema_is_the_solvers_own(client: httpx.Client) -> None:
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    assert schemas["JobRequest"]["properties"]["method"]["enum"] == list(METHODS)
    assert "owner" not in schemas["Job"]["properties"]
    assert "owner" not in schemas["Tensor"]["properties"]


def test_the_methods_are_those_of_the_registry(client: httpx.Client) -> None:
    reported = {method["name"]: method for method in client.get("/v1/methods").json()}
    assert list(reported) == list(METHODS)
    assert all(reported[name]["monotone"] == method.monotone for name, method in METHODS.items())


def test_no_default_stands_in_the_way_of_a_preset(client: httpx.Client) -> None:
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    for schema, fields in (("JobRequest", RECOMMENDED), ("Settings", RECOMMENDED), ("Stop", RECOMMENDED["stop"])):
        for name in fields:
            described = schemas[schema]["properties"][name]
            assert "default" not in described, (schema, name)
            assert name == "stop" or "with the preset" in described["description"]
    assert '; default "random", with the preset' in schemas["JobRequest"]["properties"]["init"]["description"]


def test_every_word_of_a_schema_is_one_of_json_schema(client: httpx.Client) -> None:
    """A program that reads the document ignores a bound with an unknown name."""
    document = client.get("/openapi.json").json()
    described = [document["paths"], document["components"]["schemas"]]
    found = {word for schema in schemas_in(described) for word in schema}
    assert found <= WORDS, found - WORDS
    properties = document["components"]["schemas"]["JobRequest"]["properties"]
    starts, share, beta = properties["starts"]["anyOf"][0], properties["delta_omega"]["anyOf"][0], properties["beta"]
    assert (starts["minimum"], starts["maximum"]) == (1, 100)
    assert (share["minimum"], share["exclusiveMaximum"]) == (0, 1)
    assert (beta["oneOf"][1]["minItems"], beta["oneOf"][1]["maxItems"]) == (2, 8)


def schemas_in(value: Any) -> Iterator[dict[str, Any]]:
    """Every schema in a part of the document, and all that is inside of it."""
    if isinstance(value, list):
        for entry in value:
            yield from schemas_in(entry)
    elif isinstance(value, dict):
        if {"type", "$ref", "anyOf", "oneOf"} & value.keys() and isinstance(value.get("type", ""), str):
            yield value
        inner = value.get("properties", {}).values() if isinstance(value.get("properties"), dict) else ()
        for entry in [*inner, *(found for name, found in value.items() if name not in ("properties", "example"))]:
            yield from schemas_in(entry)


@pytest.mark.parametrize(
    ("path", "types"),
    [
        ("/v1/tensors/{tensor_id}/content", {"application/octet-stream"}),
        (
            "/v1/jobs/{job_id}/factors",
            {"application/octet-stream", "application/zip", "application/x-netcdf", "text/csv"},
        ),
        ("/v1/jobs/{job_id}/factors/{mode}", {"application/octet-stream"}),
    ],
)
def test_a_download_declares_what_it_holds(client: httpx.Client, path: str, types: set[str]) -> None:
    responses = client.get("/openapi.json").json()["paths"][path]["get"]["responses"]
    for status in ("200", "206"):
        assert responses[status]["content"].keys() == types
        assert all(reported["schema"]["format"] == "binary" for reported in responses[status]["content"].values())


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/jobs?stat=queued"),
        ("HEAD", "/v1/jobs?stat=queued"),
        ("POST", "/v1/jobs?rank=3"),
        ("POST", "/v1/tensors?nmae=x"),
        ("GET", "/v1/tensors?Limit=3"),
        ("GET", "/v1/jobs/x/history?from=3"),
        ("GET", "/v1/usage?x"),
        ("GET", "/v1/methods?x=1"),
        ("GET", "/healthz?verbose"),
    ],
)
def test_an_unknown_query_field_is_refused_by_every_call(client: httpx.Client, method: str, path: str) -> None:
    answer = client.request(method, path, headers={"Content-Type": "application/json"}, content=b"")
    assert answer.status_code == 422
    if method != "HEAD":
        problem = refused(answer, 422)
        assert [error["field"] for error in problem["errors"]] == [path.partition("?")[2].partition("=")[0]]
        assert problem["remedy"] == problem["errors"][0]["remedy"]


def test_a_generated_client_runs_what_the_preset_says(api_with_worker: Api, tmp_path: Path) -> None:
    """A client generated by openapi-python-client sends the defaults of the schema with every request."""
    document, folder = tmp_path / "openapi.json", tmp_path / "ncp_generated"
    document.write_text(httpx.get(f"{api_with_worker.address}/openapi.json", trust_env=False, timeout=60).text)
    generate = [str(Path(sys.executable).parent / "openapi-python-client"), "generate", "--meta", "none"]
    generated = subprocess.run(
        [*generate, "--path", document, "--output-path", folder], check=True, capture_output=True, text=True
    )
    assert "WARNING parsing" not in generated.stdout + generated.stderr
    (tmp_path / "tensor.npy").write_bytes(npy(planted(12, 10, 8)))
    (tmp_path / "lab.py").write_text(GENERATED)
    ran = subprocess.run(
        [sys.executable, "lab.py", api_with_worker.address],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    reported = json.loads(ran.stdout)
    settings, given = reported["job"]["settings"], dict(RECOMMENDED)
    assert {name: settings["stop"][name] for name in given["stop"]} == given.pop("stop")
    assert {name: settings[name] for name in given} == given
    assert (settings["stop"]["max_iterations"], settings["sparsity"]) == (200, 0.05)
    assert reported["job"]["resolved"]["penalty"] == "l1"
    assert reported["job"]["state"] == "succeeded"
    factors = read_factors((tmp_path / "factors.npz").read_bytes())
    expected = solve(planted(12, 10, 8), Settings.recommended(4, sparsity=0.05, stop={"max_iterations": 200}))
    assert [npy(A) for A in factors] == [npy(A) for A in expected.factors]


def test_no_answer_contradicts_the_document(tmp_path: Path) -> None:
    with server(tmp_path, min_free_bytes=0) as running:
        found = contradictions(running, tmp_path, examples=10)
        assert not found, found
        assert " 500 " not in running.log.read_text()


def test_any_job_that_the_document_allows_is_taken_or_refused_as_it_says(api: Api, client: httpx.Client) -> None:
    tensor = upload(client, planted(6, 5, 4))["id"]
    operation = schemathesis.openapi.from_url(f"{api.address}/openapi.json")["/v1/jobs"]["POST"]
    answers = set()

    @settings(max_examples=100, suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy())
    def ask(case: schemathesis.Case[Any]) -> None:
        assert isinstance(case.body, dict)
        case.body = {**case.body, "tensor_id": tensor}
        answer = case.call()
        case.validate_response(answer, checks=KEPT)
        answers.add(answer.status_code)

    ask()
    assert answers >= {202, 422}
