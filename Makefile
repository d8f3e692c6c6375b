# A machine with Python 3.11 and make is enough.
PYTHON ?= python3.11
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

export OMP_NUM_THREADS = 1
export TOKENIZERS_PARALLELISM = false

.PHONY: setup quickstart test lint types check bench bench-quickstart bench-gpu clean

setup: .venv/.runtime

quickstart: setup
	$(BIN)/trb submit experiments/quickstart.yaml
	$(BIN)/trb probe continuation experiments/quickstart.yaml
	$(BIN)/trb figures experiments/quickstart.yaml --out runs/results/quickstart
	$(BIN)/trb report experiments/quickstart.yaml

test: .venv/.dev
	$(BIN)/python -m pytest

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.dev
	$(BIN)/pyright

check: lint types test

bench: .venv/.dev
	$(BIN)/python -m tests.benchmarks.bench

bench-quickstart: .venv/.dev
	$(BIN)/python -m tests.benchmarks.bench --quickstart

bench-gpu: .venv/.dev
	$(BIN)/python -m tests.benchmarks.gpu

clean:
	rm -rf .venv build *.egg-info

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.runtime: docker/lock/runtime.txt setup.cfg | .venv/bin/python
	$(PIP) install --no-deps -r docker/lock/runtime.txt
	$(PIP) install --no-deps --no-build-isolation -e . --config-settings editable_mode=compat
	@touch $@

.venv/.dev: docker/lock/dev.txt .venv/.runtime
	$(PIP) install --no-deps -r docker/lock/dev.txt
	@touch $@
