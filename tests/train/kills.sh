#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Random SIGKILLs of a 2-rank run that saves at every step: an acknowledged save is never lost. Each
# kill is at a random system call between the first write of a save and the rename of its directory,
# or just after it; what was about to happen is logged, and a histogram is printed.
#   KILLS=200 for the long proof (make check-long); 15 otherwise.
set -u
. "$PF_ROOT/tests/tap.sh"
in_memory
kills=${KILLS:-15}
RANDOM=${KILL_SEED:-1}
killer=$PF_BUILD/tests/preload/killer.so

cat >config.json <<'JSON'
{ "model": { "model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2 },
  "from_scratch": true, "input_dir": "synthetic:markov?vocab=64&order=1&seed=2",
  "max_seq_length": 16, "per_device_train_batch_size": 1, "learning_rate": 1e-3,
  "max_steps": 1000000, "logging_steps": 1000, "save_steps": 1, "save_total_limit": 3, "threads": 1,
  "output_dir": "out", "resume_from_checkpoint": "auto" }
JSON

# The step of the last save that metrics.jsonl acknowledges, and of the newest whole checkpoint.
acknowledged()
{
    python3 - <<'PY'
import json
step = 0
try:
    for line in open("out/metrics.jsonl"):
        try:
            d = json.loads(line)
        except ValueError:
            continue
        if d.get("event") == "save":
            step = d["step"]
except FileNotFoundError:
    pass
print(step)
PY
}

lost=0 damaged=0 counted=0 tries=0
: >phases
while [ "$counted" -lt "$kills" ] && [ "$tries" -lt $((kills * 3)) ]; do
    tries=$((tries + 1))
    # A save of one rank makes 20 to 30 such calls: with up to 120, one of the first saves is hit.
    KILL_PATH=staging-checkpoint KILL_AT=$((RANDOM % 120 + 1)) KILL_LOG=$PWD/phases.new \
        LD_PRELOAD=$killer timeout 60 "$PF_ROOT/scripts/mpirun-here" -n 2 \
        "$PF_BIN/pf-train" config.json >log 2>&1
    status=$?
    [ -s phases.new ] || { echo "# try $tries: exit $status without a kill"; tail -n 2 log | sed 's/^/# /'; continue; }
    head -n 1 phases.new >>phases
    rm -f phases.new
    counted=$((counted + 1))
    acked=$(acknowledged)
    newest=$("$PF_BIN/pf-inspect" show --json out 2>/dev/null |
        python3 -c 'import json, sys; print(json.load(sys.stdin).get("step", 0))' 2>/dev/null || echo 0)
    [ "$acked" -gt 0 ] || continue
    if [ "${newest:-0}" -lt "$acked" ]; then
        lost=$((lost + 1))
        echo "# lost: step $acked was acknowledged, the newest whole checkpoint is ${newest:-none}"
    fi
    if ! "$PF_BIN/pf-inspect" verify -q "out/checkpoint-$(printf %06d "$newest")" >/dev/null 2>&1; then
        damaged=$((damaged + 1))
    fi
done
is "$counted" "$kills" "$kills random kills inside a save"
is "$lost" 0 "no acknowledged save was lost"
is "$damaged" 0 "the newest checkpoint was whole each time"
echo "# what the kill prevented:"
sed 's/[^ ]*staging-checkpoint-[0-9]*/staging/; s/-0000[0-9]*\././' phases | sort | uniq -c | sort -rn |
    sed 's/^/#  /'
done_testing
