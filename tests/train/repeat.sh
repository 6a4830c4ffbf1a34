#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A step gives the same bits each time: 32 runs in float32 and in bfloat16, by the fast kernels on several
# threads, some of them while others want the CPUs.
set -u
. "$PF_ROOT/tests/tap.sh"
in_memory
cat >config.json <<'JSON'
{ "model": { "model_type": "llama", "vocab_size": 509, "hidden_size": 192, "intermediate_size": 510,
    "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2 },
  "from_scratch": true, "input_dir": "synthetic:markov?vocab=509&order=1", "max_seq_length": 97,
  "per_device_train_batch_size": 3, "gradient_accumulation_steps": 2, "max_steps": 2, "logging_steps": 1,
  "save_steps": 2, "output_dir": "out" }
JSON
threads=$(nproc)
[ "$threads" -gt 4 ] && threads=4

# hashes DTYPE FIRST LAST: of all that these runs save.
hashes()
{
    local i out
    for i in $(seq "$2" "$3"); do
        out=out-$1-$i
        "$PF_BIN/pf-train" config.json dtype="$1" threads="$threads" output_dir="$out" -q --no-progress \
            >"$out.log" 2>&1 || echo "run $i failed"
        "$PF_BIN/pf-inspect" hash -q "$out/checkpoint-000002" | sed "s/$out//"
        rm -rf "$out"
    done
}
for dtype in float32 bfloat16; do
    hashes $dtype 1 8 >alone.txt
    hashes $dtype 9 20 >left.txt &
    hashes $dtype 21 32 >right.txt
    wait
    cat alone.txt left.txt right.txt | sort | uniq -c | awk '{ print $1 }' | sort -u >counts.txt
    is "$(cat counts.txt)" 32 "32 runs of two steps in $dtype: weights, masters and moments have the same bits"
done
done_testing
