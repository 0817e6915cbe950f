"""Compile a kernel: the inner loops of the methods, in machine code."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

# Sums may be taken in vectors, in one order that the machine code fixes; nothing is assumed of NaN or infinity.
REORDERED = {"contract", "nsz", "reassoc"}

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def jit(kernel: Kernel) -> Kernel:
    """Compile on the first call, without the interpreter's lock; keep the machine code where a folder allows it."""
    return _jit(kernel, REORDERED)


def jit_strict(kernel: Kernel) -> Kernel:
    """The same, every operation rounded by itself and in its turn, as numpy does."""
    return _jit(kernel, set())


def _jit(kernel: Kernel, liberties: set[str]) -> Kernel:
    try:
        return cast(Kernel, njit(nogil=True, cache=True, fastmath=liberties)(kernel))
    except RuntimeError:  # neither the package's folder nor the user's cache can be written
        return cast(Kernel, njit(nogil=True, fastmath=liberties)(kernel))


def jit_inline(part: Kernel) -> Kernel:
    """Compile a part that rounds into each kernel of the same file that calls it.

    Else a process that compiles would run one copy of it, and a process that reads what was compiled before another
    one, which was optimised once more, and rounds otherwise.
    """
    return cast(Kernel, njit(nogil=True, forceinline=True, fastmath=REORDERED)(part))
