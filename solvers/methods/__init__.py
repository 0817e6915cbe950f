"""The registry of methods. A new method is one file and one line here, which states its promises."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

from sparse_ncp.solvers.block import Block, Memory
from sparse_ncp.solvers.methods import als, anls_as, anls_bpp, anls_hybrid, apg, hals, mu
from sparse_ncp.solvers.tensor.products import Float64

Penalty: TypeAlias = Literal["l1", "l1_squared"]
Option: TypeAlias = Literal["inner_passes", "normalise", "delta_omega"]
Update: TypeAlias = Callable[[Float64, Block, Memory], tuple[Float64, Memory]]
Start: TypeAlias = Callable[[Float64, bool], Float64]


@dataclass(frozen=True)
class Method:
    """A method: an update of one mode's factor, and its promises.

    `METHODS` has them by name. `monotone` methods never raise the objective by more than rounding: in single precision
    that is at most 2e-7 of the squared norm of the tensor. `exact` ones find the minimiser of each block.

    Examples
    --------
    >>> from sparse_ncp import METHODS
    >>> METHODS["hals"].monotone, METHODS["als"].monotone
    (True, False)
    """

    title: str
    update: Update
    penalty: Penalty  # the paper's own, or what we chose, used when none is asked for
    monotone: bool  # the objective never rises from one iteration to the next, except by rounding
    exact: bool  # the block's minimiser is found, if its Gram is positive definite
    options: frozenset[Option] = frozenset()
    signed: bool = True  # takes an MTTKRP with negative entries: of a tensor that has some, or of a compressed one
    extrapolable: bool = False  # a sweep from anywhere never raises the objective, and no memory spans two sweeps
    fallback: Update | None = None  # repeats a sweep in which the objective rose
    start: Start | None = None  # what the method needs of its starting factors


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "mu": Method(
            "Multiplicative update", mu.update, "l1", monotone=True, exact=False,
            options=frozenset({"inner_passes"}), signed=False, start=mu.start,
        ),
        "als": Method("Alternating least squares", als.update, "l1", monotone=False, exact=False),
        "hals": Method(
            "Hierarchical alternating least squares", hals.update, "l1", monotone=True, exact=False,
            options=frozenset({"inner_passes", "normalise"}), extrapolable=True,
        ),
        "apg": Method(
            "Alternating proximal gradient", apg.update, "l1", monotone=True, exact=False,
            options=frozenset({"inner_passes", "delta_omega"}), fallback=apg.plain,
        ),
        "anls-as": Method(
            "Alternating nonnegative least squares, active set", anls_as.update, "l1_squared",
            monotone=True, exact=True, extrapolable=True,
        ),
        "anls-bpp": Method(
            "Alternating nonnegative least squares, block principal pivoting", anls_bpp.update, "l1_squared",
            monotone=True, exact=True, extrapolable=True,
        ),
        "anls-hybrid": Method(
            "Alternating nonnegative least squares, exact on short modes", anls_hybrid.update, "l1",
            monotone=True, exact=False, extrapolable=True,
        ),
    }
)  # fmt: skip
