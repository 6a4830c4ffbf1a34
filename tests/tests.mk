# SPDX-License-Identifier: Apache-2.0
# Test programs: one per C file of the groups below, linked with libpf.a; scripts are run as they are.

TEST_GROUPS := unit kernels comm mpi fuzz train golden
TEST_SRC := $(sort $(foreach g,$(TEST_GROUPS),$(wildcard tests/$(g)/*.c)))
TEST_OBJ := $(TEST_SRC:%.c=$(B)/%.o)
TEST_BIN := $(TEST_SRC:%.c=$(B)/%)

$(B)/tests/%.o: tests/%.c $(B)/flags $(B)/include/config.h
	$(compile) $(CC) $(PF_CPPFLAGS) -Itests/unit $(PF_CFLAGS) -Wno-conversion $(CFLAGS) -MMD -MP -c -o $@ $<
$(TEST_BIN): $(B)/tests/%: $(B)/tests/%.o $(LIBPF)
	$(if $(Q),@echo '  LD    $@')
	$(Q)$(CC) $(PF_LDFLAGS) $(LDFLAGS) -o $@ $< $(LIBPF) $(FEATURE_LDLIBS) $(PF_LDLIBS)
tests: $(TEST_BIN)
.PHONY: tests

# Libraries for LD_PRELOAD, never sanitized.
PRELOADS := $(patsubst tests/preload/%.c,$(B)/tests/preload/%.so,$(wildcard tests/preload/*.c))
$(B)/tests/preload/%.so: tests/preload/%.c
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) -std=gnu11 -D_GNU_SOURCE -O1 -Wall -Wextra -Werror -fPIC -shared -o $@ $< -ldl
tests: $(PRELOADS)
