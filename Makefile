PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: sweep test oldest wheel throughput accelerator site lint clean

sweep: $(VENV)/.installed  ## run the main job on embedded data; ARGS="..." is passed on
	$(BIN)/python -m benchmarks.sweep $(ARGS)

test: $(VENV)/.installed  ## run the test suite
	$(BIN)/python -m pytest $(ARGS)

# One law is enough: the simulation, and the program of a method, are traced, compiled and run. Of local models and of
# generators that takes a minute each: `make oldest OLDEST="declaration or give_a_score"` runs every method.
OLDEST := declaration and (cos- or closed_form or gls- or adam) or give_a_score and (ridge or likelihood or matched)
WITH_LAWS := tests/laws/test_method_laws.py tests/laws/test_row_laws.py $(addprefix tests/benchmarks/test_, \
	properties.py sum_games.py linkability.py generators.py federations.py canaries.py whole_records.py)

oldest: $(VENV)-oldest/.installed  ## methods of several questions with the oldest versions that work
	JAXFL_SLOW=1 $(VENV)-oldest/bin/python -m pytest $(WITH_LAWS) -k "$(OLDEST)"

wheel: $(VENV)-wheel/.installed  ## the pages' code, outside the checkout, with nothing but the wheel and what it declares
	cd / && $(CURDIR)/$(VENV)-wheel/bin/python -P $(CURDIR)/tests/readme.py

throughput: $(VENV)/.installed  ## every program of every method beside this machine's limits; ARGS="methods attributes ..."
	$(BIN)/python -m benchmarks.throughput $(ARGS)

accelerator: $(VENV)/.installed  ## throughput, laws and rows of an accelerator, into accelerator/
	PYTHON=$(BIN)/python benchmarks/accelerator.sh accelerator $(ARGS)

site: $(VENV)/.installed  ## the documents and the reference as a site, into site/, the examples as notebooks, into site/notebooks; no network is needed
	$(BIN)/zensical build --clean --strict
	mkdir -p site/notebooks
	set -e; for page in examples/*.py; do \
	  $(BIN)/jupytext --quiet --to ipynb --output "site/notebooks/$$(basename "$$page" .py).ipynb" "$$page"; done

lint: $(VENV)/.installed  ## linters and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test,docs]'
	touch $@

$(VENV)-oldest/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python -m pip install --quiet uv
	$(VENV)-oldest/bin/uv pip install --quiet --python $(VENV)-oldest/bin/python --resolution lowest-direct --editable '.[test]'
	touch $@

$(VENV)-wheel/.installed: pyproject.toml README.md $(shell find jaxfl attacks benchmarks -name '*.py' -o -name '*.csv' -o -name '*.html')
	$(PYTHON) -m venv $(VENV)-wheel
	$(VENV)-wheel/bin/python -m pip install --quiet uv
	rm -rf dist && $(VENV)-wheel/bin/uv build --quiet --out-dir dist
	test -z "$$(find dist -name '*.whl' -size +1900k)"
	$(VENV)-wheel/bin/uv pip install --quiet --python $(VENV)-wheel/bin/python --constraint constraints.txt dist/*.whl
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-oldest $(VENV)-wheel build dist site *.egg-info
