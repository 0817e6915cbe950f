"""Client of a sparse-ncp server.

The client communicates over HTTP and does not need the server to be installed.

Examples
--------
>>> import numpy as np
>>> from ncp_client import Client
>>> array = np.random.default_rng(0).random((8, 7, 6))
>>> with Client() as client:
...     result = client.decompose(array, rank=2, sparsity=0.02)
>>> [factor.shape for factor in result.factors]
[(8, 2), (7, 2), (6, 2)]
"""

# Names are imported when they are first used: `ncp serve` goes through this package and needs none of them.

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ncp_client.client import Client
    from ncp_client.history import History, Progress
    from ncp_client.http.config import ConfigError
    from ncp_client.http.errors import (
        FieldError,
        JobFailed,
        NcpError,
        NotFound,
        RateLimited,
        Refused,
        ServerUnavailable,
        Unauthorized,
    )
    from ncp_client.job import Job
    from ncp_client.result import Result
    from ncp_client.study import Study
    from ncp_client.tensor import Tensor

__all__ = [
    "Client",
    "ConfigError",
    "FieldError",
    "History",
    "Job",
    "JobFailed",
    "NcpError",
    "NotFound",
    "Progress",
    "RateLimited",
    "Refused",
    "Result",
    "ServerUnavailable",
    "Study",
    "Tensor",
    "Unauthorized",
]

__version__: str  # read from the installed distribution when it is first asked for

_MODULE_OF = {
    "Client": "client",
    "ConfigError": "http.config",
    "History": "history",
    "Job": "job",
    "Progress": "history",
    "Result": "result",
    "Study": "study",
    "Tensor": "tensor",
}


if not TYPE_CHECKING:  # a type checker would accept any name otherwise

    def __getattr__(name: str) -> object:
        if name == "__version__":
            return import_module("importlib.metadata").version("ncp-client")
        if name not in __all__:
            raise AttributeError(f"module 'ncp_client' has no attribute {name!r}")
        return getattr(import_module(f"ncp_client.{_MODULE_OF.get(name, 'http.errors')}"), name)
