"""The one schema of what may be asked of the solvers."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeAlias

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from solvers.door import Precision
from solvers.methods import METHODS, Penalty

Criterion: TypeAlias = Literal["relative_error", "objective", "relative_objective"]
Accelerate: TypeAlias = Literal["auto", "none", "compress"]
Init: TypeAlias = Literal["random", "random_scaled", "nndsvd"]


def _a_number(value: object) -> object:
    """Text and truth values can be read as numbers; whoever sends them has made a mistake."""
    if isinstance(value, str | bytes | bool):
        kind = "a truth value" if isinstance(value, bool) else "text"
        raise ValueError(f"must be a number, not {kind}; give one without quotes, such as 8")
    return value


Whole: TypeAlias = Annotated[int, BeforeValidator(_a_number)]
Number: TypeAlias = Annotated[float, BeforeValidator(_a_number)]
Flag: TypeAlias = Annotated[bool, Field(strict=True)]
NotNegative: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False), BeforeValidator(_a_number)]


def _in_range(weight: float) -> float:
    """Beyond these a penalty's squares and quotients leave the range of floating point."""
    if weight and not SMALLEST_WEIGHT <= weight <= 1 / SMALLEST_WEIGHT:
        raise ValueError(f"must be 0, or between {SMALLEST_WEIGHT:g} and {1 / SMALLEST_WEIGHT:g}")
    return weight


def _as_list(value: object) -> object:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _form(value: object) -> str:
    return "per_mode" if isinstance(value, list | tuple) else "number"


SMALLEST_WEIGHT = 1e-50
Weight: TypeAlias = Annotated[NotNegative, AfterValidator(_in_range)]


# A discriminator, so that a bad entry is reported once and not for each form it might have had.
PerMode: TypeAlias = Annotated[
    Annotated[Weight, Tag("number")] | Annotated[tuple[Weight, ...], Tag("per_mode")],
    Discriminator(_form),
    BeforeValidator(_as_list),
]

RECOMMENDED: Mapping[str, Any] = {
    "method": "anls-bpp",
    "penalty": "l1",
    "rescale": True,
    "init": "random_scaled",
    "accelerate": "auto",
    "stop": {"criterion": "relative_objective", "tolerance": 1e-6, "patience": 5},
}


def _known_method(name: str) -> str:
    if name not in METHODS:
        raise ValueError(f"unknown method {name!r}; choose one of {', '.join(METHODS)}")
    return name


MethodName: TypeAlias = Annotated[
    str, AfterValidator(_known_method), WithJsonSchema({"type": "string", "enum": list(METHODS)})
]


class Stop(BaseModel):
    """When to stop. The defaults are the paper's; tolerances are absolute unless the criterion says relative."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    criterion: Criterion = Field("relative_error", description="whose change from one iteration to the next counts")
    tolerance: NotNegative = Field(1e-8, description="stop when the change is below; 0 never stops by change")
    patience: Whole = Field(1, ge=1, description="on that many consecutive iterations")
    max_iterations: Whole = Field(10_000, ge=1, description="stop after that many iterations")
    max_seconds: Number | None = Field(
        None, gt=0, allow_inf_nan=False, description="stop after that much computing time; null for no limit"
    )


class Settings(BaseModel):
    """One decomposition. With only rank and method given, everything is as in the paper."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: Whole = Field(ge=1, description="number of components R")
    method: MethodName = Field(description="one of the six methods")
    alpha: PerMode = Field(1e-6, description="weight of ½‖Aⁿ‖², one for all modes or one per mode")
    beta: PerMode = Field(0.0, description="weight of the sparsity penalty, one for all modes or one per mode")
    penalty: Penalty | None = Field(
        None, description="l1: β‖Aⁿ‖₁; l1_squared: β/2 Σ‖row‖₁²; null: the method's own of the paper"
    )
    seed: Whole = Field(0, ge=0, description="seed of the starting factors")
    init: Init = Field(
        "random",
        description="random: max(0, randn); random_scaled: the same, fitted in size; nndsvd: from singular vectors",
    )
    precision: Precision | None = Field(
        None, description="of the tensor products; null: the tensor's own if it is floating, else float64"
    )
    rescale: Flag = Field(False, description="balance the scale of each component over the modes after every sweep")
    inner_passes: Whole = Field(1, ge=1, le=1000, description="updates of a mode per sweep (mu, hals, apg)")
    normalise: Flag | None = Field(
        None, description="hals: unit columns in all modes but the last; null: yes, as in the paper, unless rescaled"
    )
    delta_omega: Number | None = Field(
        None, ge=0, lt=1, description="apg: bound on the extrapolation weight; null: 0.9999"
    )
    accelerate: Accelerate = Field(
        "none",
        description="compress: sweep over a compressed tensor first, then over the tensor itself until the stopping "
        "rule holds there; auto: the same where the shape and the spectrum promise a gain; none: never",
    )
    sparsity_threshold: NotNegative = Field(1e-3, description="entries below count as zero")
    stop: Stop = Stop()
    preset: Literal["recommended"] | None = Field(
        None, description="recommended: fills every field that is left out with the setting we stand behind"
    )

    @classmethod
    def recommended(cls, rank: int, **fields: Any) -> Self:
        """The setting we stand behind; any field given wins over it."""
        return cls.model_validate({"preset": "recommended", "rank": rank, **fields})

    @model_validator(mode="before")
    @classmethod
    def _fill_preset(cls, fields: Any) -> Any:
        if not isinstance(fields, Mapping) or fields.get("preset") != "recommended":
            return fields
        filled = {**RECOMMENDED, **fields}
        stop = filled["stop"]
        given = stop.model_dump(exclude_unset=True) if isinstance(stop, Stop) else stop
        if isinstance(given, Mapping):
            filled["stop"] = {**RECOMMENDED["stop"], **given}
        return filled

    @field_validator("inner_passes", "normalise", "delta_omega")
    @classmethod
    def _belongs_to_method(cls, value: Any, field: ValidationInfo) -> Any:
        method, option = field.data.get("method"), field.field_name
        if method is None or value == cls.model_fields[str(option)].default or option in METHODS[method].options:
            return value
        owners = ", ".join(name for name, known in METHODS.items() if option in known.options)
        raise ValueError(f"does not belong to {method}; leave it out, or choose one of {owners}")

    @field_validator("accelerate")
    @classmethod
    def _can_be_compressed(cls, value: Accelerate, field: ValidationInfo) -> Accelerate:
        method = field.data.get("method")
        if value == "compress" and method is not None and not METHODS[method].compressible:
            raise ValueError(
                f"{method} needs a nonnegative tensor, which a compressed one is not; choose another method"
            )
        return value

    @field_validator("normalise")
    @classmethod
    def _scale_is_fixed_once(cls, value: bool | None, field: ValidationInfo) -> bool | None:
        if value and field.data.get("rescale"):
            raise ValueError("fixes the scale that rescale moves; leave one of the two out")
        return value
