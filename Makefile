# `make demo` and `make test` set up all they need in .venv; see `make help`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lint format bench clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 10

demo: $(STAMP) ## tune a small CNN on a local Dask cluster
	@$(BIN)/dasktune run examples/digits.py

test: lint ## run every check
	@$(BIN)/python -m pytest

lint: $(STAMP) ## check style, formatting and types
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

format: $(STAMP) ## apply formatting and safe fixes
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

bench: $(STAMP) ## print the benchmark tables
	@$(BIN)/python benchmarks/all.py

clean: ## remove the environment and all caches, but no results in runs/
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is inside the environment, so that removing the one removes the other, and is
# written last, so that a set-up that was interrupted is done again.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "$(PYTHON) must be Python 3.11 or newer (set PYTHON=...)" >&2; exit 1; }
	@echo "Setting up $(VENV), which takes a minute or two"
	@$(PYTHON) -m venv $(VENV) \
	  || { echo "venv is missing; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@$(BIN)/python -m pip install -qq --disable-pip-version-check \
	  -c constraints.txt -e '.[test]'
	@touch $@
