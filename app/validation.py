"""Pydantic's findings, told in the caller's words: the field as they wrote it, what is wrong, what to do."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from pydantic import BaseModel, Field


class FieldProblem(BaseModel):
    """One refused field."""

    field: str = Field(description="where: dots lead inwards, modes and other list entries count from 1")
    problem: str
    remedy: str


REMEDIES: Mapping[str, str] = {
    "missing": "give it",
    "extra_forbidden": "leave it out, or check its spelling and its place against /docs",
    "greater_than_equal": "give {ge} or more",
    "greater_than": "give more than {gt}",
    "less_than_equal": "give {le} or less",
    "less_than": "give less than {lt}",
    "literal_error": "choose one of {expected}",
    "finite_number": "give a finite number",
    "string_too_long": "shorten it to {max_length} characters",
    "string_too_short": "give at least {min_length} characters",
    "bool_type": "give true or false, without quotes",
    "int_from_float": "give a whole number",
    "json_invalid": "send valid JSON",
    "model_attributes_type": "send a JSON object",
}
# Where a general remedy would leave the caller to guess.
BY_FIELD: Mapping[tuple[str, str], str] = {
    ("method", "missing"): 'choose one of GET /v1/methods, or give "preset": "recommended"',
}
SOURCES = ("body", "query", "path", "header", "cookie")


def field_problems(found: Sequence[Any], body: Any) -> list[FieldProblem]:
    """One entry per refused field. `found` is what `RequestValidationError.errors()` gives."""
    located = [(_path(error["loc"], error["type"], body), error) for error in found]
    fields = groupby(located, key=lambda pair: pair[0][:1])
    return [_told(path, error) for _, group in fields for path, error in _closest(list(group))]


def _path(location: Sequence[str | int], kind: str, body: Any) -> tuple[str | int, ...]:
    """The location without the source and without the names of union members, which nobody wrote."""
    source, *steps = location if location and location[0] in SOURCES else ("body", *location)
    if source != "body":
        return tuple(steps)
    return tuple(_walked(steps, kind, body))


def _walked(steps: Sequence[str | int], kind: str, value: Any) -> Iterator[str | int]:
    for depth, step in enumerate(steps, start=1):
        if _holds(value, step):
            value = value[step]
        elif kind != "missing" or depth < len(steps):
            continue
        yield step


def _holds(value: Any, step: str | int) -> bool:
    if isinstance(value, Mapping):
        return step in value
    return isinstance(value, list) and isinstance(step, int) and step < len(value)


def _closest(group: list[tuple[tuple[str | int, ...], Any]]) -> list[tuple[tuple[str | int, ...], Any]]:
    """Of a field that may be one of several types, what the type nearest to the value says: the deepest finding,
    or else the one that is about more than the type."""

    def nearness(pair: tuple[tuple[str | int, ...], Any]) -> tuple[int, bool]:
        path, error = pair
        return len(path), not error["type"].endswith("_type")

    if len({error["loc"] for _, error in group}) == len({path for path, _ in group}):
        return group
    best = max(map(nearness, group))
    return [pair for pair in group if nearness(pair) == best]


def _told(path: tuple[str | int, ...], error: Any) -> FieldProblem:
    field = ".".join(str(step + 1) if isinstance(step, int) else step for step in path) or "body"
    problem, remedy = error["msg"].removeprefix("Value error, "), "see /docs for what it takes"
    if (field, error["type"]) in BY_FIELD:
        remedy = BY_FIELD[field, error["type"]]
    elif error["type"] in REMEDIES:
        remedy = REMEDIES[error["type"]].format(**error.get("ctx", {}))
    elif "; " in problem:
        problem, remedy = problem.split("; ", 1)
    return FieldProblem(field=field, problem=problem, remedy=remedy)
