# The verbs of this repository. Needs Python 3.11 and g++; everything else is installed into .venv.
#
#   make test PYTEST_ARGS="-k fid -x"     pass arguments to pytest
#   make bench BENCH=engine BENCH_ARGS="--case line_share"
#   make fuzz FUZZ_SECONDS=600 FUZZ_TARGET=instance

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
PYTEST_ARGS ?=
BENCH ?= engine
BENCH_ARGS ?= --quick
FUZZ_SECONDS ?= 600
FUZZ_TARGET ?=
SOAK_SECONDS ?= 600
MINUTES ?= 10
MUTANTS ?=
PYTHONS ?= python3.11 python3.12 python3.13
export CHAOS_SECONDS ?= 60

VENV := .venv
COMPAT := .venv-compat
FLINK := .venv-flink
BIN := $(CURDIR)/$(VENV)/bin
BUILD := build/release
# Tools of the environment (cmake, ninja, ruff, ...) come before the machine's own.
export PATH := $(BIN):$(PATH)
# Images of containers often forbid cached bytecode. Without it each process compiles torch's modules for six seconds.
unexport PYTHONDONTWRITEBYTECODE

# What the editable install depends on. Python files are not in it: they are read from src/ as they are.
CPP_FILES := $(sort $(shell find cpp -name '*.cc' -o -name '*.h' 2>/dev/null))
NATIVE_FILES := $(filter-out cpp/engine/tests/% cpp/fuzz/%,$(CPP_FILES))
# Rewritten only when a file came or went; a removed file is in no other prerequisite.
FILE_LIST := build/.native-files
$(shell mkdir -p build; echo '$(NATIVE_FILES)' | cmp -s - $(FILE_LIST) || echo '$(NATIVE_FILES)' > $(FILE_LIST))

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 20

# --- environment ------------------------------------------------------------------------------------------------------

.PHONY: setup system-packages
# Packages arrive while the compiler works. A make above that runs jobs in parallel already does so.
setup: ## Create .venv, install the pinned packages, build the extension; quick when nothing changed
	@$(MAKE) --no-print-directory $(if $(findstring jobserver,$(MAKEFLAGS)),,--jobs=2) \
		dashboard-assets $(VENV)/.requirements $(VENV)/.native

system-packages:
	@scripts/install_system_packages.sh

$(VENV)/.tools: requirements.lock | system-packages
	@$(PYTHON) scripts/set_up.py tools $(VENV) requirements.lock
	@touch $@

$(VENV)/.requirements: $(VENV)/.tools
	@$(PYTHON) scripts/set_up.py packages $(VENV) requirements.lock
	@touch $@

# A fixed build folder and no build isolation: ninja recompiles only what changed.
$(VENV)/.native: $(VENV)/.tools pyproject.toml CMakeLists.txt $(NATIVE_FILES) $(FILE_LIST)
	@$(PYTHON) scripts/set_up.py native $(VENV) $(BUILD)
	@touch $@

.PHONY: lock stub dashboard-assets
dashboard-assets: ## Fetch the chart library of the dashboard from npm into the package
	@scripts/fetch_dashboard_assets.sh

stub: setup ## Rewrite the type stub of the native module
	scripts/write_stub.sh $(BIN)/python src/monolith/_native.pyi

lock: ## Write the packages of .venv into requirements.lock, after an intended upgrade
	scripts/write_lock.sh $(BIN)/python requirements.lock

# --- tests ------------------------------------------------------------------------------------------------------------

.PHONY: test test-cpp test-python test-packages test-sanitizers test-asan test-tsan
# Python tests of processes wait much; the C++ tests use that time, and are compiled at a low priority. They need no
# packages of tests, which are installed meanwhile.
test: setup ## Set up, then run the C++ and the Python tests
	+$(MAKE) --jobs=2 test-cpp test-python

test-cpp: setup ## Run the C++ tests only
	MAKEFLAGS= nice cmake --build $(BUILD) --target engine_tests --parallel $$(nproc) -- --quiet
	ctest --test-dir $(BUILD) --parallel $$(nproc) --output-on-failure --no-tests=ignore

test-packages:
	@scripts/install_system_packages.sh test

# Two processes more than cores, because tests of processes wait much; each takes a whole file, so a file's servers are
# started once. The order stays: the long tests of processes come first, and short ones fill the end.
test-python: setup test-packages ## Run the Python tests only
	$(BIN)/python -m pytest -n $$(($$(nproc) + 2)) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

.PHONY: test-browser
test-browser: setup ## Test the dashboard in Chromium; needs the packages chromium and playwright, which it installs
	command -v chromium >/dev/null || apt-get install --yes --quiet chromium
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'playwright>=1.50'
	$(BIN)/python -m pytest -q tests/browser

test-sanitizers: setup ## Run the tests of native code under ASan + UBSan and, at the same time, under TSan: LOAD_SECONDS=60
	$(MAKE) --jobs=2 --output-sync=target test-asan test-tsan

test-asan: setup
	scripts/test_sanitizers.sh address,undefined build/asan

test-tsan: setup
	scripts/test_sanitizers.sh thread build/tsan

.PHONY: test-x86
test-x86: ## Cross-compile the engine for x86-64 and test every level of its kernels under QEMU: GTEST_FILTER=Kernels.*
	scripts/test_x86.sh build/x86

# TensorFlow has an environment of its own; the two interpreters exchange files and requests.
.PHONY: compat-setup test-compat
compat-setup: $(COMPAT)/.requirements ## Create .venv-compat with TensorFlow: for test-compat, and a peer of bench data

$(COMPAT)/.requirements: requirements-compat.lock
	test -x $(COMPAT)/bin/python || $(PYTHON) -m venv $(COMPAT)
	$(COMPAT)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-compat.lock
	touch $@

test-compat: setup compat-setup ## Exchange TFRecords with TensorFlow, and requests with TensorFlow Serving's client
	TENSORFLOW_PYTHON=$(CURDIR)/$(COMPAT)/bin/python $(BIN)/python -m pytest tests/compat $(PYTEST_ARGS)

# Lightning, accelerate and TorchRec are in a folder of their own, beside the project's environment.
TORCH_LIBRARIES := build/torch-libraries
.PHONY: test-torch
test-torch: setup $(TORCH_LIBRARIES)/.requirements ## Run the loops of Lightning and accelerate, and TorchRec beside mt.nn
	PYTHONPATH=$(CURDIR)/$(TORCH_LIBRARIES) $(BIN)/python -m pytest tests/unit/nn/test_torch_loops.py $(PYTEST_ARGS)

$(TORCH_LIBRARIES)/.requirements: requirements-torch.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(TORCH_LIBRARIES) \
		--upgrade -r requirements-torch.lock
	touch $@

# PyFlink pins older packages than Monolith, so it has a separate environment too. Needs Java 17.
.PHONY: flink-setup test-flink
flink-setup: $(FLINK)/.requirements ## Create .venv-flink with PyFlink: for test-flink, and a peer of bench join

$(FLINK)/.requirements: requirements-flink.lock
	test -x $(FLINK)/bin/python || $(PYTHON) -m venv $(FLINK)
	$(FLINK)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-flink.lock
	touch $@

test-flink: setup flink-setup ## Run the joiner as a Flink job beside the reference joiner
	FLINK_PYTHON=$(CURDIR)/$(FLINK)/bin/python $(BIN)/python -m pytest tests/compat/test_flink.py $(PYTEST_ARGS)

.PHONY: chaos soak torture mutants
chaos: setup test-packages ## Kill, hold, cut off and stop the processes of jobs and servers: make chaos CHAOS_SECONDS=60 per test
	MONOLITH_TEST_PRELOAD=0 $(BIN)/python -m pytest tests/chaos -v -s $(PYTEST_ARGS)

soak: setup ## Train for long while processes are held and killed; fails on growth: make soak SOAK_SECONDS=600
	$(BIN)/python tests/chaos/soak.py --seconds $(SOAK_SECONDS)

torture: setup ## Kill, break and fuzz in rotation; appends a line to docs/reference/torture.md: make torture MINUTES=60 SEED=1
	$(BIN)/python tests/chaos/torture.py --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

mutants: setup ## Apply mistakes one at a time and count those that tests notice: make mutants MUTANTS="--only ps/"
	$(BIN)/python scripts/mutants.py $(MUTANTS)

# --- fuzzing ----------------------------------------------------------------------------------------------------------

.PHONY: fuzz fuzz-minute fuzz-python fuzz-corpus
fuzz-python: setup ## Fuzz agent payloads and messages of feeds, which Python reads: make fuzz-python FUZZ_SECONDS=60
	$(BIN)/python scripts/fuzz_python.py $(FUZZ_SECONDS)

fuzz-minute: $(VENV)/.requirements ## Fuzz every native parser under ASan + UBSan, a minute in all; needs clang 14
	scripts/fuzz.sh minute

fuzz: $(VENV)/.requirements ## Fuzz for longer: make fuzz FUZZ_SECONDS=600 FUZZ_TARGET=instance
	scripts/fuzz.sh $(FUZZ_SECONDS) $(FUZZ_TARGET)

fuzz-corpus: setup ## Rewrite the first inputs of the fuzz targets
	$(BIN)/python scripts/make_fuzz_corpus.py

# --- checks -----------------------------------------------------------------------------------------------------------

.PHONY: lint format sizes docs
lint: $(VENV)/.requirements ## Check style, prose, types, layers and C++ formatting
	ruff check .
	ruff format --check .
	python scripts/check_prose.py
	mypy
	PYTHONPATH=src lint-imports
	$(BIN)/python scripts/check_private_imports.py
	$(BIN)/python scripts/check_class_names.py
	$(if $(CPP_FILES),clang-format --dry-run -Werror $(CPP_FILES))

format: $(VENV)/.requirements ## Format Python and C++ in place
	ruff check --fix-only --quiet .
	ruff format .
	$(if $(CPP_FILES),clang-format -i $(CPP_FILES))

sizes: ## Print the ten largest modules and functions
	@$(PYTHON) scripts/sizes.py

docs: export NO_MKDOCS_2_WARNING := 1
docs: $(VENV)/.requirements ## Check the links of the documentation and build the site into build/site
	python scripts/check_docs.py
	mkdocs build --strict --quiet

# --- the rest ---------------------------------------------------------------------------------------------------------

.PHONY: wheel test-wheel
wheel: $(VENV)/.requirements ## Build wheels that need no compiler into dist: make wheel PYTHONS="python3.11 python3.12"
	@scripts/fetch_dashboard_assets.sh
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-wheel.lock
	@$(BIN)/python scripts/build_wheels.py $(VENV) dist $(PYTHONS)

test-wheel: wheel ## Install the wheels with each extra, without a compiler, and run the README
	$(BIN)/python -m pytest -v tests/wheel $(PYTEST_ARGS)

.PHONY: bench demo proto clean
bench: setup ## Measure against the peers: make bench BENCH=engine BENCH_ARGS=
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-bench.lock
	scripts/install_system_packages.sh bench
	$(BIN)/monolith bench $(BENCH) $(BENCH_ARGS)

demo: setup ## Set up, then run the whole real-time loop for a minute: visitors, log, joiner, trainer, servers, dashboard
	$(BIN)/monolith demo --folder build/demo

proto: $(VENV)/.requirements ## Rebuild src/monolith/_proto from proto/
	scripts/write_proto.sh $(BIN)/python src/monolith/_proto

clean: ## Remove what was built; .venv stays
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis $(VENV)/.native
	find src tests scripts benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
