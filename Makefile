# `make` prints this help. The two commands of a newcomer: `make pipeline` and `make test`.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Console scripts find each other through PATH; nothing reports home; no command looks for model hubs.
export PATH := $(CURDIR)/$(BIN):$(PATH)
export DVC_NO_ANALYTICS := 1
export MLFLOW_DISABLE_TELEMETRY := true
export DO_NOT_TRACK := 1
PYTEST_ARGS ?=

.PHONY: help setup pipeline test check lint format types ui leaderboard lock docker clean

help: ## print this page
	@echo "tencost: learned cost models for tensor programs"; echo
	@awk -F':.*## ' '/^[a-z]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo; echo "  then: tencost --help (in $(BIN)), for example"
	@echo "        $(BIN)/tencost train -m model=xgb,mlp hardware=epyc-avx512-1c,epyc-avx2-1c"

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "tencost needs Python 3.11 or later, found " + sys.version.split()[0] + ": make PYTHON=python3.11 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing the locked dependencies into $(VENV) (once; a few minutes) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

setup: $(STAMP) ## create .venv and install the locked dependencies

pipeline: $(STAMP) ## set up, run every stage that is out of date (dvc repro), show the leaderboard
	@test -d .git || dvc config --local core.no_scm true
	@dvc repro
	@tencost leaderboard

test: $(STAMP) ## set up, run the tests
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

check: $(STAMP) lint types test ## ruff, mypy and the tests: exactly what CI runs

lint: $(STAMP) ## ruff: style and formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: $(STAMP) ## let ruff rewrite the files
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

types: $(STAMP) ## mypy, strict
	@$(BIN)/mypy

ui: $(STAMP) ## MLflow UI on http://127.0.0.1:5000 (PORT=... for another port)
	@tencost ui $(if $(PORT),--port $(PORT))

leaderboard: $(STAMP) ## print the leaderboards and champions of the last evaluation
	@tencost leaderboard

lock: ## write requirements.lock anew from pyproject.toml, in a scratch environment
	@rm -rf .lock-env && $(PYTHON) -m venv .lock-env
	@.lock-env/bin/pip install --quiet -e '.[dev]'
	@(sed -n '/^#/p' requirements.lock; .lock-env/bin/pip freeze --all --exclude-editable \
		| grep -v -E '^pip==' | sed 's/+cpu//' | sort -f) > requirements.lock.new
	@mv requirements.lock.new requirements.lock && rm -rf .lock-env

docker: ## build the image (needs Docker)
	docker build -t tencost .

clean: ## remove caches and test leftovers (data/, mlruns/ and .venv stay)
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
