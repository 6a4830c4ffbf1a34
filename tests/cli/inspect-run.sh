#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# pf-inspect run: the summary, the curves in both alphabets, the page, JSON, and what is no run.
set -u
. "$PF_ROOT/tests/tap.sh"
inspect=$PF_BIN/pf-inspect
export COLUMNS=60
unset NO_UNICODE LC_CTYPE LANG
json_is() # WANT PYTHON-EXPRESSION CLAIM
{
    is "$(python3 -c "import json; d = json.load(open('out')); print($2)" 2>&1)" "$1" "$3"
}

mkdir out.d
{
    echo '{"event":"start","schema":1,"world_size":2,"mesh":{"dp":2,"sharding":1,"pp":1,"cp":1,"tp":1},"parameters":49744,"total_steps":40,"global_batch_sequences":8,"data_entropy":null,"resumed_from":null}'
    for i in $(seq 40); do
        [ "$i" = 21 ] && echo '{"event":"start","schema":1,"world_size":2,"mesh":{"dp":2},"parameters":49744,"total_steps":40,"global_batch_sequences":8,"resumed_from":20}'
        printf '{"step":%d,"loss":%d,"grad_norm":1.5,"learning_rate":0.001,"tokens":256,"tokens_per_second":1000,"step_seconds":0.25,"mfu":0.4,"peak_memory_bytes":1048576}\n' "$i" $((40 - i))
        [ $((i % 20)) = 0 ] && printf '{"event":"save","step":%d,"seconds":0.5,"stall_seconds":0.25,"bytes":9}\n{"event":"eval","step":%d,"loss":%d,"seconds":1}\n' "$i" "$i" $((50 - i))
    done
    echo '{"event":"warning","step":30,"text":"data <skipped>\u001b[2J"}'
    echo '{"event":"end","step":40,"reason":"done"}'
} >out.d/metrics.jsonl

LC_ALL=C.UTF-8 "$inspect" run out.d >out 2>err
is "$? $(wc -c <err)" "0 0" "a run is summed up"
is "$(sed '/^$/,$d' out)" "run           out.d
model         49744 parameters
data          8 sequences a step
layout        2 ranks: dp=2
steps         1 to 40 of 40
state         ended: done
tokens        10240
time          10 s in steps, 0.5 s stalled by saves
loss          39 at first, 0 at last, least 0 at step 40, last tenth 1.5
norm          median 1.5, largest 1.5 at step 1, last 1.5
rate          median 0.001, largest 0.001 at step 1, last 0.001
tokens/s      median 1000, largest 1000 at step 1, last 1000
mfu           median 40 %, largest 40 % at step 1, last 40 %
memory        1.0 MiB at most on rank 0
saves         2, 0.5 s each, of which training stood still for 0.25 s (4.8 % of the time)
evaluations   2: loss 10 at step 40, least 10 at step 40
resumed       at step 20
warnings      at step 30: data <skipped>\\x1b[2J" "in these words"
grep -q '┤█' out
ok $? "with block characters where the locale is UTF-8"
is "$(sed -n '/^loss$/,$p' out | LC_ALL=C.UTF-8 wc -L)" 60 "as wide as COLUMNS says"
LC_ALL=C "$inspect" run out.d >ascii
LC_ALL=C grep -q '[^ -~]' ascii
is $? 1 "in the C locale all of it is ASCII"
LC_ALL=C.UTF-8 NO_UNICODE=1 "$inspect" run out.d >out
ok "$(cmp -s out ascii; echo $?)" "and with NO_UNICODE"
is "$(awk 'length > n { n = length } END { print n }' <(sed -n '/^loss$/,$p' ascii))" 60 \
    "the curves take the columns that COLUMNS says"
is "$(sed -n '/^loss$/,/^$/p' ascii | sed -n '2p;10p')" \
    "       39 |##::..
        0 |##############################################::." \
    "the loss falls from left to right"
is "$("$inspect" run out.d/metrics.jsonl | sed -n '4,$p' | cksum)" \
    "$("$inspect" run out.d | sed -n '4,$p' | cksum)" "the file may be named itself"

"$inspect" run out.d --html page.html >out
is "$?" 0 "--html writes a page"
"$inspect" run --html - out.d >page2.html
is "$? $(grep -c "<h1>" page2.html)" "0 1" "or prints it"
ok "$(cmp -s page.html page2.html; echo $?)" "the same one"
is "$(grep -oE 'src=|href=|url\(|<script|@import' page.html | wc -l)" 0 "it loads nothing"
grep -q 'data &lt;skipped&gt; \[2J' page.html
ok $? "and escapes what it quotes"
if command -v python3 >/dev/null; then
    is "$(python3 - <<'PY'
import re, xml.dom.minidom
page = open("page.html").read()
figures = re.findall(r"<svg.*?</svg>", page, re.S)
for f in figures:
    xml.dom.minidom.parseString(f)
print(len(figures), page.count('class="dot"'), page.count('class="break"'), page.count('class="tick"'))
PY
    )" "5 2 5 10" "five curves, well-formed, with evaluations, the resume and saves on them"
    "$inspect" run --json out.d >out
    json_is "True 40 10240 10 0 2 1 1 0 done 5 40" \
        "d['ok'], d['last_step'], d['tokens'], d['steps_seconds'], d['loss']['min'], d['saves'],
         d['resumes'], d['warnings'], d['faults'], d['end'],
         len([e for e in d['events'] if e['event'] != 'start']) - 1, d['total_steps']" \
        "--json gives the same numbers"
else
    skip "the page and JSON" "no python3"
fi

# A real run of the trainer.
cat >config.json <<JSON
{ "model_name_or_path": "$PF_ROOT/tests/fixtures/hf/qwen3/config.json", "from_scratch": true,
  "input_dir": "synthetic:markov?vocab=64&order=1&seed=2", "output_dir": "real", "threads": 1,
  "max_seq_length": 16, "per_device_train_batch_size": 2, "max_steps": 6, "logging_steps": 1, "save_steps": 3 }
JSON
if "$PF_BIN/pf-train" config.json >log 2>&1; then
    "$inspect" run real >out
    is "$? $(sed -n 's/^steps *//p; s/^state *//p' out | tr '\n' ' ')" "0 1 to 6 of 6 ended: done " \
        "what pf-train writes is read"
    grep -q '^floor .*entropy of the data' out
    ok $? "with the floor of the loss"
    grep -q '^numbers .*float32, kernels ' out
    ok $? "and what pf.json says"
else
    ok 1 "pf-train makes a run" "$(tail -n 3 log)"
fi

refuses() # STATUS WORDS [ARG...]
{
    local status=$1 words=$2 got
    shift 2
    "$inspect" "$@" >out 2>err
    got=$?
    if [ $got = "$status" ] && grep -qF -- "$words" err; then
        ok 0 "exit $status: pf-inspect $*"
    else
        ok 1 "exit $status: pf-inspect $*" "exit $got" "$(cat err)"
    fi
}
mkdir empty
refuses 3 "has no metrics.jsonl" run empty
refuses 4 "cannot open 'nowhere'" run nowhere
echo 'not json' >bad.jsonl
refuses 3 "'bad.jsonl' line 1" run bad.jsonl
refuses 2 "cannot both have the output" run --json --html - out.d
refuses 2 "'show' takes no '--html'" show --html x out.d
refuses 4 "nowhere/page.html" run --html nowhere/page.html out.d
done_testing
