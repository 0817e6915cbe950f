"""Plain-English messages for pydantic's validation errors. Imports nothing else: the `ncp` command uses it, too."""

from collections.abc import Mapping
from typing import Any

UNKNOWN = "is not known here"
REMEDIES: Mapping[str, str] = {
    "missing": "give it",
    "extra_forbidden": "leave it out, or check its spelling and its place against /docs",
    "greater_than_equal": "give {ge} or more",
    "greater_than": "give more than {gt}",
    "less_than_equal": "give {le} or less",
    "less_than": "give less than {lt}",
    "literal_error": "give {expected}",
    "finite_number": "give a finite number",
    "string_too_long": "shorten it to {max_length} characters",
    "string_too_short": "give a longer text",
    "bool_type": "give true or false, without quotes",
    "int_from_float": "give a whole number",
    "int_parsing": "give a whole number",
    "int_type": "give one whole number",
    "float_type": "give one number",
    "string_type": "give text, in quotes",
    "list_type": "give a list, in square brackets",
    "tuple_type": "give a list, in square brackets",
    "too_short": "give at least {min_length}",
    "too_long": "give at most {max_length}",
    "model_type": "give a JSON object, in braces",
    "model_attributes_type": "give a JSON object, in braces",
}
# Replace messages of pydantic that mention Python or its own terms.
PROBLEMS: Mapping[str, str] = {
    "missing": "is required",
    "extra_forbidden": UNKNOWN,
    "greater_than_equal": "is less than {ge}",
    "greater_than": "is not more than {gt}",
    "less_than_equal": "is more than {le}",
    "less_than": "is not less than {lt}",
    "literal_error": "is not {expected}",
    "finite_number": "is not finite",
    "string_too_long": "is longer than {max_length} characters",
    "string_too_short": "is too short",
    "bool_type": "is not true or false",
    "int_from_float": "is not a whole number",
    "int_parsing": "is not a whole number",
    "int_type": "is not a whole number",
    "float_parsing": "is not a number",
    "float_type": "is not a number",
    "string_type": "is not text",
    "list_type": "is not a list",
    "tuple_type": "is not a list",
    "model_type": "is not a JSON object",
    "model_attributes_type": "is not a JSON object",
    "too_short": "has too few entries",
    "too_long": "has more than {max_length} entries",
}


def in_words(error: Mapping[str, Any], manual: str = "/docs") -> tuple[str, str]:
    """Return problem and remedy for one entry of `ValidationError.errors()`. Our own messages have both: "…; …"."""
    kind = error["type"]
    context = {
        name: f"{value:g}" if isinstance(value, float) else value for name, value in error.get("ctx", {}).items()
    }
    problem = PROBLEMS[kind].format(**context) if kind in PROBLEMS else error["msg"].removeprefix("Value error, ")
    remedy = REMEDIES.get(kind, f"see {manual} for what it takes").format(**context)
    if kind not in REMEDIES and "; " in problem:
        problem, remedy = problem.split("; ", 1)
    return problem, remedy
