# `make setup` installs everything into .venv; demo, test, lint and bench run it first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO_INPUT := tests/data/4.3.1/chaos
DEMO_OUT := demo-warehouse

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint bench clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

setup: $(READY) ## create .venv, fetch the jars, compile the kernels

$(READY): pyproject.toml $(wildcard share_state/kafka/*.py share_state/sources/*.py share_state/fold/*.py) share_state/cli/setup.py
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test $(VENV)/.installed -nt pyproject.toml || { $(BIN)/python -m pip install --quiet "pip>=25.1" && $(BIN)/python -m pip install --quiet --editable . --group dev && touch $(VENV)/.installed; }
	@$(BIN)/python -m share_state.cli.setup --with-test-jars
	@touch $(READY)

demo: setup ## reconstruct the shipped broker log and show the tables
	@$(BIN)/share-state reconstruct $(DEMO_INPUT) --topics $(DEMO_INPUT)/topics.json --out $(DEMO_OUT)
	@$(BIN)/share-state show $(DEMO_OUT) --group g3
	@$(BIN)/share-state cutoff $(DEMO_INPUT) --verify

test: setup ## run every test
	@$(BIN)/python -m pytest -n 2 --dist loadgroup

lint: setup ## run ruff, the type checker and the import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/basedpyright
	@$(BIN)/lint-imports

bench: setup ## compare Kafka's own classes and share_state on the same log (bench/README.md)
	@$(BIN)/python -m bench

clean: ## remove .venv and all generated files
	rm -rf $(VENV) $(DEMO_OUT) bench/data .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
