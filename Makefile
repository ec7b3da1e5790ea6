# Everything a person runs here. `make help` lists it.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup serve test test-simulation test-models check format bench

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=

help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo '  ARGS="…" is passed on to serve, test and bench; PYTHON=… chooses the interpreter for setup.'

setup: $(STAMP) ## Make .venv with everything Uzu needs

# A changed pyproject.toml or constraints.txt installs again; an interpreter that no longer runs is replaced.
$(STAMP): pyproject.toml constraints.txt
	@if ! $(BIN)/python -c '' 2>/dev/null; then \
	  python=$$(tools/find_python.sh); \
	  echo "Making $(VENV) with $$python"; \
	  "$$python" -m venv --clear $(VENV); \
	fi
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt pip
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

serve: $(STAMP) ## Serve the default model: http://127.0.0.1:8080
	@exec $(BIN)/uzu serve $(ARGS)

test: $(STAMP) ## Run every test that needs no GPU; fetches the model on first use
	@$(BIN)/python -m pytest -m "not gpu and not simulation and not models" $(ARGS)

test-simulation: $(STAMP) ## Run a million requests through the scheduler
	@$(BIN)/python -m pytest -m simulation $(ARGS)

test-models: $(STAMP) ## Compare other architectures with transformers; installs torch into the cache
	@$(BIN)/python -m pytest -m models $(ARGS)

check: $(STAMP) ## Formatting, lint and types, without changing anything
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(STAMP) ## Format, and mend what ruff can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP) ## Measure tokens per second through the gateway and of the engine alone
	@$(BIN)/python perf/bench.py $(ARGS)
