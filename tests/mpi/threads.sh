#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Ranks whose threads share cores: said once, and threads that wait sleep instead of spinning.
set -u
. "$PF_ROOT/tests/tap.sh"
cat >config.json <<'JSON'
{ "model": { "model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48,
             "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2 },
  "from_scratch": true, "input_dir": "synthetic:markov?vocab=64&order=1", "output_dir": "out", "max_steps": 2,
  "max_seq_length": 16, "per_device_train_batch_size": 2, "save_steps": -1 }
JSON
n=$(nproc)
if [ "$n" -lt 2 ]; then
    skip "threads share cores" "there is one CPU"
    done_testing
fi
# spins WORD...: how long OpenMP says its threads spin, a line for each time that a rank starts.
spins()
{
    OMP_DISPLAY_ENV=verbose "$PF_ROOT/scripts/mpirun-here" -n 2 "$PF_BIN/pf-train" config.json "$@" 2>&1 |
        tee out.txt | sed -n "s/.*GOMP_SPINCOUNT = '\(.*\)'.*/\1/p" | sort -n | xargs
}
is "$(spins threads="$n")" "0 0 300000 300000" "both ranks start again with threads that sleep while they wait"
is "$(grep -c "2 ranks of $n threads share the $n CPUs of a host" out.txt)" 1 "and it is said once"
is "$(spins threads=1 output_dir=one)" "300000 300000" "a thread for each core: started once"
is "$(OMP_WAIT_POLICY=active spins threads="$n" output_dir=active)" "30000000000 30000000000" \
    "what the user chose stays"
done_testing
