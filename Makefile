# Everything starts here. Each target sets itself up from a fresh clone: Python 3.11+ is all it needs.
#
#   make demo    profile this machine, plan a small Llama for it, train the plan, compare
#   make replay  plan BigScience's sweep on 384 A100s with every measurement hidden, then compare
#   make test    every test
#   make check   format, lint, types, layers, sizes, units, documentation
#   make docs    the documentation as a site in site/
#
# PYTHON=python3.12 chooses the interpreter of the virtual environment.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup demo replay test check docs clean

help:
	@sed -n 's/^#   //p' Makefile

setup: $(INSTALLED)

# One resolver run under the constraints, so that nothing can pull in another torch.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: $(PYTHON) is older than Python 3.11. To fix: make PYTHON=python3.12" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[runtime]' --group dev
	touch $@

demo: $(INSTALLED)
	PATH="$(CURDIR)/$(BIN):$$PATH" examples/demo/demo.sh

replay: $(INSTALLED)
	$(BIN)/python -m benchmarks.replay

test: $(INSTALLED)
	$(BIN)/python -m tools.run_tests

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.check_sizes
	$(BIN)/python -m tools.check_units
	$(BIN)/zensical build --strict

docs: $(INSTALLED)
	$(BIN)/zensical build --clean --strict

clean:
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist site
