# Two commands: `make demo` shows the main job, `make test` checks everything. Both set themselves up on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test browser format clean

# The stamp changes with what is to be installed, so that a newer checkout installs anew.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch numpy
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[demo,test]'
	touch $@

demo: $(VENV)/.installed
	$(BIN)/unweave demo

# The pages are tested in a real browser. Where we may install one, it is Debian's; elsewhere those tests are skipped.
browser:
	@command -v chromium > /dev/null \
		|| (apt-get update -qq && apt-get install -y -qq chromium) > /dev/null 2>&1 \
		|| echo "no chromium: the tests of pages in a browser will be skipped"

# A file's tests stay on one worker: what its fixtures make takes longer than most tests.
test: $(VENV)/.installed browser
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) demo-output build src/*.egg-info
