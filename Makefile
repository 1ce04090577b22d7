# Two commands on a machine with Python 3.11 or newer, make and git: `make up` and `make test`.
# Variables: PYTHON (which interpreter), PIP_ARGS (given to every pip install), TESTS (what `make test` runs), PARALLEL (in how many processes),
# DRILLS (what `make drills` runs), DRILLS_OUT (the file of their figures), QUESTIONS (what `make bench` asks), GPU_OUT (the file of the figures of `make gpu-check`), PEERS (environments of other libraries, for the same).
PYTHON ?= python3
PIP_ARGS ?=
TESTS ?= tests
PARALLEL ?= 3
DRILLS ?= tests
DRILLS_OUT ?= drills.json
QUESTIONS ?= evaluation/questions.jsonl
GPU_OUT ?= gpu.json
PEERS ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TORCH := torch==2.13.0
AUDIT := .make/audit
# A crashed test process is not replaced: with loadfile, pytest-xdist then waits for ever.
WORKERS := -n $(PARALLEL) --dist loadfile --max-worker-restart 0

export PIP_DISABLE_PIP_VERSION_CHECK := 1
unexport PYTHONDONTWRITEBYTECODE  # or each process of a test would compile the project again

.PHONY: up install test test-unit test-databases drills lint bench gpu-check pictures audit clean
.DEFAULT_GOAL := up

up: install ## install if needed, then run everything in the foreground until Ctrl-C
	@$(BIN)/speculoos up

install: $(STAMP) ## a virtual environment with everything, and the starter model, made again where it is gone
	@test -s $(VENV)/share/speculoos/starter/model.safetensors || $(BIN)/python -m models.fetch starter

$(STAMP): pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "Speculoos needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || true). Name another one: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "Python cannot make a virtual environment; on Debian and Ubuntu install python3-venv first."; exit 1; }
	$(BIN)/python -m pip install -q $(PIP_ARGS) "$(TORCH)"
	$(BIN)/python -m pip install -q $(PIP_ARGS) "$(TORCH)" -e ".[dev]"
	$(BIN)/python -m models.fetch starter
	@touch $@

test: install ## the whole test suite
	@$(BIN)/python -m tests.tools.browser
	$(BIN)/python -m pytest $(TESTS) -m "not drill" $(WORKERS) --no-loadscope-reorder

test-unit: install ## the tests that start no process, no browser and not the real model
	$(BIN)/python -m pytest -p tests.tools.tiers $(TESTS) -m "not integration and not browser and not drill and not real" $(WORKERS)

test-databases: install ## everything with rows, on SQLite and on PostgreSQL, with Redis where it is installed
	@$(BIN)/python -m tests.tools.browser
	DATABASES=all $(BIN)/python -m pytest $(TESTS) -m "not drill"

drills: install ## breaks things on purpose, for about three hours; figures go into DRILLS_OUT, then into docs/reliability.md
	@$(BIN)/python -m tests.tools.browser
	DRILLS_OUT=$(DRILLS_OUT) $(BIN)/python -m pytest $(DRILLS) -m drill; status=$$?; \
	$(BIN)/python -m benchmarks.reliability $(DRILLS_OUT) && exit $$status

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

bench: install ## speed beside transformers, and whether the output is the same, on the starter model
	$(BIN)/python -m benchmarks.decode --questions $(QUESTIONS)
	$(BIN)/python -m benchmarks.exactness --questions $(QUESTIONS)

gpu-check: install ## exactness and speed on an NVIDIA GPU, in ten minutes; figures go into GPU_OUT and docs/benchmarks.md
	$(BIN)/python -m benchmarks.gpu_check --json $(GPU_OUT) $(PEERS)

pictures: install ## the pictures of README and docs, in some minutes
	@$(BIN)/python -m tests.tools.browser
	$(BIN)/python -m benchmarks.pictures

audit: install ## known vulnerabilities and licenses of what is installed; needs the internet
	@test -x $(AUDIT)/bin/pip-audit || { $(PYTHON) -m venv $(AUDIT) && $(AUDIT)/bin/python -m pip install -q $(PIP_ARGS) pip-audit; } \
	  || { rm -rf $(AUDIT); echo "make audit: pip-audit cannot be installed here; it needs the internet."; exit 2; }
	$(BIN)/python -m tests.tools.audit $(AUDIT)/bin/pip-audit

clean: ## forget the virtual environment; data stays
	rm -rf $(VENV) *.egg-info
