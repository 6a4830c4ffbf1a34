#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# onednn3.sh - pf with oneDNN 3.x, where Debian has 2.6: built against PyPI's wheels in a scratch build,
# then its unit test and the golden run of qwen3 with it.
#
# PF_ONEDNN3  a directory with include/dnnl.h and lib/libdnnl.so (default: the wheels, unpacked once
#             into build/onednn3/wheels)
cd "$PF_ROOT" || exit 4
. tests/tap.sh
version=2023.2.0
build=build/onednn3
wheels=$PF_ROOT/$build/wheels
prefix=${PF_ONEDNN3:-$wheels}

# A wheel's data/include and data/lib are what it would install.
fetch()
{
    local tmp
    tmp=$(mktemp -d) || return 1
    "$PF_PYTHON" -m pip download -q --disable-pip-version-check --no-deps --only-binary :all: -d "$tmp" \
        onednn-cpu-gomp==$version onednn-devel-cpu-gomp==$version >&2 &&
        for w in "$tmp"/*.whl; do "$PF_PYTHON" -m zipfile -e "$w" "$tmp/x" || return 1; done &&
        mkdir -p "$wheels" && cp -R "$tmp"/x/*.data/data/include "$tmp"/x/*.data/data/lib "$wheels"
    local status=$?
    rm -rf "$tmp"
    return $status
}

pf_make()
{
    make -j2 B=$build HAVE_DNNL=1 DNNL_CFLAGS="-I$prefix/include" \
        DNNL_LDLIBS="-L$prefix/lib -Wl,-rpath,$prefix/lib -ldnnl" "$@" >&2
}

[ -e "$prefix/include/dnnl.h" ] || [ -n "${PF_ONEDNN3:-}" ] || fetch
if [ ! -e "$prefix/include/dnnl.h" ] || [ ! -e "$prefix/lib/libdnnl.so" ]; then
    skip "oneDNN 3.x" "its wheels cannot be had from PyPI here"
    done_testing
fi

pf_make $build/bin/pf-train $build/bin/pf-inspect $build/tests/unit/dnnl $build/tests/golden/hf \
    $build/tests/kernels/all
ok $? "pf builds against oneDNN 3"
ldd $build/bin/pf-train 2>/dev/null | grep -q "$prefix/lib/libdnnl.so.3"
ok $? "pf-train is linked with it"
$build/bin/pf-inspect ops | grep -Eq '^gemm +F32 +dnnl '
ok $? "it serves GEMM in float32"

run()
{
    local name=$1 out
    shift
    out=$(PF_BIN=$PF_ROOT/$build/bin "$@" 2>&1)
    ok $? "$name: $(grep -c '^ok ' <<<"$out") claims hold" "$(grep '^not ok' <<<"$out")" "$(tail -n 5 <<<"$out")"
}
run "oneDNN's own unit test" $build/tests/unit/dnnl
run "every op against the reference" $build/tests/kernels/all
run "the golden run of qwen3" $build/tests/golden/hf qwen3
done_testing
