# The two commands of the README are `make run` and `make test`; both set up what they need.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
# RUN_READY: the server is installed. READY: the development tools are installed as well.
RUN_READY := $(VENV)/.run-ready
READY := $(VENV)/.ready
# `make UV= ...` installs with pip on a machine that has uv.
UV ?= $(shell command -v uv)
# Workers, servers and replicas of a test run share compiled bytecode.
unexport PYTHONDONTWRITEBYTECODE

UI := $(BIN)/python -m admin.ui.build

.PHONY: install lock sbom audit run test test-full quick durations test-python test-api test-apps test-clients test-kubernetes tests-there decisions coverage ui chaos fuzz protocol attack gpu check bench simulate image fmt docs proto surface clean clean-data

# What a server needs, for ENGINE and EXTRAS, and the dashboard, without starting one; `make install
# ENGINE=` for Docker alone.
install: $(RUN_READY)
	@$(UI) --optional

run: $(RUN_READY)
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh functions/serve.sh

# Tests of a file stay in one worker: see tests/support/groups.py. More
# workers than cores, because many tests wait; `pytest PATH` alone is serial.
WORKERS ?= 4
PYTEST := -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Without Node the dashboard's own tests are skipped; in CI (FN_CI) they fail. Up to three failed tests
# are run again alone, see tests/again.py.
RAN := .pytest_cache/run
test: $(READY)
	@$(UI) --check $(if $(FN_CI),,--optional)
	@$(MAKE) --no-print-directory decisions
	$(BIN)/python $(PYTEST) -o cache_dir=$(RAN) --cache-clear $(DECISIONS:%=--ignore=tests/unit/%) \
		$(if $(MEASURED),--junitxml=$(RUN)) || { [ $$? = 1 ] && $(BIN)/python -m tests.again $(RAN); }
	$(if $(MEASURED),$(BIN)/python -m tests.durations $(RUN))

# The decision modules are covered to 100 % by their own unit tests. Only these are measured here:
# the measurement makes Python up to four times slower, and each start of it by a tenth of a second.
DECISIONS := pool_manager/core gateway/dispatch
COVERAGE_ALONE := --rcfile=/dev/null --data-file=.coverage
decisions: $(READY)
	$(BIN)/coverage run $(COVERAGE_ALONE) --branch --source=$(subst $(SPACE),$(COMMA),$(DECISIONS)) -m pytest -q $(DECISIONS:%=tests/unit/%)
	$(BIN)/coverage report $(COVERAGE_ALONE) --fail-under=100 --skip-covered

# In CI the time of each test file is compared with tests/data/durations.toml; `make durations` takes
# over the times of the last run of .ci/run.
RUN := .ci/run.xml
MEASURED := $(and $(FN_CI),$(if $(FN_FULL),,1))
durations: $(READY)
	@$(BIN)/python -m tests.durations $(RUN) --write

# What a change touches, in 90 s: tests, lint and import rules; `make quick BASE=HEAD` for what is
# not committed, `make quick QUICK=--list` to see the tests.
BASE ?= main
quick: $(READY)
	@$(BIN)/python -m tests.quick --base $(BASE) $(QUICK)

# The same tests with their full numbers of rounds and examples.
test-full:
	FN_FULL=1 $(MAKE) test

# Unit tests, real replicas and a real server on another Python, in an environment of its own:
# make test-python PYTHON=python3.13
OTHER_TESTS := tests/unit $(addprefix tests/integration/test_,replica.py rollouts.py make.py packages.py)
test-python:
	@$(MAKE) --no-print-directory VENV=.venv-$(notdir $(PYTHON)) tests-there

# Applications with pages, in containers and a browser; their images are built with packages of an
# index, once, and stay on the engine: eval "$(.ci/engine start)"
test-apps: $(READY)
	FN_TEST_APPS=1 $(BIN)/python -m pytest tests/e2e/test_app_pages.py

# What fngate relies on of Kubernetes, in a namespace of its own of the cluster of a kubeconfig, by
# kubectl: make test-kubernetes KUBECONFIG=... FN_TEST_KUBERNETES_IMAGE=an image with python3
test-kubernetes: $(READY)
	FN_TEST_KUBERNETES=$(KUBECONFIG) $(BIN)/python -m pytest tests/contract/test_kubernetes.py

# LiteLLM's proxy and LangChain at /v1, KServe's clients and MLServer's command at /v2 and over gRPC;
# their packages come from an index, about a minute each time.
test-clients: $(READY)
	FN_TEST_CLIENTS=1 $(BIN)/python -m pytest tests/e2e/test_other_clients.py \
		tests/e2e/test_other_oip_clients.py

# Random requests from /openapi.json to a throw-away server over fake replicas, about 5 minutes.
API_CASES ?= 10000
test-api: $(READY) .venv-schemathesis/.installed
	$(BIN)/python -m tests.api .venv-schemathesis/bin/st $(API_CASES)

tests-there: $(READY)
	$(BIN)/python $(PYTEST) $(OTHER_TESTS)

# All tests once more, with the coverage of each top folder, also by the processes that tests start.
coverage: $(READY)
	$(BIN)/coverage erase
	$(BIN)/coverage run $(PYTEST)
	$(BIN)/coverage combine --quiet
	@$(BIN)/python -m tests.support.coverage_by_folder

# Build the dashboard if its sources changed, with Node 20.19 or newer, or with Node from PyPI.
ui: $(READY)
	@$(UI)

# The full scenarios of tests/e2e/test_chaos*.py, about 190 minutes; options: CHAOS="--seed 7".
# Scenarios with containers need root and an engine: eval "$(.ci/engine start)"
chaos: $(READY)
	$(BIN)/python -m tests.chaos --json chaos.json $(CHAOS)

# Hostile inputs for all that builds objects from bytes; one seed gives the same ones again.
FUZZ ?= --inputs 1000000 --seed 7
fuzz: $(READY)
	$(BIN)/python -m tests.fuzz $(FUZZ)

# A hundred thousand random sequences of messages against both ends of the gateway protocol, about
# three minutes.
PROTOCOL ?= --sequences 100000 --seed 7
protocol: $(READY)
	$(BIN)/python -m tests.support.gateway_protocol $(PROTOCOL)

# The same with coverage: libFuzzer looks for inputs that reach something new, in an environment of
# its own. Half an hour; options: ATTACK="--seconds 60 --target request".
ATTACK ?= --seconds 1800
ATTACKING := .venv-attack
attack:
	@$(MAKE) --no-print-directory VENV=$(ATTACKING) $(ATTACKING)/.ready
	@$(call LOCKED,$(ATTACKING),atheris)
	$(ATTACKING)/bin/python -m tests.fuzz.attack $(ATTACK)

# GPU tests on this machine: no network, 8 minutes at most. Without a virtual environment they run
# in the machine's own Python, with its PyTorch.
GPU_PYTHON ?= $(if $(wildcard $(READY)),$(BIN)/python,python3)
gpu:
	$(GPU_PYTHON) -m tests.gpu $(GPU)

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# All benchmarks; some: BENCH="plain bodies --rounds 9 --json FILE" (see benchmarks/README.md).
bench: $(READY)
	$(BIN)/python -m benchmarks $(BENCH)

# Options: ARGS="--functions 50 --policy lru" (see `python -m benchmarks.simulate --help`).
ARGS ?= --functions 200 --devices 16 --rate 0.5
simulate: $(READY)
	$(BIN)/python -m benchmarks.simulate $(ARGS)

# The image of replicas in containers; options: IMAGE_ARGS="--base fngate-base:bookworm".
image: $(READY)
	$(BIN)/fnctl image build $(IMAGE_ARGS) cpu

fmt: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# docs/ as a site in site/, with what is generated from the code brought up to date.
docs: $(VENV)/.docs-ready reference
	$(BIN)/zensical build --strict --clean

$(VENV)/.docs-ready: $(READY)
	@$(call LOCKED,$(VENV),zensical)
	@touch $@

# docs/reference/*.md, docs/images/*.svg and the navigation of the site.
.PHONY: reference clean-docs
reference: $(READY)
	@$(BIN)/python -m tests.reference --write

# dist/*.cdx.json, in CycloneDX: what a wheel needs and has in it; what an image has, which must be
# on an engine: SBOM="--engine URL --image NAME"
sbom: $(READY)
	$(BIN)/python -m tests.sbom dist $(SBOM)

# Nightly: known vulnerabilities of what the two locks have. It asks the package index and npm's
# registry; without an answer for each package it fails.
audit: .venv-pip-audit/.installed
	@code=0; \
	.venv-pip-audit/bin/pip-audit --strict --progress-spinner off --disable-pip --require-hashes -r requirements.lock || code=1; \
	if command -v npm >/dev/null; then \
	    npm --prefix admin/dashboard audit --package-lock-only || code=1; \
	else echo "there is no npm: the dashboard's packages were not audited"; code=1; fi; \
	exit $$code

clean: clean-docs
clean-docs:
	rm -rf site .cache

# gateway/grpc/inference.binpb from inference.proto, with protoc or that of grpcio-tools, which wants
# another protobuf than the server: PROTOC="/other/venv/bin/python -m grpc_tools.protoc"
PROTOC ?= protoc
proto:
	$(PROTOC) -I gateway/grpc --descriptor_set_out=gateway/grpc/inference.binpb inference.proto

# Write tests/data/surface.txt, the interface that clients, scripts and data folders rely on.
surface: $(READY)
	$(BIN)/python -m tests.surface --write

# Remove files that can be rebuilt. Functions, keys and history stay, see clean-data.
clean:
	rm -rf $(VENV) .venv-* admin/ui/static admin/ui/static.new admin/dashboard/node_modules admin/dashboard/generated

# Remove the data folder of `make run`, unless a server runs on it and so holds its lock.
clean-data:
	@if [ ! -d .fngate ]; then echo "there is no .fngate here"; else \
	    flock --nonblock --conflict-exit-code 75 .fngate/lock sh -c '\
	        printf "Delete .fngate with its functions, keys and history? [y/N] "; \
	        read -r answer; \
	        if [ "$$answer" = y ]; then rm -rf .fngate; else echo ".fngate is kept"; exit 1; fi'; \
	    code=$$?; [ $$code != 75 ] || echo "a server runs on .fngate: stop it first"; exit $$code; fi

# compat: Python finds the package by a plain path. The default, an import hook, costs every start of
# fnctl and every cold start about 5 ms. pip compiles nothing ahead: Python compiles what it imports,
# once, which is a small part of what is installed. The analysis of a deployed model runs in a process
# that keeps no compiled files, so its modules are compiled here.
# cpu, gpu or tensorrt: the ONNX Runtime of replicas that are processes (docs/guides/gpu-box.md).
ENGINE ?= cpu
# uv, for functions in Python, is always there. More extras: make install EXTRAS=grpc,traces
EXTRAS ?=
EMPTY :=
COMMA := ,
SPACE := $(EMPTY) $(EMPTY)
CHOSEN = $(subst $(SPACE),$(COMMA),$(strip $(ENGINE) python $(filter-out python,$(subst $(COMMA),$(SPACE),$(EXTRAS)))))
# An environment that was made with others gets those that are named now.
ifneq ($(filter command environment,$(origin ENGINE) $(origin EXTRAS)),)
ifneq ($(shell cat $(RUN_READY) 2>/dev/null),$(CHOSEN))
.PHONY: $(RUN_READY)
endif
endif
COMPILE := $(BIN)/python -c "import runtime_image.verification.rows.analysis"

# Packages come with the hashes of the lock and nothing else: pip and uv refuse any other file. Then
# fngate itself, built by the locked setuptools. $(1): the environment, $(2): what it needs.
LOCK := requirements.lock runtime_image/lock.py
INSTALL = $(if $(UV),$(UV) pip install --python $(1)/bin/python,$(1)/bin/python -m pip install \
	--disable-pip-version-check --no-compile) $(if $(VERBOSE),,--quiet)
# Both distributions of ONNX Runtime write the same files: the earlier one goes first.
NO_ENGINE = $(if $(UV),$(UV) pip uninstall --quiet --python $(1)/bin/python,$(1)/bin/python -m pip uninstall \
	--quiet --yes --disable-pip-version-check) onnxruntime onnxruntime-gpu 2>/dev/null
LOCKED = $(1)/bin/python -I runtime_image/lock.py $(2) >$(1)/locked.txt && \
	$(INSTALL) --require-hashes --no-deps --only-binary :all: -r $(1)/locked.txt
# TensorRT is on NVIDIA's own index and not in the lock.
OWN = $(INSTALL) --no-build-isolation --config-settings editable_mode=compat \
	$(if $(filter tensorrt,$(2)),-e '.[tensorrt]',--no-deps -e .)

$(RUN_READY): pyproject.toml $(LOCK) | $(BIN)/pip
	@echo "installing what the server needs into $(VENV); VERBOSE=1 shows each package"
	@$(BIN)/python -I runtime_image/lock.py 'fngate[$(CHOSEN)]' >/dev/null
	@[ ! -f $@ ] || $(call NO_ENGINE,$(VENV)) || true
	@$(call LOCKED,$(VENV),'fngate[$(CHOSEN)]')
	@$(call OWN,$(VENV),$(ENGINE))
	@$(COMPILE)
	@echo '$(CHOSEN)' >$@

$(READY): pyproject.toml $(LOCK) | $(BIN)/pip
	@echo "installing the server and the development tools into $(VENV); VERBOSE=1 shows each package"
	@$(call LOCKED,$(VENV),'fngate[dev]')
	@$(call OWN,$(VENV))
	@$(COMPILE)
	@touch $(RUN_READY) $@

# Programs of some targets, each in an environment of its own: .venv-NAME/bin.
.venv-%/.installed: $(LOCK) | $(BIN)/pip
	@echo "installing $* into .venv-$*"
	@$(BIN)/python -m venv --without-pip .venv-$*
	@$(BIN)/python -I runtime_image/lock.py $* >.venv-$*/locked.txt
	@$(BIN)/python -m pip --python .venv-$*/bin/python install --quiet --disable-pip-version-check \
		--no-compile --require-hashes --no-deps --only-binary :all: -r .venv-$*/locked.txt
	@touch $@

# pip of the lock: Python 3.11's own is slower, and ensurepip's unpacking of it takes seconds. A
# Python without pip, or with one that knows no --python, does that.
$(BIN)/pip:
	@echo "creating $(VENV)"
ifneq ($(UV),)
	@$(UV) venv --quiet --allow-existing $(if $(PYTHON),--python $(PYTHON)) $(VENV)
	@$(call LOCKED,$(VENV),pip) --quiet
else
	@$(PYTHON) -m venv --without-pip $(VENV)
	@$(BIN)/python -I runtime_image/lock.py pip >$(VENV)/locked.txt
	@$(PYTHON) -m pip --python $(BIN)/python install --quiet --disable-pip-version-check \
		--no-compile --require-hashes --no-deps -r $(VENV)/locked.txt || $(PYTHON) -m venv $(VENV)
endif

# The lock anew from pyproject.toml. What still fits keeps its version; all newer ones, or one:
# LOCK_ARGS=--upgrade, LOCK_ARGS="--upgrade-package aiohttp". It has no address of an index.
lock:
	@test -n "$(UV)" || { echo "make lock needs uv"; exit 1; }
	$(UV) pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
		--only-binary :all: --no-emit-index-url --no-header --no-config \
		--extra dev --extra docs --extra gpu --group programs --output-file requirements.lock $(LOCK_ARGS)
