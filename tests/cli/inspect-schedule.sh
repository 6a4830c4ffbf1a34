#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# pf-inspect schedule: what each stage does when, as text, JSON and SVG; what cannot be is refused.
set -u
. "$PF_ROOT/tests/tap.sh"
inspect=$PF_BIN/pf-inspect
hf=$PF_ROOT/tests/fixtures/hf
export COLUMNS=80

refuses() # STATUS WORDS [ARG...]: that status, one line on stderr with the words, nothing on stdout
{
    local status=$1 words=$2 got
    shift 2
    "$inspect" schedule "$@" >out 2>err
    got=$?
    if [ $got = "$status" ] && [ ! -s out ] && [ "$(wc -l <err)" = 1 ] && grep -qF -- "$words" err; then
        ok 0 "exit $status: pf-inspect schedule $*"
    else
        ok 1 "exit $status: pf-inspect schedule $*" "exit $got" "$(cat err)" "wanted: $words"
    fi
}

json() # PYTHON-EXPRESSION CLAIM: about the document in out
{
    python3 -c 'import json, sys; d = json.load(open("out")); assert eval("(" + sys.argv[1] + ")"), d' "$1"
    ok $? "$2" "$(head -c 1000 out)"
}

# Without a config.
"$inspect" schedule --layout pp=3 --micro-batches 3 >out 2>err
is "$? $(cat err)" "0 " "a layout: exit 0, nothing on stderr"
is "$(head -n 3 out)" "schedule      1F1B, 3 stages of 1 chunk, 3 micro-batches
costs         forward 1, backward 2 (input gradients 1, weight gradients 1); chunks weigh the same
time          15, bubble 40 %" "schedule, costs, time and bubble"
is "$(grep '^ *[0-2] [F.]' out)" "   0 F0-F1-F2-............B0====...B1====...B2====
   1 ...F0-F1-......B0====F2-B1====...B2====......
   2 ......F0-B0====F1-B1====F2-B2====............" "the drawing, without colours in a file"
for stage in '0 9 40.0 % 3 0' '1 9 40.0 % 2 0' '2 9 40.0 % 1 0'; do
    tr -s ' ' <out | grep -q "^ $stage "
    ok $? "stage, busy, idle, live, split: $stage" "$(cat out)"
done
"$inspect" schedule --layout pp=4 --micro-batches 4 --schedule ZBH1 --costs 2,3,1 >out
grep -q '^time  *36, bubble 33.33 %$' out && grep -q 'I0=======W0~' out
ok $? "costs of the parts of a backward: 4 x 6 + 3 x (2 + 3 - 1)" "$(cat out)"
"$inspect" schedule --layout pp=2 --micro-batches 4 --factors 1,2 >out
grep -q '^time  *27, bubble 33.33 %$' out
ok $? "a stage of twice the weight" "$(cat out)"
COLUMNS=40 "$inspect" schedule --layout pp=8,vpp=4 --micro-batches 32 >out
is "$(awk 'length > 40' out | grep -c '^ *[0-9] [FB.]*$')" 0 "a long one keeps to the width"
grep -q '^   0 FFF[.][.]BBFF' out
ok $? "and is drawn in letters" "$(tail -n 12 out)"

# A config's own keys. llama: 3 layers.
cat >run.json <<JSON
{ "model_name_or_path": "$hf/llama/config.json", "pipeline_parallel_degree": 2, "pp_seg_method": "0:2",
  "gradient_accumulation_steps": 6, "pipeline_parallel_config": "enable_split_backward enable_overlap_p2p_comm" }
JSON
"$inspect" --json schedule run.json >out 2>err
is "$? $(cat err)" "0 " "a run's config: exit 0"
json 'd["schedule"] == "ZBH1" and d["n_stages"] == 2 and d["micro_batches"] == 6 and d["ok"]' \
    "kind, stages and micro-batches as the config says"
json '[round(w, 9) for w in d["chunk_weights"]] == [round(4 / 3, 9), round(2 / 3, 9)]' "stages weigh by their layers"
json 'len([s for s in d["stages"][1]["steps"] if s["kind"] == "backward_weight"]) == 6 and
      d["stages"][0]["steps"][0] == {"kind": "forward", "micro_batch": 0, "chunk": 0, "peer": None, "live_slot": 0,
      "in_buffer": None, "out_buffer": 0, "start": 0, "end": 4 / 3}' "steps with their slots, buffers and times"
json 'all(s["peak_live"] == 2 for s in d["stages"])' "ZB-H1 holds p micro-batches on each stage"
cat >batch.json <<JSON
{ "model_name_or_path": "$hf/llama/config.json", "pipeline_model_parallel_size": 3, "global_train_batch_size": 24,
  "per_device_train_batch_size": 2, "best_unbalanced_scheduler": true }
JSON
"$inspect" --json schedule batch.json --world 6 >out
json 'd["schedule"] == "balanced" and d["micro_batches"] == 6' "24 sequences over 2 data-parallel ranks by 2: 6"
"$inspect" --json schedule batch.json --micro-batches 2 --schedule eval >out
json 'd["micro_batches"] == 2 and {s["kind"] for t in d["stages"] for s in t["steps"]} ==
      {"forward", "send_fwd", "recv_fwd"}' "options take the place of keys"
"$inspect" --json schedule --layout pp=2,vpp=2 --micro-batches 4 >out
json 'd["schedule"] == "VPP" and d["stages"][0]["peak_live"] == 5' "1F1B with two chunks is interleaved"
"$inspect" schedule "$hf/llama/config.json" >out
is "$? $(head -n 1 out)" "0 schedule      1F1B, 1 stage of 1 chunk, 1 micro-batch" "a model's config: one stage"

# SVG.
"$inspect" schedule run.json --svg drawn.svg >out
ok $? "SVG beside the text" "$(cat out)"
python3 - <<'PY'
import xml.etree.ElementTree as tree
root = tree.parse("drawn.svg").getroot()
svg = "{http://www.w3.org/2000/svg}"
titles = [t.text for r in root.iter(svg + "rect") for t in r.iter(svg + "title")]
assert root.tag == svg + "svg" and len(titles) == 2 * 6 * 3, titles
assert titles[0] == "forward of micro-batch 0, chunk 0: 0 to 1.33333", titles[0]
PY
ok $? "it is XML, with a rectangle for each computing step and its time"
"$inspect" schedule run.json --svg - | cmp - drawn.svg
ok $? "to standard output the same"
grep -q "^schedule" out && [ -z "$(find . -name '.*svg*')" ]
ok $? "nothing is left beside the file"

# Colours on a terminal alone.
if command -v script >/dev/null; then
    TERM=xterm script -qec "'$inspect' schedule --layout pp=2 --micro-batches 2" tty >/dev/null </dev/null
    grep -q $'\033\[30;44mF0-' tty
    ok $? "on a terminal the drawing has colours" "$(cat -v tty)"
    TERM=xterm NO_COLOR=1 script -qec "'$inspect' schedule --layout pp=2 --micro-batches 2" tty >/dev/null </dev/null
    ! grep -q $'\033\[30' tty
    ok $? "and none with NO_COLOR"
else
    skip "on a terminal the drawing has colours" "no script(1)"
fi

# Misuse and what cannot be.
refuses 2 "takes a config, or '--layout'"
refuses 2 "takes 0 or 1 operands, not 2" run.json batch.json
refuses 4 "cannot open 'nowhere'" nowhere
refuses 2 "there is no schedule '1F1b'; did you mean '1F1B'?" run.json --schedule 1F1b
refuses 2 "'--costs' has 2 or 3 numbers, not 1" run.json --costs 1
refuses 2 "'--costs' holds 'x'" run.json --costs 1,x
refuses 2 "'--costs' holds '-1'" run.json --costs 1,-1
refuses 2 "a forward and a backward take time" run.json --costs 0,1
refuses 2 "'--factors' has 3 numbers: give one for each of 2 stages or 2 chunks" run.json --factors 1,1,1
refuses 2 "'--factors' are all 0" run.json --factors 0,0
refuses 2 "'--micro-batches' is from 1 on" run.json --micro-batches -1
refuses 3 "too many to schedule" --layout pp=8,vpp=8 --micro-batches 16777216
refuses 2 "give '--micro-batches'" <(echo '{"global_train_batch_size": 8}') 
refuses 3 "global_train_batch_size 24 is not a multiple of per_device_train_batch_size 2 x 5 data-parallel ranks" \
    batch.json --world 15
refuses 3 "1F1B has one chunk on each stage, not 2" --layout pp=2,vpp=2 --schedule 1F1B
refuses 3 "pp" run.json --layout pp=7
refuses 2 "'--world' needs a config with a model" --layout pp=2 --world 4
refuses 2 "unknown word 'qq'" --layout qq=2
"$inspect" --json schedule run.json --svg - >out 2>err
is "$? $(grep -c 'cannot both have the output' err)" "2 1" "--svg - and --json: exit 2"
json 'd["ok"] is False and d["error"]["kind"] == "usage"' "and a document says so"
refuses 4 "nowhere/x.svg" run.json --svg nowhere/x.svg
refuses 7 "no DualPipeV" --layout pp=2,vpp=2,dual=true
echo '{"pipeline_model_parallel_size": 2, "use_dualpipev": true}' >dual.json
refuses 7 "no DualPipeV" dual.json
echo '{"pipeline_model_parallel_size": 2, "virtual_pp_degree": 2, "split_backward": true}' >split.json
refuses 3 "ZBH1 has one chunk on each stage, not 2" split.json
echo '{"pipeline_schedule_mode": "FThenB", "best_unbalanced_scheduler": true}' >both.json
refuses 2 "asks for another schedule than 'pipeline_schedule_mode' FThenB" both.json
echo '{"pipeline_schedule_mode": "2F2B"}' >mode.json
refuses 2 "is '2F2B', must be one of 1F1B, FThenB, VPP, ZBH1" mode.json
echo '{"split_backward": 1}' >type.json
refuses 2 "split_backward" type.json
"$inspect" ls "$hf/llama" --svg x >out 2>err
is "$? $(wc -l <err)" "2 1" "ls takes no option of a schedule"
done_testing
