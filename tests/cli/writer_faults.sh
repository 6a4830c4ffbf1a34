#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Faults put into the checkpoint writer, one at a time: the independent reader, which knows only
# pf-checkpoint(5), must notice each of them. A reader that passes everything proves nothing.
set -u

here=$PWD
reader=$PF_ROOT/scripts/read-checkpoint
writers="image job job_output write_manifest write_pf"
n=0

ok()
{
    n=$((n + 1))
    if [ "$1" = 0 ]; then echo "ok $n - $2"; else echo "not ok $n - $2"; fi
}

# Compile and link as the build did: the first line of its flags, the libraries again at the end.
read -r flags <"$PF_BUILD/flags"
libs=$(printf '%s\n' $flags | grep '^-l' | tr '\n' ' ')
# link PROGRAM SOURCE...: sources that stand in for those of the library
link()
{
    local program=$1
    shift
    # shellcheck disable=SC2086  # flags are words
    (cd "$PF_ROOT" && $flags -w -Ilib/ckpt -o "$here/$program" "$@" "$here/saver.o" \
        "$PF_BUILD/libpf.a" $libs) >"$here/$program.log" 2>&1
}
# shellcheck disable=SC2086
(cd "$PF_ROOT" && $flags -w -c -o "$here/saver.o" tests/cli/saver.c) || exit 4

link good && ./good good.out
ok $? "the writer as it is saves"
python3 "$reader" good.out/checkpoint-000007 good.out/checkpoint-000007 >good.txt 2>good.err
ok $? "and the reader accepts it"
if grep -q '^notice' good.err; then
    have_digest=0
    sed 's/^/# /' good.err
else
    have_digest=1
fi

# fault NAME WORD SED...: with the writer so changed the reader exits 1 or 3 and says WORD.
fault()
{
    local name=$1 word=$2 writer changed=()
    shift 2
    for writer in $writers; do
        sed "$@" "$PF_ROOT/lib/ckpt/$writer.c" >"$writer.c"
        cmp -s "$PF_ROOT/lib/ckpt/$writer.c" "$writer.c" || changed+=("$here/$writer.c")
    done
    rm -rf bad.out
    if [ ${#changed[@]} = 0 ] || ! link bad "${changed[@]}" || ! ./bad bad.out 2>bad.err; then
        sed 's/^/# /' bad.log bad.err 2>/dev/null | head -n 5
        ok 1 "$name: the changed writer saves"
        return
    fi
    if [ "$word" = digest ] && [ $have_digest = 0 ]; then
        n=$((n + 1))
        echo "ok $n - $name # SKIP no libxxhash for Python"
        return
    fi
    python3 "$reader" good.out/checkpoint-000007 bad.out/checkpoint-000007 >bad.txt 2>bad.err
    case $? in 1 | 3) grep -q -- "$word" bad.err ;; *) false ;; esac
    ok $? "$name: $(head -n 1 bad.err)"
}

fault "windows filled from the wrong end" 'different: weight' \
    -e 's/^#define WINDOW_BYTES .*/#define WINDOW_BYTES 64ul/' \
    -e 's/data + (a - e->offset)/data + (e->bytes - (b - a) - (a - e->offset))/'
fault "moments swapped" 'different: moment' \
    -e 's/job->live\[e->part->live\]/job->live[e->part->live + (tensor->role == PF_ROLE_MOMENT1) - (tensor->role == PF_ROLE_MOMENT2)]/' \
    -e 's/if (live \&\& i < image->n/if (0/'
fault "the first tensor left out of the manifest" 'no piece names' \
    -e 's/for (int64_t i = 0; i < n; i++)/for (int64_t i = files ? 0 : 1; i < n; i++)/' \
    -e 's/i > 0 ? ",/i > (files ? 0 : 1) ? ",/'
fault "a box shifted by one" 'a hole\|box\|twice' \
    -e 's/put_pair(j, piece->box.lo\[d\], piece->box.hi\[d\])/put_pair(j, piece->box.lo[d] + (d == 0), piece->box.hi[d] + (d == 0))/'
fault "a range that starts one late" 'master' \
    -e 's/put_pair(j, piece->range_lo, piece->range_hi)/put_pair(j, piece->range_lo + 1, piece->range_hi)/'
fault "BF16 called F16" 'dtype' \
    -e 's/pf_dtype_name(tensor->dtype)/pf_dtype_name(tensor->dtype == PF_DTYPE_BF16 ? PF_DTYPE_F16 : tensor->dtype)/'
fault "a shape transposed" 'box\|shape' \
    -e 's/tensor->shape\[d\]);/tensor->shape[tensor->n_dims - 1 - d]);/'
fault "a stale digest of a file" 'digest' -e '/pf_digest_update(o->digest, bytes/d'
fault "a stale digest of the manifest" 'digest' \
    -e 's/pf_digest_of(text->text, text->len)/pf_digest_of(text->text, text->len - 1)/'
fault "a wrong size of a file" 'size' -e 's/u64(j, file->bytes)/u64(j, file->bytes + 8)/'
fault "another step" 'different: step' -e 's/(long long)save->step);/(long long)save->step + 1);/'
fault "the trainer state lost" 'different: state' -e 's/"state", save->state_json/"state", NULL/'
fault "a whole tensor called a piece" 'entry name' \
    -e 's/if (is_whole(box, shape, range_lo, range_hi))/if (0)/'
fault "the predecessor misspelt" 'types' -e 's/previous\[0\] ? previous : NULL/"checkpoint-000001"/'
fault "a file that the manifest does not list" 'not those there' \
    -e 's/return pf_file_write_atomic(s->latest, line/(void)pf_file_write_atomic(pf_path_join(s->final, "latest"), line, (size_t)n); &/'

echo "1..$n"
