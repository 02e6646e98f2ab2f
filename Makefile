PYTHON ?= python3
BIN := .venv/bin
OUT ?= runs/demo

.PHONY: demo test test-slow check bench format clean

demo: .venv/installed  ## set up, then probe the shipped model: runs/demo/report.html
	$(BIN)/mesa-lens probe --length 2048 --out $(OUT) --overwrite

test: .venv/installed  ## set up, then the tests
	$(BIN)/python -m pytest

test-slow: .venv/installed  ## the tests marked slow
	$(BIN)/python -m pytest -m slow

check: .venv/installed  ## the gate: format, lint, types, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/python -m pytest

bench: .venv/installed  ## benchmarks/results: time and memory of every method beside stock transformers (15 minutes)
	$(BIN)/python benchmarks/attention.py --repeats 2

format: .venv/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv build dist *.egg-info runs .pytest_cache .ruff_cache .hypothesis

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@
