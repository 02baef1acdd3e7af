# Every target makes what it needs: a fresh machine with Python >= 3.11 and make is enough (a C compiler makes it fast).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
KERNELS := $(wildcard src/lipspline/kernels/*.c src/lipspline/kernels/*.h)
JOBS ?= 2

.PHONY: demo test test-slow lint types check bench mutants fuzz hunt faults matrix docs clean

demo: $(INSTALLED)            ## reconstruct an MRI and a CT scan, with a report
	$(BIN)/lipspline demo

test: $(INSTALLED)            ## the test suite
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n $(JOBS)

test-slow: $(INSTALLED)       ## what takes longer than the everyday suite allows
	$(BIN)/python -m pytest -m slow

lint: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(INSTALLED)
	$(BIN)/pyright

check: lint types test        ## what must be clean before a change lands

bench: $(INSTALLED)           ## costs as ratios, measured side by side; needs a quiet machine
	$(BIN)/lipspline bench

fuzz: $(INSTALLED)            ## damage 12,000 files of every format: readers and command line stay calm
	$(BIN)/python tests/fuzz.py --count 10000 --readers
	$(BIN)/python tests/fuzz.py --count 2000

faults: $(INSTALLED)          ## kill the program at every system call that writes; needs gcc
	$(BIN)/python tests/faults.py

hunt: $(INSTALLED)            ## certify 100,000 random and tampered networks, and look for one above its bound
	$(BIN)/python tests/certification/hunt.py 100000
	$(BIN)/python tests/certification/graph_hunt.py 100000

matrix: $(INSTALLED)          ## the oldest and the newest torch on every Python that is here; says what could not be tried
	$(BIN)/python tests/packaging/matrix.py

docs: $(INSTALLED)            ## the site, in site/: runs the gallery; a warning is an error
	$(BIN)/python -m sphinx -q -W --keep-going -d build/doctrees docs site

mutants: $(INSTALLED)         ## change the source at random and by hand, and see the tests notice; weekly or before a release
	$(BIN)/python tests/mutants.py --minutes 240

$(INSTALLED): pyproject.toml constraints.txt setup.py $(KERNELS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt setuptools wheel torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info src/*.egg-info demo site
