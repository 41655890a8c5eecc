# The commands a person needs; `make` alone lists them.
#
# Two environments: .venv runs Allot and its checks; .venv-workload is what sessions and
# trainings find, so that what they install or break cannot reach Allot itself.

PYTHON ?= python3
UV_VERSION := 0.13.9
VENV := .venv
PY := $(VENV)/bin/python
UV := $(VENV)/bin/uv
WORKLOAD_VENV := .venv-workload

# Without bytecode every start of Python costs seconds.
unexport PYTHONDONTWRITEBYTECODE
unexport PYTHONPATH
unexport VIRTUAL_ENV

.DEFAULT_GOAL := help
.PHONY: help setup run test lint gpu-check lock

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.installed $(WORKLOAD_VENV)/.installed ## Build both environments from the lock files

$(VENV)/.installed: requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || { \
	  echo "Allot needs Python 3.11 to 3.13, and $(PYTHON) is not one: make PYTHON=python3.13 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make virtual environments. On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@echo "Installing Allot's dependencies into $(VENV) …"
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@test "$$($(UV) --version 2>/dev/null | cut -d' ' -f2)" = "$(UV_VERSION)" || \
	  $(PY) -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@$(UV) pip sync --quiet --compile-bytecode --python $(PY) requirements.lock
	@touch $@

# Other users execute this Python, so one below root's home will not do; any will when we are
# not root, since then everything runs as us.
$(WORKLOAD_VENV)/.installed: requirements-workload.lock | $(VENV)/.installed
	@echo "Installing what sessions and trainings find into $(WORKLOAD_VENV) …"
	@test -x $(WORKLOAD_VENV)/bin/python || { \
	  as_other=""; test "$$(id -u)" != 0 || as_other="setpriv --reuid=65534 --regid=65534 --clear-groups"; \
	  for candidate in /usr/bin/python3 /usr/local/bin/python3 python3.13 python3.12 python3.11; do \
	    path=$$(command -v $$candidate) && (cd / && $$as_other $$path -c \
	      'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))') 2>/dev/null && break; path=""; \
	  done; \
	  test -n "$$path" || { path=$(PY); echo "No Python 3.11 to 3.13 that other users can execute: workloads get $(PY)."; }; \
	  $(UV) venv --quiet --python $$path $(WORKLOAD_VENV); }
	@$(UV) pip sync --quiet --compile-bytecode --python $(WORKLOAD_VENV)/bin/python requirements-workload.lock
	@touch $@

run: setup ## Run all of Allot on this machine until Ctrl-C (ALLOT_PORT, ALLOT_VAR)
	@exec $(PY) manage.py up

test: lint ## Check everything that CI checks
	@$(PY) -m pytest -n $(TEST_PROCESSES) --dist loadfile -m "not alone" $(TESTS) || $(NONE_CHOSEN)
	@$(PY) -m pytest -m alone $(TESTS) || $(NONE_CHOSEN)

# Two cores is what CI has. A file stays in one process: what it starts for all its tests runs once.
TEST_PROCESSES ?= 2
TESTS ?=
# Pytest's exit code where TESTS names none of a kind.
NONE_CHOSEN := test $$? = 5

lint: setup ## Style, types, import contracts, settings
	@$(VENV)/bin/ruff check
	@$(VENV)/bin/ruff format --check
	@$(VENV)/bin/lint-imports --no-logo
	@$(PY) -m mypy
	@ALLOT_PUBLIC_URL=https://allot.example $(PY) manage.py check --deploy --fail-level WARNING

gpu-check: setup ## Check fractions and Swap on this machine's NVIDIA GPU, and print a table
	@$(PY) -m scheduling.agent.fraction.gpu_check
	@$(PY) -m pytest -m gpu -p no:randomly -v -rsfE

lock: $(VENV)/.installed ## Compile the lock files anew after pyproject.toml has changed
	@echo 'Django<6' > $(VENV)/constraints.txt
	$(UV) pip compile --quiet $(LOCK_OPTIONS) --constraint $(VENV)/constraints.txt --extra dev --extra e2e \
	  -o requirements.lock pyproject.toml
	$(UV) pip compile --quiet $(LOCK_OPTIONS) --group workload -o requirements-workload.lock
# Hashes, and no address of any index: a lock serves whatever mirror its reader uses.
LOCK_OPTIONS := --universal --python-version 3.11 --fork-strategy fewest \
  --generate-hashes --no-emit-index-url --no-emit-find-links --no-header
