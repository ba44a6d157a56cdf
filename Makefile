# Two commands on a fresh machine: `make demo` and `make test`. Every target sets up .venv itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check -c constraints.txt
# One thread each: the models are small, and threads that wait for each other are slower on a busy machine.
export OMP_NUM_THREADS ?= 1

.PHONY: board demo test quick lint bench keep restore faults soak reproduce docs picture clean
.DEFAULT_GOAL := test

$(VENV)/.lab: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing stimulus-moo with the lab extra into $(VENV) ..."
	@$(PIP) -e ".[lab]"
	@touch $@

$(VENV)/.dev: $(VENV)/.lab
	@echo "installing the development tools ..."
	@$(PIP) -e ".[dev]"
	@touch $@

$(VENV)/.bench: $(VENV)/.dev
	@$(PIP) -e ".[bench]"
	@touch $@

$(VENV)/.board: $(VENV)/.lab
	@$(PIP) -e ".[board]"
	@touch $@

$(VENV)/.fuzz: $(VENV)/.dev
	@$(PIP) -e ".[fuzz]" || echo "atheris cannot be installed here: \`make faults\` will say so and not fuzz files"
	@touch $@

$(VENV)/.docs: $(VENV)/.dev
	@$(PIP) -e ".[docs]"
	@touch $@

demo: $(VENV)/.lab  ## auto and tuned methods on two problems, a Pareto front: tables, and a page to open
	@$(BIN)/stimulus-moo demo --out runs/demo

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@$(BIN)/python -m docs.figures
	@$(BIN)/python -m reliability.audit

test: lint  ## everything a change must pass, six to ten minutes on 2 cores
	$(BIN)/pytest -n 4 --dist worksteal

quick: $(VENV)/.dev  ## the core without slow tests, under 90 seconds on 2 cores, for work in progress
	$(BIN)/ruff check .
	$(BIN)/pytest -n 2 --dist worksteal -q -m "not slow and not lab"

# All takes hours (hands_free and forced train over many seeds, and go on where they stopped), or some:
# `make bench BENCH="step_cost solver"`.
bench: $(VENV)/.bench  ## the benchmarks against peers, into benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks $(BENCH)

# Up to six hours on two cores; it goes on where it stopped. Some: `make board BOARD="compas riverflow"`.
board: $(VENV)/.board  ## every method on real problems at equal budgets, into runs/board and docs/scoreboard.md
	$(BIN)/stimulus-moo board $(BOARD) --page docs/scoreboard.md
	$(BIN)/python -m docs.board_picture runs/board

# The long comparisons take longer than one session on one machine: the runs that are finished can be kept in the
# repository, and restored before `make board` or `make bench`, which then go on from there.
keep:  ## the finished runs of board and benchmarks, into benchmarks/cells.tar.xz
	cd runs && find . -path './board/cells/*.json' -o -path './benchmarks/*/*.json' | LC_ALL=C sort | \
	  tar --owner=0 --group=0 --numeric-owner --mtime=2000-01-01 -cJf ../benchmarks/cells.tar.xz -T -

restore:  ## the runs of benchmarks/cells.tar.xz, into runs
	mkdir -p runs && tar -xJf benchmarks/cells.tar.xz -C runs --skip-old-files

# All but the soak, half an hour, or some: `make faults FAULTS="kills disks"`.
faults: $(VENV)/.fuzz  ## kills, full disks, junk and hostile files, into docs/reliability.md
	$(BIN)/python -m reliability $(FAULTS)

soak: $(VENV)/.dev  ## half an hour of small steps: memory, file handles, time per step
	$(BIN)/python -m reliability soak

reproduce: $(VENV)/.lab  ## every experiment of the paper, resumable, into runs/reproduction and docs/reproduction.md
	OMP_NUM_THREADS=2 $(BIN)/python -m stimulus_moo.lab.reproduce --out runs/reproduction --page docs/reproduction.md

docs: $(VENV)/.docs  ## the site, into docs/_build/html; warnings are errors
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

picture: demo  ## the README's picture, from the demo's runs and a few minutes of its own
	$(BIN)/python -m docs.make_picture runs/demo

clean:
	rm -rf $(VENV) dist build docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
