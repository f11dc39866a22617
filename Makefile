# make quickstart   environment, install, train the quickstart recipe
# make test         environment, install, all tests but the slow ones
# make slow         the slow tests
# make laptop       of these the suite recipes/suites/laptop.yaml, and its report looked at in a browser
# make image-steps  the install steps of the image, in a clean environment (minutes)
# make check        lint and types
# make generated    what follows from the recipe sections: the quick check's table and the pages in docs/
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.10 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: quickstart test slow laptop image-steps check generated clean

quickstart: $(VENV)/.train
	rm -rf runs/quickstart
	$(BIN)/nvrx-run recipes/quickstart.yaml

test: $(VENV)/.dev
	$(BIN)/pytest

slow: $(VENV)/.dev
	$(BIN)/pytest -m slow --timeout 1800

laptop: $(VENV)/.dev
	$(BIN)/pytest -m slow --timeout 1800 tests/bench

image-steps: $(VENV)/.dev
	$(BIN)/pytest -m slow --timeout 1800 tests/emit/test_manifests_folder.py

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

generated: $(VENV)/.dev
	$(BIN)/python tools/generated.py

# The stamps are renewed only when what is to be installed has changed.
$(VENV)/.python:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.train: $(VENV)/.python pyproject.toml constraints.txt
	@echo 'Installing torch, NVRx and what they need into $(VENV): a few minutes without output'
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[train]'
	touch $@

$(VENV)/.dev: $(VENV)/.train
	@echo 'Installing what the tests need into $(VENV): minutes without output'
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[train,report,live,dev]'
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
