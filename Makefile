# SPDX-License-Identifier: Apache-2.0
# One non-recursive build. `make help` lists the targets; README.md tells the story.
#
#   make                      programs at bin/pf-*, everything else under build/<variant>/
#   make check                install what is missing, build, run all tests
#   make DEV=1                warnings are errors (CI)
#   make SAN=address,undefined   a variant of its own under build/san-address-undefined
#   make V=1                  show the commands

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:

VERSION := 0.1.0
SAN ?=
DEV ?= 0
V ?= 0
Q := $(if $(filter 1,$(V)),,@)
comma := ,
VARIANT := $(if $(SAN),san-$(subst $(comma),-,$(SAN)),release)
B := build/$(VARIANT)

PREFIX ?= /usr/local
DESTDIR ?=

CC ?= cc
OPT ?= $(if $(SAN),-O1,-O2)
# What gcc can no longer judge where a sanitizer stands between a value and its use.
WARN_BLIND := -Wno-format-truncation -Wno-maybe-uninitialized -Wno-stringop-overflow
WARN := -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wstrict-prototypes \
        -Wmissing-prototypes -Wpointer-arith -Wvla -Wwrite-strings -Wundef \
        $(if $(SAN),$(WARN_BLIND))
CFLAGS ?=
# -ffp-contract=off: a*b+c is fused only where a kernel says so, so that one source gives one result.
PF_CFLAGS := -std=c11 -D_GNU_SOURCE -g $(OPT) -fno-omit-frame-pointer -ffp-contract=off -fopenmp \
             $(WARN) $(if $(filter 1,$(DEV)),-Werror -include tests/banned.h) \
             $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all)
PF_CPPFLAGS := -Ilib -I$(B)/include
PF_LDFLAGS := -fopenmp $(if $(SAN),-fsanitize=$(SAN))
PF_LDLIBS := -lm -lpthread -ldl

include features.mk

# Sources, sorted so that a build does not depend on directory order -------------------------------
LIB_DIRS := base fmt shard dev comm ops model ckpt data train bench
LIB_SRC := $(sort $(foreach d,$(LIB_DIRS),$(wildcard lib/$(d)/*.c)))
LIB_SRC := $(filter-out $(FEATURE_SKIP),$(LIB_SRC))
REF_SRC := $(sort $(wildcard kernels/ref/*.c))
# A file of kernels/cpu is compiled once for each instruction set and element type; PF_ISA and
# PF_ELEM name them in the symbols.
CPU_SRC := $(sort $(wildcard kernels/cpu/*.c))
ISAS := generic avx2 avx512 avx512bf16
ELEMS_generic := f32 bf16 f16
ELEMS_avx2 := f32 bf16 f16
ELEMS_avx512 := f32 bf16 f16
ELEMS_avx512bf16 := bf16
ISA_FLAGS_generic :=
ISA_FLAGS_avx2 := -mavx2 -mfma -mf16c
ISA_FLAGS_avx512 := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c -mprefer-vector-width=512
ISA_FLAGS_avx512bf16 := $(ISA_FLAGS_avx512) -mavx512bf16
# A sanitizer doubles to quintuples what a vector kernel takes to compile. So a sanitized build has the
# plain kernels under it and those that serve on this CPU; the others, of the same source, without.
CPU_HAS := $(if $(SAN),$(shell grep -m 1 '^flags' /proc/cpuinfo))
SANITIZED := generic/f32 generic/bf16 $(if $(filter avx512dq,$(CPU_HAS)),avx512/f32 avx512/f16 \
  $(if $(filter avx512_bf16,$(CPU_HAS)),avx512bf16/bf16,avx512/bf16),\
  $(if $(filter avx2,$(CPU_HAS)),avx2/f32 avx2/bf16 avx2/f16,generic/f16))
unsanitized = $(if $(SAN),$(if $(filter $(1),$(SANITIZED)),,-fno-sanitize=all))
BINS := $(patsubst bin/%.c,%,$(sort $(wildcard bin/pf-*.c)))
# A large program keeps its parts in a folder: bin/pf-NAME.c and bin/NAME/*.c.
parts_of = $(patsubst bin/%.c,$(B)/bin/%.o,$(sort $(wildcard bin/$(1:pf-%=%)/*.c)))

LIB_OBJ := $(LIB_SRC:%.c=$(B)/%.o) $(REF_SRC:%.c=$(B)/%.o) \
           $(foreach i,$(ISAS),$(foreach e,$(ELEMS_$(i)),\
             $(CPU_SRC:kernels/cpu/%.c=$(B)/kernels/cpu/$(i)/$(e)/%.o)))
BIN_OBJ := $(foreach b,$(BINS),$(B)/bin/$(b).o $(call parts_of,$(b)))
LIBPF := $(B)/libpf.a

include tests/tests.mk

all: $(LIBPF) $(if $(SAN),$(BINS:%=$(B)/bin/%),$(BINS:%=bin/%))

# A stamp that changes when the flags do, so that everything is rebuilt then ------------------------
FLAGS_LINE := $(CC) $(PF_CPPFLAGS) $(PF_CFLAGS) $(CFLAGS) $(PF_LDFLAGS) $(PF_LDLIBS) $(FEATURE_CFLAGS) $(FEATURE_LDLIBS)
$(B)/flags: FORCE
	$(Q)mkdir -p $(@D)
	$(Q)echo '$(FLAGS_LINE)' | cmp -s - $@ || echo '$(FLAGS_LINE)' > $@
FORCE:

$(B)/include/config.h: features.mk Makefile $(B)/flags
	$(Q)mkdir -p $(@D)
	$(Q){ echo '/* made by make */'; echo '#define PF_VERSION "$(VERSION)"'; \
	  echo '#define PF_COMPILER "$(shell $(CC) --version | head -n 1)"'; \
	  echo '#define PF_FLAGS "$(OPT) $(if $(SAN),-fsanitize=$(SAN))"'; \
	  $(foreach f,$(FEATURES),echo '#define PF_HAVE_$(f) $(HAVE_$(f))';) } > $@.new
	$(Q)cmp -s $@.new $@ && rm $@.new || mv $@.new $@

compile = @mkdir -p $(@D)$(if $(Q),; echo '  CC    $@'); $(if $(filter 1,$(V)),set -x;)
$(B)/lib/%.o: lib/%.c $(B)/flags $(B)/include/config.h
	$(compile) $(CC) $(PF_CPPFLAGS) $(FEATURE_CFLAGS) $(PF_CFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<
$(B)/bin/%.o: bin/%.c $(B)/flags $(B)/include/config.h
	$(compile) $(CC) $(PF_CPPFLAGS) $(PF_CFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<
# The oracle: no vector flags, no contraction, so that it means what its source says.
$(B)/kernels/ref/%.o: kernels/ref/%.c $(B)/flags
	$(compile) $(CC) -Ilib $(PF_CFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<
define isa_rule
$(B)/kernels/cpu/$(1)/$(2)/%.o: kernels/cpu/%.c $(B)/flags
	$$(compile) $$(CC) -Ilib $$(PF_CFLAGS) $(if $(SAN),,-O3) -fno-math-errno -fno-trapping-math $$(ISA_FLAGS_$(1)) \
	  $(call unsanitized,$(1)/$(2)) \
	  -DPF_ISA=$(1) -DPF_ELEM=$(2) -DPF_ELEM_$(2) $$(CFLAGS) -MMD -MP -c -o $$@ $$<
endef
$(foreach i,$(ISAS),$(foreach e,$(ELEMS_$(i)),$(eval $(call isa_rule,$(i),$(e)))))

$(LIBPF): $(LIB_OBJ)
	$(if $(Q),@echo '  AR    $@')
	$(Q)rm -f $@ && ar rcs $@ $^

define bin_rule
$(B)/bin/$(1): $(B)/bin/$(1).o $(call parts_of,$(1)) $(LIBPF)
	$$(if $$(Q),@echo '  LD    $$@')
	$$(Q)$$(CC) $$(PF_LDFLAGS) $$(LDFLAGS) -o $$@ $$^ $$(FEATURE_LDLIBS) $$(PF_LDLIBS)
endef
$(foreach b,$(BINS),$(eval $(call bin_rule,$(b))))
bin/%: $(B)/bin/%
	$(Q)cp -f $< $@.new && mv -f $@.new $@

# Programs of a variant are not by-products of those under bin/.
.PRECIOUS: $(B)/bin/%

-include $(LIB_OBJ:.o=.d) $(BIN_OBJ:.o=.d) $(TEST_OBJ:.o=.d)

include house.mk

.PHONY: all FORCE
