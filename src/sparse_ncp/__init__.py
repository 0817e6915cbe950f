"""Sparse nonnegative CP decomposition of tensors, as a Python package and a lab server.

The public names are those of `sparse_ncp.solvers`. The server is in `sparse_ncp.worker`, which runs jobs, and
`sparse_ncp.app`, which speaks HTTP; `ncp_client` talks to it.

Examples
--------
>>> from sparse_ncp import Settings, solve, synthetic
>>> planted = synthetic.planted((20, 15, 10), rank=3, seed=1)
>>> result = solve(planted.tensor, Settings(rank=3, method="hals"))
>>> [factor.shape for factor in result.factors]
[(20, 3), (15, 3), (10, 3)]
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparse_ncp.solvers import *  # noqa: F403
    from sparse_ncp.solvers import __all__ as __all__

    __version__: str  # read from the installed distribution when it is first asked for
else:  # each name is imported when it is first used: a process that solves nothing loads no numpy

    def __getattr__(name: str) -> object:
        if name == "__version__":
            return import_module("importlib.metadata").version("sparse-ncp")
        solvers = import_module("sparse_ncp.solvers")
        if name != "__all__" and name not in solvers.__all__:
            raise AttributeError(f"module 'sparse_ncp' has no attribute {name!r}")
        return getattr(solvers, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *import_module("sparse_ncp.solvers").__all__})
