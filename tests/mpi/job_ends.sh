#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# How a job of several ranks ends when one of them fails, stops, dies or disagrees: mpirun's status,
# one message that names the rank, and how long it takes. TAP.
set -u

here=$(cd "$(dirname "$0")/../.." && pwd)
build=${PF_BUILD:-$here/build/release}
program=$build/tests/mpi/job_end
mpirun=$here/scripts/mpirun-here
n=0
failed=0
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT

if ! command -v "${PF_MPIRUN:-mpirun}" >/dev/null 2>&1 || [ ! -x "$program" ]; then
    echo "1..0 # SKIP no mpirun, or job_end is not built"
    exit 0
fi

now_ms()
{
    echo $(($(date +%s%N) / 1000000))
}

# ends RANKS WAY TIMEOUT_S STATUS WITHIN_S MESSAGE CLAIM: run the job; its status must be STATUS, it
# must end within the time, and exactly one line of job_end's must match the extended regular
# expression MESSAGE (none if it is empty). Call sites in brackets are left out of the line unless
# keep_sites is set.
keep_sites=
ends()
{
    n=$((n + 1))
    start=$(now_ms)
    timeout -k 1 60 "$mpirun" -n "$1" "$program" "$2" "$3" >"$tmp/out" 2>"$tmp/err"
    status=$?
    took=$(($(now_ms) - start))
    [ -n "$keep_sites" ] || sed -i 's, (tests/mpi/job_end\.c:[0-9]*),,g' "$tmp/err"
    lines=$(grep -c '^job_end: \|^pf: bug' "$tmp/err")
    if [ -n "$6" ]; then
        right=$(grep -c -E "^(job_end|pf): $6\$" "$tmp/err")
        wanted=1
    else
        right=0
        wanted=0
    fi
    if [ "$status" = "$4" ] && [ "$took" -le $(($5 * 1000)) ] && [ "$right" = $wanted ] &&
        [ "$lines" = $wanted ]; then
        echo "ok $n - $7"
    else
        echo "not ok $n - $7"
        echo "# status $status, wanted $4; $took ms, wanted at most $5 s; $lines lines"
        sed 's/^/# /' "$tmp/err"
        failed=1
    fi
}

ends 2 stopped 1 6 5 "rank 1 did not arrive at all_reduce number 1 of group 'world' within 1 s" \
    "a stopped rank is named, of two"
ends 4 stopped 1 6 6 "rank 3 did not arrive at all_reduce number 1 of group 'world' within 1 s" \
    "a stopped rank is named, a late one is not, of four"
ends 4 stopped-behind-group 1 6 6 "rank 3 did not arrive at barrier number .* of group 'world' \
within 1 s" \
    "a stopped rank is named by ranks that do not wait for it alone"
ends 3 one-of-two-groups 1 6 6 "rank 1 did not arrive at barrier number 1 of group 'low' within 1 s: \
it waits at barrier number .* of group 'world'" \
    "a rank that waits elsewhere is named, and where"
ends 3 late 3 0 8 "" "a rank that is late within the timeout does no harm"
ends 2 other-collective 1 6 5 "ranks disagree: number 1 of group 'world' is broadcast on rank 0, \
barrier on rank 1" \
    "two ranks at different collectives are both named"
ends 2 other-order 1 6 5 "ranks disagree: number 1 of group 'world' is broadcast on rank 0, \
all_reduce on rank 1" \
    "another order of collectives is found"
ends 2 other-size 1 6 5 "rank 1 expects 20 bytes from rank 0 at broadcast number 1 of group \
'world' and got 10" \
    "a message that is too short is found"
ends 2 other-larger-size 1 6 5 "ranks disagree on the size of broadcast number 1 of group 'world'.*" \
    "a message that is too long is found"
ends 2 missing-message 1 6 5 "rank 1 did not arrive at recv from rank 1 with tag 5 in group \
'world' within 1 s: it waits at barrier number 1 of group 'world'" \
    "a message that nobody sends names its sender"
ends 2 missing-early-message 1 6 5 "rank 1 did not arrive at recv from rank 1 with tag 5 in group \
'world' within 1 s: it waits at barrier number 2 of group 'world'" \
    "a message that was expected early names its sender"
ends 2 sleeping-sender 1 6 5 "rank 1 did not arrive at recv from rank 1 with tag 5 in group 'world' \
within 1 s" \
    "a sender that sleeps is named"
ends 2 short-early-message 1 6 5 "rank 0 expects 8 bytes from rank 1 at recv from rank 1 with tag 5 in \
group 'world' and got 4" \
    "a message that is shorter than was expected early is found"
# Call sites: the file and the line of a mark.
at()
{
    echo "tests/mpi/job_end.c:$(grep -n "/\* $1 \*/" "$here/tests/mpi/job_end.c" | cut -d: -f1)"
}

keep_sites=1
for ranks in 2 4; do
    ends $ranks skip-to-other 1 6 6 "ranks disagree: number 1 of group 'world' is all_reduce on rank \
[0-9] \($(at SKIPPED)\), broadcast on rank 1 \($(at OTHER)\)|ranks disagree: number 1 of group \
'world' is broadcast on rank 1 \($(at OTHER)\), all_reduce on rank [0-9] \($(at SKIPPED)\)" \
        "a collective that one of $ranks skipped for another: both call sites are named"
    ends $ranks skip-to-same 1 6 6 "ranks disagree: number 2 of group 'world' is .*rank 1 \
\($(at BARRIER)\).*; number 1 was called at .*$(at SKIPPED) on rank .*" \
        "a collective that one of $ranks skipped for one of its kind: where they parted is named"
done
ends 2 skip-to-end 1 6 6 "ranks disagree: number 1 of group 'world' is .*\
\($(at SKIPPED)\).*" \
    "a collective that one of 2 skipped before it ended"
ends 2 skip-to-sleep 1 6 6 "rank 1 did not arrive at all_reduce number 1 of group 'world' \
\($(at SKIPPED)\) within 1 s" \
    "a collective that one of 2 skipped, and then slept"
ends 3 skip-to-group 1 6 6 "rank 1 did not arrive at all_reduce number [0-9]+ of group 'world' \
\($(at SKIPPED)\) within 1 s: it waits at barrier number 1 of group 'low' \($(at GROUP)\)" \
    "a collective that one skipped for another group's: both call sites are named"
keep_sites=
ends 2 own-fault 30 3 5 "cannot read 'x'" "a rank that fails by itself ends all with its status"
ends 2 agreed-fault 30 3 5 "rank 1: cannot read 'x'" "an agreed fault is told once, with its rank"
ends 2 config 30 6 5 "the configuration differs between rank 0 and rank 1" \
    "configurations that differ are exit 6"
ends 2 killed 30 137 5 "" "a killed rank gives 128 + signal"
n=$((n + 1))
if grep -q 'rank 1 .*signal 9' "$tmp/err"; then
    echo "ok $n - mpirun names the killed rank"
else
    echo "not ok $n - mpirun names the killed rank"
    sed 's/^/# /' "$tmp/err"
    failed=1
fi
ends 2 assertion 30 8 5 "bug: .*" "a failed assertion ends all ranks with 8"
ends 2 assertion-of-thread 30 8 5 "bug: .*" "also one of another thread"
echo "1..$n"
exit $failed
