# ds4: two commands matter: `make demo` and `make test`. `make help` lists the rest.
BUILD ?= build
ifeq ($(origin CC),default)
CC = gcc
endif
OPT ?= -O2
WARN = -Wall -Wextra -Werror
CFLAGS += -std=gnu11 $(OPT) -g $(WARN) -ffp-contract=off -fno-math-errno -Iinclude -Isrc -MMD -MP
LDLIBS_core = -lpcre2-8 $(LDLIBS_cuda) -lpthread -lm
LDLIBS_json = -ljansson
LDLIBS_app = -ledit

# CUDA = nvcc: with the CUDA backend for CUDA_ARCH (`native`: the devices of this machine). CUDA = emu: the same sources
# as C++ on an emulation of the device, for tests. Set by the goals cuda, cuda-..., test-gpu and test-emu, each with its
# own BUILD.
CUDA ?=
CUDA_ARCH ?= sm_90
NVCC ?= $(or $(shell command -v nvcc 2>/dev/null),/usr/local/cuda/bin/nvcc)
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(NVCC))
ifneq ($(CUDA),)
CFLAGS += -DDS4_HAVE_CUDA
cuda_obj = $(patsubst src/%.cu,$(BUILD)/%.cu.o,$(wildcard src/backend/cuda/*.cu)) \
    $(if $(filter emu,$(CUDA)),$(BUILD)/tests/cuda/emu/emu.o)
endif
# -fmad=false: products that are to be fused say so, all others round as on the CPU
NVFLAGS = -std=c++20 -O3 -fmad=false $(if $(filter native,$(CUDA_ARCH)),-arch=native, \
    -gencode arch=$(CUDA_ARCH:sm_%=compute_%)$(comma)code=$(CUDA_ARCH)) \
    -Xcompiler -Wall,-Wextra,-Werror -Werror all-warnings -Iinclude -Isrc -MMD -MP
comma = ,
EMUFLAGS = -std=c++20 -O2 -g $(WARN) -Wno-unknown-pragmas -Wno-missing-field-initializers -ffp-contract=off \
    $(EMU_SAN) -Itests/cuda/emu -Iinclude -Isrc -MMD -MP
LDLIBS_cuda = $(if $(filter nvcc,$(CUDA)),-L$(CUDA_HOME)/lib64 -lcudart_static -ldl -lrt) $(if $(CUDA),-lstdc++)

# Rooms from bottom to top; each is one static library $(BUILD)/lib<room>.a. Later rooms may use earlier ones.
ROOMS = base file text backend model session sample spec engine json convert app
src_backend = $(wildcard src/backend/*.c src/backend/cpu/*.c)
src_of = $(if $(filter backend,$1),$(src_backend),$(wildcard src/$1/*.c))
obj_of = $(patsubst src/%.c,$(BUILD)/%.o,$(call src_of,$1)) $(if $(filter backend,$1),$(cuda_obj))
lib_of = $(BUILD)/lib$1.a

deps_base = base
deps_file = file base
deps_text = text file base
deps_backend = backend file base
deps_model = model backend file base
deps_session = session model backend file base
deps_sample = sample base
deps_spec = spec session sample model backend file base
deps_engine = engine spec session sample model backend text file base
deps_json = json text file base
deps_convert = convert json text file base
deps_cuda = engine spec session sample model backend text file base
deps_app = app convert json engine spec session sample model backend text file base

.PHONY: all
all: ds4 ds4-quantize ds4-bench

.PRECIOUS: $(BUILD)/%.o $(BUILD)/tests/%.o
utils_app = tests/text/util_text.c
utils_cuda = tests/backend/util_be.c
define room_rules
$(call lib_of,$1): $(call obj_of,$1)
	@mkdir -p $$(@D)
	@rm -f $$@
	@ar rcs $$@ $$^
room-$1: $(foreach r,$(deps_$1),$(call lib_of,$r))
tests_$1 = $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/$1/t_*.c))
$(BUILD)/tests/$1/%: $(BUILD)/tests/$1/%.o \
    $(patsubst tests/%.c,$(BUILD)/tests/%.o,$(wildcard tests/$1/util*.c) $(utils_$1)) \
    $(BUILD)/tests/libutil.a $(foreach r,$(deps_$1),$(call lib_of,$r))
	$$(CC) $$(CFLAGS) -o $$@ $$(filter %.o %.a,$$^) -lcmocka $(LDLIBS_json) $(LDLIBS_app) $(LDLIBS_core)
test-bins-$1: $$(tests_$1)
test-$1: $$(tests_$1)
	@tests/run.sh $$^
.PHONY: room-$1 test-$1 test-bins-$1
endef
$(foreach r,$(ROOMS) cuda,$(eval $(call room_rules,$r)))

ifeq ($(CUDA),nvcc)
$(BUILD)/%.cu.o: src/%.cu
	@mkdir -p $(@D)
	$(NVCC) $(NVFLAGS) -c -o $@ $<
$(BUILD)/tests/%.o: tests/%.cu
	@mkdir -p $(@D)
	$(NVCC) $(NVFLAGS) -Itests -c -o $@ $<
else ifeq ($(CUDA),emu)
$(BUILD)/%.cu.o: src/%.cu
	@mkdir -p $(@D)
	$(CXX) $(EMUFLAGS) -x c++ -c -o $@ $<
$(BUILD)/tests/%.o: tests/%.cu
	@mkdir -p $(@D)
	$(CXX) $(EMUFLAGS) -Itests -x c++ -c -o $@ $<
$(BUILD)/tests/cuda/emu/emu.o: tests/cuda/emu/emu.cc
	@mkdir -p $(@D)
	$(CXX) $(EMUFLAGS) -c -o $@ $<
endif
$(BUILD)/%.o: src/%.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -c -o $@ $<
$(BUILD)/tests/%.o: tests/%.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -Itests -c -o $@ $<
$(BUILD)/tests/libutil.a: $(patsubst tests/%.c,$(BUILD)/tests/%.o,$(wildcard tests/util/*.c))
	@mkdir -p $(@D)
	@rm -f $@
	@ar rcs $@ $^

# Programs: linked in $(BUILD)/bin; the short names also put them beside the Makefile.
app_main = $(patsubst src/%.c,$(BUILD)/%.o,$(wildcard src/app/$1_*.c))
app_libs = $(foreach r,$(deps_app),$(call lib_of,$r))
programs = ds4 ds4-quantize ds4-bench
define program_rules
$(BUILD)/bin/$1: $(call app_main,$2) $(app_libs)
	@mkdir -p $$(@D)
	$$(CC) $$(CFLAGS) -o $$@ $$^ $(LDLIBS_json) $(LDLIBS_app) $(LDLIBS_core)
$1: $(BUILD)/bin/$1
	@cp -f $$< $$@.new && mv -f $$@.new $$@
endef
$(eval $(call program_rules,ds4,ds4))
$(eval $(call program_rules,ds4-quantize,quantize))
$(eval $(call program_rules,ds4-bench,bench))

# ---- what people type -------------------------------------------------------------------------------------------
MINI = mini/ds4-mini.gguf
MINI_DRAFTER = mini/ds4-mini-dspark.gguf
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
SUBMAKE = $(MAKE) --no-print-directory -s $(if $(findstring -j,$(MAKEFLAGS)),,-j$(JOBS))
say_build = $(SUBMAKE) -q $1 2>/dev/null || echo "building into $(BUILD)/, a minute or so" >&2
SCRIPTS = tests/rules.sh $(wildcard tests/t_*.sh) tests/dspark_acceptance_fixture.sh
test_rooms = $(foreach r,$(ROOMS),$(if $(wildcard tests/$r/t_*.c),$r))
all_tests = $(foreach r,$(test_rooms),$(tests_$r))

.PHONY: help setup demo test test-bins sanitize run-tests fuzz dspark-acceptance clean
help:
	@sed -n 's/^#: //p' Makefile | sed 's/$$(ROOMS)/$(ROOMS)/'

#: make                    build ds4, ds4-quantize and ds4-bench, nothing else (`make setup` first on a new machine)
#: make setup              install what is missing for building (Debian, Ubuntu); demo and test do it themselves
setup:
	@tools/setup.sh build

#: make demo               set up, build, and let the small model answer, drafted by DSpark
demo:
	@tools/setup.sh build
	+@$(call say_build,all)
	+@$(SUBMAKE) all
	./ds4 -m $(MINI) --mtp $(MINI_DRAFTER) --temp 0 --nothink --dspark --dspark-confidence 0.7 --stats \
	    --tokens 160 -p "Write a Python function that reverses a string."

#: make test               set up, build, every test; closes with `N passed, N failed`
test:
	@tools/setup.sh test
	+@$(call say_build,all test-bins)
	+@$(SUBMAKE) all test-bins
	@BUILD=$(BUILD) tests/run.sh $(SCRIPTS) $(all_tests)
test-bins: $(all_tests)

#: make test-ROOM          the tests of one room, one of:
#:                         $(ROOMS)
#: make sanitize           the tests under AddressSanitizer and UBSan, those with threads also under ThreadSanitizer
SAN = -O1 -fno-omit-frame-pointer -fno-sanitize-recover=all -Wno-maybe-uninitialized
sanitize:
	@tools/setup.sh test
	+@$(SUBMAKE) BUILD=$(BUILD)/asan OPT="$(SAN) -fsanitize=address,undefined" run-tests \
	    test_scripts="tests/t_cli.sh tests/t_bench.sh"
	+@DS4_DSPARK_FIXTURE_TOKENS=8 DS4_DSPARK_FIXTURE_EXTRA="--threads 3" \
	    $(SUBMAKE) BUILD=$(BUILD)/tsan OPT="$(SAN) -fsanitize=thread" test_rooms="base backend" \
	    test_scripts=tests/dspark_acceptance_fixture.sh run-tests
run-tests: $(all_tests) $(BUILD)/bin/ds4 $(BUILD)/bin/ds4-bench
	@DS4_BIN=$(BUILD)/bin/ds4 DS4_BENCH_BIN=$(BUILD)/bin/ds4-bench tests/run.sh $(test_scripts) $(all_tests)

#: make fuzz               fuzz the GGUF reader with clang's libFuzzer, FUZZ_SECONDS=120 long
FUZZ_SECONDS ?= 120
fuzz:
	@tools/setup.sh fuzz
	@tests/fuzz/run.sh $(FUZZ_SECONDS) $(BUILD)/fuzz

#: make dspark-acceptance  five prompts, plain against DSpark, byte for byte
dspark-acceptance: ds4
	@tests/dspark_acceptance_fixture.sh

#: make cuda CUDA_ARCH=sm_90   build ./ds4 and ./ds4-bench for one kind of GPU (sm_80 86 89 90 100 120 121)
#: make cuda-spark         the same for DGX Spark (GB10, sm_121)
#: make cuda-generic       the same for the GPUs of this machine
CUDA_BUILD = BUILD=$(BUILD)/cuda-$(CUDA_ARCH) CUDA=nvcc CUDA_ARCH=$(CUDA_ARCH)
.PHONY: cuda cuda-spark cuda-generic test-gpu test-gpu-bins test-emu
cuda:
	@$(MAKE) --no-print-directory $(CUDA_BUILD) ds4 ds4-bench
cuda-spark:
	@$(MAKE) --no-print-directory cuda CUDA_ARCH=sm_121
cuda-generic:
	@$(MAKE) --no-print-directory cuda CUDA_ARCH=native

#: make cpu                build ./ds4 and ./ds4-quantize without CUDA (what plain make does)
.PHONY: cpu cuda-regression
cpu: all
#: make cuda-regression    test-gpu, then the acceptance fixture on the CUDA build
cuda-regression: test-gpu cuda
	@DS4_BIN=$(BUILD)/cuda-$(CUDA_ARCH)/bin/ds4 DS4_DSPARK_FIXTURE_EXTRA="--backend cuda" \
	    tests/dspark_acceptance_fixture.sh

#: make test-gpu           tests of the CUDA backend on the GPU (CUDA_ARCH as for make cuda)
#: make test-emu           the same tests without a GPU, on a slow emulation of the device
GPU_TESTS = $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/cuda/t_*.c)) \
    $(patsubst tests/%.cu,$(BUILD)/tests/%,$(wildcard tests/cuda/t_*.cu)) \
    $(addprefix $(BUILD)/tests/,model/t_narrow spec/t_spec engine/t_mini $(GOLDEN_TESTS))
# need the golden data (and t_oracle_c also DS4_TEST_SLOW=1), else they skip
GOLDEN_TESTS = model/t_oracle_a model/t_oracle_layers model/t_oracle_draft model/t_oracle_c
test-gpu:
	@$(MAKE) --no-print-directory $(CUDA_BUILD) run-gpu-tests
test-gpu-bins:
	@$(MAKE) --no-print-directory $(CUDA_BUILD) gpu-tests
test-emu:
	@DS4_TEST_EMU=1 $(MAKE) --no-print-directory BUILD=$(BUILD)/emu CUDA=emu run-emu-tests
#: make gpu-bundle         the tests in one folder that runs on another machine: BUILD/cuda-ARCH/gpu-tests/run.sh
#:                         (tests/cuda/bundle.sh says what else may go in)
gpu-bundle:
	@$(MAKE) --no-print-directory $(CUDA_BUILD) pack-gpu-tests
bundled = $(GPU_TESTS) $(BUILD)/tests/cuda/bench_ops $(addprefix $(BUILD)/bin/,ds4 ds4-bench ds4-quantize)
pack-gpu-tests: $(bundled)
	@tests/cuda/bundle.sh $(BUILD)/gpu-tests $(bundled)
run-emu-tests: $(filter $(BUILD)/tests/cuda/%,$(GPU_TESTS))
	@DS4_TEST_BACKEND=cuda tests/run.sh $^
.PHONY: gpu-tests run-gpu-tests gpu-bundle pack-gpu-tests run-emu-tests
gpu-tests: $(GPU_TESTS) $(BUILD)/bin/ds4-quantize
run-gpu-tests: gpu-tests
	@DS4_TEST_BACKEND=cuda tests/run.sh $(GPU_TESTS)

#: make clean              remove what was built
clean:
	rm -rf $(BUILD) $(programs)

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
