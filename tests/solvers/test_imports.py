"""The package loads modules on first use, so that a process which solves nothing starts fast."""

import subprocess
import sys

import pytest

from sparse_ncp import solvers
from sparse_ncp.solvers import runtime

HEAVY = ("numpy", "scipy", "numba", "pydantic")


def loaded_after(statement: str) -> set[str]:
    """Return the heavy packages that a new interpreter has loaded after the statement."""
    script = f"import sys; {statement}; print(*[name for name in {HEAVY} if name in sys.modules])"
    return set(
        subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    )


@pytest.mark.parametrize(
    "statement",
    [
        "from sparse_ncp import solvers; dir(solvers)",
        "from sparse_ncp.solvers.errors import InvalidInput",
        "from sparse_ncp.solvers import AdviceWarning, InvalidInput",
        "from sparse_ncp.solvers import runtime; dir(runtime)",
        "from sparse_ncp.solvers import available_cores; assert available_cores() > 0",
        "from sparse_ncp.solvers.tensor.threads import available_cores",
    ],
)
def test_names_that_need_no_arrays_load_no_numpy(statement: str) -> None:
    assert loaded_after(statement) == set()


def test_settings_load_neither_compiler_nor_factorisations() -> None:
    assert loaded_after("from sparse_ncp import METHODS, Settings, estimate_memory, solve") == {
        "numpy",
        "pydantic",
    }


@pytest.mark.parametrize("name", solvers.__all__)
def test_every_public_name_is_found_and_listed(name: str) -> None:
    assert getattr(solvers, name) is not None
    assert name in dir(solvers)


@pytest.mark.parametrize("name", runtime.__all__)
def test_every_name_of_the_runtime_is_found_listed_and_described(name: str) -> None:
    assert getattr(runtime, name) is not None
    assert name in dir(runtime)
    assert f"`{name}`" in str(runtime.__doc__)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'door'"):
        _ = solvers.door  # type: ignore[attr-defined]
    with pytest.raises(ImportError):
        from sparse_ncp.solvers import door  # type: ignore[attr-defined]  # noqa: F401
