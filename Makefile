PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: serve test lint bench clean

serve: $(VENV)/installed
	$(BIN)/ncp serve

test: lint
	$(BIN)/pytest --numprocesses 2 tests/solvers tests/test_readme.py
	$(BIN)/pytest tests/worker tests/app

lint: $(VENV)/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/installed
	$(BIN)/python -m benchmarks

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m compileall -q app solvers worker
	$(BIN)/python -c 'from worker.warm import warm; warm()'  # compiles the kernels, so that no first start waits
	touch $@

clean:
	rm -rf $(VENV)
