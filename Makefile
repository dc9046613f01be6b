# `make demo` installs what the commands need; setup, test, lint, docs and bench also what developers need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_INPUT := tests/data/4.3.1/chaos
DEMO_OUT := demo-warehouse

# uv installs in a fraction of pip's time, and the versions of requirements.lock; if it is not available, pip installs.
LOCK := requirements.lock
UV := $(or $(shell command -v uv),$(BIN)/uv)
INDEX = $(or $(UV_DEFAULT_INDEX),$(PIP_INDEX_URL),$(shell $(BIN)/python -m pip config get global.index-url 2>/dev/null))
INSTALL = { $(UV) --version && $(if $(INDEX),UV_DEFAULT_INDEX=$(INDEX)) $(UV) pip install --quiet --python $(BIN)/python \
	--constraint $(LOCK) --build-constraint $(LOCK) $(1); } >/dev/null \
	|| { $(BIN)/python -m pip install --quiet "pip>=25.1" && $(BIN)/python -m pip install --quiet $(1); }
TIMED = echo "$(1) ..."; begun=$$(date +%s); { $(2); } && echo "  done in $$(($$(date +%s) - begun)) s"
# Debian's package has promtool, which checks the alert rules; without it their tests are skipped.
PROMTOOL = d=$$(mktemp -d) && { (cd $$d && apt-get download prometheus && dpkg-deb -x prometheus_*.deb .) >/dev/null 2>&1 \
	&& mv $$d/usr/bin/promtool $(BIN)/ || echo "  not available: its tests are skipped"; rm -rf $$d; }

# Many containers set it; every process would then compile everything that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint docs bench lock oldest clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

$(BIN)/python:
	@$(call TIMED,create $(VENV),$(PYTHON) -m venv $(VENV))

$(VENV)/.runtime: pyproject.toml $(LOCK) | $(BIN)/python
	@command -v uv >/dev/null || test -x $(BIN)/uv || { $(call TIMED,install uv,$(BIN)/python -m pip install --quiet uv || echo "  not available: pip installs"); }
	@$(call TIMED,install share-state and its dependencies (600 MB),$(call INSTALL,--editable . --group venv))
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	@$(call TIMED,install Spark and what tests and checks need (1.7 GB),$(call INSTALL,--editable ".[all]" --group dev))
	@command -v promtool >/dev/null || test -x $(BIN)/promtool || { $(call TIMED,get promtool,$(PROMTOOL)); }
	@touch $@

$(VENV)/.ready: $(VENV)/.dev $(foreach package,fold fold/* jit kafka rules sources,$(wildcard share_state/$(package)/*.py)) share_state/cli/setup.py
	@$(BIN)/share-state setup --with-test-jars
	@touch $@

setup: $(VENV)/.ready ## create .venv with everything: dependencies, jars, compiled kernels

demo: $(VENV)/.runtime ## reconstruct the shipped broker log and show the tables (installs only what that needs)
	$(BIN)/share-state reconstruct $(DEMO_INPUT) --out $(DEMO_OUT)
	$(BIN)/share-state show $(DEMO_OUT) --group g3
	$(BIN)/share-state cutoff $(DEMO_INPUT) --verify

test: setup ## run every test
	@$(BIN)/python -m pytest -n 3 --dist loadgroup

lint: setup ## run ruff, the type checker and the import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/basedpyright
	@$(BIN)/lint-imports

docs: $(VENV)/.dev ## build the documentation into site/, strict
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet && echo "open site/index.html, or with search: $(BIN)/python -m http.server -d site"

bench: setup ## compare Kafka's own classes and share_state on the same log (bench/README.md)
	@$(BIN)/python -m bench

lock: $(VENV)/.runtime ## write the newest versions that pyproject.toml allows to requirements.lock
	@$(UV) pip compile --quiet --upgrade --universal --python-version 3.11 --all-extras --group dev --generate-hashes \
		--no-emit-index-url --no-header --no-annotate pyproject.toml --output-file $(LOCK)

oldest: $(VENV)/.dev ## install the oldest versions that pyproject.toml allows; `make test` then tests them
	@$(UV) pip install --quiet --python $(BIN)/python --resolution lowest-direct --editable ".[all]"

clean: ## remove .venv and all generated files
	rm -rf $(VENV) $(DEMO_OUT) site bench/data .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
