"""Options that commands share, and options for the fields of jobs and studies."""

import inspect
import json
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from ncp_client.fields import StopFields

Url = Annotated[str | None, typer.Option("--url", help="address of the server (NCP_URL, or as stored by ncp login)")]
Key = Annotated[str | None, typer.Option("--key", help="API key (NCP_KEY, or as stored by ncp login)")]
Json = Annotated[bool, typer.Option("--json", help="print JSON, for scripts")]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="the id of a job")]


def with_options(fields: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that replaces the parameter `fields` of a command by one option per field."""
    return partial(_with_options, fields)


def _with_options(known: type, command: Callable[..., None]) -> Callable[..., None]:
    own = inspect.signature(command, eval_str=True).parameters
    options = {**_options(known), **_options(StopFields)}
    del options["stop"]

    @wraps(command)
    def with_fields(**given: Any) -> None:
        asked = {name: given.pop(name) for name in options}
        fields = {name: parse_value(options[name], text) for name, text in asked.items() if text is not None}
        if isinstance(fields.get("exclude"), str):
            fields["exclude"] = parse_exclusion(fields["exclude"])
        stop = {name: fields.pop(name) for name in StopFields.__annotations__ if name in fields}
        command(**given, fields={**fields, **({"stop": stop} if stop else {})})

    kept = [parameter for name, parameter in own.items() if name != "fields"]
    added = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                str | None,
                typer.Option(f"--{name.replace('_', '-')}", metavar="VALUE", help=help, show_default=False),
            ],
        )
        for name, (_, help) in options.items()
    ]
    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in kept] + added
    with_fields.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_fields.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_fields


def _options(fields: type) -> dict[str, tuple[Any, str]]:
    """Return type and help of each field."""
    hints = get_type_hints(fields, include_extras=True)
    return {name: get_args(hint) for name, hint in hints.items()}


def parse_value(option: tuple[Any, str], text: str) -> Any:
    """Convert the text of an option to the value of its field.

    The text is read as JSON, unless the field takes any text: an id may look like a number. The server checks the rest.
    """
    entry = _entry(option[0])
    if entry is not None and not text.startswith("["):
        return [parse_value((entry, ""), part.strip()) for part in text.split(",")]
    kinds = get_args(option[0]) or (option[0],)
    if str in kinds and not text.startswith("{"):
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def parse_exclusion(text: str) -> dict[str, list[int | str]]:
    """Convert `1:2,5 2:blank` to `{"1": [2, 5], "2": ["blank"]}`; modes are separated by spaces or semicolons."""
    found: dict[str, list[int | str]] = {}
    for part in text.replace(";", " ").split():
        mode, colon, entries = part.partition(":")
        if not colon or not mode.isdigit() or not entries:
            raise typer.BadParameter(f"--exclude: {part!r} is not MODE:INDEX,INDEX, such as 1:2,5; or give JSON")
        found.setdefault(mode, []).extend(int(one) if one.isdigit() else one for one in entries.split(","))
    return found


def _entry(hint: Any) -> Any | None:
    """Return the type of the entries of a field that is always a list; None for other fields."""
    kinds = (hint,) if get_origin(hint) is Sequence else get_args(hint)
    if float in kinds:
        return None
    return next((get_args(kind)[0] for kind in kinds if get_origin(kind) is Sequence), None)
