"""One line of the results: a measured value and its limit."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Figure:
    """A measured value; `met` is None where there is no limit."""

    subject: str
    found: str
    limit: str = ""
    met: bool | None = None

    @property
    def verdict(self) -> str:
        return "" if self.met is None else "yes" if self.met else "**no**"


def at_most(subject: str, value: float, limit: float, unit: str) -> Figure:
    return Figure(subject, f"{value:.3g} {unit}", f"at most {limit:g} {unit}", value <= limit)


def at_least(subject: str, value: float, limit: float, unit: str) -> Figure:
    return Figure(subject, f"{value:.3g} {unit}", f"at least {limit:.3g} {unit}", value >= limit)


def milliseconds(seconds: Sequence[float], percent: float) -> float:
    """Return a percentile of durations in milliseconds."""
    return float(np.percentile(seconds, percent)) * 1000
