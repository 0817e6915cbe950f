"""Options of the `ncp` command. Each is a field of a model: one description and one place of validation."""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import typer
from pydantic import BaseModel, ValidationError

from ncp_client.cli.exit_codes import ExitCode
from sparse_ncp.app.errors.messages import in_words
from sparse_ncp.worker.config import Configuration

Model = TypeVar("Model", bound=BaseModel)


class InvalidOption(typer.TyperException):
    """An option or a variable has an invalid value."""

    exit_code = ExitCode.REFUSED


def _setting(name: str) -> Any:
    field = Configuration.model_fields[name]
    default = "" if field.default is None else f", default {field.default}"
    text = f"{field.description} (NCP_{name.upper()}{default})"
    return typer.Option(f"--{name.replace('_', '-')}", metavar=name.upper(), help=text, show_default=False)


Host = Annotated[str | None, _setting("host")]
Port = Annotated[str | None, _setting("port")]
Data = Annotated[str | None, _setting("data")]
RedisUrl = Annotated[str | None, _setting("redis_url")]
Workers = Annotated[str | None, _setting("workers")]
LogLevel = Annotated[str | None, _setting("log_level")]
LogFormat = Annotated[str | None, _setting("log_format")]
KeepJobsDays = Annotated[str | None, _setting("keep_jobs_days")]
KeepTensorsDays = Annotated[str | None, _setting("keep_tensors_days")]


def configured(**options: str | None) -> Configuration:
    """Return the configuration: options take precedence over NCP_ variables, and these over defaults."""
    return validated(Configuration, {name: value for name, value in options.items() if value is not None})


def validated(model: type[Model], values: Mapping[str, Any]) -> Model:
    """Return the model with these values, or raise InvalidOption with one line for all errors."""
    try:
        return model(**values)
    except ValidationError as error:
        named = [(".".join(map(str, one["loc"])), *in_words(one, manual="--help")) for one in error.errors()]
        raise InvalidOption("; ".join(f"{name}: {problem} ({remedy})" for name, problem, remedy in named)) from error
