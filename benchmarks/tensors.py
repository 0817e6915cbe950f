"""The tensors of the benchmarks, the same in every run."""

from collections.abc import Callable
from dataclasses import dataclass

from sparse_ncp.solvers.synthetic import evoked, merge_modes, planted
from sparse_ncp.solvers.tensor.products import Float64


@dataclass(frozen=True)
class Case:
    name: str
    rank: int
    make: Callable[[], Float64]


CASES = (
    Case("W3", 20, lambda: planted((1000, 100, 100)).tensor),
    Case("W4", 20, lambda: planted((1000, 100, 100, 5)).tensor),
    Case("E3", 40, lambda: merge_modes(evoked((9, 71, 60, 42)), 1).tensor),
    Case("E4", 40, lambda: evoked((9, 71, 60, 42)).tensor),
)
BY_NAME = {case.name: case for case in CASES}
