# Needs Python >= 3.11 and make. `make help` lists the targets.
#
# One environment, .venv, filled in steps that each leave a stamp: `make demo` installs the core and the demo's
# peers, and never PyTorch; `make test` adds PyTorch and the tools. The stamps' names hold hashes: of this folder and
# the Python version (a change makes the environment anew) and of pyproject.toml (a change runs pip again).
#
# PyTorch's Linux wheels on the default index bring gigabytes of CUDA. To take the CPU build instead, give pip its
# index: make test PIP_ARGS="--extra-index-url=<the CPU wheel index>".

ifndef PYTHON
PYTHON := $(shell for name in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && command -v $$name && break; done)
endif
ifeq ($(PYTHON),)
$(error Python 3.11 or newer is needed and none was found; name it: make PYTHON=/path/to/python3)
endif
PIP_ARGS ?=
PYTEST_ARGS ?=
FUZZ_ARGS ?=
REPLAY_ARGS ?=
MOVES_ARGS ?=
JOBS ?= 2

VENV := .venv
RUN := $(VENV)/bin/python
# A run imports some of the packages' files only, and Python keeps the bytecode of those that it imports.
INSTALL = $(RUN) -m pip install --quiet --disable-pip-version-check --no-compile $(PIP_ARGS)
KEYS := $(shell $(PYTHON) -c 'import hashlib, os, sys; \
	base = hashlib.sha256((os.getcwd() + sys.version).encode()); \
	full = hashlib.sha256(base.digest() + open("pyproject.toml", "rb").read()); \
	print(base.hexdigest()[:12], full.hexdigest()[:12])')
BASE := $(VENV)/base-$(firstword $(KEYS))
STAMP := $(VENV)/stamp-$(lastword $(KEYS))

# Tests start many processes that import the compiler, which takes far longer where the environment forbids Python to keep
# its bytecode.
unexport PYTHONDONTWRITEBYTECODE

# The tests' own parallelism is worker processes: the thread pools of NumPy, PyTorch and peers stay out of the way.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-all test-gpu fuzz replay moves emulate lint bench characters clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' Makefile | while IFS='|' read -r name text; do printf '  make %-9s %s\n' "$$name" "$$text"; done

demo: $(STAMP)-demo  ## compile a digit classifier, run it on held-out digits beside ONNX Runtime
	@$(RUN) examples/digits/demo.py

# A worker of mypy's has three seconds to start, which a busy machine does not give it. Then mypy ends with 2, as where
# it breaks and not as where a type is wrong, and is run again alone.
lint: $(STAMP)-dev  ## ruff and mypy
	$(RUN) -m ruff check
	$(RUN) -m mypy --num-workers $(JOBS) || { [ $$? = 2 ] && $(RUN) -m mypy; }

# Random tests draw the same cases every time here, so that a change is judged by what it did; test-all draws new ones.
# Limit and budget are generous, as other work on the machine makes processor time longer too; they keep the whole within
# minutes.
test: lint  ## lint, then every test but the slow ones
	$(ONE_THREAD) $(RUN) -m pytest -m "not slow and not fuzz" --hypothesis-profile=ci --dist worksteal \
		--cpu-limit 60 --cpu-budget 1500 -n $(JOBS) $(PYTEST_ARGS)

test-all: lint  ## lint, then every test, full-size models too
	$(ONE_THREAD) $(RUN) -m pytest -m "not fuzz" -n $(JOBS) --timeout 1800 -o faulthandler_timeout=2400 $(PYTEST_ARGS)

# CUDA's driver comes with the GPU; the bindings, and code for it, from pip. Without a GPU every test skips.
test-gpu: $(STAMP)-dev  ## models and every op on this computer's NVIDIA GPU, under nine minutes
	$(INSTALL) --editable ".[cuda]"
	$(ONE_THREAD) $(RUN) -m pytest -m gpu -n auto $(PYTEST_ARGS) tests/ptx

# QEMU, node and an Arm compiler come from the system (docs/deploy.md names Debian's packages); all else from pip.
emulate: $(STAMP)-dev  ## code for Arm, RISC-V, WebAssembly under emulators; a missing tool is a failure
	$(ONE_THREAD) TILEWRIGHT_REQUIRE=emulation $(RUN) -m pytest -m "emulation and not slow" -n $(JOBS) $(PYTEST_ARGS)

fuzz: $(STAMP)-dev  ## random graphs, code for every machine, damaged files; goes on where it was stopped
	$(ONE_THREAD) PYTHONPATH=tests:. $(RUN) -m fuzz --jobs $(JOBS) $(FUZZ_ARGS)
	$(ONE_THREAD) $(RUN) -m pytest -m fuzz -n $(JOBS) --timeout 0 -o faulthandler_timeout=0 $(PYTEST_ARGS)

replay: $(STAMP)-dev  ## is the emitted code byte-equal to the last commit's? REPLAY_ARGS="--base HEAD~1" for another
	$(ONE_THREAD) PYTHONPATH=src:tests:. $(RUN) -m replay --jobs $(JOBS) $(REPLAY_ARGS)

moves: $(STAMP)-dev  ## do the branch's commits that say [moves] emit their parents' code? MOVES_ARGS="--since REV" for others
	$(ONE_THREAD) PYTHONPATH=src:tests:. $(RUN) -m replay_moves --quick --jobs $(JOBS) $(MOVES_ARGS)

bench: $(STAMP)-bench  ## latency and compile time beside the peers, interleaved
	$(RUN) -m benchmarks.latency resnet50 bert_base mobilenet_v2 --threads 1 2
	$(RUN) -m benchmarks.compile_time

characters: $(STAMP)-bench  ## train a character model on the standard library, its perplexity at fewer bits
	$(RUN) -m benchmarks.characters

clean:  ## remove the environment and all caches
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests examples docs -name __pycache__ -prune -exec rm -rf {} +

# The pip that Python 3.11 brings takes half as long again as a newer one; where none can be had, it will do.
$(BASE):
	$(PYTHON) -m venv --clear $(VENV)
	-$(INSTALL) "pip>=25"
	@touch $@

$(STAMP)-demo: EXTRAS := demo
$(STAMP)-dev: EXTRAS := dev,torch
$(STAMP)-bench: EXTRAS := dev,torch,bench
$(STAMP)-%: | $(BASE)
	@rm -f $(filter-out $(STAMP)-%,$(wildcard $(VENV)/stamp-*))
	$(INSTALL) --editable ".[$(EXTRAS)]"
	@touch $@
