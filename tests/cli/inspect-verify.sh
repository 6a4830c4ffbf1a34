#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# pf-inspect verify names every fault of a checkpoint (PITFALLS B, D, F, G), with exit 3; clean is 0.
set -u
. "$PF_ROOT/tests/tap.sh"
inspect=$PF_BIN/pf-inspect
model=$PF_ROOT/tests/fixtures/hf/qwen3
shards=$PF_ROOT/tests/cli/shards.py

# finds KINDS CLAIM PATH: exit 3; the kinds of its faults, sorted, each as often as it was found.
finds()
{
    local want=$1 claim=$2 got
    "$inspect" verify "$3" >out 2>err
    got=$?
    kinds=$(cut -d' ' -f1 out | sort | tr '\n' ' ')
    if [ $got = 3 ] && [ "${kinds% }" = "$want" ] && [ "$(wc -l <err)" = 1 ] &&
        grep -qE "^pf-inspect: [0-9]+ faults? in '$3'$" err; then
        ok 0 "$claim: $want"
    else
        ok 1 "$claim: $want" "exit $got" "kinds: $kinds" "$(cat err)" "$(cat out)"
    fi
}

# says WORDS: the last output of verify tells of them.
says()
{
    ok "$(grep -qF -- "$1" out; echo $?)" "... and says $1" "$(cat out)"
}

clean()
{
    "$inspect" verify "$1" >out 2>err
    is "$? $(cat out err)" "0 no fault in $1" "$2"
}

# flip FILE OFFSET: the lowest bit of one byte.
flip()
{
    local byte
    byte=$(od -An -tu1 -j "$2" -N 1 "$1")
    printf "\\x$(printf %02x $((byte ^ 1)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

fresh() # a directory of three shards in d
{
    rm -rf d
    cp -R sharded d
}

mkdir single && cp "$model/model.safetensors" "$model/config.json" single
clean single "a Hugging Face directory"
clean single/model.safetensors "its file"

# A file cut short is damaged wherever the cut is, and both lengths are told.
size=$(stat -c %s single/model.safetensors)
wrong=0
for length in 0 1 7 8 9 100 $((size / 3 / 8 * 8)) $((size - 8)) $((size - 1)); do
    head -c "$length" single/model.safetensors >cut.safetensors
    "$inspect" verify cut.safetensors >out 2>err
    [ $? = 3 ] && [ "$(cut -d' ' -f1 out)" = header ] && grep -q cut.safetensors out || {
        echo "# cut at $length: $(cat out err)"
        wrong=1
    }
done
ok $wrong "a file cut at any length is a fault: header"
data=$((size - 8 - $(od -An -tu8 -N 8 single/model.safetensors)))
says "should have $data bytes of data after its header, it has $((data - 1))"
{ cat single/model.safetensors && printf x; } >long.safetensors
finds header "a byte after the data" long.safetensors
for kind in '<html><body>gone</body></html>  ' 'PK\3\4 a zip of some other program' \
    'version https://git-lfs.github.com/spec/v1'; do
    printf "$kind" >other.safetensors
    finds header "a file of another kind" other.safetensors
done

if ! command -v python3 >/dev/null; then
    skip "faults of shards" "no python3"
    done_testing
fi
python3 "$shards" single/model.safetensors sharded 3
cp single/config.json sharded
clean sharded "three shards and their index"
one=model-00001-of-00003.safetensors two=model-00002-of-00003.safetensors
three=model-00003-of-00003.safetensors index=model.safetensors.index.json

fresh && rm d/$two
finds "missing-file total-size" "a missing shard" d
says "'$two'"
"$inspect" show d >out 2>err
is "$? $(grep -c "$two" err)" "3 1" "which show refuses as well, by name"
fresh && cp d/$one d/model-00004-of-00003.safetensors
finds extra-shard "a shard that the index does not name" d
clean_open=$("$inspect" hash d | tail -n 1)
is "$clean_open" "$("$inspect" hash sharded | tail -n 1)" "... which changes no tensor"
fresh && cp single/model.safetensors d
finds two-layouts "a single file beside an index" d
"$inspect" show d >out 2>err
is $? 2 "... one of them is stale: show refuses to guess"
fresh && sed -i 's/"total_size": [0-9]*/"total_size": 12345/' d/$index
finds total-size "a wrong total size" d
says 12345
fresh && sed -i "0,/$one/s//$two/" d/$index
finds wrong-shard "a tensor in another shard than the index says" d
says "$one"
fresh && sed -i 's/"model.norm.weight"/"model.other.weight"/' d/$index
finds "missing-tensor total-size unlisted-tensor" "a tensor in the index only, and one in a shard only" d
says model.other.weight
says model.norm.weight
fresh && python3 "$shards" --copy lm_head.weight d/$one d/$three
finds duplicate "a tensor in two shards with equal bytes" d
says lm_head.weight
fresh && python3 "$shards" --copy lm_head.weight d/$one d/$three xor
finds conflict "a tensor in two shards with different bytes" d
fresh && mv d/$three d/model-00004-of-00004.safetensors &&
    sed -i 's/model-00003-of-00003/model-00004-of-00004/' d/$index
finds shard-gap "numbers of shards with a gap" d
fresh && head -c 5000 sharded/$two >d/$two
finds "header total-size" "a shard cut short" d
fresh && printf '{"weight_map": ' >d/$index
finds index "an index that is no JSON" d
fresh && echo '{"weight_map": {"a": 3}}' >d/$index
finds "index" "an index of the wrong form" d
fresh && printf '{"model_type": ' >d/config.json
finds config "a config that is no JSON" d
for path in ../single/model.safetensors /etc/passwd 'C:\\x' 'a\\..\\b' x/../../y '' .; do
    fresh && python3 - "$path" <<'PY'
import json, sys
name = "d/model.safetensors.index.json"
d = json.load(open(name))
d["weight_map"]["model.norm.weight"] = sys.argv[1]
json.dump(d, open(name, "w"))
PY
    "$inspect" verify d >out 2>err
    is "$? $(grep -c '^unsafe-path ' out)" "3 1" "an index that leads out of the directory: '$path'"
    "$inspect" show d >out 2>err
    is $? 3 "... is not opened"
done
fresh && mv d/$two elsewhere && ln -s ../elsewhere d/$two
clean d "a shard that is a link to a file, as in the hub's cache"
# The weights against the model of the config, where all else is well.
fresh && sed -i 's/"num_hidden_layers": 2/"num_hidden_layers": 1/' d/config.json
"$inspect" verify d >out 2>err
is "$? $(cut -d' ' -f1 out | sort | uniq -c | xargs)" "3 11 model-extra" "a layer that the config lacks"
fresh && sed -i 's/"num_hidden_layers": 2/"num_hidden_layers": 3/' d/config.json
"$inspect" verify d >out 2>err
is "$? $(cut -d' ' -f1 out | sort | uniq -c | xargs)" "3 11 model-missing" \
    "a layer that the checkpoint lacks"
fresh && sed -i 's/"vocab_size": 131/"vocab_size": 130/' d/config.json
finds "model-shape model-shape" "a vocabulary of another size" d
says "'lm_head.weight' is [131,48], the config says [130,48]"
fresh && sed -i 's/Qwen3ForCausalLM/Qwen3ForSequenceClassification/; s/: 131/: 130/' d/config.json
clean d "another class of model, whose tensors pf does not know,"
fresh && sed -i 's/"tie_word_embeddings": false/"tie_word_embeddings": true/' d/config.json
clean d "a tied model that stores both"

# All of it at once: nothing hides behind the first fault.
fresh && rm d/$three && cp d/$one d/stale.safetensors &&
    sed -i 's/"total_size": [0-9]*/"total_size": 1/' d/$index && printf '[' >d/config.json
"$inspect" verify d >out 2>err
is "$? $(cut -d' ' -f1 out | sort -u | tr '\n' ' ')" \
    "3 config extra-shard missing-file total-size " "four kinds of fault at once"
"$inspect" verify --json d >json 2>err
status=$?
is "$status $(python3 -c "
import json
d = json.load(open('json'))
print(d['ok'], d['error']['kind'], len(d['faults']), sorted(d['faults'][0]), d['schema'])")" \
    "3 False corrupt $(wc -l <out) ['error', 'kind', 'message'] 1" "--json lists the same faults"
"$inspect" verify --json sharded >json 2>err
is "$? $(python3 -c "import json; d = json.load(open('json')); print(d['ok'], d['faults'])")" \
    "0 True []" "--json of a clean one"

# Checkpoints of pf and runs.
cat >config_.json <<'JSON'
{ "model_name_or_path": "single", "input_dir": "synthetic:markov?vocab=64&order=1&seed=2", "seed": 3,
  "max_seq_length": 16, "per_device_train_batch_size": 2, "max_steps": 2, "learning_rate": 1e-3,
  "save_steps": 1, "threads": 1 }
JSON
if ! "$PF_BIN/pf-train" config_.json output_dir=run >log 2>&1; then
    ok 1 "pf-train makes a checkpoint" "$(tail -n 3 log)"
    done_testing
fi
c=run/checkpoint-000002
refresh()
{
    rm -rf run
    cp -R kept run
}
cp -R run kept
clean run "a run"
clean $c "a checkpoint of it"
clean run/hf "its export"
flip $c/weights-00000.safetensors 20000
finds digest "a bit flipped in the weights" $c
refresh && flip run/checkpoint-000001/optim-00000.safetensors 20000
finds digest "in an older checkpoint of the run" run
says checkpoint-000001
refresh && truncate -s -1 $c/weights-00000.safetensors
finds "header size" "a file one byte short" $c
refresh && rm $c/optim-00000.safetensors
finds missing-file "a file that is gone" $c
is "$("$inspect" show run | sed -n 's/^step *//p')" 1 "... show of the run takes the older, whole one"
refresh && : >$c/notes.txt
"$inspect" verify $c >out 2>err
is "$? $(cat out err)" "0 extra-file  '$c/notes.txt' is there but the manifest does not name it
no fault in $c" "a file that the manifest does not name is noted, and no fault: a resume reads past it too"
is "$("$inspect" verify --json $c | python3 -c 'import json, sys
d = json.load(sys.stdin); print(d["faults"], d["notes"][0]["kind"])' 2>&1)" "[] extra-file" "... so says --json"
flip $c/weights-00000.safetensors 20000
finds "digest extra-file" "beside a fault it is named as well" $c
refresh && sed -i 's/"step": 2,/"step": 3,/' $c/manifest.json
finds "manifest manifest-digest" "a manifest whose step was edited" $c
refresh && truncate -s -30 $c/manifest.json
"$inspect" verify $c >out 2>err
is $? 3 "a manifest cut short"
refresh && echo checkpoint-000009 >run/latest
finds latest "latest names what is not there" run
rm run/latest && mkdir run/latest
finds latest "latest is a directory" run
says "'run/latest' is not a regular file"
rmdir run/latest && ln -s nowhere run/latest
finds latest "a link to nothing" run
refresh && rm run/checkpoint-000001/manifest.json
finds missing-file "a checkpoint without manifest" run
"$inspect" diff kept run >out 2>err
is $? 0 "... which does not hurt the newest"
done_testing
