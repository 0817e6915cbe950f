"""The refusals of a route, told in OpenAPI."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from app.gate import is_guarded
from app.problems import MEDIA_TYPE, Problem

MEANINGS = {
    304: "You have these bytes already",
    400: "The request cannot be read",
    401: "Send a key: Authorization: Bearer KEY",
    403: "Not for this caller",
    404: "There is no such thing, or it is not yours",
    405: "No such method on this path",
    409: "Not in this state, or no room left in your quota",
    413: "Too large",
    415: "A body in a form that this route does not read",
    416: "No such range",
    421: "The Host header names no address of this server",
    422: "Refused: the answer names each field, what is wrong with it and the remedy",
    429: "Too many requests, or too many live jobs; try again after Retry-After seconds",
    500: "The server failed; the log has the request id",
    503: "Redis or a worker is away; try again after Retry-After seconds",
    507: "The disk is full",
}
# What the gate may answer before any route under it is reached.
AT_THE_GATE = (401, 421, 429)
KEY = {"type": "http", "scheme": "bearer", "description": "made by `ncp keys create`; an open server asks for none"}
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
        document["components"]["securitySchemes"] = {"key": KEY}
        for path in filter(is_guarded, document["paths"]):
            for operation in document["paths"][path].values():
                operation["responses"].update({str(status): _refusal(status) for status in AT_THE_GATE})
                operation["security"] = [{"key": []}, {}]
        app.openapi_schema = document
    return app.openapi_schema
