# `make reproduce` and `make test` need only python3 and a package index.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: docs reproduce compare test test-all test-torch mutants check bench readme clean

reproduce: $(INSTALLED)  ## the main job: the paper's experiment on MNIST, quickly
	$(BIN)/hardgate reproduce --out out/reproduce --json out/reproduce.json

compare: $(INSTALLED)  ## every unit's gradient against the exact one
	$(BIN)/hardgate compare --figure out/compare.png --json out/compare.json

test: check  ## all checks but the long matrices
	$(BIN)/pytest -m "not slow"

test-all: check  ## with the long matrices
	$(BIN)/pytest

# Torch from the index is a CUDA build of some 5 GB; it runs on a CPU, and is for this check only.
OTHER := .venv-torch-$(VERSION)
test-torch:  ## the same suite with another torch: make test-torch VERSION=2.15.0
	@test -n "$(VERSION)" || { echo "Which torch? Type: make test-torch VERSION=2.15.0"; exit 2; }
	test -d $(OTHER) || $(PYTHON) -m venv $(OTHER)
	sed 's/^torch==.*/torch==$(VERSION)/' constraints.txt > $(OTHER)/constraints.txt
	$(OTHER)/bin/pip install --quiet --disable-pip-version-check --constraint $(OTHER)/constraints.txt --editable '.[dev]'
	$(OTHER)/bin/pytest -m "not slow"

mutants: $(INSTALLED)  ## plausible mistakes, put in one at a time: do the tests see them? an hour or more
	$(BIN)/python -m tools.mutants

check: $(INSTALLED)  ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(INSTALLED)  ## the conditional layer against dense torch, and what a unit costs
	$(BIN)/hardgate bench --json out/bench.json
	$(BIN)/python benchmarks/units.py

docs: $(INSTALLED)  ## the documentation site, in out/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "→ out/site/index.html"

readme: $(INSTALLED)  ## write the generated tables and figures of README and docs again
	$(BIN)/python tools/write_tables.py
	$(BIN)/python tools/headlines.py
	$(BIN)/python tools/draw_figures.py
	$(BIN)/python tools/draw_figure1.py
	$(BIN)/python -m hardgate_lab.reproduce.recorded results/reproduce

$(INSTALLED): pyproject.toml constraints.txt
	@echo "Installing into .venv; torch is some 200 MB, so this takes a minute or two."
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv .venv-torch-* out .mypy_cache .pytest_cache .ruff_cache
