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
    """An option or a variable has a value that its field refuses."""

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
    """The configuration: options win over NCP_ variables, and these over the defaults."""
    return validated(Configuration, {name: value for name, value in options.items() if value is not None})


def validated(model: type[Model], values: Mapping[str, Any]) -> Model:
    """The model with these values. What it refuses is named on one line."""
    try:
        return model(**values)
    except ValidationError as error:
        raise InvalidOption("; ".join(map(_in_words, error.errors()))) from error


def _in_words(error: Mapping[str, Any]) -> str:
    problem, remedy = in_words(error, manual="--help")
    return f"{'.'.join(map(str, error['loc']))}: {problem} ({remedy})"
