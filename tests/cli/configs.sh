#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every config that is shipped runs: a few steps of it, with the words that a user would add.
set -u
. "$PF_ROOT/tests/tap.sh"
seq 1 6000 >corpus.txt
short=(max_steps=3 logging_steps=1 threads=1)

# trains NAME LAUNCHER... -- WORD...: three steps, then a model that can be read.
trains()
{
    local name=$1 launcher=() status
    shift
    while [ "$1" != -- ]; do
        launcher+=("$1")
        shift
    done
    shift
    ran="$ran $name"
    "${launcher[@]}" "$PF_BIN/pf-train" "$PF_ROOT/configs/$name.json" "output_dir=$name" "${short[@]}" "$@" \
        >stdout 2>stderr
    status=$?
    ok $status "$name runs" "$(tail -n 3 stderr)"
    is "$(grep -c '^{"step":' "$name/metrics.jsonl")" 3 "$name: three steps are logged"
    grep -q '"event":"end","step":3,"reason":"done"' "$name/metrics.jsonl"
    ok $? "$name: and the end"
    "$PF_BIN/pf-inspect" verify "$name/hf" >stdout 2>stderr
    ok $? "$name: the exported model is whole" "$(cat stdout stderr)"
}
ran=
trains gpt2-tiny --
trains markov -- eval_iters=1
grep -q '"data_entropy":[0-9]' markov/metrics.jsonl
ok $? "markov: the entropy of the data is told" "$(head -n 1 markov/metrics.jsonl)"
trains tiny-llama-bytes --
"$PF_BIN/pf-train" -q "$PF_ROOT/configs/resume.json" output_dir=resume "${short[@]}" max_steps=2 2>stderr
ok $? "resume: two steps" "$(cat stderr)"
# The same command again goes on where it was.
trains resume --
grep -q '"event":"start".*"resumed_from":2' resume/metrics.jsonl
ok $? "resume: the second start went on after step 2" "$(grep start resume/metrics.jsonl)"
if command -v "${PF_MPIRUN:-mpirun}" >/dev/null; then
    trains data-parallel "$PF_ROOT/scripts/mpirun-here" -n 2 --
    grep -q '"world_size":2,"mesh":{"dp":2' data-parallel/metrics.jsonl
    ok $? "data-parallel: by two ranks"
else
    ran="$ran data-parallel"
    skip "data-parallel runs" "there is no mpirun here"
fi
for config in "$PF_ROOT"/configs/*.json; do
    case "$ran " in *" $(basename "$config" .json) "*) continue ;; esac
    ok 1 "$(basename "$config") is run by this test"
done
done_testing
