# Two commands matter: `make demo` and `make test`. Each one makes its own environment in .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed

.PHONY: demo test lint types check docs test-slow bench results clean

demo: $(STAMP)
	$(BIN)/bayesrule demo --out demo

test: lint types check

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

# Bytecode is written whatever the environment says: each worker, and each process that a test starts, would compile all.
check: $(STAMP)
	PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -m "not slow" -n 2 --dist worksteal

# The documentation as a site, build/site/index.html. The variable mutes the theme's advertisement for its successor.
docs: $(STAMP)
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

test-slow: $(STAMP)
	BAYESRULE_TEST_PROFILE=thorough $(BIN)/pytest -m "slow or hypothesis"

bench: $(STAMP)
	$(BIN)/python benchmarks/steps.py --out docs/results
	$(BIN)/python benchmarks/prediction.py --out docs/results

# What README and docs show and takes minutes: half an hour of one core. What takes hours is named in docs/reproduce.md.
results: $(STAMP)
	$(BIN)/python benchmarks/results.py demo
	$(BIN)/python benchmarks/results.py digits
	$(BIN)/python benchmarks/results.py splits --jobs 2
	$(BIN)/python benchmarks/results.py estimators
	$(BIN)/python benchmarks/results.py quick

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 10), "Python 3.10 or newer is needed: make PYTHON=python3.11"'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[test]"
	touch $(STAMP)

clean:
	rm -rf $(VENV) demo build .pytest_cache .mypy_cache .ruff_cache
