"""The OpenAPI document, and the error responses that a route declares."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from sparse_ncp.app.auth.authenticate import is_api
from sparse_ncp.app.errors.problem import MEDIA_TYPE, Problem

DESCRIPTIONS = {
    304: "You have these bytes already",
    400: "The request cannot be read",
    401: "Send a key: Authorization: Bearer KEY",
    403: "Not for this caller",
    404: "There is no such thing, or it is not yours",
    405: "No such method on this path",
    409: "Not in this state, or no room left in your quota",
    412: "Not the file that If-Match names",
    413: "Too large",
    415: "A body in a form that this route does not read",
    416: "No such range",
    421: "The Host header names no address of this server",
    422: "Refused: the answer names each field, what is wrong with it and the remedy",
    429: "Too many requests, live jobs or event streams; try again after Retry-After seconds",
    500: "The server failed; the log has the request id",
    503: "Redis or a worker is unavailable, or too many requests wait; try again after Retry-After seconds",
    504: "Redis did not answer in time; Location shows whether the change was made",
    507: "The disk is full",
}
# What the authentication middleware may answer before any route is reached.
AUTH_STATUSES = (401, 421, 429)
KEY = {"type": "http", "scheme": "bearer", "description": "made by `ncp keys create`; an open server asks for none"}
BINARY = {"type": "string", "format": "binary"}
ETAG = {"ETag": {"schema": {"type": "string"}, "description": "the SHA-256 of the file"}}
REFERENCE = {"$ref": "#/components/schemas/Problem"}


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the `responses=` of a route. Any route may fail with 500 or 503; 422 replaces FastAPI's own schema."""
    return {status: _error_response(status) for status in sorted({422, 500, 503, *statuses})}


def binary_responses(*media_types: str, headers: dict[str, Any] | None = None) -> dict[int | str, dict[str, Any]]:
    """Return the `responses=` of a download: the whole file, or a part of it."""
    described = {**ETAG, **(headers or {})}
    content = {media_type: {"schema": BINARY} for media_type in media_types}
    return {
        200: {"description": "The file", "content": content, "headers": described},
        206: {"description": "The part of it that Range names", "content": content, "headers": described},
    }


def _error_response(status: int) -> dict[str, Any]:
    response: dict[str, Any] = {"description": DESCRIPTIONS[status]}
    return response if status == 304 else {**response, "content": {MEDIA_TYPE: {"schema": REFERENCE}}}


def describe(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document, with the schema of the error responses."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(problem.pop("$defs"))
        schemas["Problem"] = problem
        document["servers"] = [{"url": app.state.configuration.root_path or "/"}]
        document["components"]["securitySchemes"] = {"key": KEY}
        for path in filter(is_api, document["paths"]):
            for operation in document["paths"][path].values():
                operation["responses"].update({str(status): _error_response(status) for status in AUTH_STATUSES})
                operation["security"] = [{"key": []}, {}]
        app.openapi_schema = document
    return app.openapi_schema
