# Each target sets up what it needs in .venv; see `make help` and CONTRIBUTING.md.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := $(VENV)/installed-for-demo
TOOLS := $(VENV)/installed-for-tests
SITE := $(VENV)/installed-for-the-site
FRAMEWORKS := .venv-integrations

SEEDS ?= 5000
START ?= 0
RUNS ?= 8
MUTANTS ?= 8
VERSIONS ?= lowest 3.12 3.13 3.14
PROCESSES ?= $(shell nproc 2>/dev/null || echo 2)
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --dist worksteal

# While a test waits for a job of SLURM or for a page, the cores can run another one.
WAITING ?= $(shell expr $(PROCESSES) \* 3 / 2)

# Where the byte code of modules must not be written beside them, it is kept in the environment:
# the tests start hundreds of interpreters, and each of them would compile torch and Dask again.
ifdef PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/byte-code
export PYTHONDONTWRITEBYTECODE :=
endif

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help set-up demo lint test-fast test test-services test-integrations test-versions torture chaos mutation docs format bench papers clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 20

demo: $(DEMO) ## tune a small CNN on a local Dask cluster
	@$(BIN)/dasktune run examples/digits.py
	@echo
	@echo "Open examples/runs/digits/report-digits.html in a browser. What to type next:"
	@echo "  $(BIN)/dasktune status examples/digits.py    how the study stands"
	@echo "  $(BIN)/dasktune --help                       all commands"
	@echo "  make test                               every check that Python alone can run"

set-up: $(TOOLS) $(SITE) $(FRAMEWORKS)/installed ## install all that the other targets need

lint: $(TOOLS) ## check style, formatting and types
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

test-fast: $(TOOLS) ## run the tests that start no process, with fewer examples
	@$(PYTEST) -n $(PROCESSES) -m fast --hypothesis-profile fast

test: lint ## run lint and every test that Python alone can run
	@$(PYTEST) -n $(PROCESSES) -m "fast or processes"

test-services: $(TOOLS) ## run the tests on PostgreSQL, Ceph, SLURM and Chromium
	@$(PYTEST) -n $(WAITING) -m services

test-integrations: $(FRAMEWORKS)/installed ## run the tests of frameworks, in an environment of their own
	@OMP_NUM_THREADS=1 $(FRAMEWORKS)/bin/python -m pytest --dist worksteal -n $(PROCESSES) \
	  -m integrations tests/integrations

test-versions: ## run TESTS with the lowest versions of all packages, and with newer Pythons
	@PROCESSES=$(PROCESSES) TESTS="$(TESTS)" .ci/versions $(VERSIONS)

torture: $(TOOLS) ## run SEEDS simulated studies from START in which everything goes wrong
	@$(BIN)/python -m tests.torture --seeds $(SEEDS) --start $(START) --processes $(PROCESSES)

chaos: $(TOOLS) ## run RUNS real studies whose processes are killed
	@$(BIN)/python -m tests.chaos --runs $(RUNS)

mutation: $(TOOLS) ## change MUTANTS lines of each part, and see which tests notice
	@.ci/install $(VENV) -e '.[mutation]'
	@$(BIN)/python -m tests.mutation --mutants $(MUTANTS)

docs: $(SITE) ## build the documentation site in docs/site; a warning is an error
	@$(BIN)/sphinx-build -q -W --keep-going docs docs/site
	@echo "Open docs/site/index.html in a browser"

format: $(TOOLS) ## apply formatting and safe fixes
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

bench: $(TOOLS) ## print the benchmark tables, or only that of overhead (TABLE=overhead)
	@$(BIN)/python benchmarks/all.py $(if $(TABLE),--table $(TABLE))

papers: $(TOOLS) ## print the figures of the four papers, ours beside theirs
	@$(BIN)/python benchmarks/all.py --table papers $(if $(DATA),--data $(DATA))

predictor: $(TOOLS) ## train the network of the predictor again, from its prior and seed
	@cd benchmarks && ../$(BIN)/python train_predictor.py --out \
	  ../dasktune/algos/curves/network/prior_fitted.npz

clean: ## remove the environment and all caches, but no results in runs/
	rm -rf $(VENV) $(VENV)-* build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps are inside the environment, so that removing the one removes the others, and are
# written last, so that a set-up that was interrupted is done again.
$(DEMO): pyproject.toml constraints.txt .ci/install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "$(PYTHON) must be Python 3.11 or newer (set PYTHON=...)" >&2; exit 1; }
	@echo "Setting up $(VENV), which takes half a minute and the time of the downloads"
	@$(PYTHON) -m venv $(VENV) \
	  || { echo "venv is missing; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@.ci/install $(VENV) -e '.[torch,examples]'
	@touch $@

$(TOOLS): $(DEMO)
	@echo "Installing the tools of the tests"
	@.ci/install $(VENV) -e '.[test]'
	@touch $@

$(SITE): $(DEMO)
	@echo "Installing the tools of the documentation site"
	@.ci/install $(VENV) -e '.[docs]'
	@touch $@

$(FRAMEWORKS)/installed: pyproject.toml constraints.txt .ci/install
	@echo "Setting up $(FRAMEWORKS) for the tests of frameworks"
	@$(PYTHON) -m venv $(FRAMEWORKS)
	@.ci/install $(FRAMEWORKS) -e '.[test-integrations]'
	@touch $@
