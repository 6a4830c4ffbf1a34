# SPDX-License-Identifier: Apache-2.0
# bash completion of pf-bench; made by scripts/make-completions.
_pf_bench()
{
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
    local options='
        --device --dtype --shape --model --against --kernel --threads --bytes --dir --steps
        --warmup --repeat --seconds --baseline --max-slowdown --min-ratio --force --list
        --markdown --quiet -q --verbose -v --json --no-progress --version -V --help -h'
    local commands='ops step compare ckpt'
    if [[ $cur == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$cur")
        return
    fi
    if [ "$COMP_CWORD" = 1 ] && [[ $cur != */* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$commands" -- "$cur")
        return
    fi
    mapfile -t COMPREPLY < <(compgen -f -- "$cur")
}
complete -o filenames -F _pf_bench pf-bench
