# SPDX-License-Identifier: Apache-2.0
# tap.sh - the Test Anything Protocol for scripts: `. "$PF_ROOT/tests/tap.sh"`, then
#   ok STATUS "claim"     STATUS 0: it holds        is GOT WANT "claim"
#   skip "claim" REASON                             done_testing   at the end
#   in_memory      before the first file is made
tap_n=0 tap_failed=0
ok()
{
    tap_n=$((tap_n + 1))
    if [ "$1" = 0 ]; then
        echo "ok $tap_n - $2"
    else
        tap_failed=1
        echo "not ok $tap_n - $2"
        shift 2
        [ $# -eq 0 ] || printf '# %s\n' "$@"
    fi
}
is()
{
    if [ "$1" = "$2" ]; then ok 0 "$3"; else ok 1 "$3" "got '$1', want '$2'"; fi
}
skip()
{
    tap_n=$((tap_n + 1))
    echo "ok $tap_n - $1 # SKIP $2"
}
# Go on in a directory in memory, where there is one: for tests whose many saves are all synced.
in_memory()
{
    [ -w /dev/shm ] && [ "$(df --output=avail /dev/shm | tail -n 1)" -gt 65536 ] || return 0
    tap_memory=$(mktemp -d /dev/shm/pf-test-XXXXXX) || return 0
    trap 'cd / && rm -rf "$tap_memory"' EXIT
    cd "$tap_memory" || exit 4
}
done_testing()
{
    echo "1..$tap_n"
    exit $tap_failed
}
