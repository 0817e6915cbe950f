PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

MINUTES ?= 5

.PHONY: serve test lint bench bench-service faults fuzz chaos clean

serve: $(VENV)/server
	$(BIN)/ncp serve

test: lint
	$(BIN)/pytest --numprocesses 2 tests/solvers tests/test_readme.py
	$(BIN)/pytest tests/worker tests/app
	$(MAKE) faults

lint: $(VENV)/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/installed
	$(BIN)/python -m benchmarks

bench-service: $(VENV)/installed
	$(BIN)/python -m benchmarks.service

fuzz: $(VENV)/installed
	$(BIN)/python -m tests.fuzz $(if $(SEED),--seed $(SEED))

faults: $(VENV)/installed
	$(BIN)/pytest --numprocesses 2 --dist loadfile tests/faults

chaos: $(VENV)/installed
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

$(VENV)/server: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --constraint constraints.txt --editable .
	$(BIN)/python -m compileall -q app solvers worker
	$(BIN)/python -c 'from worker.warm import warm; warm()'  # compiles the kernels, so that no first start waits
	touch $@

$(VENV)/installed: $(VENV)/server
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV)
