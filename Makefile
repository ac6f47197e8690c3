# `make reproduce` and `make test` need only python3 and a package index.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: docs reproduce compare test test-all check bench readme clean

reproduce: $(INSTALLED)  ## the main job: the paper's experiment on MNIST, quickly
	$(BIN)/hardgate reproduce --out out/reproduce --json out/reproduce.json

compare: $(INSTALLED)  ## every unit's gradient against the exact one
	$(BIN)/hardgate compare --figure out/compare.png --json out/compare.json

test: check  ## all checks but the long matrices
	$(BIN)/pytest -m "not slow"

test-all: check  ## with the long matrices
	$(BIN)/pytest

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
	$(BIN)/hardgate facts --write README.md
	$(BIN)/python -m hardgate_lab.pages
	$(BIN)/python -m hardgate_lab.reproduce.recorded results/reproduce
	$(BIN)/python -m hardgate_lab.reproduce.table results/reproduce docs/reproduction.md README.md
	$(BIN)/python -m hardgate_lab.vae.vae_table results/vae docs/vae.md docs/estimators.md
	$(BIN)/python -m hardgate_lab.reproduce.report.write_report results/reproduce docs/figures curves sparsity classes

$(INSTALLED): pyproject.toml constraints.txt
	@echo "Installing into .venv; torch is some 200 MB, so this takes a minute or two."
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv out .mypy_cache .pytest_cache .ruff_cache
