"""Former names of fields: written beside the new ones, and still read, so that version 1 of the API stays readable."""

from collections.abc import Mapping
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, SerializerFunctionWrapHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema


class FormerNames:
    """Repeat fields of a model or dataclass under their former names.

    Use it as metadata of a type: `Annotated[Advice, FormerNames(sure="confidence")]` writes `confidence` and `sure`
    with the same value, marks `sure` as deprecated in the OpenAPI document, and reads records that have `sure` alone.

    Parameters
    ----------
    **names
        The present name of each field, by its former name.
    """

    def __init__(self, **names: str) -> None:
        self._names = names

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        inner = handler(source)
        return core_schema.no_info_before_validator_function(
            self._read, inner, serialization=core_schema.wrap_serializer_function_ser_schema(self._write, schema=inner)
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        reference = handler(schema)
        fields: dict[str, Any] = handler.resolve_ref_schema(reference)["properties"]
        for former, present in self._names.items():
            fields[former] = {**fields[present], "deprecated": True, "description": f"former name of `{present}`"}
            fields[former]["title"] = former.replace("_", " ").title()
        return reference

    def _read(self, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        renamed = {self._names[name]: value[name] for name in self._names if name in value}
        return {**renamed, **{name: found for name, found in value.items() if name not in self._names}}

    def _write(self, value: Any, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = serialize(value)
        return fields | {former: fields[present] for former, present in self._names.items() if present in fields}
