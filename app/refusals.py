"""The refusals of a route, told in OpenAPI."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from app.problems import MEDIA_TYPE, Problem

MEANINGS = {
    304: "You have these bytes already",
    400: "The request cannot be read",
    404: "There is no such thing, or it is not yours",
    405: "No such method on this path",
    409: "Not in this state",
    413: "Too large",
    415: "A body in a form that this route does not read",
    416: "No such range",
    422: "Refused: the answer names each field, what is wrong with it and the remedy",
    500: "The server failed; the log has the request id",
    503: "Redis or a worker is away; try again after Retry-After seconds",
    507: "The disk is full",
}
REFERENCE = {"$ref": "#/components/schemas/Problem"}


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What `responses=` takes. Every route may fail with 500 and 503; 422 replaces FastAPI's own shape."""
    return {status: _refusal(status) for status in sorted({422, 500, 503, *statuses})}


def _refusal(status: int) -> dict[str, Any]:
    told: dict[str, Any] = {"description": MEANINGS[status]}
    return told if status == 304 else {**told, "content": {MEDIA_TYPE: {"schema": REFERENCE}}}


def describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with the schema that the refusals refer to."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(problem.pop("$defs"))
        schemas["Problem"] = problem
        document["servers"] = [{"url": app.state.configuration.root_path or "/"}]
        app.openapi_schema = document
    return app.openapi_schema
