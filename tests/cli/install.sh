#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make install: everything lands below DESTDIR and PREFIX, works there, and make uninstall takes it away. Nothing
# is built: other tests are using the programs.
set -u
. "$PF_ROOT/tests/tap.sh"
to=$PWD/stage
install_it()
{
    make -s -C "$PF_ROOT" "$1" DESTDIR="$to" PREFIX=/opt/pf >log 2>&1
}
case $PF_BUILD in
*/san-*)
    skip "make install" "it installs the release build"
    done_testing
    ;;
esac

install_it install-only
ok $? "make install-only DESTDIR= PREFIX=" "$(tail -n 5 log)"
for source in "$PF_ROOT"/bin/pf-*.c; do
    tool=$(basename "$source" .c)
    is "$("$to/opt/pf/bin/$tool" --version)" "$("$PF_BIN/$tool" --version)" "$tool runs where it was installed"
    [ -s "$to/opt/pf/share/man/man1/$tool.1" ]
    ok $? "its page is there"
done
for page in "$PF_ROOT"/man/*.[0-9]; do
    name=$(basename "$page")
    cmp -s "$page" "$to/opt/pf/share/man/man${name##*.}/$name" || break
done
ok $? "all manual pages are in their sections" "$name"
is "$(ls "$to/opt/pf/share/pf/configs")" "$(ls "$PF_ROOT/configs")" "configs are installed"
is "$(ls "$to/opt/pf/include/pf")" "$(ls "$PF_ROOT/lib/pf")" "headers are installed"
for doc in LICENSE README.md CHANGELOG.md docs/launching.md; do
    cmp -s "$PF_ROOT/$doc" "$to/opt/pf/share/doc/pf/$(basename $doc)" || break
done
ok $? "licence, readme, changes and guides are installed" "$doc"
for source in "$PF_ROOT"/bin/pf-*.c; do
    tool=$(basename "$source" .c)
    cmp -s "$PF_ROOT/completions/$tool.bash" "$to/opt/pf/share/bash-completion/completions/$tool" &&
        cmp -s "$PF_ROOT/completions/_$tool" "$to/opt/pf/share/zsh/site-functions/_$tool" &&
        cmp -s "$PF_ROOT/completions/$tool.fish" "$to/opt/pf/share/fish/vendor_completions.d/$tool.fish"
    ok $? "so are completions of $tool"
done

cat >user.c <<'C'
#include <pf/version.h>
#include <stdio.h>
int main(void)
{
    pf_version_print(stdout, "user", false);
    return 0;
}
C
# shellcheck disable=SC2046  # lists of words
${CC:-cc} -I"$to/opt/pf/include" -o user user.c "$to/opt/pf/lib/libpf.a" -fopenmp \
    $(make -s -C "$PF_ROOT" print-libraries) >log 2>&1
ok $? "a program can be built with the header and the library" "$(tail -n 5 log)"
is "$(./user 2>&1 | cut -d' ' -f1)" user "and runs"
if command -v pkg-config >/dev/null; then
    export PKG_CONFIG_PATH=$to/opt/pf/lib/pkgconfig
    is "$(pkg-config --variable=prefix pf) $(pkg-config --modversion pf)" "/opt/pf 0.1.0" "pkg-config knows pf"
    flags=$(pkg-config --cflags --libs --define-variable=prefix="$to/opt/pf" pf)
    # shellcheck disable=SC2086
    ${CC:-cc} -o user user.c $flags >log 2>&1
    ok $? "and says all that building takes" "$flags" "$(tail -n 5 log)"
else
    skip "pkg-config knows pf" "there is no pkg-config"
fi

is "$(find "$to" -mindepth 1 -path "$to/opt" -prune -o -print)" "" "nothing lands elsewhere"
install_it uninstall
ok $? "make uninstall" "$(tail -n 5 log)"
is "$(find "$to" -type f)" "" "leaves no file"
done_testing
