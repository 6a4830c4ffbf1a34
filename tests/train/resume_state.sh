#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a resume gives back: weights of two bytes with their masters, moments without those of frozen
# tensors, metrics.jsonl whatever happened to it, the place in the data; and what save_total_limit
# keeps.
set -u
. "$PF_ROOT/tests/tap.sh"
in_memory
killer=$PF_BUILD/tests/preload/killer.so
train=$PF_BIN/pf-train
inspect=$PF_BIN/pf-inspect
preload=1
case $PF_BUILD in */san-*) preload= ;; esac

cat >config.json <<'JSON'
{ "model": { "model_type": "llama", "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1 },
  "from_scratch": true, "input_dir": "synthetic:markov?vocab=32&order=1&seed=2", "max_seq_length": 8,
  "per_device_train_batch_size": 2, "learning_rate": 1e-2, "max_steps": 6, "logging_steps": 1,
  "save_steps": 2, "threads": 1, "output_dir": "out" }
JSON
go()
{
    "$train" -q config.json "$@"
}
# The numbers of all steps, without what the clock says; with "loss" only that.
numbers()
{
    python3 - "$@" <<'PY'
import json, sys
for line in open(sys.argv[1] + "/metrics.jsonl"):
    d = json.loads(line)
    if "loss" in d and "event" not in d:
        keys = sys.argv[2:] or ["step", "loss", "grad_norm", "learning_rate", "tokens"]
        print(*(repr(d[k]) for k in keys))
PY
}

# Two bytes ----------------------------------------------------------------------------------------
for dtype in bfloat16 float16; do
    rm -rf whole killed
    go dtype=$dtype output_dir=whole 2>err
    ok $? "$dtype: six steps" "$(cat err)"
    "$inspect" verify -q whole >log 2>err
    ok $? "$dtype: in every checkpoint each weight is its master rounded" "$(cat err)"
    python3 - whole/checkpoint-000006/optim-00000.safetensors <<'PY'
import json, struct, sys
raw = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", raw[:8])[0]
fine = 0
for name, e in json.loads(raw[8:8 + n]).items():
    if name.endswith(".master"):
        lo, hi = e["data_offsets"]
        fine += any(raw[8 + n + i] | raw[9 + n + i] & 15 for i in range(lo, hi, 4))
sys.exit(fine < 10)
PY
    ok $? "$dtype: masters have bits that the weights have not"
    if [ -z "$preload" ]; then
        skip "$dtype: killed in a save" "a preloaded library and the sanitizer do not go together"
        continue
    fi
    KILL_CALLS=pwrite KILL_PATH=staging-checkpoint-000004 KILL_AT=3 LD_PRELOAD=$killer \
        go dtype=$dtype output_dir=killed >log 2>&1
    is $? 137 "$dtype: killed in the second save"
    go dtype=$dtype output_dir=killed resume_from_checkpoint=auto 2>err
    ok $? "$dtype: resumed" "$(cat err)"
    is "$(numbers killed)" "$(numbers whole)" "$dtype: every step's numbers are those without the break"
    "$inspect" diff whole/checkpoint-000006 killed/checkpoint-000006 >diff.txt 2>&1
    ok $? "$dtype: weights, masters and moments too" "$(head -n 3 diff.txt)"
    diff -r whole/hf killed/hf >diff.txt && cmp whole/config.json killed/config.json >>diff.txt
    ok $? "$dtype: and what is exported, and config.json" "$(cat diff.txt)"
    go output_dir=killed resume_from_checkpoint=auto 2>err
    is "$? $(grep -c "^pf-train: .*'dtype'" err)" "2 1" "$dtype: another dtype is refused on resume"
done

# metrics.jsonl ------------------------------------------------------------------------------------
go output_dir=whole output_dir=base && numbers base >want.txt
again() # from step 4 of a copy of base, after its metrics.jsonl was changed by the command given
{
    rm -rf out && cp -R base out && "$@"
    "$train" config.json resume_from_checkpoint=out/checkpoint-000004 2>err
}
again true
ok $? "resumed from step 4" "$(cat err)"
is "$(numbers out)" "$(cat want.txt)" "the lines of the steps after it are replaced"
is "$(grep -c '"event":"start"' out/metrics.jsonl)" 2 "each start has a line"
cmp base/config.json out/config.json && cmp base/hf/config.json out/hf/config.json
ok $? "config.json is the same"
"$inspect" diff base/checkpoint-000006 out/checkpoint-000006 >/dev/null 2>&1
ok $? "and so is the last checkpoint"
again rm out/metrics.jsonl
ok $? "resumed where metrics.jsonl is lost" "$(cat err)"
is "$(numbers out)" "$(tail -n 2 want.txt)" "it is begun anew"
is "$(grep -c '"resumed_from":4' out/metrics.jsonl)" 1 "and says from where"
damage()
{
    python3 - <<'PY'
lines = open("out/metrics.jsonl", "rb").read().splitlines(True)
lines[2:2] = [b"\0" * 40 + b"\n", b'{"step":2,"lo{"step":3}\n', b"[1]\n", b"\n", b'{"step":"x"}\n']
open("out/metrics.jsonl", "wb").write(b"".join(lines) + b'{"step":7,"lo')
PY
}
again damage
ok $? "resumed where metrics.jsonl is damaged" "$(cat err)"
grep -q "'out/metrics.jsonl' had 5 damaged lines" err
ok $? "which is told" "$(cat err)"
is "$(numbers out)" "$(cat want.txt)" "each step has one good line"
cut_in_line_three()
{
    head -c 700 base/metrics.jsonl >out/metrics.jsonl
}
again cut_in_line_three
numbers out >got.txt
ok $? "resumed where metrics.jsonl is cut in a line: all lines are whole"
is "$(tail -n 2 got.txt)" "$(tail -n 2 want.txt)" "and those that follow are there"
no_file()
{
    rm out/metrics.jsonl && mkdir out/metrics.jsonl
}
again no_file
is $? 2 "a directory in its place: exit 2"

# freeze -------------------------------------------------------------------------------------------
frozen='freeze=["*embed*","*q_proj*"]'
rm -rf whole killed
go output_dir=whole "$frozen" 2>err
ok $? "a run with frozen tensors" "$(cat err)"
roles()
{
    "$inspect" ls whole/checkpoint-000006 "$1" | awk 'NR > 1 { print $2 }' | tr '\n' ' '
}
is "$(roles '*embed*')" "weight " "a frozen tensor has no moments"
is "$(roles '*k_proj*')" "weight moment1 moment2 " "another has"
for step in 2 6; do
    "$inspect" hash whole/checkpoint-00000$step | grep 'embed.*weight' >hash$step.txt
done
is "$(cat hash2.txt)" "$(cat hash6.txt)" "a frozen tensor does not change"
go output_dir=killed "$frozen" max_steps=6 save_steps=4 2>err && rm -rf killed/checkpoint-000006
go output_dir=killed "$frozen" resume_from_checkpoint=auto 2>err
ok $? "it is resumed" "$(cat err)"
"$inspect" diff whole/checkpoint-000006 killed/checkpoint-000006 >diff.txt 2>&1
ok $? "and ends alike" "$(head -n 3 diff.txt)"
go output_dir=killed resume_from_checkpoint=auto max_steps=8 2>err
is "$? $(grep -c "^pf-train: 'freeze' is" err)" "2 1" "to train it after all is refused on resume"
go output_dir=killed resume_from_checkpoint=auto max_steps=8 "freeze=[\"*\"]" 2>err
is "$? $(grep -c "^pf-train: 'freeze' is" err)" "2 1" "and to freeze more"
go output_dir=frozen-bf16 dtype=bfloat16 "$frozen" 2>err && "$inspect" verify -q frozen-bf16 >log 2>err
ok $? "frozen tensors in bf16: weights are their masters rounded" "$(cat err)"

# ignore_data_skip: at rate 0 the loss tells which sequences a step sees ---------------------------
rm -rf out && go learning_rate=0 max_steps=4 2>err && cp -R out still
go learning_rate=0 resume_from_checkpoint=auto 2>err
numbers out loss >skips.txt
rm -rf out && mv still out
go learning_rate=0 resume_from_checkpoint=auto ignore_data_skip=true 2>err
numbers out loss >ignores.txt
is "$(sed -n 5,6p ignores.txt)" "$(sed -n 1,2p ignores.txt)" "ignore_data_skip: step 5 reads what step 1 read"
is "$(sort -u skips.txt | wc -l)" 6 "without it each step reads something new"

# save_total_limit ---------------------------------------------------------------------------------
if [ -z "$preload" ]; then
    skip "save_total_limit and kills" "a preloaded library and the sanitizer do not go together"
    done_testing
fi
rm -rf base && go output_dir=base max_steps=1 save_steps=1 2>err
for calls in rename unlink; do
    kills=0 bad=0
    for ((n = 1; n < 60; n++)); do
        rm -rf out hit && cp -R base out
        KILL_CALLS=$calls KILL_PATH=checkpoint KILL_AT=$n KILL_LOG=$PWD/hit LD_PRELOAD=$killer \
            go save_steps=1 max_steps=4 save_total_limit=1 resume_from_checkpoint=auto >log 2>&1
        [ $? = 137 ] || break
        kills=$((kills + 1))
        newest=$("$inspect" show --json out 2>/dev/null |
            python3 -c 'import json, sys; print(json.load(sys.stdin)["step"])')
        "$inspect" verify -q out >log 2>err && [ "${newest:-0}" -ge 1 ] &&
            go save_steps=1 max_steps=5 save_total_limit=1 resume_from_checkpoint=auto 2>err &&
            [ "$(cd out && echo checkpoint-* .[srl]*)" = 'checkpoint-000005 .[srl]*' ] || {
            bad=$((bad + 1))
            echo "# $calls $n: $(cat hit): newest ${newest:-none}; $(head -n 1 err); $(ls -A out | tr '\n' ' ')"
        }
    done
    ok $((kills < 6)) "save_total_limit=1: killed before each of $kills calls of $calls"
    is $bad 0 "each time one is whole, and the next run keeps one"
done
done_testing
