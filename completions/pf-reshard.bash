# SPDX-License-Identifier: Apache-2.0
# bash completion of pf-reshard; made by scripts/make-completions.
_pf_reshard()
{
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
    local options='
        --to --config --world --weights-only --dtype --max-memory --threads --dry-run --resume
        --verify --compress --quiet -q --verbose -v --json --no-progress --version -V --help -h'
    if [[ $cur == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$cur")
        return
    fi
    mapfile -t COMPREPLY < <(compgen -f -- "$cur")
}
complete -o filenames -F _pf_reshard pf-reshard
