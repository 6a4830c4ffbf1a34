#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The shell completions are those of today's options, commands and keys, and bash completes with them.
set -u
. "$PF_ROOT/tests/tap.sh"
"$PF_ROOT/scripts/make-completions" made >log.txt 2>&1
ok $? "completions are made" "$(tail -n 3 log.txt)"
diff -r made "$PF_ROOT/completions" >diff.txt 2>&1
ok $? "they are those of completions/ (else: make completions)" "$(head -n 5 diff.txt)"
for file in made/*.bash; do
    bash -n "$file" 2>err.txt
    ok $? "$(basename "$file") is bash" "$(cat err.txt)"
done

# complete PROGRAM WORD...: what bash offers for the last word, as one line.
complete_words()
{
    local program=$1 name=_${1//-/_}
    . "made/$program.bash"
    COMP_WORDS=("$@")
    COMP_CWORD=$(($# - 1))
    COMPREPLY=()
    "$name"
    echo "${COMPREPLY[*]}"
}
offers()
{
    local want=$1
    shift
    is "$(complete_words "$@" 2>&1)" "$want" "$*: $want"
}
touch run.json
mkdir out
offers "--plan" pf-train --pl
offers "run.json" pf-train r
offers "out" pf-train --stop o
offers "max_seq_length= max_steps=" pf-train run.json max_s
offers "lr_scheduler_type= lr_scheduler=" pf-train run.json max_steps = 3 lr_sch
offers "bfloat16" pf-train run.json dtype = b
offers "true false" pf-train run.json eval_only =
offers "out" pf-train run.json output_dir = o
offers "verify" pf-inspect ver
offers "run.json" pf-inspect show r
offers "--weights-only" pf-inspect diff --we
offers "--world" pf-reshard a b --wo
for shell in zsh fish; do
    if command -v $shell >/dev/null; then
        for file in made/*; do
            case $shell:$file in zsh:*/_* | fish:*.fish) $shell -n "$file" 2>err.txt ;; *) continue ;; esac
            ok $? "$(basename "$file") is $shell" "$(cat err.txt)"
        done
    else
        skip "completions of $shell" "there is no $shell"
    fi
done
done_testing
