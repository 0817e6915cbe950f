"""Identify the kind of machine, on which the last bits of a result depend besides tensor, settings and seed."""

import hashlib
from functools import cache
from importlib.metadata import version
from pathlib import Path


@cache
def machine_signature() -> str:
    """Describe the processor and the libraries that determine the last bits of a result.

    Two processes with equal signatures compute the same bits. With different ones, results agree within rounding.

    Returns
    -------
    str
        The processor as LLVM names it, a digest of its features, the length of the vectors that our kernels use, the
        kernels that BLAS has chosen, and the versions of numpy, numba and this package.

    Examples
    --------
    >>> from sparse_ncp.solvers.machine import machine_signature
    >>> machine_signature() == machine_signature()
    True
    """
    from llvmlite import binding  # a tenth of a second to load

    features = dict(binding.get_host_cpu_features())
    enabled = " ".join(sorted(name for name, present in features.items() if present))
    vectors = vector_bytes(features)
    return "; ".join(
        (
            f"{binding.get_host_cpu_name()} {hashlib.sha256(enabled.encode()).hexdigest()[:8]}",
            "no vectors" if vectors is None else f"vectors of {8 * vectors} bits",
            *blas_kernels(),
            *(f"{name} {version(name)}" for name in ("numpy", "numba", "sparse-ncp")),
        )
    )


def vector_bytes(features: dict[str, bool]) -> int | None:
    """Return the length in bytes of the vectors to use on a processor; None if BLAS is the better choice."""
    if features.get("avx512f"):
        return 64
    if features.get("avx2") and features.get("fma"):
        return 32
    return 32 if features.get("neon") else None


def blas_kernels() -> list[str]:
    """Name the BLAS of numpy and the kernels that it has chosen for this processor.

    The BLAS that scipy may have loaded is left out, so that the answer does not depend on which modules are imported.
    """
    import numpy as np
    from threadpoolctl import threadpool_info

    folder = Path(np.__file__).parent
    beside = {str(folder), str(folder.with_name("numpy.libs"))}
    found = [library for library in threadpool_info() if library["user_api"] == "blas"]
    own = [library for library in found if str(Path(library["filepath"]).parent) in beside] or found
    names = {f"{lib['internal_api']} {lib['version']} {lib.get('architecture') or ''}".rstrip() for lib in own}
    return sorted(names)
