#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What every program does with --help, --version and mistakes on the command line: exit statuses, what is said
# on stdout and on stderr, the same everywhere.
set -u
. "$PF_ROOT/tests/tap.sh"

# quiet FILE: holds nothing
quiet()
{
    [ ! -s "$1" ]
}

# gives TOOL STATUS ARGS...: leaves stdout and stderr in files of these names.
gives()
{
    local tool=$1 want=$2 got
    shift 2
    "$PF_BIN/$tool" "$@" >stdout 2>stderr </dev/null
    got=$?
    is $got "$want" "$tool $*: exit $want"
}

# misused TOOL REGEX ARGS...: exit 2, nothing on stdout, one line on stderr that points to --help.
misused()
{
    local tool=$1 regex=$2
    shift 2
    gives "$tool" 2 "$@"
    quiet stdout && [ "$(wc -l <stderr)" = 1 ] && grep -qE "^$tool: $regex.*--help" stderr
    ok $? "$tool $*: one line, and where help is" "$(cat stdout stderr)"
}

check_tool()
{
    local tool=$1 option
    for option in --help -h; do
        gives "$tool" 0 $option
        quiet stderr && head -n 1 stdout | grep -q "^usage: $tool "
        ok $? "$tool $option: usage on stdout, nothing on stderr" "$(cat stderr)"
        cp stdout help$option
    done
    cmp -s help--help help-h
    ok $? "$tool: -h and --help say the same"
    for option in --quiet --verbose --json --no-progress --version --help; do
        grep -qE "^ .*$option( |$)" stdout || break
    done
    ok $? "$tool --help lists the options that every program has" "$option is missing"
    is "$(awk 'length > 100' stdout)" "" "$tool --help: lines of at most 100 columns"

    for option in --version -V; do
        gives "$tool" 0 $option
        quiet stderr && grep -qxE "$tool [0-9]+\.[0-9]+\.[0-9]+" stdout && [ "$(wc -l <stdout)" = 1 ]
        ok $? "$tool $option: name and version, one line on stdout" "$(cat stdout stderr)"
    done
    cp stdout version
    gives "$tool" 0 --version -v
    quiet stderr && head -n 1 stdout | cmp -s - version && grep -q compiler stdout && grep -q MPI stdout
    ok $? "$tool --version -v: the same line, then features and compiler" "$(cat stdout stderr)"

    misused "$tool" "unknown option '--no-such-thing'" --no-such-thing
    misused "$tool" "unknown option '--verison'; did you mean '--version'\?" --verison
    misused "$tool" "unknown option '-Z'" -Z
    case $tool in
    pf-bench) misused "$tool" "option '--json' needs a value" --json ;; # the name of a file
    *) misused "$tool" "option '--json' takes no value" --json=yes ;;
    esac

    if [ -e /dev/full ]; then
        "$PF_BIN/$tool" --help >/dev/full 2>stderr
        is $? 4 "$tool: help that cannot be written is exit 4"
        grep -q "^$tool: cannot write standard output: No space left on device" stderr
        ok $? "$tool: and says so" "$(cat stderr)"
    else
        skip "$tool: help that cannot be written" "there is no /dev/full"
    fi
    "$PF_BIN/$tool" --help 2>stderr | : || :
    quiet stderr
    ok $? "$tool: a reader that goes away is no matter for a message" "$(cat stderr)"
}

for source in "$PF_ROOT"/bin/pf-*.c; do
    check_tool "$(basename "$source" .c)"
done

misused pf-train "give a config"
misused pf-train "option '--stop' needs a value" --stop
misused pf-train "--stop takes no config" --stop out config.json
misused pf-inspect "give a command"
misused pf-bench "give a command"
misused pf-reshard "give a source and a destination"
misused pf-reshard "give a source and a destination" a
done_testing
