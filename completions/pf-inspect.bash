# SPDX-License-Identifier: Apache-2.0
# bash completion of pf-inspect; made by scripts/make-completions.
_pf_inspect()
{
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
    local options='
        --rtol --atol --ulp --nan --weights-only --html --world --layout --schedule
        --micro-batches --costs --factors --svg --quiet -q --verbose -v --json --no-progress
        --version -V --help -h'
    local commands='show ls verify repair hash diff scan cat run ops env plan schedule'
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
complete -o filenames -F _pf_inspect pf-inspect
