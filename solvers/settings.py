"""Settings of a run: the schema that Python, HTTP and the stored jobs share."""

import json
from collections.abc import Mapping
from inspect import cleandoc
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

from sparse_ncp.solvers.methods import METHODS, Penalty
from sparse_ncp.solvers.tensor.validation import MAX_ORDER, MIN_ORDER, Missing, Negative, Precision
from sparse_ncp.solvers.zeros import Zeros

Criterion: TypeAlias = Literal["relative_error", "objective", "relative_objective"]
Accelerate: TypeAlias = Literal["auto", "none", "compress", "float32"]
Init: TypeAlias = Literal["random", "random_scaled", "nndsvd"]


# Types that are not numbers, in JSON's words. Text and booleans could be converted, but hide a mistake of the caller.
NO_NUMBERS: Mapping[type, str] = {
    bool: "a boolean",
    str: "text",
    bytes: "text",
    list: "a list",
    tuple: "a list",
    dict: "an object",
    type(None): "null",
}


def _a_number(value: object) -> object:
    kind = next((word for type_, word in NO_NUMBERS.items() if isinstance(value, type_)), None)
    if kind is not None:
        remedy = "without brackets" if kind == "a list" else "without quotes"
        raise ValueError(f"must be a number, not {kind}; give one {remedy}, such as 8")
    return value


Whole: TypeAlias = Annotated[int, BeforeValidator(_a_number)]
Number: TypeAlias = Annotated[float, BeforeValidator(_a_number)]
Flag: TypeAlias = Annotated[bool, Field(strict=True)]
NotNegative: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False), BeforeValidator(_a_number)]


def _in_range(weight: float) -> float:
    """Refuse weights whose squares and quotients leave the range of floating point."""
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
    Annotated[Weight, Tag("number")]
    | Annotated[
        tuple[Weight, ...], Field(json_schema_extra={"minItems": MIN_ORDER, "maxItems": MAX_ORDER}), Tag("per_mode")
    ],
    Discriminator(_form),
    BeforeValidator(_as_list),
]

# Bounds stand inside of `| None`, where they become words of JSON Schema.
Seconds: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(_a_number)]
Momentum: TypeAlias = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False), BeforeValidator(_a_number)]
Positive: TypeAlias = Annotated[int, Field(ge=1), BeforeValidator(_a_number)]
Mode: TypeAlias = Annotated[int, Field(ge=1, le=MAX_ORDER), BeforeValidator(_a_number)]
Resamples: TypeAlias = Annotated[int, Field(ge=5, le=1000), BeforeValidator(_a_number)]
StartCount: TypeAlias = Annotated[int, Field(ge=1, le=100), BeforeValidator(_a_number)]
Share: TypeAlias = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False), BeforeValidator(_a_number)]
# An enum in the schema: generators take a `const` beside a number for the only value.
Auto: TypeAlias = Annotated[Literal["auto"], WithJsonSchema({"type": "string", "enum": ["auto"]})]
ShareOrAuto: TypeAlias = Annotated[
    Annotated[Share, Tag("share")] | Annotated[Auto, Tag("auto")],
    Discriminator(lambda value: "auto" if isinstance(value, str) else "share"),
]


def _each_once(entries: "tuple[int | str, ...]") -> "tuple[int | str, ...]":
    twice = next((entry for place, entry in enumerate(entries) if entry in entries[:place]), None)
    if twice is not None:
        raise ValueError(f"names {twice!r} twice; name each index once")
    return entries


Index: TypeAlias = Annotated[int, Field(ge=0), BeforeValidator(_a_number)]
Label: TypeAlias = Annotated[str, Field(min_length=1, max_length=200)]
Excluded: TypeAlias = Annotated[
    Annotated[Index, Tag("index")] | Annotated[Label, Tag("label")],
    Discriminator(lambda value: "label" if isinstance(value, str) else "index"),
]
# Keys are text in JSON, which is why text that is a number is taken for one here.
Exclude: TypeAlias = Annotated[
    dict[Annotated[int, Field(ge=1, le=MAX_ORDER)], Annotated[tuple[Excluded, ...], AfterValidator(_each_once)]],
    AfterValidator(lambda exclude: {mode: entries for mode, entries in sorted(exclude.items()) if entries} or None),
]

RECOMMENDED: Mapping[str, Any] = {
    "method": "anls-bpp",
    "penalty": "l1",
    "rescale": True,
    "init": "random_scaled",
    "accelerate": "auto",
    "extrapolate": None,
    "regrow": None,
    "starts": None,
    "stop": {"criterion": "relative_objective", "tolerance": 1e-6, "patience": 5},
}


def _penalises_squared(method: str, penalty: Penalty | None) -> bool:
    return (penalty or METHODS[method].penalty) == "l1_squared"


def _known_method(name: str) -> str:
    if name not in METHODS:
        raise ValueError(f"unknown method {name!r}; choose one of {', '.join(METHODS)}")
    return name


MethodName: TypeAlias = Annotated[
    str, AfterValidator(_known_method), WithJsonSchema({"type": "string", "enum": list(METHODS)})
]


def move_defaults(schema: dict[str, Any], preset: Mapping[str, Any]) -> None:
    """Move the defaults of what a preset may set into the descriptions.

    A client that is generated from the schema sends its defaults along, and what is sent wins over the preset.
    """
    if "description" in schema:  # its fields have descriptions of their own
        schema["description"] = schema["description"].split("\n\nParameters\n")[0].split("\n\nExamples\n")[0]
    for name, value in preset.items():
        field = schema["properties"][name]
        default = field.pop("default", None)
        if isinstance(value, Mapping):
            continue  # its own fields have their defaults
        plain = "required" if name in schema.get("required", ()) else f"default {json.dumps(default)}"
        field["description"] += f"; {plain}, with the preset {json.dumps(value)}"


class Stop(BaseModel):
    """When to stop. The defaults are the paper's; tolerances are absolute unless the criterion says relative.

    Examples
    --------
    >>> from sparse_ncp import Stop
    >>> Stop(criterion="relative_objective", tolerance=1e-6).max_iterations
    10000
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", json_schema_extra=lambda schema: move_defaults(schema, RECOMMENDED["stop"])
    )

    criterion: Criterion = Field(
        "relative_error",
        description="the quantity whose change from one iteration to the next is compared with the tolerance",
    )
    tolerance: NotNegative = Field(1e-8, description="stop when the change is below; 0 never stops by change")
    patience: Whole = Field(
        1, ge=1, description="how many consecutive iterations must change by less than the tolerance"
    )
    max_iterations: Whole = Field(10_000, ge=1, description="stop after that many iterations")
    max_seconds: Seconds | None = Field(None, description="stop after that much computing time; null for no limit")


class Settings(BaseModel):
    """Settings of one decomposition. With only rank and method given, everything is as in the paper.

    Examples
    --------
    >>> from sparse_ncp import Settings
    >>> Settings(rank=5, method="hals").penalises_squared
    False
    >>> Settings.recommended(5, sparsity="auto").method
    'anls-bpp'
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", json_schema_extra=lambda schema: move_defaults(schema, RECOMMENDED)
    )

    rank: Whole = Field(ge=1, description="number of components R")
    missing: Missing = Field(
        "refuse", description="refuse: a NaN is an error; nan: it stands for an entry that was not observed"
    )
    negative: Negative = Field(
        "refuse", description="refuse: a negative entry is an error; keep: fit it as it is, with any method but mu"
    )
    zeros: Zeros = Field(
        "readings",
        description="readings: a zero is a reading; missing: fibres of zeros count as not observed where a fit of the "
        "other entries expects far more, as where readings were cut out",
    )
    method: MethodName = Field(description="one of the methods: the paper's six, and anls-hybrid")
    alpha: PerMode = Field(1e-6, description="weight of ½‖Aⁿ‖², one for all modes or one per mode")
    beta: PerMode = Field(0.0, description="weight of the sparsity penalty, one for all modes or one per mode")
    penalty: Penalty | None = Field(
        None, description="l1: β‖Aⁿ‖₁; l1_squared: β/2 Σ‖row‖₁²; null: the method's own of the paper"
    )
    sparsity: ShareOrAuto | None = Field(
        None,
        description="instead of beta: drop components weaker than this fraction of the norm of the tensor; 'auto' uses "
        "twice the estimated noise level (a starting point); alpha is then relative to the scale of the tensor",
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
    delta_omega: Momentum | None = Field(None, description="apg: bound on the extrapolation weight; null: 0.9999")
    extrapolate: Flag | None = Field(
        False,
        description="extrapolate each sweep in its direction, and repeat it without if the objective rose; "
        "null: where the method allows it",
    )
    regrow: Flag | None = Field(
        False,
        description="replace components that have vanished, if that lowers the objective; null: unless initial "
        "factors are given",
    )
    starts: StartCount | None = Field(
        1,
        description="number of starts that are compared in short runs; the one with the lowest objective goes on; "
        "null: 8, but 1 with initial factors",
    )
    starts_mode: Literal["best", "all"] = Field(
        "best",
        description="best: continue the few best starts, and one of them to the end; all: run every start to the end",
    )
    accelerate: Accelerate = Field(
        "none",
        description="compress: sweep over a compressed tensor first, then over the tensor itself until the stopping "
        "rule holds there; float32: sweep over a copy in single precision first; auto: either of them if it will "
        "probably save time; none: neither",
    )
    sparsity_threshold: NotNegative = Field(1e-3, description="entries below count as zero")
    exclude: Exclude | None = Field(
        None,
        description='indices to leave out of the fit, by mode: {"1": [2, 5]}. Modes count from 1, indices from 0; a '
        "text is a label of the tensor's axes. Their rows of the factors are computed at the end, for the fitted model",
    )
    samples_mode: Mode = Field(
        1,
        description="the mode whose indices are the samples, counted from 1: for outlying samples and for stability",
    )
    diagnose: Flag = Field(
        True,
        description="two more passes over the tensor at the end, seven if entries are missing, and refits without "
        "each sample: core consistency, squared residual and leverage per index, congruence of components, outlying "
        "samples, regions without readings",
    )
    stability: Flag = Field(
        False,
        description="refit the result to bootstrap resamples and to halves of the samples, to assess how reliable each "
        "component is; up to 30 sweeps for each resample, and 240 for the halves",
    )
    resamples: Resamples = Field(20, description="number of bootstrap resamples for stability")
    stop: Stop = Field(Stop(), description="when to stop")
    preset: Literal["recommended"] | None = Field(
        None, description="recommended: fills every field that is left out with the recommended defaults"
    )

    @classmethod
    def recommended(cls, rank: int, **fields: Any) -> Self:
        """Return the recommended defaults for a rank; any field that is given takes precedence."""
        return cls.model_validate({"preset": "recommended", "rank": rank, **fields})

    @classmethod
    def from_stored(cls, fields: Mapping[str, Any]) -> Self:
        """Restore settings that were saved by this or an older version; fields that they lack are off."""
        plain = cls.model_validate({"diagnose": False, **fields, "preset": None})
        return plain.model_copy(update={"preset": fields.get("preset")})

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

    @field_validator("method")
    @classmethod
    def _takes_negative_entries(cls, value: str, field: ValidationInfo) -> str:
        if field.data.get("negative") == "keep" and not METHODS[value].signed:
            able = ", ".join(name for name, known in METHODS.items() if known.signed)
            raise ValueError(f"{value} cannot keep negative entries; choose one of {able}, or set them to zero first")
        return value

    @field_validator("sparsity")
    @classmethod
    def _is_the_only_weight(cls, value: Any, field: ValidationInfo) -> Any:
        given = field.data
        if value is None or "method" not in given:
            return value
        beta = given.get("beta", 0.0)
        if any(beta) if isinstance(beta, tuple) else beta:
            raise ValueError("cannot be combined with beta; leave one of the two out")
        if _penalises_squared(given["method"], given.get("penalty")):
            raise ValueError("needs the plain penalty; give penalty 'l1'")
        return value

    @property
    def penalises_squared(self) -> bool:
        """Whether the squared l1 penalty is meant, asked for or as the method's own."""
        return _penalises_squared(self.method, self.penalty)

    @field_validator("inner_passes", "normalise", "delta_omega")
    @classmethod
    def _belongs_to_method(cls, value: Any, field: ValidationInfo) -> Any:
        method, option = field.data.get("method"), field.field_name
        if method is None or value == cls.model_fields[str(option)].default or option in METHODS[method].options:
            return value
        owners = ", ".join(name for name, known in METHODS.items() if option in known.options)
        raise ValueError(f"does not belong to {method}; leave it out, or choose one of {owners}")

    @field_validator("extrapolate")
    @classmethod
    def _can_be_extrapolated(cls, value: bool | None, field: ValidationInfo) -> bool | None:
        method = field.data.get("method")
        if value and method is not None and not METHODS[method].extrapolable:
            able = ", ".join(name for name, known in METHODS.items() if known.extrapolable)
            raise ValueError(f"cannot be combined with {method}; leave it out, or choose one of {able}")
        return value

    @field_validator("regrow")
    @classmethod
    def _can_put_back(cls, value: bool | None, field: ValidationInfo) -> bool | None:
        given = field.data
        if value and "method" in given and _penalises_squared(given["method"], given.get("penalty")):
            raise ValueError("needs the plain penalty; give penalty 'l1'")
        return value

    @field_validator("extrapolate", "regrow")
    @classmethod
    def _needs_free_scales(cls, value: bool | None, field: ValidationInfo) -> bool | None:
        given = field.data
        option = "normalise" in METHODS[given["method"]].options if "method" in given else False
        asked = given.get("normalise")
        if value and option and (not given.get("rescale") if asked is None else asked):
            raise ValueError("needs components whose scale is free; give normalise false, or rescale true")
        return value

    @field_validator("accelerate")
    @classmethod
    def _can_be_compressed(cls, value: Accelerate, field: ValidationInfo) -> Accelerate:
        method = field.data.get("method")
        if value == "compress" and method is not None and not METHODS[method].signed:
            raise ValueError(
                f"{method} needs a nonnegative tensor, which a compressed tensor need not be; choose another method"
            )
        return value

    @field_validator("normalise")
    @classmethod
    def _scale_is_fixed_once(cls, value: bool | None, field: ValidationInfo) -> bool | None:
        if value and field.data.get("rescale"):
            raise ValueError("fixes the scale that rescale moves; leave one of the two out")
        return value


def _list_parameters(model: type[BaseModel]) -> None:
    """Add the descriptions of the fields to the docstring of a model, so that they are written once."""
    summary, examples = cleandoc(str(model.__doc__)).split("Examples\n")
    lines = [f"{name}\n    {field.description}\n" for name, field in model.model_fields.items()]
    model.__doc__ = f"{summary}Parameters\n----------\n{''.join(lines)}\nExamples\n{examples}"


for _model in (Stop, Settings):
    _list_parameters(_model)
