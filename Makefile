PYTHON ?= python3
BIN := .venv/bin
export GIT_PYTHON_REFRESH := quiet

.PHONY: run test check lint types install zoo fuzz soak clean

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rrbench needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,vision,corruptions]'
	touch $@

# An outsider's package, one of its tables broken on purpose: beside the environment, since only the tests want it.
.venv/plugin: $(wildcard tests/plugin/*.toml tests/plugin/outside_rrbench/*.py) | .venv/installed
	rm -rf $@
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $@ ./tests/plugin

# Compiles and interprets the GPU's kernels for the tests; there is none but for Linux.
ifeq ($(shell uname -s),Linux)
test: .venv/triton
endif
.venv/triton: | .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $@ triton==3.9.0

run: install
	$(BIN)/rrbench run --rejectors rr,ebd --attacks pgd100,adaptive

# Two processes, one thread each: most tests are too small for PyTorch to use a second core.
test: .venv/plugin
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile

# Whatever others hand us, 20,000 times: no traceback, no hang, no file outside its folder.
fuzz: .venv/plugin
	RRBENCH_FUZZ=20000 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q --timeout 3600 tests/fuzz

# 300 kills of runs and trainings: every row and every bit as undisturbed.
soak: install
	$(BIN)/python tests/soak/soak.py --kills 300

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: install
	$(BIN)/mypy

check: lint types test

# The digits checkpoints inside the package, made afresh.
zoo: install
	$(BIN)/python -m rrbench.zoo

clean:
	rm -rf .venv runs .pytest_cache .mypy_cache .ruff_cache
