/* SPDX-License-Identifier: Apache-2.0 */
/* What pf-reshard prints: a few lines for people, a JSON document for programs, progress on stderr. */
#include "command.h"

#include <pf/error.h>
#include <pf/json.h>
#include <pf/str.h>
#include <pf/version.h>

#include <inttypes.h>
#include <stdio.h>

#define SCHEMA 1

void bar_update(void *context, enum pf_reshard_phase phase, uint64_t done, uint64_t total)
{
    static const char *const titles[] = {
        [PF_RESHARD_CHECK_SOURCE] = "checking the source",
        [PF_RESHARD_CHECK_FILES] = "checking what is there",
        [PF_RESHARD_COPY] = "copying",
        [PF_RESHARD_CHECK_RESULT] = "checking the result",
    };
    struct bar *const bar = context;

    if (!bar->begun || bar->phase != phase) {
        if (bar->begun) {
            pf_progress_finish(&bar->progress);
        }
        pf_progress_init(&bar->progress, titles[phase], PF_PROGRESS_BYTES, total, bar->enabled);
        bar->begun = true;
        bar->phase = phase;
    }
    pf_progress_update(&bar->progress, done);
}

/* JSON --------------------------------------------------------------------------------------------
 */

static void member_u64(struct pf_json_out *out, const char *key, uint64_t value)
{
    pf_json_out_key(out, key);
    pf_json_out_u64(out, value);
}

static void begin(struct pf_json_out *out, struct pf_str *text, const struct options *o, bool ok)
{
    pf_str_init(text);
    pf_json_out_init(out, text, 2);
    pf_json_out_object_begin(out);
    pf_json_out_member_i64(out, "schema", SCHEMA);
    pf_json_out_member_string(out, "program", "pf-reshard");
    pf_json_out_member_string(out, "version", pf_version_string());
    pf_json_out_member_bool(out, "ok", ok);
    pf_json_out_member_string(out, "source", o->src);
    pf_json_out_member_string(out, "destination", o->dst);
}

static int end(struct pf_json_out *out, struct pf_str *text)
{
    pf_json_out_object_end(out);
    const int err = pf_json_out_finish(out);

    if (!err) {
        puts(text->text);
    }
    pf_str_release(text);
    return err;
}

static void members(struct pf_json_out *out, const struct options *o,
                    const struct pf_reshard_report *r, int n_processes)
{
    pf_json_out_member_bool(out, "dry_run", o->dry_run);
    pf_json_out_member_bool(out, "weights_only", o->weights_only);
    pf_json_out_member_bool(out, "verified", o->verify && !o->dry_run);
    pf_json_out_member_i64(out, "step", r->step);
    pf_json_out_member_i64(out, "tensors", r->n_tensors);
    pf_json_out_member_i64(out, "pieces", r->n_pieces);
    pf_json_out_member_i64(out, "files", r->n_files);
    pf_json_out_member_i64(out, "files_kept", r->n_files_kept);
    member_u64(out, "begun_kept_bytes", r->bytes_kept);
    pf_json_out_member_i64(out, "weights_kept_float32", r->n_kept_fp32);
    member_u64(out, "read_bytes", r->bytes_read);
    member_u64(out, "reads", r->n_reads);
    member_u64(out, "written_bytes", r->bytes_written);
    member_u64(out, "target_bytes", r->target_bytes);
    member_u64(out, "max_memory_bytes", o->max_memory);
    member_u64(out, "peak_memory_bytes", r->peak_memory_bytes);
    member_u64(out, "window_bytes", r->window_bytes);
    pf_json_out_member_i64(out, "threads", r->threads);
    pf_json_out_member_i64(out, "processes", n_processes);
    pf_json_out_member_f64(out, "seconds", r->seconds);
}

static int print_json(const struct options *o, const char *layout,
                      const struct pf_reshard_report *r, int n_ranks, int n_processes)
{
    struct pf_json_out out;
    struct pf_str text;

    begin(&out, &text, o, true);
    pf_json_out_member_string(&out, "layout", layout);
    pf_json_out_member_i64(&out, "ranks", n_ranks);
    members(&out, o, r, n_processes);
    return end(&out, &text);
}

int print_failure(const struct options *o, int err)
{
    struct pf_json_out out;
    struct pf_str text;

    begin(&out, &text, o, false);
    pf_json_out_key(&out, "error");
    pf_json_out_object_begin(&out);
    pf_json_out_member_string(&out, "kind", pf_error_kind(err));
    pf_json_out_member_string(&out, "message", pf_error_message());
    pf_json_out_member_i64(&out, "exit", pf_error_exit_status(err));
    pf_json_out_object_end(&out);
    return end(&out, &text);
}

/* Text --------------------------------------------------------------------------------------------
 */

static void print_text(const struct options *o, const char *layout,
                       const struct pf_reshard_report *r, int n_ranks)
{
    char bytes[3][24];

    printf("layout        %s (%d rank%s)\n", layout, n_ranks, n_ranks == 1 ? "" : "s");
    printf("tensors       %" PRId64 " in %" PRId64 " pieces, %" PRId64 " files\n", r->n_tensors,
           r->n_pieces, r->n_files);
    printf("read          %s in %" PRIu64 " reads\n",
           pf_format_bytes((double)r->bytes_read, bytes[0]), r->n_reads);
    printf("written       %s\n", pf_format_bytes((double)r->bytes_written, bytes[1]));
    if (r->n_files_kept > 0) {
        printf("kept          %" PRId64 " files of an earlier run\n", r->n_files_kept);
    }
    if (r->n_kept_fp32 > 0) {
        printf("kept float32  %" PRId64 " weights\n", r->n_kept_fp32);
    }
    printf("peak memory   %s\n", pf_format_bytes((double)r->peak_memory_bytes, bytes[2]));
    if (o->dry_run) {
        printf("nothing was written\n");
    } else {
        printf("done          %.1f s%s\n", r->seconds, o->verify ? ", verified" : "");
    }
}

int print_result(const struct options *o, const struct setup *s,
                 const struct pf_reshard_report *report, int n_processes)
{
    const int n_ranks = pf_mesh_size(&s->table->mesh);
    struct pf_str layout;

    pf_str_init(&layout);
    int err = pf_parallel_print(&s->par, &layout);
    if (!err && o->shared.json) {
        err = print_json(o, layout.text, report, n_ranks, n_processes);
    } else if (!err && !o->shared.quiet) {
        print_text(o, layout.text, report, n_ranks);
    }
    pf_str_release(&layout);
    return err;
}
