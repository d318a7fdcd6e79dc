# The two commands of the README are `make run` and `make test`; both set up what they need.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Workers, servers and replicas of a test run share what one of them has compiled.
unexport PYTHONDONTWRITEBYTECODE

UI := $(BIN)/python -m admin.ui.build

.PHONY: run test test-full coverage ui chaos gpu check bench simulate image fmt docs surface clean clean-data

run: $(READY)
	@$(UI) --optional
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh functions/serve.sh

# Tests of a file stay in one worker: see tests/support/groups.py. More
# workers than cores, because many tests wait; `pytest PATH` alone is serial.
WORKERS ?= 3
PYTEST := -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Without Node the dashboard's own tests are skipped; in CI (FN_CI) they fail.
test: $(READY)
	@$(UI) --check $(if $(FN_CI),,--optional)
	$(BIN)/coverage erase
	$(BIN)/coverage run $(PYTEST)
	$(BIN)/coverage combine --quiet
	@$(MAKE) --no-print-directory coverage

# The same tests with the whole dose of each.
test-full:
	FN_FULL=1 $(MAKE) test

# Of the last `make test`: decisions are covered whole, the rest is shown by top folder.
coverage: $(READY)
	@$(BIN)/python -m tests.support.coverage_by_folder
	$(BIN)/coverage report --include='pool_manager/core/*,gateway/dispatch*' --fail-under=100 --skip-covered

# The dashboard, where its sources have changed: with Node 20.19 or newer, or with one from PyPI.
ui: $(READY)
	@$(UI)

# The full doses of tests/e2e/test_chaos*.py, about 30 minutes; CHAOS="--seed 7" for its options.
# Scenes over containers need root and an engine first: eval "$(.ci/engine start)"
chaos: $(READY)
	$(BIN)/python -m tests.chaos --json chaos.json $(CHAOS)

# Whether the promises about GPUs hold on this machine: no network, 8 minutes at most. Without a
# virtual environment here it runs in the machine's own Python, with the PyTorch that is there.
GPU_PYTHON ?= $(if $(wildcard $(READY)),$(BIN)/python,python3)
gpu:
	$(GPU_PYTHON) -m tests.gpu $(GPU)

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# All of them; BENCH="plain bodies --rounds 9 --json FILE" for some: see benchmarks/README.md.
bench: $(READY)
	$(BIN)/python -m benchmarks $(BENCH)

# ARGS="--functions 50 --policy lru" and so on: see `python -m benchmarks.simulate --help`.
ARGS ?= --functions 200 --devices 16 --rate 0.5
simulate: $(READY)
	$(BIN)/python -m benchmarks.simulate $(ARGS)

# The image of replicas in containers; IMAGE_ARGS="--base fngate-base:bookworm" for its options.
image: $(READY)
	$(BIN)/fnctl image build $(IMAGE_ARGS) cpu

fmt: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# docs/ as a site in site/, with what is generated from the code brought up to date.
docs: $(VENV)/.docs-ready reference
	$(BIN)/zensical build --strict --clean

$(VENV)/.docs-ready: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		--config-settings editable_mode=compat -e '.[docs]'
	@touch $@

# docs/reference/*.md, docs/images/*.svg and the navigation of the site.
.PHONY: reference clean-docs
reference: $(READY)
	@$(BIN)/python -m tests.reference --write

clean: clean-docs
clean-docs:
	rm -rf site .cache

# tests/data/surface.txt: what clients, scripts, data folders and dashboards rely on.
surface: $(READY)
	$(BIN)/python -m tests.surface --write

# What can be made again. Functions, keys and history stay, see clean-data.
clean:
	rm -rf $(VENV) admin/ui/static admin/dashboard/node_modules

# The data folder of `make run`. The lock is the server's own: it is held while a server runs.
clean-data:
	@if [ ! -d .fngate ]; then echo "there is no .fngate here"; else \
	    flock --nonblock --conflict-exit-code 75 .fngate/lock sh -c '\
	        printf "Delete .fngate with its functions, keys and history? [y/N] "; \
	        read -r answer; \
	        if [ "$$answer" = y ]; then rm -rf .fngate; else echo ".fngate is kept"; exit 1; fi'; \
	    code=$$?; [ $$code != 75 ] || echo "a server runs on .fngate: stop it first"; exit $$code; fi

# compat: the package is found by a plain path. The default, an import hook, costs every start of
# fnctl and every cold start about 5 ms.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		--config-settings editable_mode=compat -e '.[dev]'
	@touch $@
