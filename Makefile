# ds4: two commands matter: `make demo` and `make test`. `make help` lists the rest.
BUILD ?= build
CC ?= gcc
OPT ?= -O2
WARN = -Wall -Wextra -Werror
CFLAGS += -std=gnu11 $(OPT) -g $(WARN) -ffp-contract=off -fno-math-errno -Iinclude -Isrc -MMD -MP
LDLIBS_core = -lpcre2-8 -lpthread -lm
LDLIBS_json = -ljansson
LDLIBS_app = -ledit

# Rooms from bottom to top; each is one static library build/lib<room>.a. Later rooms may use earlier ones.
ROOMS = base file text backend model session sample spec engine json convert
src_backend = $(wildcard src/backend/*.c src/backend/cpu/*.c)
src_of = $(if $(filter backend,$1),$(src_backend),$(wildcard src/$1/*.c))
obj_of = $(patsubst src/%.c,$(BUILD)/%.o,$(call src_of,$1))
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
deps_app = convert json engine spec session sample model backend text file base

.PHONY: all
all: ds4 ds4-quantize

define room_rules
$(call lib_of,$1): $(call obj_of,$1)
	@mkdir -p $$(@D)
	@rm -f $$@
	@ar rcs $$@ $$^
room-$1: $(foreach r,$(deps_$1),$(call lib_of,$r))
tests_$1 = $$(patsubst tests/$1/%.c,$(BUILD)/tests/$1/%,$$(wildcard tests/$1/t_*.c))
$(BUILD)/tests/$1/%: tests/$1/%.c $(wildcard tests/$1/util*.c tests/util/*.c) $(foreach r,$(deps_$1),$(call lib_of,$r))
	@mkdir -p $$(@D)
	$$(CC) $$(CFLAGS) -Itests -o $$@ $$(filter %.c %.a,$$^) -lcmocka $(LDLIBS_json) $(LDLIBS_core)
test-bins-$1: $$(tests_$1)
test-$1: $$(tests_$1)
	@for t in $$^; do $$$$t || exit 1; done
.PHONY: room-$1 test-$1 test-bins-$1
endef
$(foreach r,$(ROOMS) app,$(eval $(call room_rules,$r)))

$(BUILD)/%.o: src/%.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -c -o $@ $<

app_libs = $(foreach r,$(deps_app),$(call lib_of,$r))
ds4: $(patsubst src/%.c,$(BUILD)/%.o,$(wildcard src/app/ds4_*.c src/app/cli_*.c)) $(app_libs)
	$(CC) $(CFLAGS) -o $@ $^ $(LDLIBS_json) $(LDLIBS_app) $(LDLIBS_core)
ds4-quantize: $(patsubst src/%.c,$(BUILD)/%.o,$(wildcard src/app/quantize_*.c src/app/cli_*.c)) $(app_libs)
	$(CC) $(CFLAGS) -o $@ $^ $(LDLIBS_json) $(LDLIBS_core)

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
