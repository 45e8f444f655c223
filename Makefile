# One command per job; the commit hooks and continuous integration call the same targets.
# Needs Python 3.11+ with pip, make and git. Nothing is installed outside .venv.

PYTHON ?= python3
HOST ?= 127.0.0.1
PORT ?= 8000
# A name that `muro pull` knows, or a model directory.
MODEL ?= demo
# Further flags: `make serve ARGS="--max-model-len 2048"`, `make test ARGS="-k codec"`, `make bench ARGS=--json`.
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
# One stamp per set of extras, renewed when pyproject.toml changes: a second run installs nothing.
SERVE := $(VENV)/.installed-serve
TEST := $(VENV)/.installed-test
FUZZ := $(VENV)/.installed-fuzz
CLUSTER := $(VENV)/.installed-cluster
# Real foreign peers, clusters and the long runs have targets of their own.
SUITE := tests --ignore=tests/interop --ignore=tests/chaos --ignore=tests/cluster

.PHONY: help setup serve test check fmt lint type imports fragment bench cases fuzz chaos soak structured interop smoke-interop interop-vllm same-tokens-vllm walls-vllm ray kubernetes clean

help:
	@echo "make serve          serve the demo model on http://$(HOST):$(PORT)   (MODEL= HOST= PORT= ARGS=)"
	@echo "make test           run every test that needs no foreign peer        (ARGS=)"
	@echo "make check          format, lint, types, import contracts, change fragment"
	@echo "make setup          install everything for development into $(VENV)"
	@echo "make fmt            format and fix in place"
	@echo "make lint | type    ruff | mypy alone"
	@echo "make bench          measure the wall                                 (ARGS=)"
	@echo "make cases          the failure cases at full counts"
	@echo "make fuzz           bytes for every decoder, walks through the state machines (ARGS=\"--seconds 600\")"
	@echo "make chaos          a server under random faults, every request accounted for (ARGS=\"--seconds 300 --seed 7\")"
	@echo "make soak           the same for an hour; nothing may grow"
	@echo "make structured     answers in JSON by the schemas of a public suite, beside hostile grammars"
	@echo "make interop        real foreign front-ends before our engine (fetches them); prints peers x cases"
	@echo "make smoke-interop  a few of these cases"
	@echo "make interop-vllm   vLLM 0.25.1 in Python, both directions, and its engine behind our wall (6 GB)"
	@echo "make same-tokens-vllm  whether vLLM's engine answers the same behind our wall as under its own"
	@echo "make walls-vllm     what our wall costs beside vLLM's own          (ARGS=--quick)"
	@echo "make ray            ranks on a Ray cluster of two nodes on this machine; nodes, hosts and engines die"
	@echo "make kubernetes     the example manifest by Kubernetes' schemas, and its commands"
	@echo "make clean          remove caches and build products; $(VENV) stays"

setup: $(TEST)

serve: $(SERVE)
	@test -d "$(MODEL)" || $(BIN)/muro pull "$(MODEL)" > /dev/null
	@exec $(BIN)/muro serve "$(MODEL)" --host "$(HOST)" --port "$(PORT)" $(ARGS)

test: $(TEST)
	@$(BIN)/python scripts/run_tests.py $(ARGS)

check: lint type imports fragment

fmt: $(TEST)
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lint: $(TEST)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

type: $(TEST)
	@$(BIN)/mypy

imports: $(TEST)
	@$(BIN)/lint-imports --no-cache --no-logo

fragment: $(TEST)
	@$(BIN)/python scripts/check_fragment.py

bench: $(SERVE)
	@$(BIN)/muro bench wall $(ARGS)

cases: $(TEST)
	@MURO_FULL_COUNTS=1 $(BIN)/pytest $(SUITE) -m "cases or slow" $(ARGS)

fuzz: $(FUZZ)
	@$(BIN)/python -m fuzz $(ARGS)

chaos: $(TEST)
	@$(BIN)/python -m tests.chaos $(ARGS)

soak: $(TEST)
	@$(BIN)/python -m tests.chaos --seconds 3600 --growth $(ARGS)

structured: $(TEST)
	@$(BIN)/python -m tests.structured $(ARGS)

interop: $(TEST)
	@$(BIN)/python -m tests.interop.fetch
	@$(BIN)/pytest tests/interop --ignore=tests/interop/vllm $(ARGS)

interop-vllm: $(TEST)
	@$(BIN)/python scripts/install_vllm.py .interop/vllm
	@$(BIN)/pytest tests/interop/vllm $(ARGS)

same-tokens-vllm walls-vllm: $(TEST)
	@$(BIN)/python scripts/install_vllm.py .interop/vllm
	@model=$$($(BIN)/muro pull demo --with-weights | tail -n 1); \
	exec .interop/vllm/bin/python -m tests.interop.vllm.$(if $(filter walls%,$@),walls,same_tokens) "$$model" $(ARGS)

smoke-interop: $(TEST)
	@$(BIN)/python -m tests.interop.fetch
	@$(BIN)/pytest tests/interop --ignore=tests/interop/vllm -m smoke $(ARGS)

ray: $(CLUSTER)
	@$(BIN)/pytest tests/cluster -k ray $(ARGS)

kubernetes: $(CLUSTER)
	@$(BIN)/pytest tests/cluster -k kubernetes $(ARGS)

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .bench .fuzz
	find src tests scripts fuzz -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/pip:
	@for python in "$(PYTHON)" python3 python3.14 python3.13 python3.12 python3.11; do \
		if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			echo "Making $(VENV) with $$("$$python" --version)"; \
			exec "$$python" -m venv $(VENV); \
		fi; \
	done; \
	echo "muro needs Python 3.11 or newer and found none; name one: make PYTHON=/path/to/python3.11 ..." >&2; exit 1

$(SERVE): pyproject.toml | $(BIN)/pip
	@$(BIN)/python scripts/install.py serve,openvino,structured,bench
	@touch $@

# The test extras contain the serving ones.
$(TEST): pyproject.toml | $(BIN)/pip
	@$(BIN)/python scripts/install.py test,lint
	@touch $(SERVE) $@

$(FUZZ): pyproject.toml | $(TEST)
	@$(BIN)/python scripts/install.py fuzz || echo "Going on without atheris"
	@touch $@

$(CLUSTER): pyproject.toml | $(TEST)
	@$(BIN)/python scripts/install.py test,ray,kubernetes
	@touch $@
