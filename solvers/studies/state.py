"""The state of a choice after a step, which can be saved and resumed, and the outcome."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.studies.advice import Advice
from sparse_ncp.solvers.studies.archive import pack, unpack
from sparse_ncp.solvers.studies.evidence.prediction import Prediction
from sparse_ncp.solvers.studies.fitting.candidates import Candidate, Chain
from sparse_ncp.solvers.studies.fitting.fits import Factors, Fit
from sparse_ncp.solvers.studies.fitting.levels import Scaling
from sparse_ncp.solvers.studies.fitting.noise import NoiseKind
from sparse_ncp.solvers.studies.fitting.sparsity import SPARSITY_RUNS, SparsityRun
from sparse_ncp.solvers.studies.settings import ChoiceSettings
from sparse_ncp.solvers.studies.validation import Validated, checks
from sparse_ncp.solvers.tensor.products import Float64

Stage: TypeAlias = Literal[
    "overfit",
    "exchange",
    "bootstrap",
    "halves",
    "holdout",
    "deviance",
    "refit",
    "sparsity",
    "zeros",
    "validate",
    "done",
]
FORMAT = 4

# The noise is taken to be of levels that differ between the indices of each mode, and then of a single one.
VIEWS = 2
BOOTSTRAPS, SPLITS = 12, 2
# Stages of one view, with the share of its time that each usually takes.
OF_A_VIEW: Mapping[Stage, float] = {
    "overfit": 0.35, "exchange": 0.15, "bootstrap": 0.1, "halves": 0.1, "holdout": 0.3,
}  # fmt: skip


@dataclass(frozen=True)
class Point:
    """The evidence for one number of components. Gains are in units of u."""

    components: int
    relative_error: float
    gain: float  # of the last of these components
    agreement: float  # between seeds
    core_consistency: float | None = None
    votes: float | None = None  # share of the votes; None in records of older versions
    null: float | None = None  # the gain in simulated noise, which only records of 0.1.0 have


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
class View:
    """Models and evidence under one assumption on the noise, in units of the scaled tensor."""

    scaling: Scaling
    deviation: float | None  # of clipped noise
    chains: tuple[Chain, ...] = ()
    best: Mapping[int, Candidate] = field(default_factory=dict)
    bootstraps: tuple[Mapping[int, tuple[float, ...]], ...] = ()
    halves: tuple[Mapping[int, float], ...] = ()
    predictions: tuple[Prediction, ...] = ()


@dataclass(frozen=True)
class ChoiceState:
    """The state of a choice after a step; it can be saved and resumed. The last one has an outcome."""

    settings: ChoiceSettings
    shape: tuple[int, ...]
    kind: NoiseKind
    unit: float  # the root mean square of the observed entries, in which factors and noise are kept
    observed: int  # how many entries
    rank: int  # of the overfit: as requested, or as large as the tensor allows
    stage: Stage = "overfit"
    step: int = 0  # within the stage
    views: tuple[View, ...] = ()  # the last one may be incomplete
    likeliest: Mapping[int, Candidate] = field(default_factory=dict)  # models of least deviance, if these are counts
    suggestion: int = 0
    chosen: Candidate | None = None
    sparsity_runs: tuple[SparsityRun, ...] = ()
    other: "ChoiceState | None" = None  # of the same tensor, with zeros that look missing taken the other way
    checked: tuple[float, ...] = ()  # results of the validation checks that are done
    outcome: Choice | None = None

    @property
    def largest(self) -> int:
        """The largest number that is offered: the overfit minus a quarter, so that there are components to drop."""
        return max(1, self.rank - max(2, self.rank // 4))

    @property
    def view(self) -> View:
        return self.views[-1]

    def with_view(self, **fields: Any) -> "ChoiceState":
        """Return the state with fields of the last view replaced."""
        return replace(self, views=(*self.views[:-1], replace(self.view, **fields)))

    def advance(self, stage: Stage | None = None, steps: int = 1) -> "ChoiceState":
        """Return the state at another stage, or with None some steps further in this one."""
        return replace(self, step=self.step + steps) if stage is None else replace(self, stage=stage, step=0)

    @property
    def steps(self) -> int:
        """The number of steps of the stage."""
        if self.stage == "validate":
            return len(checks(self.settings.validation, self.numbers_to_validate))
        return {
            "overfit": self.settings.seeds,
            "bootstrap": BOOTSTRAPS,
            "halves": SPLITS,
            "holdout": len(self.shape) + 1,
            "deviance": self.largest + 1,
            "sparsity": SPARSITY_RUNS,
        }.get(self.stage, 1)

    @property
    def numbers_to_validate(self) -> list[int]:
        """The numbers of components that are validated: the suggestion and its neighbours."""
        return [k for k in range(self.suggestion - 1, self.suggestion + 2) if 1 <= k <= self.largest]

    @property
    def progress(self) -> float:
        """From 0 to 1, by the time that stages usually take."""
        own = self._own_progress
        return own if self.other is None or self.stage == "done" else (own + self.other.progress) / 2

    @property
    def _own_progress(self) -> float:
        if self.stage == "done":
            return 1.0
        done = self.step / max(1, self.steps)
        if self.stage in OF_A_VIEW:
            names = list(OF_A_VIEW)
            before = sum(OF_A_VIEW[name] for name in names[: names.index(self.stage)])
            is_next = self.stage == "overfit" and self.step == 0  # of a view that has not begun
            whole = len(self.views) if is_next else len(self.views) - 1
            return 0.7 * (whole + before + min(1.0, done) * OF_A_VIEW[self.stage]) / VIEWS
        begin, end = {
            "deviance": (0.7, 0.8), "refit": (0.8, 0.82), "sparsity": (0.82, 0.92), "zeros": (0.92, 0.92),
            "validate": (0.92, 1.0),
        }[self.stage]  # fmt: skip
        return begin + (end - begin) * min(1.0, done)

    def to_bytes(self) -> bytes:
        """Save the state as the bytes of an `.npz` file without pickles; resumed anywhere, the outcome is the same."""
        arrays: dict[str, NDArray[Any]] = {}
        for place, view in enumerate(self.views):
            arrays |= {f"view{place}_scale{mode}": scale for mode, scale in enumerate(view.scaling.deviations)}
            arrays |= _named_candidates(f"view{place}_best", view.best)
            for seed, made in enumerate(view.chains):
                arrays |= _named(f"view{place}_overfit{seed}", made.overfit.factors)
                for k, factors in made.models.items():
                    arrays |= _named(f"view{place}_chain{seed}_{k}", factors)
        chosen = {} if self.chosen is None else {self.suggestion: self.chosen}
        arrays |= _named_candidates("likeliest", self.likeliest) | _named_candidates("chosen", chosen)
        if self.other is not None:
            arrays["other"] = np.frombuffer(self.other.to_bytes(), np.uint8)
        header = {
            "study": "choose",
            "format": FORMAT,
            "settings": self.settings.model_dump(mode="json", by_alias=True),
            "shape": self.shape,
            "kind": self.kind,
            "unit": self.unit,
            "observed": self.observed,
            "rank": self.rank,
            "stage": "validate" if self.stage == "done" else self.stage,  # which makes the outcome again
            "step": self.step,
            "views": [_numbers(view) for view in self.views],
            "likeliest": _losses(self.likeliest),
            "suggestion": self.suggestion,
            "chosen": _losses(chosen),
            "sparsity_runs": [asdict(run) for run in self.sparsity_runs],
            "checked": self.checked,
        }
        return pack(header, arrays)

    @classmethod
    def from_bytes(cls, content: bytes) -> "ChoiceState":
        header, arrays = unpack(content, "choose", FORMAT)
        order = len(header["shape"])
        plain = ("kind", "unit", "observed", "rank", "stage", "step", "suggestion")
        return cls(
            **{name: header[name] for name in plain},
            settings=ChoiceSettings.model_validate(header["settings"]),
            shape=tuple(header["shape"]),
            views=tuple(_view(arrays, place, order, numbers) for place, numbers in enumerate(header["views"])),
            likeliest=_candidates(arrays, "likeliest", order, header["likeliest"]),
            chosen=next(iter(_candidates(arrays, "chosen", order, header["chosen"]).values()), None),
            sparsity_runs=tuple(SparsityRun(**run) for run in header["sparsity_runs"]),
            other=cls.from_bytes(arrays["other"].tobytes()) if "other" in arrays else None,
            checked=tuple(header["checked"]),
        )


def _numbers(view: View) -> dict[str, Any]:
    """Return what a view has besides arrays; numbers of components become pairs, since JSON has no such keys."""
    return {
        "deviation": view.deviation,
        "chains": [(made.overfit.error, sorted(made.models)) for made in view.chains],
        "best": _losses(view.best),
        "bootstraps": [sorted(found.items()) for found in view.bootstraps],
        "halves": [sorted(found.items()) for found in view.halves],
        "predictions": [(sorted(found.better.items()), sorted(found.cold.items())) for found in view.predictions],
    }


def _view(arrays: Mapping[str, NDArray[Any]], place: int, order: int, numbers: Mapping[str, Any]) -> View:
    chains = tuple(
        Chain(
            Fit(_collected(arrays, f"view{place}_overfit{seed}", order), error),
            {k: _collected(arrays, f"view{place}_chain{seed}_{k}", order) for k in kept},
        )
        for seed, (error, kept) in enumerate(numbers["chains"])
    )
    return View(
        scaling=Scaling(tuple(arrays[f"view{place}_scale{mode}"] for mode in range(order))),
        deviation=numbers["deviation"],
        chains=chains,
        best=_candidates(arrays, f"view{place}_best", order, numbers["best"]),
        bootstraps=tuple({k: tuple(values) for k, values in found} for found in numbers["bootstraps"]),
        halves=tuple(dict(found) for found in numbers["halves"]),
        predictions=tuple(Prediction(dict(better), dict(cold)) for better, cold in numbers["predictions"]),
    )


def _losses(candidates: Mapping[int, Candidate]) -> list[tuple[int, float]]:
    return sorted((k, candidate.loss) for k, candidate in candidates.items())


def _named_candidates(name: str, candidates: Mapping[int, Candidate]) -> dict[str, NDArray[Any]]:
    return {
        key: array
        for k, candidate in candidates.items()
        for key, array in _named(f"{name}{k}", candidate.factors).items()
    }


def _candidates(
    arrays: Mapping[str, NDArray[Any]], name: str, order: int, losses: Sequence[tuple[int, float]]
) -> dict[int, Candidate]:
    return {k: Candidate(_collected(arrays, f"{name}{k}", order), loss) for k, loss in losses}


def _named(name: str, factors: Sequence[Float64]) -> dict[str, NDArray[Any]]:
    return {f"{name}_A{mode}": A for mode, A in enumerate(factors, start=1)}


def _collected(arrays: Mapping[str, NDArray[Any]], name: str, order: int) -> Factors:
    return tuple(arrays[f"{name}_A{mode}"] for mode in range(1, order + 1))
