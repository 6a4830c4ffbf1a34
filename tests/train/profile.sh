#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# profile_steps and trace_steps: the parts of a step add up, every call is on the time line of each rank, and a
# run that is watched computes the same bits.
set -u
. "$PF_ROOT/tests/tap.sh"
cat >config.json <<'JSON'
{ "model": { "model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48,
             "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": true },
  "from_scratch": true, "input_dir": "synthetic:markov?vocab=64&order=1&tokens=4096",
  "eval_input_dir": "synthetic:markov?vocab=64&order=1&stream=1&tokens=64", "eval_steps": 2, "output_dir": "out",
  "max_steps": 3, "max_seq_length": 16, "per_device_train_batch_size": 2, "logging_steps": 1,
  "gradient_accumulation_steps": 2, "save_steps": 2, "threads": 1 }
JSON
"$PF_BIN/pf-train" config.json output_dir=plain >plain.log 2>&1
ok $? "a run that is not watched" "$(tail -n 3 plain.log)"
"$PF_BIN/pf-train" config.json 'profile_steps=[2]' 'trace_steps=[2,3]' >out.txt 2>err.txt
ok $? "the same with steps 2 and 3 watched" "$(tail -n 3 err.txt)"
is "$(cd out && echo profile* trace*)" \
    "profile-000002.json trace-000002.rank0.json trace-000003.rank0.json" "leaves a profile and two traces"
cmp -s plain/hf/model.safetensors out/hf/model.safetensors
ok $? "and trains the same weights, bit for bit"
for words in 'profile of step 2: ' ' of limit' 'gemm_nt  ' 'GFLOP/s ' 'adamw  ' 'GB/s ' 'not in ops ' 'backward '; do
    grep -qF -- "$words" err.txt
    ok $? "a person sees: $words" "$(cat err.txt)"
done
is "$(grep -c 'profile of step' err.txt)" 1 "once"

# Claims about p, a profile, and t, a trace.
claim() # WORDS EXPRESSION
{
    python3 - "$2" <<'PY'
import json, sys
p = json.load(open("out/profile-000002.json"))
t = json.load(open("out/trace-000002.rank0.json"))
ops = {o["op"]: o for o in p["ops"]}
phases = {x["phase"]: x for x in p["phases"]}
slices = [e for e in t["traceEvents"] if e["ph"] == "X"]
calls = [e for e in slices if e["cat"] == "op"]
sys.exit(not eval("(" + sys.argv[1] + ")"))
PY
    ok $? "$1" "$(cat out/profile-000002.json)"
}
# 2 micro-batches, 2 layers: 7 matrices a layer and the head; forward, input and weight gradients.
claim "calls are those of the step alone, none of the evaluation's" 'all(ops[k]["calls"] == n for k, n in dict(
    gemm_nt=30, gemm_nn=30, gemm_tn=30, attention_fwd=4, attention_bwd=4, cross_entropy=2, embed_fwd=2).items())'
claim "the products' arithmetic is six times tokens times weights" \
    'sum(o["flop"] for k, o in ops.items() if k.startswith("gemm")) == 6 * 64 * (2 * (32 * 64 + 32 * 32 + 3 * 32 * 48) + 32 * 64)'
claim "the ops' times add up to less than the step" \
    'abs(sum(o["seconds"] for o in p["ops"]) - p["in_ops_seconds"]) < 1e-9 and 0 < p["in_ops_seconds"] <= p["step_seconds"]'
claim "the phases of the step add up to it" '0.5 * p["step_seconds"] <
    sum(x["seconds"] for k, x in phases.items() if k not in ("evaluate", "save", "other")) <= p["step_seconds"]'
claim "what follows the step has phases of its own" \
    'phases["evaluate"]["in_ops_seconds"] > 0 and phases["save"]["seconds"] > 0'
claim "every op has a rate and its part of a limit" 'all(o["rate_per_second"] > 0 and o["percent_of_limit"] > 0
    for o in p["ops"]) and p["limits"]["gemm_flop_per_second"] > 0 and p["limits"]["triad_bytes_per_second"] > 0'
claim "the time line has every call, in order" 't["otherData"] == {"step": 2, "slices_lost": 0} and
    len(calls) >= sum(o["calls"] for o in p["ops"]) and [e["ts"] for e in calls] == sorted(e["ts"] for e in calls)'
claim "and the phases" '{"read_data", "forward", "backward", "reduce", "optimizer", "evaluate", "save"} <=
    {e["name"] for e in slices if e["cat"] == "phase"} and all(e["dur"] >= 0 for e in slices)'

"$PF_ROOT/scripts/mpirun-here" -n 2 "$PF_BIN/pf-train" config.json output_dir=two 'trace_steps=[3]' \
    recompute_granularity=full save_steps=-1 >two.log 2>&1 </dev/null
ok $? "two ranks, layers recomputed" "$(tail -n 3 two.log)"
is "$(cd two && echo profile* trace*)" "profile* trace-000003.json trace-000003.rank0.json trace-000003.rank1.json" \
    "a trace of each rank and of all, and no profile"
for r in 0 1; do
    python3 -c 'import json, sys; t = json.load(open(sys.argv[1]))
sys.exit(t["otherData"]["slices_lost"] != 0 or {e["pid"] for e in t["traceEvents"]} != {int(sys.argv[2])})' \
        two/trace-000003.rank$r.json $r
    ok $? "whole, and of rank $r alone"
done

# Between ranks: what the trace of all has on the row of each rank is what the plan says that a step brings.
layout='tensor_model_parallel_size=2 sequence_parallel=true pipeline_model_parallel_size=2 eval_steps=-1'
# shellcheck disable=SC2086
"$PF_ROOT/scripts/mpirun-here" -n 4 "$PF_BIN/pf-train" config.json output_dir=four 'trace_steps=[2]' save_steps=-1 \
    $layout >four.log 2>&1 </dev/null
ok $? "four ranks, tp=2 and pp=2" "$(tail -n 3 four.log)"
# shellcheck disable=SC2086
"$PF_BIN/pf-train" --plan --json config.json $layout >plan.json
four() # WORDS EXPRESSION: about plan, the trace, its calls between ranks, and total(rank, name, group) of their bytes
{
    python3 - "$2" <<'PY'
import json, sys
plan = json.load(open("plan.json"))
trace = json.load(open("four/trace-000002.json"))
events = trace["traceEvents"]
calls = [e for e in events if e["ph"] == "X" and e["cat"] == "comm"]
def total(rank, name, group):
    return sum(e["args"]["bytes"] for e in calls if (e["pid"], e["name"], e["args"]["group"]) == (rank, name, group))
def planned(rank, group, key):
    return plan["traffic"][plan["ranks"][rank]["pp"]][group].get(key, 0)
sys.exit(not eval("(" + sys.argv[1] + ")"))
PY
    ok $? "$1" "$(cat plan.json)"
}
four "one time line has the ranks, a row each for what goes between them" '
    {e["pid"] for e in events} == {0, 1, 2, 3} and {e["tid"] for e in calls} == {2} and
    {e["pid"] for e in events if e["ph"] == "M" and e["args"]["name"] == "between ranks"} == {0, 1, 2, 3}'
four "and nothing lost" 'trace["otherData"] == {"step": 2, "slices_lost": 0}'
four "collectives of tp: as many bytes as planned" 'all(total(r, k, "tp") == planned(r, "tp", k + "_bytes") > 0
    for r in range(4) for k in ("all_reduce", "reduce_scatter", "all_gather"))'
four "messages between stages: as many bytes as planned" 'all(
    total(r, "send", "pp") == total(3 - r, "recv", "pp") == planned(r, "pp", "send_bytes") > 0 for r in range(4))'
four "each says with whom, and where it was called" 'all(
    e["args"]["ranks"] > 1 and ".c:" in e["args"]["at"] and ("peer" in e["args"]) == (e["name"] in ("send", "recv"))
    for e in calls)'
four "the ranks are on one clock" 'max(min(e["ts"] for e in calls if e["pid"] == r) for r in range(4)) <
    min(max(e["ts"] for e in calls if e["pid"] == r) for r in range(4))'
done_testing
