"""The state of a run after a sweep: a value that can be saved and resumed."""

import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, TypeAlias
from zipfile import BadZipFile

import numpy as np

from ncp_client.formats.npz import read_npz
from sparse_ncp.solvers.bcd.penalties import Weights, missing_count
from sparse_ncp.solvers.bcd.starts.search import Search
from sparse_ncp.solvers.block import Memory
from sparse_ncp.solvers.errors import InvalidInput
from sparse_ncp.solvers.machine import machine_signature
from sparse_ncp.solvers.settings import Settings
from sparse_ncp.solvers.tensor.exclusion import whole_factors
from sparse_ncp.solvers.tensor.products import Array
from sparse_ncp.solvers.tensor.protocol import TensorLike

# "exact": a single factor was to be fitted, which one step solves.
StopReason: TypeAlias = Literal["tolerance", "max_iterations", "max_seconds", "cancelled", "exact"]
RunPhase: TypeAlias = Literal["compressed", "single", "exact"]
Phase: TypeAlias = Literal["start", "compressed", "single", "exact"]
# The steps before the first sweep ends. The callback gets the step and the fraction of it that is done, if known.
PreparationStep: TypeAlias = Literal["scan", "weights", "start", "compress", "single", "sweep"]
OnPrepare: TypeAlias = Callable[[PreparationStep, float], None]
FORMAT = 4
NO_ROWS: Mapping[int, Array] = MappingProxyType({})
COLUMNS = ("objective", "relative_error", "seconds")


@dataclass(frozen=True)
class History:
    """Measurements of a run, one per iteration.

    Attributes
    ----------
    objective, relative_error : tuple of float
        Measured after each sweep.
    seconds : tuple of float
        Computing time up to then.
    start : tuple of int or None
        The trial start, counted from 1; None in the run that goes on from one of them.

    Examples
    --------
    >>> from sparse_ncp import History
    >>> history = History(objective=(4.0, 3.0), relative_error=(0.4, 0.3), seconds=(0.1, 0.2), start=(None, None))
    >>> len(history)
    2
    """

    objective: tuple[float, ...] = ()
    relative_error: tuple[float, ...] = ()
    seconds: tuple[float, ...] = ()
    start: tuple[int | None, ...] = ()

    def __len__(self) -> int:
        return len(self.objective)

    def plus(self, objective: float, relative_error: float, seconds: float, start: int | None = None) -> "History":
        return History(
            (*self.objective, objective),
            (*self.relative_error, relative_error),
            (*self.seconds, seconds),
            (*self.start, start),
        )

    def corrected(self, objective: float, relative_error: float) -> "History":
        """Return a history with other values for the last iteration."""
        return replace(
            self,
            objective=(*self.objective[:-1], objective),
            relative_error=(*self.relative_error[:-1], relative_error),
        )

    def with_last_seconds(self, seconds: float) -> "History":
        """Return a history with another time for the last iteration, from which the clock goes on."""
        return replace(self, seconds=(*self.seconds[:-1], seconds))


@dataclass(frozen=True)
class Clock:
    """The time that a run has used before, for `max_seconds`.

    Attributes
    ----------
    spent_seconds : float
        Computing time before this call.
    enforce_after_iteration : int
        `max_seconds` does not end the run before this iteration.

    Examples
    --------
    >>> from sparse_ncp import Clock
    >>> Clock(spent_seconds=90.0).spent_seconds
    90.0
    """

    spent_seconds: float = 0.0
    enforce_after_iteration: int = 0


@dataclass(frozen=True)
class Momentum:
    """The state of extrapolation between sweeps: the factors of the sweep before, and the weight of the step."""

    previous: tuple[Array, ...] | None = None
    weight: float = 0.5


@dataclass(frozen=True)
class State:
    """Everything the next sweep depends on, as `sweeps` yields it.

    `stop_reason` is None while the run goes on. An accelerated run begins in the compressed or the single phase, which
    ends with `compressed_until` or `single_until`: from that iteration on, the history is exact. `to_bytes` and
    `from_bytes` save and restore a state.

    Examples
    --------
    >>> from sparse_ncp import Settings, State, sweeps, synthetic
    >>> X = synthetic.planted((20, 15, 10), rank=3, seed=1).tensor
    >>> state = next(sweeps(X, Settings(rank=3, method="hals")))
    >>> State.from_bytes(state.to_bytes()).iteration
    1
    """

    settings: Settings
    weights: Weights
    tensor_norm: float
    factors: tuple[Array, ...]
    memory: tuple[Memory, ...]
    history: History = History()
    stop_reason: StopReason | None = None
    phase: RunPhase = "exact"
    compressed_until: int = 0
    single_until: int = 0
    objective: float = math.inf  # of the factors, infinite before their first sweep
    momentum: Momentum = Momentum()
    search: Search | None = None
    machine: str = field(default_factory=machine_signature)  # the kind of machine that computed it
    notes: tuple[str, ...] = ()  # become warnings of the result
    largest_beta: float | None = None  # where every component is zero: beyond it, no single one lowers O
    missing: int = 0  # entries of the tensor that were not observed
    fixed: tuple[int, ...] = ()  # modes, from 0, whose factors were given and stay
    preparation_seconds: float = 0.0  # spent before the first sweep
    enforce_after_iteration: int = 0  # `max_seconds` ends the run after this iteration only; not saved

    @property
    def iteration(self) -> int:
        return len(self.history)

    @property
    def seconds(self) -> float:
        return self.history.seconds[-1] if self.history.seconds else self.preparation_seconds

    @property
    def trial_iterations(self) -> int:
        """Iterations of trial starts: `max_iterations` does not count them."""
        if self.search is None:
            return 0
        return self.iteration if self.search.is_trial else self.search.trial_iterations

    def phase_at(self, iteration: int) -> Phase:
        """Return the phase of an iteration in the past."""
        if self.history.start[iteration - 1] is not None:
            return "start"
        if self.phase != "exact":
            return self.phase
        return (
            "compressed"
            if iteration < self.compressed_until
            else "single"
            if iteration < self.single_until
            else "exact"
        )

    def iterations_in(self, phase: RunPhase) -> int:
        """Return how many iterations the run made in a phase before the exact one; the last of them is exact."""
        if self.phase != "exact":
            return self.iteration if self.phase == phase else 0
        return self.compressed_until if phase == "compressed" else self.single_until

    def outcome(self) -> tuple[tuple[Array, ...], float, float]:
        """Return factors, objective and relative error if the run ended here: in trial starts, of the best one."""
        candidates = self.search.candidates if self.search and self.search.is_trial else ()
        best = min(candidates, key=lambda candidate: candidate.outcome.objective, default=None)
        if best is None or best.outcome.objective >= self.objective:
            return self.factors, self.objective, self.history.relative_error[-1]
        return best.factors, best.outcome.objective, best.outcome.relative_error

    def whole_factors(self, rows: Mapping[int, Array] = NO_ROWS) -> list[Array]:
        """Return the factors of the outcome with the rows of excluded indices; those that are not given are zero."""
        return whole_factors(self.outcome()[0], self.settings.exclude, rows)

    def with_clock(self, clock: Clock) -> "State":
        """Return the state with its clock set forward, never back. With a clock, at least one more sweep follows."""
        if clock == Clock():
            return self
        seconds = max(self.seconds, clock.spent_seconds)
        enforce_after = max(self.iteration, clock.enforce_after_iteration)
        if not self.history:
            return replace(self, preparation_seconds=seconds, enforce_after_iteration=enforce_after)
        return replace(self, history=self.history.with_last_seconds(seconds), enforce_after_iteration=enforce_after)

    def on_this_machine(self) -> "State":
        """Return the state to continue with on this machine, with a note if another kind of machine saved it."""
        here = machine_signature()
        if self.machine == here:
            return self
        note = (
            f"begun on another kind of machine and resumed after iteration {self.iteration}: its last digits differ "
            f"from those of an undisturbed run ({self.machine}, then {here})"
        )
        return replace(self, machine=here, notes=(*self.notes, note))

    def cancelled(self) -> "State":
        """Return the state of a run that the caller ends here; one that has ended keeps its own reason."""
        return replace(self, stop_reason=self.stop_reason or "cancelled")

    def to_bytes(self) -> bytes:
        """Return the state as the bytes of an `.npz` file without pickles."""
        arrays: dict[str, Any] = _numbered("A", self.factors)
        for mode, memory in enumerate(self.memory, start=1):
            if memory.previous is not None:
                arrays[f"previous{mode}"] = memory.previous
        arrays |= _numbered("momentum", self.momentum.previous or ())
        for place, candidate in enumerate(self.search.candidates if self.search else ()):
            arrays |= _numbered(f"candidate{place}_A", candidate.factors)
        for place, candidate in enumerate(self.search.passed_over if self.search else ()):
            arrays |= _numbered(f"passed{place}_A", candidate.factors)
        for column in COLUMNS:
            arrays[column] = np.array(getattr(self.history, column))
        arrays["start"] = np.array([start or 0 for start in self.history.start], np.int64)
        header = {
            "format": FORMAT,
            "settings": self.settings.model_dump(mode="json"),
            "weights": asdict(self.weights),
            "tensor_norm": self.tensor_norm,
            "numbers": [dict(memory.numbers) for memory in self.memory],
            "stop_reason": self.stop_reason,
            "phase": self.phase,
            "compressed_until": self.compressed_until,
            "single_until": self.single_until,
            "objective": self.objective,
            "momentum_weight": self.momentum.weight,
            "search": self.search and self.search.header(),
            "machine": self.machine,
            "notes": self.notes,
            "largest_beta": self.largest_beta,
            "missing": self.missing,
            "fixed": self.fixed,
        }
        arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> "State":
        try:
            arrays = read_npz(io.BytesIO(content))
            header = json.loads(arrays["header"].tobytes())
            version = header["format"]
        except (BadZipFile, OSError, EOFError, LookupError, TypeError, ValueError, RuntimeError) as error:
            raise InvalidInput("state", "is damaged", "resume from an older one") from error
        if version != FORMAT:
            raise InvalidInput(
                "state", f"has format {version}, not {FORMAT}", "resume it with the version that saved it"
            )
        modes = range(1, len(header["numbers"]) + 1)
        settings = Settings.from_stored(header["settings"])
        objective, relative_error, seconds = (tuple(arrays[column].tolist()) for column in COLUMNS)
        search, found = header["search"], None
        if search is not None:
            candidates = [_collected(arrays, f"candidate{i}_A", modes) for i in range(len(search["candidates"]))]
            passed = [_collected(arrays, f"passed{i}_A", modes) for i in range(len(search.get("passed_over", ())))]
            found = Search.from_header(search, candidates, passed)
        previous = _collected(arrays, "momentum", modes) if "momentum1" in arrays else None
        return cls(
            settings=settings,
            weights=Weights(**{name: tuple(values) for name, values in header["weights"].items()}),
            tensor_norm=header["tensor_norm"],
            factors=_collected(arrays, "A", modes),
            memory=tuple(
                Memory(arrays.get(f"previous{mode}"), numbers)
                for mode, numbers in zip(modes, header["numbers"], strict=True)
            ),
            history=History(
                objective, relative_error, seconds, tuple(start or None for start in arrays["start"].tolist())
            ),
            stop_reason=header["stop_reason"],
            phase=header["phase"],
            compressed_until=header["compressed_until"],
            single_until=header["single_until"],
            objective=header["objective"],
            momentum=Momentum(previous, header["momentum_weight"]),
            search=found,
            machine=header["machine"],
            notes=tuple(header["notes"]),
            largest_beta=header["largest_beta"],
            missing=header["missing"],
            fixed=tuple(header["fixed"]),
        )


def _numbered(name: str, arrays: Sequence[Array]) -> dict[str, Any]:
    return {f"{name}{mode}": A for mode, A in enumerate(arrays, start=1)}


def _collected(arrays: dict[str, Any], name: str, modes: range) -> tuple[Array, ...]:
    return tuple(arrays[f"{name}{mode}"] for mode in modes)


def check_resumable(
    state: State, settings: Settings, tensor: TensorLike, initial: object, fixed: Mapping[int, Array]
) -> None:
    """Check that a run can continue from a state; settings of the steps after the sweeps may differ."""
    if initial is not None:
        raise InvalidInput("initial", "is given together with resume", "give one of the two")
    lengths = tuple(len(A) for A in state.factors)
    if lengths != tensor.shape:
        raise InvalidInput("resume", f"was saved for a tensor of shape {lengths}", "pass the tensor it belongs to")
    working = [tensor.dtype]
    if state.phase == "compressed":
        working.append(np.dtype(np.float64))
    if state.phase == "single":
        working = [np.dtype(np.float32)] if tensor.dtype == np.float64 else []
    if state.factors[0].dtype not in working:
        raise InvalidInput("resume", f"was saved in {state.factors[0].dtype}", "pass the tensor it belongs to")
    if state.missing != missing_count(tensor):
        problem = f"was saved for a tensor with {state.missing} entries missing, this one lacks {missing_count(tensor)}"
        raise InvalidInput("resume", problem, "give the same tensor and the same mask")
    if fixed and (tuple(fixed) != state.fixed or any((state.factors[mode] != A).any() for mode, A in fixed.items())):
        raise InvalidInput("fixed", "differs from the start of the run", "give the same factors, or leave it out")
    afterwards = ("stop", "diagnose", "stability", "samples_mode", "resamples")
    if state.settings.model_copy(update={name: getattr(settings, name) for name in afterwards}) != settings:
        raise InvalidInput("resume", "was saved with other settings", "change only stop, diagnose and stability")
