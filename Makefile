# Every target sets up what it needs in .venv; python3 (3.11 or newer) and make are enough.

PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow lint docs dist bench clean

help:  ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

setup: .venv/.installed  ## Create .venv with the package and its development tools

# The constraints are given in the environment so that they reach the isolated build as well; pip 25.3 and later read
# them there under the second name. The paths are relative because pip splits these variables at spaces.
# torchattacks and robustbench ask for torchvision, whose wheels want a torch with CUDA, and can do without: they come
# without what they ask for, to test against. robustbench is put aside, since it also brings a package called tests, and
# torchattacks an old robustbench.
.venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
		|| { echo "wasserball needs Python 3.11 or newer as '$(PYTHON)' (another one: make PYTHON=python3.12 ...)" >&2; exit 1; }
	@$(PYTHON) -m venv .venv >/dev/null 2>&1 \
		|| { echo "'$(PYTHON) -m venv .venv' failed: install Python's venv module (on Debian and Ubuntu: python3-venv)" >&2; exit 1; }
	@echo "Setting up .venv (minutes the first time) ..."
	@export PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 \
		&& $(BIN)/python -m pip install -qq -e '.[dev]' \
		&& $(BIN)/python -m pip install -qq --no-deps torchattacks \
		&& $(BIN)/python -m pip install -qq --no-deps --upgrade --target .venv/share/robustbench robustbench
	@touch $@

demo: setup  ## Attack the bundled models, draw out/demo.png
	$(BIN)/wasserball demo

# One torch thread for each worker: the workers are the parallelism.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 8

test: setup  ## Run the tests that take seconds
	$(PYTEST)

test-slow: setup  ## Run the tests that take minutes
	$(PYTEST) -m slow

lint: setup  ## Check style, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

docs: setup  ## Build the documentation into site/, warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

dist: setup  ## Build wheel and sdist into dist/, check them, run the demonstration from the wheel
	.ci/dist

bench: setup  ## Time operators and attacks beside the paper's algorithms, write out/bench.md, .json and .png
	$(BIN)/wasserball bench

clean:  ## Remove .venv, caches, builds and the demonstration's output
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist out site
	find experiments src tests -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
