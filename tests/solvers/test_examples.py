"""Every public name of the package has sections, and an example that runs."""

import doctest
import inspect

import pytest

import sparse_ncp

NAMES = [name for name in sparse_ncp.__all__ if callable(getattr(sparse_ncp, name))]


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_public_name_runs(name: str) -> None:
    item = getattr(sparse_ncp, name)
    examples = doctest.DocTestFinder(recurse=False).find(item, name, globs={})
    assert sum(len(test.examples) for test in examples) > 0
    for test in examples:
        assert doctest.DocTestRunner().run(test).failed == 0


@pytest.mark.parametrize("name", [name for name in NAMES if inspect.isfunction(getattr(sparse_ncp, name))])
def test_a_public_function_describes_its_parameters_and_what_it_returns(name: str) -> None:
    function = getattr(sparse_ncp, name)
    text = inspect.getdoc(function) or ""
    assert "Returns\n-------" in text or "Yields\n------" in text
    for parameter in inspect.signature(function).parameters:
        assert f"{parameter} :" in text or f"{parameter}," in text or f", {parameter}\n" in text, parameter


def test_the_examples_of_the_package_run() -> None:
    for test in doctest.DocTestFinder(recurse=False).find(sparse_ncp, "sparse_ncp", globs={}):
        assert doctest.DocTestRunner().run(test).failed == 0


def test_the_settings_list_their_fields() -> None:
    for model in (sparse_ncp.Settings, sparse_ncp.Stop):
        for name, field in model.model_fields.items():
            assert f"{name}\n" in str(model.__doc__)
            assert str(field.description) in str(model.__doc__)
        assert "Parameters" not in model.model_json_schema()["description"]
