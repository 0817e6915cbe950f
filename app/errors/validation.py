"""Validation errors of pydantic as field problems: the field as the caller wrote it, what is wrong, what to do."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from itertools import groupby
from typing import Any

from sparse_ncp.app.errors.messages import UNKNOWN, in_words
from sparse_ncp.app.errors.problem import FieldProblem
from sparse_ncp.solvers import Stop
from sparse_ncp.worker.contract import JobRequest
from sparse_ncp.worker.study_contract import ChooseRequest, CompareRequest, StabilityRequest

# Where the general remedy would not be enough.
BY_FIELD: Mapping[tuple[str, str], str] = {
    ("method", "missing"): 'choose one of GET /v1/methods, or give "preset": "recommended"',
}
# What a pattern means, in words: problem and remedy.
PATTERNS: Mapping[str, tuple[str, str]] = {
    "cursor": ("is not a cursor", "give `next` of the page before, or leave it out"),
    "sha256": ("is not a SHA-256", "give 64 digits of 0-9 and a-f"),
    "Last-Event-ID": ("is not the id of an event", "send the id of the last event you received, or leave it out"),
}
# The kind of a study decides which fields it has.
UNKNOWN_KIND = ("union_tag_invalid", "union_tag_not_found")
SOURCES = ("body", "query", "path", "header", "cookie")
# The requests whose fields a misspelt one may mean.
REQUESTS = (JobRequest, CompareRequest, ChooseRequest, StabilityRequest)
# The one body that is a list: the labels of a tensor.
LIST_BODY = "axes"


def field_problems(found: Sequence[Any], body: Any) -> list[FieldProblem]:
    """Return one entry per refused field of `RequestValidationError.errors()`."""
    located = [(_path(error["loc"], error["type"], body), error) for error in found]
    fields = groupby(located, key=lambda pair: pair[0][:1])
    return [_field_problem(path, error, body) for _, group in fields for path, error in _closest(list(group))]


def _path(location: Sequence[str | int], kind: str, body: Any) -> tuple[str | int, ...]:
    """Return the location without its source and without the names of union members, which are not in the request."""
    source, *steps = location if location and location[0] in SOURCES else ("body", *location)
    if source != "body":
        return tuple(steps)
    value, path = body, []
    for depth, step in enumerate(steps, start=1):
        is_entry = isinstance(value, list) and isinstance(step, int) and step < len(value)
        if is_entry or (isinstance(value, Mapping) and step in value):
            value = value[step]
        elif kind != "missing" or depth < len(steps):
            continue
        path.append(step)
    return tuple(path)


def _closest(group: list[tuple[tuple[str | int, ...], Any]]) -> list[tuple[tuple[str | int, ...], Any]]:
    """Return the errors of the type nearest to the value, for a field that may have one of several types.

    Those are the errors found deepest, or else those that are not about the type itself.
    """

    def nearness(pair: tuple[tuple[str | int, ...], Any]) -> tuple[int, bool]:
        path, error = pair
        return len(path), not error["type"].endswith("_type")

    deepest = max(len(path) for path, _ in group)
    # A list of which an entry was refused counts as too short as well.
    group = [(path, error) for path, error in group if error["type"] != "too_short" or len(path) == deepest]
    if len({error["loc"] for _, error in group}) == len({path for path, _ in group}):
        return group
    best = max(map(nearness, group))
    return [pair for pair in group if nearness(pair) == best]


def _field_problem(path: tuple[str | int, ...], error: Any, body: Any) -> FieldProblem:
    field, kind, context = _name(path), error["type"], error.get("ctx", {})
    if kind in UNKNOWN_KIND:
        problem = "is required" if not isinstance(body, Mapping) or "kind" not in body else "is not known here"
        return FieldProblem(field="kind", problem=problem, remedy="give compare, choose or stability")
    if kind == "json_invalid":
        problem, remedy = _broken_json(body, error["loc"][-1], context["error"])
    elif kind == "string_pattern_mismatch":
        problem, remedy = PATTERNS.get(field, ("is not written as it must be", "see /docs for its form"))
    elif kind == "extra_forbidden" and (place := _right_place(path)):
        problem, remedy = place
    else:
        problem, remedy = in_words(error)
        remedy = BY_FIELD.get((field, kind), remedy)
    return FieldProblem(field=field, problem=problem, remedy=remedy)


def _name(path: tuple[str | int, ...]) -> str:
    """Return the field as callers write it: `stop.tolerance`, with list entries counted from 1."""
    if path and isinstance(path[0], int):
        return _name((f"{LIST_BODY}[{path[0] + 1}]", *path[1:]))
    return ".".join(str(step + 1) if isinstance(step, int) else step for step in path) or "body"


def _broken_json(body: object, place: int, why: str) -> tuple[str, str]:
    """Return where the JSON is broken, and how to correct the usual cause."""
    text = body if isinstance(body, str) else ""
    line, column = text.count("\n", 0, place) + 1, place - text.rfind("\n", 0, place)
    problem = f"is not valid JSON: {why[:1].lower()}{why[1:]} at line {line}, column {column}"
    if text[place : place + 1] == "'":
        return problem, "put names and text in double quotes"
    if not text.strip():
        return problem, "send a JSON object"
    return (
        problem,
        "correct it there: every name and text is in double quotes, and no comma comes before a closing bracket",
    )


def _right_place(path: tuple[str | int, ...]) -> tuple[str, str] | None:
    """Return where a misplaced field belongs, or which known name a misspelt one resembles; None without either."""
    *inside, name = map(str, path)
    if not inside and name in Stop.model_fields:
        return "belongs in `stop`", f'write "stop": {{"{name}": …}}'
    if inside == ["stop"] and name in JobRequest.model_fields:
        return "does not belong in `stop`", f'write "{name}" beside "stop"'
    if len(inside) > 1 or (inside and inside != ["stop"]):
        return None
    known = dict.fromkeys(name for one in REQUESTS for name in one.model_fields)
    meant = get_close_matches(name, Stop.model_fields if inside else known, 1)
    return (UNKNOWN, f"leave it out; did you mean {meant[0]}?") if meant else None
