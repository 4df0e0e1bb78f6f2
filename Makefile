# Every target does its own set-up: a virtual environment in .venv, and openssh-server where it may install it.
# The two to know:  make demo   make test

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test test-sglang lint format bench docs man reference capture-gpu clean

help:
	@echo "make demo         deploy a good and a bad drafter on a practice host on this machine"
	@echo "make test         all tests but those that need a real SGLang"
	@echo "make test-sglang  the same runbooks against a real SGLang on the CPU (downloads about 1.5 GB once)"
	@echo "make lint         ruff and mypy"
	@echo "make bench        side-by-side benchmarks (root: it makes network namespaces)"
	@echo "make docs         build the documentation site into site/"
	@echo "make reference    write docs/reference/ anew from the program"
	@echo "make man          write the manual page to docs/man/opsctl.1"
	@echo "make capture-gpu  record this machine's GPU state as a test capture"

demo: $(READY)
	@$(BIN)/opsctl practice demo

test: $(READY) sshd
	$(BIN)/pytest -n auto --dist worksteal -m "not sglang" $(PYTEST_ARGS)

test-sglang: $(READY) sshd
	$(BIN)/python tests/real/kit/environment.py
	$(BIN)/pytest -n 2 --maxschedchunk=1 -m sglang tests/real --durations=0 --durations-min=1 $(PYTEST_ARGS)

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)
	$(BIN)/python -m benchmarks

docs: $(READY)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

reference: $(READY)
	$(BIN)/python docs/reference.py

man: $(READY)
	@mkdir -p docs/man
	$(BIN)/opsctl doc man > docs/man/opsctl.1

capture-gpu: $(READY)
	$(BIN)/python -m tests.gpu.take_capture

clean:
	rm -rf $(VENV) site build dist

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "opsctl needs Python 3.11 or later: set PYTHON=/path/to/python" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV) (once)"
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# The tests talk to a real OpenSSH server on loopback. Installed only where that needs no question.
.PHONY: sshd
sshd:
	@command -v sshd >/dev/null || test -x /usr/sbin/sshd || { \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq openssh-server git sudo >/dev/null; \
		else \
			echo "the tests need OpenSSH's sshd: install openssh-server" >&2; exit 2; \
		fi; }
