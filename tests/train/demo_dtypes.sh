#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The model of the demo, trained on its text in bfloat16 and float16, ends within 1 % of float32's loss.
# Some minutes: DEMO_DTYPES=1 runs it (make check-long).
set -u
. "$PF_ROOT/tests/tap.sh"
dictionary=/usr/share/dictd/devil.dict.dz # package dict-devil, as scripts/demo installs it
if [ "${DEMO_DTYPES:-0}" != 1 ]; then
    skip "the demo's model in three dtypes" "set DEMO_DTYPES=1 (make check-long)"
    done_testing
fi
if [ ! -r "$dictionary" ]; then
    skip "the demo's model in three dtypes" "there is no $dictionary: scripts/install-deps"
    done_testing
fi
zcat <"$dictionary" >corpus.txt

# loss DTYPE: train, and print the last loss of the text held out.
loss()
{
    "$PF_BIN/pf-train" "$PF_ROOT/configs/tiny-llama-bytes.json" input_dir=corpus.txt output_dir="$1" dtype="$1" \
        save_steps=-1 --no-progress >"$1.log" 2>&1 || return
    sed -nE 's/^\{"event":"eval",.*"loss":([0-9.e+-]+),.*/\1/p' "$1/metrics.jsonl" | tail -n 1
}
base=$(loss float32)
ok $? "float32: loss $base" "$(tail -n 3 float32.log)"
for dtype in bfloat16 float16; do
    got=$(loss "$dtype")
    python3 -c "import sys; sys.exit(not abs($got / $base - 1) < 0.01)"
    ok $? "$dtype ends within 1 % of float32: loss $got, float32 $base" "$(tail -n 3 "$dtype.log")"
done
done_testing
