"""The state of a choice after a step, which can be saved and resumed, and the outcome."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from numpy.typing import NDArray

from sparse_ncp.solvers.studies import rule
from sparse_ncp.solvers.studies.advice import Advice
from sparse_ncp.solvers.studies.archive import pack, unpack
from sparse_ncp.solvers.studies.fitting.candidates import Candidate, Chain
from sparse_ncp.solvers.studies.fitting.fits import Factors, Fit
from sparse_ncp.solvers.studies.fitting.noise import Noise, NoiseKind, from_fields
from sparse_ncp.solvers.studies.settings import ChoiceSettings
from sparse_ncp.solvers.studies.validation import Validated, checks
from sparse_ncp.solvers.tensor.products import Float64

Stage: TypeAlias = Literal["overfit", "exchange", "polish", "bootstrap", "refit", "sparsity", "validate", "done"]
FORMAT = 3

EXCHANGES = 2
MOST_STEPS_UP = 3
# Runs spent on the search for a sparsity.
SPARSITY_RUNS = 6


@dataclass(frozen=True)
class SparsityRun:
    """A run of the recommended settings with a sparsity, and how well it matches the chosen model."""

    sparsity: float
    beta: float
    components: int
    match: float


@dataclass(frozen=True)
class Point:
    """The evidence for one number of components. Gains are in units of u."""

    components: int
    relative_error: float
    gain: float  # of the last of these components
    null: rule.Null | None  # the same on tensors simulated with one component less
    agreement: float  # between seeds


@dataclass(frozen=True)
class Choice:
    """The outcome of a choice: advice, the suggested model in units of the tensor, and the evidence."""

    advice: Advice
    factors: tuple[Float64, ...]
    relative_error: float
    noise: NoiseKind
    noise_level: float  # norm of the noise divided by that of the tensor
    points: tuple[Point, ...]
    validated: Validated


@dataclass(frozen=True)
class ChoiceState:
    """The state of a choice after a step; it can be saved and resumed. The last one has an outcome."""

    settings: ChoiceSettings
    shape: tuple[int, ...]
    kind: NoiseKind
    unit: float  # the tensor's root mean square, in which factors and noise are kept
    rank: int  # of the overfit: as requested, or as large as the tensor allows
    stage: Stage = "overfit"
    step: int = 0  # within the stage
    noise: Noise | None = None
    chains: tuple[Chain, ...] = ()
    best: Mapping[int, Candidate] = field(default_factory=dict)
    components: int = 0  # the number that the rule gives
    nulls: Mapping[int, rule.Null] = field(default_factory=dict)
    steps_up: int = 0
    suggestion: int = 0
    seeds_agreeing: int = 0  # seeds whose own model is that of `components`
    seeds_disagreeing: int = 0  # seeds that fit as well with other components
    sparsity_runs: tuple[SparsityRun, ...] = ()
    checked: tuple[float, ...] = ()  # results of the validation checks that are done
    outcome: Choice | None = None

    @property
    def largest(self) -> int:
        """The largest model considered: the overfit minus a quarter, so that there are components to drop."""
        return max(1, self.rank - max(2, self.rank // 4))

    @property
    def numbers_to_validate(self) -> list[int]:
        """The numbers of components that are validated: the suggestion and its neighbours."""
        return [k for k in range(self.suggestion - 1, self.suggestion + 2) if 1 <= k <= self.largest]

    @property
    def progress(self) -> float:
        """From 0 to 1, by the time that stages usually take."""
        if self.stage == "done":
            return 1.0
        planned = len(checks(self.settings.validation, self.numbers_to_validate))
        begin, end, steps = {
            "overfit": (0.0, 0.5, self.settings.seeds),
            "exchange": (0.5, 0.6, EXCHANGES),
            "polish": (0.6, 0.65, 1),
            "bootstrap": (0.65, 0.75, 2 + MOST_STEPS_UP),
            "refit": (0.75, 0.77, 1),
            "sparsity": (0.77, 0.9, SPARSITY_RUNS),
            "validate": (0.9, 1.0, planned),
        }[self.stage]
        return begin + (end - begin) * min(1.0, self.step / max(1, steps))

    def to_bytes(self) -> bytes:
        """Save the state as the bytes of an `.npz` file without pickles; resumed anywhere, the outcome is the same."""
        arrays: dict[str, NDArray[Any]] = {}
        for place, made in enumerate(self.chains):
            arrays |= _named(f"overfit{place}", made.overfit.factors)
            for k, factors in made.models.items():
                arrays |= _named(f"chain{place}_{k}", factors)
        for k, candidate in self.best.items():
            arrays |= _named(f"best{k}", candidate.factors)
        header = {
            "study": "choose",
            "format": FORMAT,
            "settings": self.settings.model_dump(mode="json", by_alias=True),
            "shape": self.shape,
            "kind": self.kind,
            "unit": self.unit,
            "rank": self.rank,
            "stage": "validate" if self.stage == "done" else self.stage,  # which makes the outcome again
            "step": self.step,
            "noise": self.noise and asdict(self.noise),
            "chains": [(made.overfit.error, sorted(made.models)) for made in self.chains],
            "best": sorted((k, candidate.loss) for k, candidate in self.best.items()),
            "components": self.components,
            "nulls": [(k, asdict(null)) for k, null in sorted(self.nulls.items())],
            "steps_up": self.steps_up,
            "suggestion": self.suggestion,
            "seeds_agreeing": self.seeds_agreeing,
            "seeds_disagreeing": self.seeds_disagreeing,
            "sparsity_runs": [asdict(run) for run in self.sparsity_runs],
            "checked": self.checked,
        }
        return pack(header, arrays)

    @classmethod
    def from_bytes(cls, content: bytes) -> "ChoiceState":
        header, arrays = unpack(content, "choose", FORMAT)
        order = len(header["shape"])
        chains = tuple(
            Chain(
                Fit(_collected(arrays, f"overfit{place}", order), error),
                {k: _collected(arrays, f"chain{place}_{k}", order) for k in kept},
            )
            for place, (error, kept) in enumerate(header["chains"])
        )
        plain = (
            "kind",
            "unit",
            "rank",
            "stage",
            "step",
            "components",
            "steps_up",
            "suggestion",
            "seeds_agreeing",
            "seeds_disagreeing",
        )
        return cls(
            **{name: header[name] for name in plain},
            settings=ChoiceSettings.model_validate(header["settings"]),
            shape=tuple(header["shape"]),
            noise=header["noise"] and from_fields(header["noise"]),
            chains=chains,
            best={k: Candidate(_collected(arrays, f"best{k}", order), loss) for k, loss in header["best"]},
            nulls={k: rule.Null(**fields) for k, fields in header["nulls"]},
            sparsity_runs=tuple(SparsityRun(**run) for run in header["sparsity_runs"]),
            checked=tuple(header["checked"]),
        )


def _named(name: str, factors: Sequence[Float64]) -> dict[str, NDArray[Any]]:
    return {f"{name}_A{mode}": A for mode, A in enumerate(factors, start=1)}


def _collected(arrays: Mapping[str, NDArray[Any]], name: str, order: int) -> Factors:
    return tuple(arrays[f"{name}_A{mode}"] for mode in range(1, order + 1))
