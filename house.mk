# SPDX-License-Identifier: Apache-2.0
# The house kept in order: tests, checks, formatting, installation.

help:
	@grep -h "^. *make " Makefile house.mk | cut -c3-

# make check                install what is missing, build, run all tests
# make check-fast           the tests alone, of what is built
# make check-san            a reduced set under AddressSanitizer and UndefinedBehaviorSanitizer
# make check-threads        what has threads of its own, under ThreadSanitizer
# make check-long           the long proofs: hundreds of kills, hours of fuzzing
# make check-interop        against torch and transformers in a scratch Python environment
# make bench                every op and its percent of the machine's limit
# make bench-vs-torch       beside PyTorch; writes the tables of docs/performance.md
# make demo                 train, kill, resume, export, verify on real text
# make rows                 SYSTEMS.md rows that work, and the tests that show it
# make lint                 format, includes, headers, man pages, cppcheck
# make completions          of the shells, from --help and pf-config(5)
# make install              PREFIX=/usr/local DESTDIR=
deps:
	$(Q)scripts/install-deps
# Without -j from the user, as many compilers as there are CPUs.
PARALLEL = $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(shell nproc))

check: deps
	$(Q)$(MAKE) $(PARALLEL) --no-print-directory all tests
	$(Q)$(MAKE) $(PARALLEL) --no-print-directory SAN=address,undefined all tests
	$(Q)$(MAKE) $(PARALLEL) --no-print-directory tsan-tests
	$(Q)scripts/check-all $(B) build/san-address-undefined build/san-thread
check-fast: all tests
	$(Q)scripts/run-tests $(B)
check-san:
	$(Q)$(MAKE) --no-print-directory SAN=address,undefined all tests
	$(Q)scripts/run-tests build/san-address-undefined unit fuzz
# What has threads of its own, under ThreadSanitizer; libgomp is not built for it, so no OpenMP.
tsan-tests:
	$(Q)$(MAKE) --no-print-directory SAN=thread LIB_DIRS="base fmt data" REF_SRC= CPU_SRC= \
	  build/san-thread/tests/unit/reader
check-threads: tsan-tests
	$(Q)scripts/run-tests build/san-thread tests/unit/reader.c
check-long: all tests
	$(Q)scripts/check-long $(B)
check-interop: all
	$(Q)scripts/check-interop
bench: all
	$(Q)bin/pf-bench ops
bench-vs-torch: all
	$(Q)scripts/bench-vs-torch --docs
demo: deps
	$(Q)$(MAKE) $(PARALLEL) --no-print-directory all
	$(Q)scripts/demo
rows:
	$(Q)scripts/rows

C_FILES := $(sort $(wildcard bin/*.c bin/*/*.[ch] lib/*/*.[ch] kernels/*/*.[ch] tests/*/*.[ch] tests/*.h))
format:
	$(Q)clang-format -i $(C_FILES)
check-format:
	$(Q)clang-format --dry-run -Werror $(C_FILES)
check-includes:
	$(Q)scripts/check-includes
# Each public header compiles alone, as C11 and (kernel.h) as C++.
check-headers:
	$(Q)for h in lib/pf/*.h; do \
	  $(CC) -Ilib $(PF_CFLAGS) -Werror -fsyntax-only -x c $$h || exit 1; done
check-man: all
	$(Q)scripts/check-man
check-cppcheck:
	$(Q)cppcheck -q --std=c11 --error-exitcode=1 --inline-suppr --enable=warning,portability \
	  --suppress=missingIncludeSystem -Ilib -I$(B)/include -DPF_ISA=generic -DPF_ELEM=f32 -DPF_ELEM_f32 lib kernels bin
lint: check-format check-includes check-headers check-man check-cppcheck

completions: all
	$(Q)scripts/make-completions

INSTALL_TO = $(DESTDIR)$(PREFIX)
MAN_PAGES = $(sort $(wildcard man/*.[1-9]))
DOCS = LICENSE README.md CHANGELOG.md $(sort $(wildcard docs/*.md))
# What a program that is linked with libpf.a needs besides.
LIBRARIES = $(strip $(FEATURE_LDLIBS) $(PF_LDLIBS))
define PKG_CONFIG_FILE
prefix=$(PREFIX)
includedir=$${prefix}/include
libdir=$${prefix}/lib

Name: pf
Description: train language models and keep their checkpoints
Version: $(VERSION)
Cflags: -I$${includedir}
Libs: -L$${libdir} -lpf -fopenmp $(LIBRARIES)
endef
export PKG_CONFIG_FILE
COMPLETIONS = $(BINS:%=share/bash-completion/completions/%) $(BINS:%=share/zsh/site-functions/_%) \
  $(BINS:%=share/fish/vendor_completions.d/%.fish)
install: all
	$(Q)$(MAKE) --no-print-directory install-only
# What is built already, without a look at whether it is up to date.
install-only:
	install -d $(INSTALL_TO)/bin $(INSTALL_TO)/lib $(INSTALL_TO)/include/pf \
	  $(INSTALL_TO)/share/pf/configs $(INSTALL_TO)/share/doc/pf $(INSTALL_TO)/lib/pkgconfig \
	  $(addprefix $(INSTALL_TO)/,$(sort $(dir $(COMPLETIONS)))) \
	  $(patsubst %,$(INSTALL_TO)/share/man/man%,1 5 7)
	install $(BINS:%=bin/%) $(INSTALL_TO)/bin
	install -m 644 $(LIBPF) $(INSTALL_TO)/lib
	install -m 644 lib/pf/*.h $(INSTALL_TO)/include/pf
	$(Q)echo "$$PKG_CONFIG_FILE" > $(INSTALL_TO)/lib/pkgconfig/pf.pc
	$(Q)for bin in $(BINS); do \
	  install -m 644 completions/$$bin.bash $(INSTALL_TO)/share/bash-completion/completions/$$bin && \
	  install -m 644 completions/_$$bin $(INSTALL_TO)/share/zsh/site-functions && \
	  install -m 644 completions/$$bin.fish $(INSTALL_TO)/share/fish/vendor_completions.d || exit 1; done
	$(Q)for page in $(MAN_PAGES); do \
	  install -m 644 $$page $(INSTALL_TO)/share/man/man$${page##*.} || exit 1; done
	install -m 644 configs/* $(INSTALL_TO)/share/pf/configs
	install -m 644 $(DOCS) $(INSTALL_TO)/share/doc/pf
uninstall:
	rm -f $(BINS:%=$(INSTALL_TO)/bin/%) $(INSTALL_TO)/lib/libpf.a $(INSTALL_TO)/lib/pkgconfig/pf.pc
	rm -f $(addprefix $(INSTALL_TO)/,$(COMPLETIONS))
	rm -f $(foreach p,$(MAN_PAGES),$(INSTALL_TO)/share/man/man$(subst .,,$(suffix $(p)))/$(notdir $(p)))
	rm -rf $(INSTALL_TO)/include/pf $(INSTALL_TO)/share/pf $(INSTALL_TO)/share/doc/pf
print-libraries:
	@echo $(LIBRARIES)

tags:
	ctags -R lib kernels bin tests
compile_commands.json:
	bear -- $(MAKE) -B all tests
clean:
	rm -rf build $(BINS:%=bin/%)

.PHONY: help deps check check-fast check-san tsan-tests check-threads check-long check-interop demo rows format check-format \
  check-includes check-headers check-man check-cppcheck lint completions install install-only \
  uninstall print-libraries tags clean
