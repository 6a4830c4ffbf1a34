#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Progress of a run: on a terminal a bar that messages do not run into, elsewhere and with --no-progress none.
set -u
. "$PF_ROOT/tests/tap.sh"
cat >config.json <<'JSON'
{ "model": { "model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48,
             "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2 },
  "from_scratch": true, "input_dir": "synthetic:markov?vocab=64&order=1", "output_dir": "out", "max_steps": 1000000,
  "max_seq_length": 16, "per_device_train_batch_size": 2, "logging_steps": 50, "save_steps": -1, "threads": 1 }
JSON
# terminal FILE [ARG...]: a run of two seconds on a terminal of its own, in its foreground whatever the shell
# (a shell that forks for its last command would leave timeout(1) to open a group in the background).
terminal()
{
    local file=$1
    shift
    SHELL=/bin/sh TERM=xterm script -qec "stty cols 90; timeout --foreground -s TERM 2 '$PF_BIN/pf-train' config.json $*" /dev/null \
        >"$file" 2>&1 </dev/null
}
if command -v script >/dev/null; then
    terminal bar.txt
    grep -qaE 'training \[#*\.+\] +[0-9]+% [0-9]+ of 1000000, [0-9.]+/s, [0-9:]+ left' bar.txt
    ok $? "a bar with what is done, the rate and the time left" "$(tail -c 300 bar.txt | cat -v)"
    # Each message begins a line: what was drawn there is wiped first.
    tr '\r' '\n' <bar.txt | sed 's/\x1b\[K//g' >lines.txt
    grep -qa '^pf-train: step     50/1000000' lines.txt && ! grep -qa '.pf-train: ' lines.txt
    ok $? "a message does not run into it" "$(grep -a -m3 '.pf-train: ' lines.txt)"
    terminal none.txt --no-progress output_dir=none
    grep -qa 'stopped after' none.txt && ! grep -qa 'training \[' none.txt
    ok $? "--no-progress: none"
else
    skip "a bar on a terminal" "there is no script(1)"
fi
timeout -s TERM 2 "$PF_BIN/pf-train" config.json output_dir=pipe >out.txt 2>err.txt
grep -q 'stopped after' err.txt && ! grep -q "$(printf '\r')" err.txt
ok $? "no terminal: nothing is drawn"
widths=$(sed -n 's/ eta .*//p' err.txt | awk '{ print length($0) }' | sort -u | wc -l)
is "$widths" 1 "the lines of logged steps are aligned"
done_testing
