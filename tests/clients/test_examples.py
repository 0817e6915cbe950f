"""The docstrings of the client's public names: complete sections, and examples that run on a server."""

import doctest
import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ncp_client
from ncp_client import Client
from tests.support.api import Api, planted

pytest.importorskip("tensorly")
PUBLIC = [getattr(ncp_client, name) for name in ncp_client.__all__]
METHODS = [
    getattr(owner, name)
    for owner in PUBLIC
    for name, member in vars(owner).items()
    if inspect.isfunction(member) and not name.startswith("_")
]


@pytest.mark.parametrize("owner", [ncp_client, *PUBLIC], ids=lambda owner: owner.__name__)
def test_the_examples_run(owner: Any, api_with_worker: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCP_URL", api_with_worker.address)
    monkeypatch.chdir(tmp_path)
    found = doctest.DocTestFinder(recurse=inspect.isclass(owner)).find(owner, owner.__name__)
    assert any(test.examples for test in found)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    report: list[str] = []
    for test in found:
        with Client(api_with_worker.address) as client:
            test.globs = {"np": np, "Client": Client, "client": client, "array": planted(8, 7, 6)}
            runner.run(test, out=report.append)
    assert runner.failures == 0, "".join(report)


@pytest.mark.parametrize("owner", PUBLIC, ids=lambda owner: owner.__name__)
def test_a_class_has_an_example(owner: type) -> None:
    assert "Examples\n" in (inspect.getdoc(owner) or "")


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__qualname__)
def test_a_method_describes_its_parameters_and_what_it_returns(method: Any) -> None:
    text = inspect.getdoc(method) or ""
    signature = inspect.signature(method)
    section = re.search(r"^Parameters\n-+\n(.*?)(?:\n\n[A-Z]\w+\n-+\n|\Z)", text, re.DOTALL | re.MULTILINE)
    names = [
        f"**{name}" if parameter.kind is parameter.VAR_KEYWORD else name
        for name, parameter in signature.parameters.items()
        if name != "self"
    ]
    assert names == (re.findall(r"^(\*{0,2}\w+)(?: :|$)", section[1], re.MULTILINE) if section else [])
    if signature.return_annotation not in (None, "None"):
        assert re.search(r"^(Returns|Yields)\n-+\n", text, re.MULTILINE)
    assert "Examples\n" in text
