"""The OpenAPI document is kept to the letter, whatever is asked. `make fuzz` asks for longer."""

from pathlib import Path

import httpx
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from tests.app.api import Api, planted, upload
from tests.fuzz.document import contradictions
from tests.stack import server

KEPT = [not_a_server_error, status_code_conformance, response_schema_conformance]


def test_no_answer_contradicts_the_document(tmp_path: Path) -> None:
    with server(tmp_path, min_free_bytes=0) as running:
        found = contradictions(running, tmp_path, examples=10)
        assert not found, found
        assert " 500 " not in running.log.read_text()


def test_any_job_that_the_document_allows_is_taken_or_refused_as_it_says(idle: Api, front: httpx.Client) -> None:
    tensor = upload(front, planted(6, 5, 4))["id"]
    operation = schemathesis.openapi.from_url(f"{idle.address}/openapi.json")["/v1/jobs"]["POST"]
    answers = set()

    @settings(max_examples=100, suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy())
    def ask(case: schemathesis.Case) -> None:
        assert isinstance(case.body, dict)
        case.body = {**case.body, "tensor_id": tensor}
        answer = case.call()
        case.validate_response(answer, checks=KEPT)
        answers.add(answer.status_code)

    ask()
    assert answers >= {202, 422}
