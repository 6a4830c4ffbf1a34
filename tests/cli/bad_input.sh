#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a user gets wrong, and what a disk, a rank or a file does: the exact exit status, and one line on
# stderr that says what, in words that help.
set -u
. "$PF_ROOT/tests/tap.sh"
train=$PF_BIN/pf-train
mpirun=$PF_ROOT/scripts/mpirun-here
qwen=$PF_ROOT/tests/fixtures/hf/qwen3

# refused STATUS REGEX CLAIM COMMAND...: ends with STATUS, prints nothing on stdout, and one line on stderr
# that the extended regular expression describes as a whole.
refused()
{
    local want=$1 regex=$2 claim=$3 got
    shift 3
    timeout 60 "$@" >stdout 2>stderr
    got=$?
    if [ "$got" = "$want" ] && [ ! -s stdout ] && [ "$(wc -l <stderr)" = 1 ] &&
        grep -qE "^pf-(train|inspect): $regex\$" stderr; then
        ok 0 "$claim"
    else
        ok 1 "$claim" "status $got, want $want; want '$regex'; stdout and stderr:" \
            "$(head -n 3 stdout | sed 's/^/# /')" "$(head -n 6 stderr | sed 's/^/# /')"
    fi
}

# The config of a run that works, with what is to be changed: change OLD NEW
model='"model_type": "llama", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2'
config='{
  "model": { '$model' },
  "from_scratch": true,
  "input_dir": "text.txt", "tokenizer": "bytes", "max_seq_length": 16,
  "per_device_train_batch_size": 2, "max_steps": 4, "save_steps": 2, "threads": 1,
  "output_dir": "out"
}'
change()
{
    [ "${config/"$1"/"$2"}" != "$config" ] || echo "bad_input.sh: nothing to change" >&2
    printf '%s\n' "${config/"$1"/"$2"}" >changed.json
}
printf '%s\n' "$config" >good.json
seq 1 400 >text.txt

# The config ---------------------------------------------------------------------------------------
refused 4 "cannot open 'none.json': No such file or directory" "a missing config" "$train" none.json
refused 2 "give a config; see 'pf-train --help'" "no config at all" "$train"
change '"from_scratch": true,' '"from_scratch": true,,'
refused 2 "bad JSON in 'changed.json' at line 4 column 24: .*" "bad JSON is named by line and column" \
    "$train" changed.json
change '"output_dir"' '"output_dir'
refused 2 "bad JSON in 'changed.json' at line 7 column 17: .*" "a string without its end" "$train" changed.json
change '"max_steps"' '"max_step"'
refused 2 "'max_step' is not known; did you mean 'max_steps'\? \('changed.json' line 6\)" "an unknown key, with its line and the nearest name" \
    "$train" changed.json
refused 2 "'lerning_rate' is not known; did you mean 'learning_rate'\? \(command line\)" "an unknown key of the command line" \
    "$train" good.json lerning_rate=1
change '"max_steps": 4' '"max_steps": "four"'
refused 2 "'max_steps' must be an integer, not a string \('changed.json' line 6\)" \
    "a value of the wrong type, with its line" "$train" changed.json
refused 2 ".*max_steps.*" "a fraction where a count belongs" "$train" good.json max_steps=1.5
refused 2 ".*adam_beta1.*" "a value out of range" "$train" good.json adam_beta1=2
refused 2 ".*lr_scheduler_type.*cosine.*" "another value than those that a key has" \
    "$train" good.json lr_scheduler_type=cosin
refused 7 ".*context_parallel_size.*" "what this build does not do" \
    "$train" good.json context_parallel_size=2
refused 2 "unknown device 'gpu': this build has cpu .*cuda.*" "a device by another name than pf's" \
    "$train" good.json device=gpu
refused 2 ".*'abacus'.*" "a device of which nobody has heard" "$train" good.json device=abacus
refused 7 ".*'?cuda'?.*" "a device that this build does not have" "$train" good.json device=cuda
refused 3 ".*global_train_batch_size.*5.*2.*" "a global batch that ranks cannot share" \
    "$train" good.json global_train_batch_size=5

# A FIFO is waited for without end, a device has none: only what a shell put in place of a file is read.
mkfifo endless.json
refused 4 "'endless.json' is not a regular file" "a config that would never come" "$train" endless.json
refused 4 "'/dev/zero' is not a regular file" "a config that would never end" "$train" /dev/zero
mkdir fifo-model && mkfifo fifo-model/config.json
refused 4 "'fifo-model/config.json' is not a regular file" "a model's config that would never come" \
    "$train" good.json model=null model_name_or_path=fifo-model
for from in file pipe substitution; do
    case $from in
    file) "$train" --plan /dev/stdin <good.json ;;
    pipe) cat good.json | "$train" --plan /dev/stdin ;;
    substitution) "$train" --plan <(cat good.json) ;;
    esac >stdout 2>stderr
    ok $? "a config that a shell hands on as a $from is read" "$(cat stderr)"
done

# The model ----------------------------------------------------------------------------------------
change '"num_attention_heads": 4' '"num_attention_heads": 5'
refused 3 ".*hidden_size.*32.*num_attention_heads.*5.*|.*num_attention_heads.*5.*" \
    "a width that heads do not divide" "$train" changed.json
change '"num_key_value_heads": 2' '"num_key_value_heads": 3'
refused 3 ".*num_attention_heads.*4.*num_key_value_heads.*3.*|.*num_key_value_heads.*3.*4.*" \
    "heads that key heads do not divide" "$train" changed.json
change '"vocab_size": 256, ' ''
refused 3 ".*vocab_size.*" "a model without a size" "$train" changed.json
change '"llama"' '"lama"'
refused 7 ".*lama.*llama.*" "a model that pf does not know" "$train" changed.json
change '"vocab_size": 256' '"vocab_size": 40'
refused 3 "token id [0-9]+ at position [0-9]+ of 'text.txt' is not below vocab_size 40" "a token id beyond the vocabulary" "$train" -q changed.json
refused 4 ".*'?nowhere.*No such file or directory" "a model directory that is not there" \
    "$train" good.json model=null model_name_or_path=nowhere

# The data -----------------------------------------------------------------------------------------
refused 4 ".*'none.txt'.*No such file or directory" "a text that is not there" "$train" good.json input_dir=none.txt
: >empty.txt
refused 3 ".*empty.txt.*" "a text shorter than one window" "$train" good.json input_dir=empty.txt
refused 2 ".*text.txt.*tokenizer.*|.*tokenizer.*text.txt.*" "text without a tokenizer" \
    "$train" good.json tokenizer=null
cp text.txt corpus.doc
refused 2 ".*corpus.doc.*" "data of an unknown kind" "$train" good.json input_dir=corpus.doc

# Files of weights ---------------------------------------------------------------------------------
rm -rf hf && cp -R "$qwen" hf && rm -f hf/golden* hf/grads* hf/final*
ids="synthetic:markov?vocab=32"
load()
{
    "$train" -q good.json model=null from_scratch=false model_name_or_path=hf "input_dir=$ids" \
        tokenizer=null save_steps=-1 "$@"
}
export -f load
export train ids
load output_dir=loads max_steps=1 >stdout 2>stderr
ok $? "the model that is damaged below loads" "$(cat stderr)"
whole=hf/model.safetensors
size=$(stat -c %s $whole)
cp $whole whole.safetensors
head -c $((size - 100)) whole.safetensors >$whole
refused 3 ".*model.safetensors.*" "a truncated safetensors file" bash -c load
refused 3 ".*model.safetensors.*" "the same, to pf-inspect" "$PF_BIN/pf-inspect" ls $whole
head -c 5 whole.safetensors >$whole
refused 3 ".*model.safetensors.*" "one that ends in its first word" bash -c load
{ printf '\377\377\377\377\377\377\377\177' && tail -c +9 whole.safetensors; } >$whole
refused 3 ".*model.safetensors.*" "one whose header is longer than the file" bash -c load
python3 - <<'PY'
import json, struct
raw = open("whole.safetensors", "rb").read()
n = struct.unpack("<Q", raw[:8])[0]
header = json.loads(raw[8:8 + n])
name = sorted(k for k in header if k != "__metadata__")[1]
first = sorted(k for k in header if k != "__metadata__")[0]
header[name]["data_offsets"] = header[first]["data_offsets"]
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
open("hf/model.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + raw[8 + n:])
PY
refused 3 ".*model.safetensors.*" "one in which two tensors share bytes" bash -c load
rm $whole
python3 - <<'PY'
import json, struct
raw = open("whole.safetensors", "rb").read()
header = json.loads(raw[8:8 + struct.unpack("<Q", raw[:8])[0]])
files = {k: "model-00001-of-00002.safetensors" for k in header if k != "__metadata__"}
files["model.absent"] = "model-00002-of-00002.safetensors"
json.dump({"weight_map": files}, open("hf/model.safetensors.index.json", "w"))
PY
cp whole.safetensors hf/model-00001-of-00002.safetensors
refused 3 ".*model-00002-of-00002.safetensors.*" "an index that names a missing shard" bash -c load

# The output directory -----------------------------------------------------------------------------
"$train" -q good.json output_dir=saved >stdout 2>stderr
ok $? "a run that saves" "$(cat stderr)"
refused 2 ".*saved.*resume_from_checkpoint.*" "an output directory that holds checkpoints" \
    "$train" good.json output_dir=saved
refused 2 ".*hidden_size|.*model.*" "another model on resume" "$train" -q good.json output_dir=saved \
    resume_from_checkpoint=auto "model=$(echo "{$model, \"rms_norm_eps\": 0.5}" | tr -d '\n')" max_steps=6
refused 4 "cannot create directory 'text.txt': Not a directory" "an output directory below a file" "$train" good.json output_dir=text.txt/out

limited() # a process that may not write files of more than 100 KiB
{
    ulimit -f 100
    exec "$train" -q good.json output_dir=limited
}
export -f limited
refused 4 ".*: File too large" "a limit on the size of files is no signal" bash -c limited
is "$(find limited -name '.staging*' | wc -l)" 0 "and nothing half written is left"

dumps() # the logits of a step take 32 KiB
{
    ulimit -f 30
    exec "$train" -q good.json output_dir=out-dump 'dump_steps=[1]'
}
export -f dumps
refused 4 ".*'out-dump/dump/.step-000001/logits.safetensors.*: File too large" \
    "a dump that does not fit: the reason is told" bash -c dumps
is "$(ls out-dump/dump)" "" "and what is not whole has no final name"

cp -R saved endless && rm endless/checkpoint-000004/manifest.json &&
    mkfifo endless/checkpoint-000004/manifest.json
refused 4 ".*'endless/checkpoint-000004/manifest.json' is not a regular file" \
    "a manifest that would never end" "$train" -q good.json output_dir=new \
    resume_from_checkpoint=endless/checkpoint-000004
timeout 60 "$PF_BIN/pf-inspect" show endless >stdout 2>stderr </dev/null
ok $? "nor is it waited for beside a whole checkpoint" "$(cat stderr)"

mount_here() # DIR OPTIONS
{
    mkdir -p "$1" && [ "$(id -u)" = 0 ] && mount -t tmpfs -o "$2" tmpfs "$1" 2>/dev/null
}
if mount_here small size=600k; then
    trap 'umount -l small mounted readonly 2>/dev/null' EXIT
    # One checkpoint of this model takes 250 KB; the third does not fit.
    refused 4 "cannot [a-z ]+ 'small/out/.staging-checkpoint-[0-9]+/.*': No space left on device" "a disk that is full during a save" \
        "$train" -q good.json output_dir=small/out max_steps=20
    last=$(cat small/out/latest)
    "$PF_BIN/pf-inspect" verify "small/out/$last" >stdout 2>stderr
    ok $? "the last whole checkpoint survives it" "$(cat stderr)"
    is "$(find small/out -name '.staging*' | wc -l)" 0 "and nothing half written is left"
    "$train" -q good.json output_dir=small/out max_steps=4 resume_from_checkpoint=auto save_steps=-1 \
        >stdout 2>stderr
    ok $? "the run can be resumed from it" "$(cat stderr)"
else
    skip "a disk that is full during a save" "mounting a small file system is not permitted here"
fi
refused 4 "cannot [a-z ]*directory 'text.txt': (File exists|Not a directory)" "an output directory that is a file" \
    "$train" good.json output_dir=text.txt
resume="$train -q good.json resume_from_checkpoint=auto max_steps=6"
if mount_here mounted size=4m; then
    trap 'umount -l small mounted readonly 2>/dev/null' EXIT
    cp -R saved mounted/out
    fill=$(($(stat -f -c '%a * %S' mounted)))
    head -c $fill /dev/zero >mounted/fill
    refused 4 "cannot [a-z ]+ 'mounted/out/.*': No space left on device" "a disk that is full when a run is resumed" \
        $resume output_dir=mounted/out
    rm mounted/fill && mount -o remount,ro mounted
    refused 4 "cannot [a-z ]+ 'mounted/out/.*': Read-only file system" "a run that became read-only" \
        $resume output_dir=mounted/out
    diff -r saved mounted/out >stdout
    ok $? "neither changed what was there" "$(cat stdout)"
    umount -l mounted
else
    skip "a disk that is full or read-only when a run is resumed" "mounting is not permitted here"
fi
# Root may write anywhere, unless it gives that right away.
unless_root=
[ "$(id -u)" != 0 ] || unless_root="setpriv --bounding-set=-dac_override,-dac_read_search"
if $unless_root true 2>/dev/null; then
    cp -R saved unwritable && chmod 555 unwritable
    refused 4 "cannot [a-z ]+ 'unwritable/.*': Permission denied" "a run that may not be written" \
        $unless_root $resume output_dir=unwritable
    mkdir closed && chmod 0 closed
    refused 4 "cannot [a-z ]+ 'closed/?.*': Permission denied" "an output directory that may not be read" \
        $unless_root "$train" -q good.json output_dir=closed
    chmod 755 closed unwritable
else
    skip "a run that may not be written" "root may write anywhere, and there is no setpriv"
fi
if mount_here readonly ro; then
    trap 'umount -l small mounted readonly 2>/dev/null' EXIT
    refused 4 ".*readonly.*Read-only file system" "an output directory that cannot be written" \
        "$train" good.json output_dir=readonly/out
elif [ "$(id -u)" != 0 ]; then
    mkdir readonly && chmod 555 readonly
    refused 4 ".*readonly.*Permission denied" "an output directory that cannot be written" \
        "$train" good.json output_dir=readonly/out
else
    skip "an output directory that cannot be written" "mounting is not permitted here"
fi

# Ranks --------------------------------------------------------------------------------------------
if ! command -v "${PF_MPIRUN:-mpirun}" >/dev/null; then
    skip "faults of ranks" "there is no mpirun here"
    done_testing
fi

# Rank 1 gets other words than rank 0.
cat >other-words <<'SH'
#!/usr/bin/env bash
rank=${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-0}}
if [ "$rank" = 1 ]; then exec "$train" -q "$1" "$3"; else exec "$train" -q "$1" "$2"; fi
SH
chmod +x other-words

# fails STATUS REGEX SECONDS CLAIM COMMAND...: two ranks end with STATUS, within the time, and exactly one line of
# pf-train's own says why.
fails()
{
    local want=$1 regex=$2 limit=$3 claim=$4 got start=$EPOCHREALTIME took
    shift 4
    timeout 60 "$mpirun" -n 2 "$@" >stdout 2>stderr
    got=$?
    took=$(awk "BEGIN { print $EPOCHREALTIME - $start }")
    if [ "$got" = "$want" ] && [ "$(grep -c '^pf-train:' stderr)" = 1 ] &&
        grep -qE "^pf-train: $regex\$" stderr && awk "BEGIN { exit !($took <= $limit) }"; then
        ok 0 "$claim"
    else
        ok 1 "$claim" "status $got, want $want, after $took s; want '$regex'; stderr:" \
            "$(head -n 12 stderr | sed 's/^/# /')"
    fi
}
fails 6 "the config differs between rank 0 and rank 1" 10 "configs that differ between ranks" \
    ./other-words good.json seed=1 seed=2
fails 2 "rank 1: 'max_step' is not known; .*" 5 "a rank that cannot read its config ends all with its status" \
    ./other-words good.json max_steps=2 max_step=2

# Rank 1 works in another directory, in which the data are missing.
cat >other-place <<'SH'
#!/usr/bin/env bash
rank=${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-0}}
if [ "$rank" = 1 ]; then mkdir -p elsewhere && cp good.json elsewhere && cd elsewhere || exit 99; fi
exec "$train" -q good.json output_dir=out-place
SH
chmod +x other-place
fails 4 "rank 1: .*'text.txt'.*" 5 "a rank that does not find its data ends all with its status" ./other-place

# Rank 1 never starts.
cat >other-program <<'SH'
#!/usr/bin/env bash
rank=${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-0}}
if [ "$rank" = 1 ]; then exec sleep 100; fi
exec "$train" -q good.json output_dir=out-alone comm_timeout=2
SH
chmod +x other-program
fails 6 "not all ranks have started within 2 s" 8 "a rank that does not start is not waited for without end" \
    ./other-program

if mountpoint -q small 2>/dev/null; then
    rm -rf small/out
    fails 4 "(rank [01]: )?cannot .*: No space left on device" 5 "a disk that is full, with two ranks" \
        "$train" -q good.json output_dir=small/out max_steps=20
    "$PF_BIN/pf-inspect" verify "small/out/$(cat small/out/latest)" >stdout 2>stderr
    ok $? "the last whole checkpoint survives it" "$(cat stderr)"
else
    skip "a disk that is full, with two ranks" "mounting a small file system is not permitted here"
fi

# meddle SIGNAL: sends it to rank 1 once the run in meddled/ has logged a step, and waits for mpirun.
meddle()
{
    local signal=$1 pid
    shift
    rm -rf meddled
    "$mpirun" -n 2 "$train" -q good.json output_dir=meddled max_steps=1000000 logging_steps=1 save_steps=-1 "$@" \
        >stdout 2>stderr &
    pid=$!
    for ((i = 0; i < 300; i++)); do
        [ "$(wc -l 2>/dev/null <meddled/metrics.jsonl || echo 0)" -gt 2 ] && break
        sleep 0.1
    done
    victim=$(tr ' ' '\n' <"/proc/$pid/task/$pid/children" | sed -n 2p)
    kill "-$signal" "$victim"
    start=$EPOCHREALTIME
    wait $pid
    status=$?
    kill -9 "$victim" 2>/dev/null
    took=$(awk "BEGIN { print int($EPOCHREALTIME - $start) }")
}
meddle STOP comm_timeout=2
is $status 6 "a rank that is stopped: exit 6"
is "$(grep -c '^pf-train:' stderr)" 1 "the others say so once"
grep -qE '^pf-train: rank 1 did not arrive at .* within 2 s' stderr
ok $? "and name the rank" "$(head -n 5 stderr)"
ok $((took > 10)) "within ten seconds" "$took s"
meddle KILL
is $status 137 "a rank killed by a signal: mpirun returns 128 + signal"
grep -q 'rank 1 .*signal 9' stderr
ok $? "and names the rank" "$(head -n 5 stderr)"
done_testing
