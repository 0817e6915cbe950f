PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: test lint check bench clean

test: lint
	$(BIN)/pytest

lint: $(VENV)/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/installed
	$(BIN)/python -m benchmarks.sweeps

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV)
