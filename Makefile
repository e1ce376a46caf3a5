# `make run` starts a development server; `make test` runs every check. Both set up what they need.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Some machines switch it off; every process of a test would then compile the sources again.
export PYTHONDONTWRITEBYTECODE :=
# Where there is no Node, the environment has one.
export PATH := $(CURDIR)/$(BIN):$(PATH)

PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

JS := clients/js

.PHONY: setup setup-dev setup-js run demo test check lint bench soak dist docs clean

setup: $(VENV)/.server
setup-dev: $(VENV)/.dev $(VENV)/.spark setup-js
setup-js: $(JS)/node_modules/.package-lock.json

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Unisono needs Python 3.11 or newer; $(PYTHON) is older (set PYTHON=...)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.server: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing the server into $(VENV)"
	$(PIP) install --constraint constraints.txt --editable '.[terminal]'
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	@tools/ensure-java
	@echo "installing everything, PySpark and the development tools among it, into $(VENV): some minutes"
	$(PIP) install --constraint constraints.txt --editable '.[dev,docs,postgres,pipeline,terminal]'
	@touch $(VENV)/.server $@

$(VENV)/.spark: $(VENV)/.dev
	@echo "preparing quick starts of Spark: half a minute"
	$(BIN)/python -m unisono.pipeline.spark.warmup
	@touch $@

$(JS)/node_modules/.package-lock.json: $(JS)/package-lock.json | $(BIN)/python
	@tools/ensure-node $(BIN)/python
	@tools/ensure-chromium
	@echo "installing the development tools of the JavaScript client"
	npm ci --prefix $(JS) --no-audit --no-fund --loglevel=error
	@touch $@

run: setup
	$(BIN)/unisono serve --dev

# A server, twenty people who edit and go offline, the Spark pipeline over what they did, and pages to look at.
demo: $(VENV)/.dev $(VENV)/.spark
	$(BIN)/python tools/demo.py

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Spark is prepared beside the linters, each of which has one core to itself.
check: lint $(VENV)/.spark setup-js

# Three files at a time, the slow ones first: much of a test's time is waiting for processes to start and to end.
test:
	@$(MAKE) --no-print-directory -j2 check
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

# The peers are installed by it, apart from everything else. Figures and pictures go into docs/performance.md.
bench: setup-dev
	$(BIN)/python -m benchmarks peers --write-docs

soak: setup-dev
	$(BIN)/python -m pytest -n 2 --dist loadfile --durations=0 --durations-min=1 soak
	$(BIN)/python -m pytest -n 2 --dist loadfile --durations=0 --durations-min=1 -m soak tests

# A wheel, and the source archive that it is built from. The tool for it has an environment of its own.
dist: .venv-dist/.build
	rm -rf dist
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt .venv-dist/bin/python -m build --outdir dist .

.venv-dist/.build: constraints.txt
	$(PYTHON) -m venv .venv-dist
	.venv-dist/bin/python -m pip --disable-pip-version-check --quiet install --constraint constraints.txt build
	@touch $@

# The documentation site, in site/: open site/index.html. Warnings and broken links are errors.
docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open site/index.html"

clean:
	rm -rf $(VENV) .venv-dist .venv-peers $(JS)/node_modules benchmarks/peers/node_modules build dist site
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis
