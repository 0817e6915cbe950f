"""Settings of the studies `choose` and `compare`."""

from collections.abc import Mapping
from itertools import product
from typing import Any, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sparse_ncp.solvers.methods import Penalty
from sparse_ncp.solvers.settings import (
    RECOMMENDED,
    Exclude,
    MethodName,
    Mode,
    NotNegative,
    Number,
    Positive,
    Settings,
    Share,
    Whole,
)
from sparse_ncp.solvers.studies.fitting.noise import NoiseKind
from sparse_ncp.solvers.tensor.validation import Missing, Negative
from sparse_ncp.solvers.zeros import Zeros

NoiseSetting: TypeAlias = Literal["auto"] | NoiseKind


class SplitHalf(BaseModel):
    """Fit halves of the data along one mode separately, and compare the factors of the other modes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: Whole = Field(ge=1, description="the mode to split, counted from 1: that of the samples")
    parts: Literal[2, 4, 6] = Field(
        4, description="parts that are combined into halves: 2, 4 or 6 parts give 1, 3 or 10 pairs of halves"
    )


class Holdout(BaseModel):
    """Leave entries out of a fit, and measure how well it predicts them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fraction: Number = Field(0.1, gt=0, le=0.5, allow_inf_nan=False, description="fraction of the entries to leave out")
    folds: Whole = Field(2, ge=1, le=20, description="number of times that new entries are left out")
    block: tuple[Positive, ...] | None = Field(
        None, description="lengths of the blocks to leave out, one per mode; null for single entries"
    )


class Validation(BaseModel):
    """Checks of a number of components on data that were not fitted."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    split_half: SplitHalf | None = None
    holdout: Holdout | None = None


class ChoiceSettings(BaseModel):
    """Settings of the search for the number of components."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    rank: Whole = Field(
        12, ge=2, le=200, description="components to start from, of which at most three quarters can be found"
    )
    seeds: Whole = Field(3, ge=1, le=50, description="random starts; a single one is never sure")
    seed: Whole = Field(0, ge=0, description="seed of the first start and of all that is drawn")
    missing: Missing = Field(
        "refuse", description="refuse: a NaN is an error; nan: it stands for an entry that was not observed"
    )
    negative: Negative = Field(
        "refuse", description="refuse: a negative entry is an error; keep: fit it as it is, without clipping"
    )
    zeros: Zeros = Field(
        "readings",
        description="readings: zeros were measured; missing: leave out zeros that look like missing readings; if there "
        "are any, the advice says what both give",
    )
    exclude: Exclude | None = Field(
        None,
        description='indices to leave out, by mode: {"1": [2, 5]}. Modes count from 1, indices from 0; a text is a '
        "label of the tensor's axes",
    )
    samples_mode: Mode = Field(1, description="the mode whose indices are the samples, counted from 1")
    noise: NoiseSetting = Field(
        "auto",
        description="gaussian: any level, which may depend on the signal; clipped: negative readings were set to zero; "
        "counts: Poisson; auto: decided by the entries",
    )
    validation: Validation = Field(
        Validation(), alias="validate", description="further checks of the number of components"
    )


# Settings that a cell of the grid decides; every other field may be given once for all runs.
VARIED = ("rank", "method", "beta", "sparsity", "seed")
COMMON = tuple(name for name in Settings.model_fields if name not in VARIED)
# The penalty of all methods, unless a comparison names one, or null for that of each method: the methods' own are two
# functions, whose objectives and weights cannot be compared.
PENALTY: Penalty = "l1"


class Cell(BaseModel):
    """One combination of settings in a comparison."""

    model_config = ConfigDict(frozen=True)

    rank: int
    method: str
    beta: float | None
    sparsity: float | None
    penalty: Penalty | None = Field(None, description="what the weight multiplies; null where the weight is 0")

    def __str__(self) -> str:
        weight = f"beta {self.beta:g}" if self.sparsity is None else f"sparsity {self.sparsity:g}"
        return f"rank {self.rank}, {self.method}, {weight}{' (squared)' if self.penalty == 'l1_squared' else ''}"


class ComparisonSettings(BaseModel):
    """A grid of runs: every rank with every method and every weight, from the same starts.

    All other fields of `Settings` may be given as well, and apply to every run. The penalty is the plain one for all
    methods unless `penalty` is given; with `penalty=None` each method has its own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    ranks: tuple[Positive, ...] = Field(min_length=1, description="numbers of components")
    methods: tuple[MethodName, ...] = Field(min_length=1, description="names of methods")
    betas: tuple[NotNegative, ...] | None = Field(None, min_length=1, description="weights of the sparsity penalty")
    sparsities: tuple[Share, ...] | None = Field(None, min_length=1, description="relative weights, in place of betas")
    repeats: Whole = Field(
        5, ge=1, le=1000, description="runs of each cell; run k starts from the same factors in every cell"
    )
    seed: Whole = Field(0, ge=0, description="seed of the first run of each cell; each further run adds 1")
    validation: Validation = Field(
        Validation(), alias="validate", description="validation of every rank, without a penalty"
    )
    common: Mapping[str, Any] = Field(default_factory=dict, description="settings that apply to every run")

    @model_validator(mode="before")
    @classmethod
    def _gather_common(cls, fields: Any) -> Any:
        if not isinstance(fields, Mapping) or "common" in fields:
            return fields
        common = {"penalty": PENALTY, **{name: _plain(fields[name]) for name in COMMON if name in fields}}
        return {**{name: value for name, value in fields.items() if name not in common}, "common": common}

    @model_validator(mode="after")
    def _makes_runs(self) -> Self:
        """Check that every cell makes valid settings, and report the field that does not."""
        if self.betas is not None and self.sparsities is not None:
            raise _refused("sparsities", "are given together with betas; give one of the two")
        for name in ("ranks", "methods", "betas", "sparsities"):
            values = getattr(self, name) or ()
            if len(set(values)) < len(values):
                raise _refused(name, "has an entry twice; list each once")
        unknown = [name for name in self.common if name not in COMMON]
        if unknown:
            raise _refused(unknown[0], "does not hold for all runs; remove it")
        for cell in self.cells:
            self.settings(cell, 0)
        return self

    @property
    def cells(self) -> list[Cell]:
        """The cells of the grid, in the order of ranks, methods and weights."""
        weights = [(None, s) for s in self.sparsities] if self.sparsities else [(b, None) for b in self.betas or (0.0,)]
        squared = {name: Settings(rank=1, method=name, penalty=self.penalty).penalises_squared for name in self.methods}
        return [
            Cell(
                rank=rank,
                method=method,
                beta=beta,
                sparsity=sparsity,
                penalty=("l1_squared" if squared[method] else "l1") if beta or sparsity else None,
            )
            for rank, method, (beta, sparsity) in product(self.ranks, self.methods, weights)
        ]

    @property
    def penalty(self) -> Penalty | None:
        """The penalty of all runs; None if each method has its own."""
        preset = RECOMMENDED["penalty"] if self.common.get("preset") == "recommended" else None
        penalty: Penalty | None = self.common.get("penalty", preset)
        return penalty

    def settings(self, cell: Cell, repeat: int) -> Settings:
        """Return the settings of one run."""
        weight = {"beta": cell.beta} if cell.sparsity is None else {"sparsity": cell.sparsity}
        fields = {"rank": cell.rank, "method": cell.method, "seed": self.seed + repeat, **weight, **self.common}
        return Settings.model_validate(fields)


def _plain(value: object) -> object:
    """Return a nested model as JSON data, so that saved settings equal those that were given."""
    return value.model_dump(mode="json", exclude_unset=True) if isinstance(value, BaseModel) else value


def _refused(field: str, problem: str) -> ValidationError:
    details: Any = {"type": "value_error", "loc": (field,), "input": None, "ctx": {"error": ValueError(problem)}}
    return ValidationError.from_exception_data("ComparisonSettings", [details])
