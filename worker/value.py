"""What every small type is."""

from pydantic import BaseModel, ConfigDict


class Value(BaseModel):
    """A frozen value: equal when its fields are, refusing fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")
