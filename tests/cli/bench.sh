#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# pf-bench: what it measures, what it refuses, what makes it say no. Nothing here depends on how fast the
# machine is but for one thing: plain C is slower than the kernels that serve.
set -u
. "$PF_ROOT/tests/tap.sh"
bench=$PF_BIN/pf-bench
unset PF_KERNELS

# gives STATUS CLAIM ARG...: pf-bench ends so; stdout and stderr are left in files.
gives()
{
    local status=$1 claim=$2 got
    shift 2
    "$bench" "$@" >out 2>err </dev/null
    got=$?
    [ $got = "$status" ]
    ok $? "$claim: exit $status" "exit $got" "$(cat out err)"
}

# refuses STATUS WORDS ARG...: and one line on stderr that holds the words; no output.
refuses()
{
    local status=$1 words=$2 got
    shift 2
    "$bench" "$@" >out 2>err </dev/null
    got=$?
    if [ $got = "$status" ] && [ ! -s out ] && [ "$(wc -l <err)" = 1 ] && grep -qF -- "$words" err; then
        ok 0 "exit $status: pf-bench $*"
    else
        ok 1 "exit $status: pf-bench $*" "exit $got" "$(cat out err)" "wanted: $words"
    fi
}

# says WANT EXPRESSION CLAIM: of the document d in $document.
says()
{
    if command -v python3 >/dev/null; then
        is "$(python3 -c "import json; d = json.load(open('$document')); print($2)" 2>&1)" "$1" "$3"
    else
        skip "$3" "no python3"
    fi
}

# edit OLD NEW CODE: a record changed.
edit()
{
    python3 -c "
import json, sys
d = json.load(open(sys.argv[1]))
$3
json.dump(d, open(sys.argv[2], 'w'))" "$1" "$2"
}

# Mistakes.
refuses 2 "give a command"
refuses 2 "did you mean 'ops'?" opss
refuses 2 "no op is named 'gem'; did you mean 'gemm'?" ops gem
refuses 2 "'4x4' is no shape of gemm, which has MxNxK" ops gemm --shape 4x4
refuses 2 "'4x4x0' is no shape" ops gemm --shape 4x4x0
refuses 2 "'4x4x4:xy' is no shape" ops gemm --shape 4x4x4:xy
refuses 2 "'4x4x4:tn+relu' is no shape" ops gemm --shape 4x4x4:tn+relu
refuses 2 "'4x4x4:nt+tanh' is no shape" ops gemm --shape 4x4x4:nt+tanh
refuses 2 "'4x4:nn' is no shape" ops rmsnorm_fwd --shape 4x4:nn
refuses 2 "'4x4+bias' is no shape" ops rmsnorm_fwd --shape 4x4+bias
refuses 2 "'4x4+residual' is no shape" ops glu_fwd --shape 4x4+residual
refuses 2 "--dtype is" ops gemm --dtype int8
refuses 2 "--against is onednn or openblas" ops gemm --against mkl
refuses 2 "no kernel 'abacus' serves here" ops gemm --kernel abacus
refuses 2 "--kernel" compare nowhere nowhere --kernel ref
refuses 2 "--min-ratio needs --against" ops gemm --min-ratio 1.2
refuses 2 "--max-slowdown needs" ops gemm --max-slowdown 1.2
refuses 2 "--force needs" ops gemm --force
refuses 2 "--repeat is 0" ops gemm --repeat 0
refuses 2 "--seconds" ops gemm --seconds 0
refuses 2 "'step' takes no '--shape'" step c.json --shape 4x4
refuses 2 "'ops' takes no '--steps'" ops --steps 3
refuses 2 "'compare' takes no '--repeat'" compare a b --repeat 3
refuses 2 "'step' takes a config" step
refuses 2 "'compare' takes two records" compare a
refuses 2 "exclude each other" ops --model c.json --shape 4x4
refuses 7 "'comm' is not in this build" comm
refuses 2 "there is no case 'sav'" ckpt sav
refuses 2 "--against is fio, safetensors" ckpt --against dd
refuses 2 "'ckpt' takes no '--dtype'" ckpt --dtype float32
refuses 2 "'ops' takes no '--bytes'" ops --bytes 1M
refuses 4 "cannot make directory" ckpt --dir "$PWD/nowhere"
refuses 7 "cuda" ops gemm --device cuda
refuses 2 "device" ops gemm --device abacus
refuses 4 "nowhere" compare nowhere nowhere
refuses 4 "nowhere" step nowhere

# What there is.
gives 0 "--list" ops --list
for case in 'gemm F32 1024x1152x384:nt' 'gemm BF16 1024x3072x768:nt+gelu_tanh' 'gemm BF16 1024x768x3072:tn' 'adamw F32' 'rope BF16' \
    'attention_bwd F32 1x2048x4x4x64' 'cross_entropy F32 1024x8192' 'rmsnorm_fwd F32 4096x1024+residual'; do
    grep -qF -- "$case" out
    ok $? "--list names $case"
done
gives 0 "--list of a glob" ops 'rmsnorm*' --dtype float32 --list
is "$(cut -d' ' -f1 out | uniq | tr '\n' ' ')" "rmsnorm_fwd rmsnorm_bwd " "a glob chooses"

# Every op, at a small shape, is right.
small="--threads 1 --repeat 3 --warmup 1 --no-progress"
cat >tiny.json <<'END'
{
  "model": {"model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": 32},
  "from_scratch": true, "input_dir": "synthetic:markov?vocab=64&order=1&seed=1",
  "max_seq_length": 32, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2,
  "max_steps": 10, "learning_rate": 1e-3, "output_dir": "out", "threads": 1
}
END
document=all.json
# shellcheck disable=SC2086  # a list of options
gives 0 "ops of a model's shapes" ops --model tiny.json $small --dtype float32 --dtype bfloat16 --json all.json
cp out table
says "True 1 ops pf-bench None" "d['ok'], d['schema'], d['command'], d['program'], d['error']" \
    "its document has ok, schema, command, program, error"
says "True" "all(c['check']['ok'] for c in d['cases'])" "every case was checked, and is right"
says "True" "all(len(c['seconds']['samples']) == c['seconds']['n'] == 3 for c in d['cases'])" \
    "every sample is there"
says "True" "all(c['seconds']['min'] <= c['seconds']['median'] <= c['seconds']['max'] for c in d['cases'])" \
    "in order"
says "True" "all(c['rate'] > 0 and c['percent_of_limit'] > 0 for c in d['cases'])" \
    "with a rate and a percentage of a limit"
says "True" "all(c['seconds']['warmup_calls'] == 3 for c in d['cases'])" "and warm-up calls, told apart"
says "True" "len({c['name'] for c in d['cases']}) == len(d['cases']) > 30" "under names of their own"
says "True" "d['limits']['fma_f32_flop_per_second'] > 0 < d['limits']['triad_byte_per_second']" \
    "the limits of the machine are there"
says "['cpu', 'cpu_isa', 'cpus', 'device', 'ranks', 'threads']" \
    "sorted(d['environment']['fingerprint'])" "and the fingerprint"
if command -v python3 >/dev/null; then
    is "$(python3 -c "import json; print(*[c['name'] for c in json.load(open('all.json'))['cases']], sep='\n')")" \
        "$(sed -n '2,/^$/p' table | sed '/^$/d; s/   *.*//')" "table and document have the same cases"
fi
# shellcheck disable=SC2086
gives 0 "float16" ops add rmsnorm_fwd attention_bwd --model tiny.json --dtype fp16 $small --json -
cp out half.json
document=half.json
says "{'F16'}" "{c['dtype'] for c in d['cases']}" "--json - writes the document, and no table"

# Whole steps.
document=step.json
gives 0 "step" step tiny.json --steps 4 --warmup 1 --no-progress --json step.json
is "$(cat err)" "" "step: nothing on stderr"
says "step tiny F32 2x2x32 4 True token" \
    "*[(c['name'], c['seconds']['n'], c['check']['ok'], c['work_unit']) for c in d['cases']][0]" \
    "its case: name, samples, check, unit"
says "True" "{'gemm', 'attention_bwd', 'adamw'} <= {p['op'] for p in d['cases'][0]['step']['parts']}" \
    "its parts"
python3 -c 'import json
d = json.load(open("step.json"))
s = d["cases"][0]["seconds"]
s["samples"] = [d["cases"][0]["work"] / 40000] * s["n"]
json.dump(d, open("round.json", "w"))'
gives 0 "a record of 40000 tokens a second" compare round.json round.json
ok "$(grep -q ' 40000 token/s' out; echo $?)" "... is printed without an exponent" "$(cat out)"
ok "$([ ! -e out/pf.json ] && [ ! -d out ]; echo $?)" "nothing is written to output_dir"
gives 0 "step with an override" step tiny.json max_seq_length=16 dtype=bfloat16 --steps 3 --no-progress --markdown
grep -q '^| step tiny BF16 2x2x16 ' out && grep -q '^|---' out
ok $? "--markdown prints a table of Markdown" "$(cat out)"
if [ -x "$PF_ROOT/scripts/mpirun-here" ] && command -v mpirun >/dev/null; then
    "$PF_ROOT/scripts/mpirun-here" -n 2 "$bench" step tiny.json --steps 3 --no-progress >out 2>err </dev/null
    is $? 0 "step under mpirun: exit 0"
    is "$(grep -c '^step tiny F32 4x2x32' out)" 1 "one rank prints"
else
    skip "step under mpirun" "no mpirun"
fi

# Comparing. Two runs of a second kernel, which is many times slower, stand for a slowdown.
fast="ops gemm --shape 64x64x256:nn --dtype float32 $small --json"
# shellcheck disable=SC2086
gives 0 "a run" $fast new.json
# shellcheck disable=SC2086
PF_KERNELS=ref gives 0 "one of the reference" $fast slow.json
gives 0 "a record against itself" compare new.json new.json
grep -q ' same$' out
ok $? "whose verdict is 'same'" "$(cat out)"
gives 1 "a slower record" compare new.json slow.json --json verdict.json
document=verdict.json
says "False differ slower" "d['ok'], d['error']['kind'], d['cases'][0]['baseline']['verdict']" \
    "its document says so"
gives 0 "a faster record" compare slow.json new.json
# shellcheck disable=SC2086
PF_KERNELS=ref gives 1 "--baseline with a slower kernel" $fast x.json --baseline new.json
# shellcheck disable=SC2086
gives 0 "--baseline with a faster one" $fast x.json --baseline slow.json --max-slowdown 1.5
# shellcheck disable=SC2086
PF_KERNELS=ref gives 7 "oneDNN where PF_KERNELS forbids it" $fast x.json --against onednn

if command -v python3 >/dev/null; then
    edit new.json empty.json "d['cases'] = []"
    gives 1 "a record without cases" compare empty.json empty.json
    gives 1 "a missing case" compare all.json new.json --force
    grep -q "is missing" err
    ok $? "and it says so" "$(cat err)"
    edit new.json none.json "d['cases'][0]['seconds'] = None"
    gives 1 "a case without samples" compare new.json none.json
    edit new.json gone.json "del d['cases'][0]['seconds']"
    gives 1 "a case without the metric" compare new.json gone.json
    edit new.json unit.json "d['cases'][0]['work_unit'] = 'byte'"
    gives 1 "another unit" compare unit.json new.json
    edit new.json work.json "d['cases'][0]['work'] *= 2"
    gives 1 "another amount of work" compare work.json new.json
    edit new.json cpu.json "d['environment']['fingerprint']['cpu'] = 'another'"
    gives 1 "another environment" compare cpu.json new.json
    gives 0 "another environment with --force" compare cpu.json new.json --force
    edit new.json more.json "d['surprise'] = 1; d['cases'][0]['surprise'] = {}"
    gives 0 "members of a later version are no matter" compare more.json new.json
    edit new.json later.json "d['schema'] = 2"
    refuses 3 "schema" compare later.json new.json
    edit new.json other.json "d['program'] = 'nccl-tests'"
    refuses 3 "nccl-tests" compare new.json other.json
    printf '{"schema": 1' >cut.json
    refuses 3 "bad JSON" compare new.json cut.json
else
    skip "records that were changed" "no python3"
fi

# Rivals.
if "$bench" --version -v | grep -q '+DNNL'; then
    # shellcheck disable=SC2086
    gives 0 "--against onednn" $fast x.json --against onednn
    document=x.json
    says "onednn True" \
        "*[(r['name'], r['ratio']['n'] == 3 and r['ratio']['median'] > 0) for r in [d['cases'][0]['rival']]][0]" \
        "a rival has a ratio from every sample"
    # shellcheck disable=SC2086
    gives 1 "a ratio that nobody reaches" $fast x.json --against onednn --min-ratio 1000
    # shellcheck disable=SC2086
    gives 0 "a ratio that everybody reaches" $fast x.json --against onednn --min-ratio 0.001
    # shellcheck disable=SC2086
    gives 1 "a least ratio without a rival" ops add --shape 64 --against onednn --min-ratio 0.1 $small
    grep -q "no case has a rival" err
    ok $? "and it says so"
else
    skip "--against onednn" "oneDNN is not in this build"
fi
# shellcheck disable=SC2086
"$bench" $fast x.json --against openblas >out 2>err
case $?:$(ldconfig -p 2>/dev/null | grep -c libopenblas) in
7:0)
    grep -q "OpenBLAS is not on this machine" err
    ok $? "OpenBLAS that is not here: exit 7, and it says so"
    ;;
0:*) ok 0 "--against openblas: exit 0" ;;
*) ok 1 "--against openblas" "$(cat err)" ;;
esac

# A failure is a document too.
document=failed.json
gives 2 "misuse with --json" ops gem --json failed.json
says "False usage 2" "d['ok'], d['error']['kind'], d['error']['exit']" "its document: kind usage"
gives 7 "a command that is not built, with --json" comm --json failed.json
says "unsupported" "d['error']['kind']" "its document: kind unsupported"
gives 4 "a record that cannot be written" ops add --shape 64 --threads 1 --repeat 1 --json nowhere/x.json
# Checkpoints: few bytes, so that no figure means anything; that all is right, and nothing is left.
mkdir disk
gives 0 "checkpoints are saved, loaded and re-laid" ckpt --bytes 24M --repeat 2 --dir disk --json ckpt.json
is "$(awk '/ yes / { print $1 }' out | grep -v compress | tr '\n' ' ')" \
    "save load reshard hf-load-cold hf-load-warm digest " "and what comes back is what went in"
is "$(ls -A disk)" "" "nothing is left behind"
document=ckpt.json
says "{2}" "set(c['seconds']['n'] for c in d['cases'])" "as many samples as asked for"
says "True" "all(c['percent_of_limit'] > 0 for c in d['cases'])" "each beside what the machine can do"
says "True" "all(c['check']['ok'] and 0.6 < float(c['kernel'].split()[2]) / 100 < 0.68 for c in d['cases']
    if 'compress' in c['name'])" "bf16 is compressed to less than 68 %, and comes back"
gives 0 "some of them" ckpt 'hf-*' --list
is "$(tr '\n' ' ' <out)" "hf-load-cold hf-load-warm " "by a glob"
"$bench" ckpt digest --bytes 4M --repeat 5 --dir disk --json one.json >out 2>&1
gives 0 "a record of them is a baseline" ckpt digest --bytes 4M --repeat 5 --dir disk \
    --baseline one.json --max-slowdown 1000
mkdir bin
env PATH=/nowhere "$bench" ckpt save --bytes 4M --dir disk --against fio >out 2>err
is "$? $(cat err)" "7 pf-bench: 'fio' is not on this machine" "without fio it cannot be a rival"
# A rival whose seconds are known: the ratio is of its time to ours.
cat >bin/fio <<'FIO'
#!/bin/sh
[ "$1" = --version ] && echo fio-0 && exit
echo '{"jobs": [{"read": {"runtime": 0}, "write": {"runtime": 3600000}}]}'
FIO
chmod +x bin/fio
PATH=$PWD/bin:$PATH gives 0 "fio is a rival" ckpt save --bytes 4M --repeat 3 --dir disk --against fio \
    --min-ratio 2 --json fio.json
document=fio.json
says "fio True True" "d['cases'][0]['rival']['name'], d['cases'][0]['rival']['ratio']['median'] > 100, \
d['against'].startswith('fio-0 direct=1')" "whose time is compared"
done_testing
