# SPDX-License-Identifier: Apache-2.0
# The house kept in order: tests, checks, formatting, installation.

help:
	@grep -h "^. *make " Makefile house.mk | cut -c3-

# make check                install what is missing, build, run all tests
# make check-fast           the tests alone, of what is built
# make check-san            a reduced set under AddressSanitizer and UndefinedBehaviorSanitizer
# make check-long           the long proofs: hundreds of kills, hours of fuzzing
# make check-interop        against torch and transformers in a scratch Python environment
# make demo                 train, kill, resume, export, verify on real text
# make rows                 SYSTEMS.md rows that work, and the tests that show it
# make lint                 format, includes, headers, man pages, cppcheck
# make install              PREFIX=/usr/local DESTDIR=
deps:
	$(Q)scripts/install-deps

check: deps
	$(Q)$(MAKE) --no-print-directory all tests
	$(Q)$(MAKE) --no-print-directory SAN=address,undefined all tests
	$(Q)scripts/check-all $(B) build/san-address-undefined
check-fast: all tests
	$(Q)scripts/run-tests $(B)
check-san:
	$(Q)$(MAKE) --no-print-directory SAN=address,undefined all tests
	$(Q)scripts/run-tests build/san-address-undefined unit fuzz
check-long: all tests
	$(Q)scripts/check-long $(B)
check-interop: all
	$(Q)scripts/check-interop
demo: deps
	$(Q)$(MAKE) --no-print-directory all
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
	  --suppress=missingIncludeSystem -Ilib -I$(B)/include -DPF_ISA=generic lib kernels bin
lint: check-format check-includes check-headers check-man check-cppcheck

install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib $(DESTDIR)$(PREFIX)/include/pf \
	  $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/man/man5 \
	  $(DESTDIR)$(PREFIX)/share/pf/configs
	install $(BINS:%=bin/%) $(DESTDIR)$(PREFIX)/bin
	install -m 644 $(LIBPF) $(DESTDIR)$(PREFIX)/lib
	install -m 644 lib/pf/*.h $(DESTDIR)$(PREFIX)/include/pf
	install -m 644 man/*.1 $(DESTDIR)$(PREFIX)/share/man/man1
	install -m 644 man/*.5 $(DESTDIR)$(PREFIX)/share/man/man5
	cp -R configs/. $(DESTDIR)$(PREFIX)/share/pf/configs
uninstall:
	rm -f $(BINS:%=$(DESTDIR)$(PREFIX)/bin/%) $(DESTDIR)$(PREFIX)/lib/libpf.a
	rm -rf $(DESTDIR)$(PREFIX)/include/pf $(DESTDIR)$(PREFIX)/share/pf
	rm -f $(patsubst man/%,$(DESTDIR)$(PREFIX)/share/man/man1/%,$(wildcard man/*.1)) \
	  $(patsubst man/%,$(DESTDIR)$(PREFIX)/share/man/man5/%,$(wildcard man/*.5))

tags:
	ctags -R lib kernels bin tests
compile_commands.json:
	bear -- $(MAKE) -B all tests
clean:
	rm -rf build $(BINS:%=bin/%)

.PHONY: help deps check check-fast check-san check-long check-interop demo rows format check-format \
  check-includes check-headers check-man check-cppcheck lint install uninstall tags clean
