"""The state of a run after a sweep: a value that can be saved, sent and resumed."""

import io
import json
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias
from zipfile import BadZipFile

import numpy as np

from solvers.arrays import Array
from solvers.block import Memory
from solvers.errors import InvalidInput
from solvers.settings import Settings
from solvers.tensor import Tensor

StopReason: TypeAlias = Literal["tolerance", "max_iterations", "max_seconds", "cancelled"]
Phase: TypeAlias = Literal["compressed", "exact"]
FORMAT = 1


@dataclass(frozen=True)
class History:
    """One entry per iteration, the first after the first sweep. `seconds` is the computing time up to then."""

    objective: tuple[float, ...] = ()
    relative_error: tuple[float, ...] = ()
    seconds: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.objective)

    def plus(self, objective: float, relative_error: float, seconds: float) -> "History":
        return History((*self.objective, objective), (*self.relative_error, relative_error), (*self.seconds, seconds))

    def corrected(self, objective: float, relative_error: float) -> "History":
        """With other values for the last iteration."""
        return History((*self.objective[:-1], objective), (*self.relative_error[:-1], relative_error), self.seconds)

    def clocked(self, seconds: float) -> "History":
        """With another time for the last iteration, from which the clock goes on."""
        return History(self.objective, self.relative_error, (*self.seconds[:-1], seconds))

    def since(self, iteration: int) -> "History":
        """From that iteration on, which counts as the first."""
        place = max(0, iteration - 1)
        return History(self.objective[place:], self.relative_error[place:], self.seconds[place:])


class Earlier(NamedTuple):
    """How far an attempt came whose last part was lost. Its time counts, but no time limit ends what is repeated."""

    iteration: int
    seconds: float


NOTHING_LOST = Earlier(0, 0.0)


@dataclass(frozen=True)
class State:
    """Everything the next sweep depends on. `stop_reason` is None while the run goes on.

    An accelerated run begins in the compressed phase, which ends with `compressed_until`: from that iteration on, the
    history is exact.
    """

    settings: Settings
    factors: tuple[Array, ...]
    memory: tuple[Memory, ...]
    history: History = History()
    stop_reason: StopReason | None = None
    phase: Phase = "exact"
    compressed_until: int = 0
    preparation_seconds: float = 0.0  # spent before the first sweep
    untimed_until: int = 0  # the time limit holds after this iteration

    @property
    def iteration(self) -> int:
        return len(self.history)

    @property
    def seconds(self) -> float:
        return self.history.seconds[-1] if self.history.seconds else self.preparation_seconds

    def after(self, earlier: Earlier) -> "State":
        """The same, with the clock of an earlier attempt that came further. At least one sweep follows."""
        if earlier == NOTHING_LOST:
            return self
        seconds, untimed = max(self.seconds, earlier.seconds), max(self.iteration, earlier.iteration)
        if not self.history:
            return replace(self, preparation_seconds=seconds, untimed_until=untimed)
        return replace(self, history=self.history.clocked(seconds), untimed_until=untimed)

    def cancelled(self) -> "State":
        """The same, ended by the caller; a run that has ended already keeps its own reason."""
        return replace(self, stop_reason=self.stop_reason or "cancelled")

    def to_bytes(self) -> bytes:
        """As an `.npz` file without pickles: restored anywhere, it goes on to the same bits."""
        arrays: dict[str, Any] = {f"A{mode}": A for mode, A in enumerate(self.factors, start=1)}
        for mode, memory in enumerate(self.memory, start=1):
            if memory.previous is not None:
                arrays[f"previous{mode}"] = memory.previous
        for column in ("objective", "relative_error", "seconds"):
            arrays[column] = np.array(getattr(self.history, column))
        header = {
            "format": FORMAT,
            "settings": self.settings.model_dump(mode="json"),
            "numbers": [dict(memory.numbers) for memory in self.memory],
            "stop_reason": self.stop_reason,
            "phase": self.phase,
            "compressed_until": self.compressed_until,
        }
        arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> "State":
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as stored:
                arrays = dict(stored)
            header = json.loads(arrays["header"].tobytes())
            found = header["format"]
        except (BadZipFile, OSError, EOFError, LookupError, TypeError, ValueError, RuntimeError) as fault:
            raise InvalidInput("state", "is damaged", "resume from an older one") from fault
        if found != FORMAT:
            raise InvalidInput("state", f"has format {found}, not {FORMAT}", "resume it with the version that saved it")
        modes = range(1, len(header["numbers"]) + 1)
        return cls(
            settings=Settings.model_validate(header["settings"]),
            factors=tuple(arrays[f"A{mode}"] for mode in modes),
            memory=tuple(
                Memory(arrays.get(f"previous{mode}"), numbers)
                for mode, numbers in zip(modes, header["numbers"], strict=True)
            ),
            history=History(*(tuple(arrays[column].tolist()) for column in ("objective", "relative_error", "seconds"))),
            stop_reason=header["stop_reason"],
            phase=header["phase"],
            compressed_until=header["compressed_until"],
        )


def check_resumable(state: State, settings: Settings, tensor: Tensor, initial: object) -> None:
    """A run may go on with other stopping rules, but with nothing else changed."""
    if initial is not None:
        raise InvalidInput("initial", "is given together with resume", "give one of the two")
    lengths = tuple(len(A) for A in state.factors)
    if lengths != tensor.shape:
        raise InvalidInput("resume", f"was saved for a tensor of shape {lengths}", "pass the tensor it belongs to")
    if state.factors[0].dtype != tensor.dtype:
        raise InvalidInput("resume", f"was saved in {state.factors[0].dtype}", "pass the tensor it belongs to")
    if state.settings.model_copy(update={"stop": settings.stop}) != settings:
        raise InvalidInput("resume", "was saved under other settings", "change nothing but stop")
