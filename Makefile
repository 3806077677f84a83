# `make` prints this help. The two commands of a newcomer: `make pipeline` and `make test`.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
LOCKED := $(VENV)/.locked
STAMP := $(VENV)/.installed
# Console scripts find each other through PATH; nothing reports home; no command looks for model hubs.
export PATH := $(CURDIR)/$(BIN):$(PATH)
export DVC_NO_ANALYTICS := 1
export MLFLOW_DISABLE_TELEMETRY := true
export DO_NOT_TRACK := 1
PYTEST_ARGS ?=
# Of `make torture`, exported: minutes in all, and what the damage is drawn from.
export TORTURE_MINUTES ?= 10
export TORTURE_SEED ?= 0
TORTURE_ARGS ?=
# Of `make capabilities`: --lane NAME, --jobs N, --keep FOLDER.
CAPABILITIES_ARGS ?=
# Of `make champions`: the hardware that params.yaml trains for.
CHAMPIONS ?= epyc-avx512-1c epyc-avx2-1c
# As many tests side by side as there are CPUs that this process may use; a test process takes 1 GB and more.
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
# PyTorch's CPU build for CPython 3.11 on x86_64 is not on PyPI; pip may be configured to find it all the same.
TORCH_CPU := 2.13.0
TORCH_CPU_HASH := sha256:6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

.PHONY: help setup pipeline graphs test test-fast check capabilities mutants torture lint format types docs hooks ui leaderboard lock docker
.PHONY: champions clean

help: ## print this page
	@echo "tencost: learned cost models for tensor programs"; echo
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo; echo "  then: tencost --help (in $(BIN)), for example"
	@echo "        $(BIN)/tencost train -m model=xgb,mlp hardware=epyc-avx512-1c,epyc-avx2-1c"

# In this order, so that nothing is installed or run that is not in the lock with its hash, whichever torch pip finds:
# setuptools, with which packages are built that come as sources; torch, chosen by pip as it is configured, and then checked
# (given hashes, pip would take PyPI's CUDA build, however small the build that a folder offers); the rest; and the libraries
# that the CUDA build needs and the CPU build does not. A torch that is there already in the locked version stays.
$(LOCKED): requirements.lock requirements-cuda.lock
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "tencost needs Python 3.11 or later, found " + sys.version.split()[0] + ": make PYTHON=python3.11 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing the locked dependencies into $(VENV) (once; a few minutes) ..."
	@rm -rf $(VENV)/lock && mkdir $(VENV)/lock
	@for name in setuptools torch; do \
		awk -v name="$$name==" '/^[a-z]/ { wanted = index($$0, name) == 1 } wanted' requirements.lock > $(VENV)/lock/$$name; done
	@$(PIP) install --no-deps --require-hashes -r $(VENV)/lock/setuptools
	@set -e; wanted=$$(grep -o '^torch==[^ ]*' $(VENV)/lock/torch); \
	found=$$($(BIN)/python -c 'from importlib.metadata import version; print(version("torch").split("+")[0])' 2>/dev/null || true); \
	if [ "torch==$$found" != "$$wanted" ]; then \
		$(PIP) download --no-deps --only-binary :all: --dest $(VENV)/lock/wheels "$$wanted"; \
		$(PIP) install --no-deps --require-hashes --no-index --find-links $(VENV)/lock/wheels -r $(VENV)/lock/torch; fi
	@$(PIP) install --no-deps --require-hashes --no-build-isolation -r requirements.lock
	@if $(BIN)/python -c 'from importlib.metadata import requires; exit(not any("nvidia" in r for r in requires("torch")))'; then \
		$(PIP) install --no-deps --require-hashes -r requirements-cuda.lock; fi
	@rm -rf $(VENV)/lock
	@touch $@

$(STAMP): $(LOCKED) pyproject.toml
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

setup: $(STAMP) ## create .venv and install the locked dependencies

pipeline: $(STAMP) ## set up, run every stage that is out of date (tencost pipeline: dvc repro), show the leaderboard
	@tencost pipeline
	@tencost leaderboard

graphs: $(STAMP) ## the same for whole networks: data, models, leaderboards (graphs/dvc.yaml, outputs in graphs/data/)
	@tencost pipeline graphs/dvc.yaml
	@tencost leaderboard

test: $(STAMP) ## set up, run the tests, side by side on the CPUs at hand (JOBS=...)
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup $(PYTEST_ARGS) || { [ $$? = 1 ] && $(BIN)/python tests/alone.py $(PYTEST_ARGS); }

test-fast: $(STAMP) ## the tests that need neither TVM's compiler nor whole stages
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m "not slow and not tvm" $(PYTEST_ARGS)

capabilities: $(STAMP) ## run a short example of each thing that a user can do, and print which work
	@PYTHONPATH=tests $(BIN)/python -m capabilities $(CAPABILITIES_ARGS)

mutants: $(STAMP) ## put small errors into the modules that figures depend on: do their tests notice? (MODULES="tune/guard.py ...")
	@$(BIN)/python benchmarks/mutants.py --jobs $(JOBS) $(MODULES)

torture: $(STAMP) ## damage files and kill commands for TORTURE_MINUTES=10, with TORTURE_SEED=0; findings in torture-findings/
	@PYTHONPATH=tests $(BIN)/python -m torture $(TORTURE_ARGS)

check: $(STAMP) lint types test ## ruff, mypy and the tests: exactly what CI runs

lint: $(STAMP) ## ruff: style and formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: $(STAMP) ## let ruff rewrite the files
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

types: $(STAMP) ## mypy, strict
	@$(BIN)/mypy

docs: $(STAMP) ## build the documentation into site/; a warning is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet && echo "open site/index.html"

hooks: $(STAMP) ## let git run ruff, mypy and file checks before a commit
	@$(BIN)/pre-commit install

ui: $(STAMP) ## MLflow UI on port 5000, or a free one where that is taken (PORT=...: on that port)
	@tencost ui $(if $(PORT),--port $(PORT))

leaderboard: $(STAMP) ## print the leaderboards and champions of the last evaluation
	@tencost leaderboard

lock: ## write the lock files anew from pyproject.toml (LOCK_ARGS=--upgrade: newest versions)
	@rm -rf .lock-env && $(PYTHON) -m venv .lock-env
	@.lock-env/bin/pip install --quiet uv==0.13.9
	@cat requirements.lock requirements-cuda.lock > .lock-env/all
	@.lock-env/bin/uv pip compile --quiet --universal --python-version 3.11 --extra dev --generate-hashes \
		--annotation-style line --no-header --output-file .lock-env/all $(LOCK_ARGS) pyproject.toml
	@for lock in requirements requirements-cuda; do sed '/^[^#]/,$$d' $$lock.lock > .lock-env/$$lock.lock; done
	@awk '/^[a-z]/ { out = ".lock-env/requirements" (/^(cuda-|nvidia-|triton==)/ ? "-cuda" : "") ".lock" } \
		/--hash=$(TORCH_CPU_HASH) / { next } { print >> out } /^torch==$(TORCH_CPU) / { print "    --hash=$(TORCH_CPU_HASH) \\" >> out }' .lock-env/all
	@mv .lock-env/*.lock . && rm -rf .lock-env

champions: $(STAMP) ## package the registry's champions (CHAMPIONS=...) with tencost: src/tencost/champions/
	@for hardware in $(CHAMPIONS); do tencost register export models:/tencost-$$hardware@champion \
		src/tencost/champions/tencost-$$hardware --card --replace || exit; done

docker: ## build the image (needs Docker)
	docker build -t tencost .

clean: ## remove caches and test leftovers (data/, mlruns/ and .venv stay)
	rm -rf build dist site torture-findings .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
