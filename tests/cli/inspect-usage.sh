#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# pf-inspect's help, version, and what it says to a mistake: exact exit codes, one line on stderr.
set -u
. "$PF_ROOT/tests/tap.sh"
inspect=$PF_BIN/pf-inspect
model=$PF_ROOT/tests/fixtures/hf/qwen3

# refuses STATUS WORDS [ARG...]: fails with that status and one line that holds the words; no output.
refuses()
{
    local status=$1 words=$2 got
    shift 2
    "$inspect" "$@" >out 2>err
    got=$?
    if [ $got = "$status" ] && [ ! -s out ] && [ "$(wc -l <err)" = 1 ] && grep -qF -- "$words" err &&
        grep -q '^pf-inspect: ' err; then
        ok 0 "exit $status: pf-inspect $*"
    else
        ok 1 "exit $status: pf-inspect $*" "exit $got" "$(cat err)" "wanted: $words"
    fi
}

"$inspect" --help >out 2>err
is $? 0 "--help: exit 0"
ok "$([ -s err ]; echo $((1 - $?)))" "--help: nothing on stderr"
for word in 'usage: pf-inspect' 'show PATH' 'ls PATH' 'verify PATH' 'hash PATH' 'diff A B' 'ops ' 'scan PATH' 'cat PATH' 'run DIR' 'env [DIR' --html \
    'not in this build' --rtol --atol --ulp --nan --weights-only --json --no-progress --version; do
    grep -qF -- "$word" out
    ok $? "--help tells of $word"
done
cp out long
"$inspect" -h >out
ok "$(cmp -s out long; echo $?)" "-h is --help"
is "$("$inspect" --version)" "pf-inspect 0.1.0" "--version"
"$inspect" -V -v >out
ok $? "-V -v: exit 0"
for word in features compiler flags kernels comm; do
    grep -q "^  $word " out
    ok $? "-V -v tells of $word"
done

refuses 2 "give a command"
refuses 2 "did you mean 'show'?" shw "$model"
refuses 2 "unknown command 'frobnicate'" frobnicate
refuses 2 "'show' takes 1 operand" show
refuses 2 "'show' takes 1 operand" show "$model" "$model"
refuses 2 "'ls' takes 1 or 2 operands, not 3" ls "$model" a b
refuses 2 "'diff' takes 2 operands, not 1" diff "$model"
refuses 2 "'ops' takes 0 operands" ops gemm
refuses 2 "'env' takes 0 or 1 operands, not 2" env a b
refuses 2 "unknown option '--jsno'; did you mean '--json'?" show "$model" --jsno
refuses 2 "option '--ulp'" diff --ulp many "$model" "$model"
refuses 2 "option '--rtol'" diff --rtol nan "$model" "$model"
refuses 2 "a tolerance is negative" diff --rtol -1 "$model" "$model"
refuses 2 "a tolerance is negative" diff --ulp -1 "$model" "$model"
refuses 2 "not bits, equal or differ" diff --nan maybe "$model" "$model"
refuses 2 "'ls' takes no tolerance" ls --ulp 1 "$model"
refuses 2 "'show' takes no '--weights-only'" show --weights-only "$model"
refuses 1 "no tensor of" ls "$model" '*.layers.99.*'
refuses 4 "cannot create 'nowhere/.pf-inspect-" env nowhere
refuses 4 "cannot open 'nowhere'" show nowhere
refuses 4 "cannot open 'nowhere'" verify nowhere
refuses 4 "cannot open 'nowhere'" diff "$model" nowhere
refuses 7 "'globals' is not in this build" globals "$model"

mkdir empty
refuses 3 "no checkpoint in 'empty'" show empty
: >zero.safetensors
refuses 3 "zero.safetensors" show zero.safetensors
printf 'GGUF\3\0\0\0' >model.gguf
refuses 7 "is a GGUF file" show model.gguf
printf 'PK\3\4\0\0\0\0' >model.pt
refuses 7 "PyTorch" ls model.pt
mkdir megatron && echo 5 >megatron/latest_checkpointed_iteration.txt
refuses 7 "Megatron" show megatron
mkdir two && cp "$model/model.safetensors" two && echo '{}' >two/manifest.json
refuses 2 "can be read as" show two

# Files of another kind say what they are (PITFALLS B).
printf '<!DOCTYPE html><html><body>404</body></html>' >page.safetensors
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n' >pointer.safetensors
printf 'PK\3\4----------------' >zip.safetensors
for file in page:HTML pointer:LFS zip:zip; do
    "$inspect" show "${file%:*}.safetensors" >out 2>err
    is $? 3 "show of a ${file#*:} file: exit 3"
    grep -qi "${file#*:}" err
    ok $? "and it says ${file#*:}" "$(cat err)"
done

# With --json a failure is a document too, and the line on stderr remains.
json_says() # WANT PYTHON-EXPRESSION CLAIM
{
    is "$(python3 -c "import json,sys; d = json.load(open('out')); print($2)" 2>&1)" "$1" "$3"
}
if command -v python3 >/dev/null; then
    "$inspect" --json show nowhere >out 2>err
    is $? 4 "--json show nowhere: exit 4"
    json_says "False io 4 show 1" \
        "d['ok'], d['error']['kind'], d['error']['exit'], d['command'], d['schema']" \
        "its document has ok, error.kind, error.exit, command, schema"
    ok "$([ "$(wc -l <err)" = 1 ]; echo $?)" "and stderr one line"
    "$inspect" --json shw >out 2>err
    json_says "False usage None" "d['ok'], d['error']['kind'], d['command']" "misuse: kind usage"
    "$inspect" --json globals x >out 2>err
    json_says "unsupported" "d['error']['kind']" "a command that is not built: kind unsupported"
    "$inspect" --json show empty >out 2>err
    json_says "incomplete" "d['error']['kind']" "an empty directory: kind incomplete"
    "$inspect" --json show zero.safetensors >out 2>err
    json_says "corrupt" "d['error']['kind']" "an empty file: kind corrupt"
    "$inspect" --json show two >out 2>err
    json_says "refused" "d['error']['kind']" "two readings: kind refused"
else
    skip "JSON of failures" "no python3"
fi

# Under mpirun one process answers, for all.
if command -v "${PF_MPIRUN:-mpirun}" >/dev/null; then
    "$PF_ROOT/scripts/mpirun-here" -n 2 "$inspect" ls "$model" >out 2>err </dev/null
    is "$? $(cat err)" "0 " "under mpirun: exit 0"
    "$inspect" ls "$model" >alone
    cmp -s out alone
    ok $? "... and the answer once" "$(head -n 3 out)"
    "$PF_ROOT/scripts/mpirun-here" -n 2 "$inspect" ls nowhere >out 2>err </dev/null
    is "$? $(grep -c '^pf-inspect:' err)" "4 1" "... as is a failure, with its status"
else
    skip "under mpirun" "there is no mpirun here"
fi

# A reader that goes away is no error to talk of; a full disk is.
"$inspect" ls --json "$model" 2>err | head -n 1 >/dev/null
ok "$([ -s err ]; echo $((1 - $?)))" "a broken pipe is quiet" "$(cat err)"
if [ -e /dev/full ]; then
    "$inspect" ls "$model" >/dev/full 2>err
    is $? 4 "a full disk under stdout: exit 4"
    grep -q "cannot write standard output" err
    ok $? "and it says so"
else
    skip "a full disk under stdout" "no /dev/full"
fi
done_testing
