"""Compile the inner loops of the methods with numba."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

# Sums may be vectorised, in an order that the machine code fixes. NaN and infinity keep their meaning.
REORDERED = {"contract", "nsz", "reassoc"}

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def jit(kernel: Kernel) -> Kernel:
    """Compile a kernel on its first call, to run without the GIL; cache the machine code if a folder is writable."""
    return _jit(kernel, REORDERED)


def jit_strict(kernel: Kernel) -> Kernel:
    """Compile a kernel whose operations are rounded one by one and in order, as in numpy."""
    return _jit(kernel, set())


def _jit(kernel: Kernel, liberties: set[str]) -> Kernel:
    try:
        return cast(Kernel, njit(nogil=True, cache=True, fastmath=liberties)(kernel))
    except RuntimeError:  # neither the package's folder nor the user's cache can be written
        return cast(Kernel, njit(nogil=True, fastmath=liberties)(kernel))


def jit_inline(part: Kernel) -> Kernel:
    """Compile a function into every kernel of the same file that calls it.

    Without inlining, a process that compiles the kernels and one that loads them from the cache would run differently
    optimised copies of the function, which round differently.
    """
    return cast(Kernel, njit(nogil=True, forceinline=True, fastmath=REORDERED)(part))
