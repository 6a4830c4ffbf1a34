#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# pf-inspect env: rows and their mends, in text and JSON.
set -u
. "$PF_ROOT/tests/tap.sh"
inspect=$PF_BIN/pf-inspect
unset OPENBLAS_CORETYPE DNNL_MAX_CPU_ISA ONEDNN_MAX_CPU_ISA

"$inspect" env >out 2>err
is "$? $(wc -c <err)" "0 0" "env: exit 0 whatever it finds"
is "$(sed '$d' out | grep -cvE '^(ok|slow|missing) +[^ ].*[^ ]$|^ +-> ')" 0 "each line is a row or a mend"
is "$(grep -c '^ *-> ' out)" "$(grep -cE '^(slow|missing) ' out)" "what is slow or missing has a mend"
for name in cpu instructions cpus memory /dev/shm mpi oneDNN kernels devices; do
    grep -qE "^(ok|slow|missing) +$name " out
    ok $? "it tells of $name"
done
is "$(tail -n 1 out)" "$(grep -c '^ok ' out) ok, $(grep -c '^slow ' out) slow, $(grep -c '^missing ' out) missing" \
    "and counts"
OPENBLAS_CORETYPE=Prescott "$inspect" env >out
grep -qE "^slow +OPENBLAS_CORETYPE +'Prescott'" out
ok $? "a variable that forces slow kernels is named"
grep -q -- '-> unset OPENBLAS_CORETYPE' out
ok $? "and how to mend it"
if grep -qE '^ok +oneDNN ' out && grep -q 'avx512f' out; then
    DNNL_MAX_CPU_ISA=AVX2 ONEDNN_MAX_CPU_ISA=AVX2 "$inspect" env >out
    grep -qE "^ok +oneDNN .*instructions avx2$" out
    ok $? "oneDNN's instructions are those that it will use" "$(grep oneDNN out)"
else
    skip "oneDNN's instructions are those that it will use" "no oneDNN, or no AVX-512 to leave out"
fi
mkdir d
"$inspect" env d >out
grep -qE "^(ok|slow) +disk +.* a second to 'd'" out
ok $? "with a directory it is written to"
is "$(ls -A d)" "" "and left empty"
if command -v python3 >/dev/null; then
    "$inspect" env --json >out
    is "$(python3 -c "
import json
d = json.load(open('out'))
print(d['ok'], d['rows_ok'] + d['rows_slow'] + d['rows_missing'] == len(d['rows']),
      all((r['mend'] is None) == (r['verdict'] == 'ok') for r in d['rows']))")" "True True True" \
        "--json gives the same rows"
else
    skip "JSON" "no python3"
fi
done_testing
