# Each target does its own set-up: a fresh clone needs nothing but Python 3.11 or newer.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUN ?= runs/quickstart
SEED ?= 0
export HF_HUB_DISABLE_TELEMETRY = 1

.PHONY: install install-dev quickstart test test-slow check clean

install: $(VENV)/.installed

install-dev: $(VENV)/.installed-dev

# torch first: on some machines its exact version is a small CPU build that a later resolution keeps.
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	touch $@

# What tests and checks need beside the package, which the quickstart does without.
$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[dev]"
	touch $@

quickstart: install
	$(BIN)/treeagent quickstart --config quickstart --out $(RUN) --seed $(SEED) --resume

test: install-dev
	$(BIN)/pytest

test-slow: install-dev
	$(BIN)/pytest -m slow

check: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) build dist *.egg-info
