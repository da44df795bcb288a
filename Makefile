PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: sweep test lint clean

sweep: $(VENV)/.installed  ## run the main job on embedded data; ARGS="..." is passed on
	$(BIN)/python -m benchmarks.sweep $(ARGS)

test: $(VENV)/.installed  ## run the test suite
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.installed  ## linters and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
