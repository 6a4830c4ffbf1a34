/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.jsonl (pf-metrics(5), schema 1), TensorBoard's event files, and one aligned line a logged
 * step on stderr. */
#include "train_internal.h"

#include <pf/error.h>
#include <pf/json.h>
#include <pf/log.h>
#include <pf/mem.h>
#include <pf/time.h>

#include <errno.h>
#include <string.h>

/* Is this a line of metrics.jsonl? Then *step_out is its step, or -1 where it has none. */
static bool read_line(const char *line, size_t len, int64_t *step_out)
{
    struct pf_json *doc = NULL;
    const bool good = pf_json_parse_text(line, len, "metrics.jsonl", &doc) == 0 &&
                      pf_json_expect(doc, PF_JSON_OBJECT) == 0 &&
                      pf_json_i64(doc, "step", -1, step_out) == 0;

    pf_error_clear();
    pf_json_free(doc);
    return good;
}

/* Lines that a resume keeps. */
struct kept {
    struct pf_str lines; /* the good ones */
    size_t end;          /* in the file, of the last of them */
    int64_t n_bad;       /* lines before it that are none */
};

/* A resume drops the lines of steps that will run again: all from the first such line on. A last
 * line without its end, from a killed run, goes too, and what a crash of the system left. */
static int collect(const char *text, size_t len, int64_t last, struct kept *kept)
{
    int64_t n_bad = 0;

    for (size_t at = 0, next; at < len; at = next) {
        const char *const end = memchr(text + at, '\n', len - at);
        int64_t step = -1;
        if (!end) {
            break;
        }
        next = (size_t)(end - text) + 1;
        if (!read_line(text + at, next - at - 1, &step)) {
            n_bad++;
            continue;
        }
        if (step > last) {
            break;
        }
        PF_TRY(pf_str_append_bytes(&kept->lines, text + at, next - at));
        kept->end = next;
        kept->n_bad = n_bad;
    }
    return 0;
}

/* Cut the file of the run that is resumed; a lost one is begun anew. */
static int keep_until(const char *path, int64_t step, uint64_t *bytes_out)
{
    struct kept kept = {.end = 0};
    char *text = NULL;
    size_t len = 0;
    int err = 0;

    *bytes_out = 0;
    if (!pf_path_exists(path)) {
        return 0;
    }
    pf_str_init(&kept.lines);
    PF_TRY_GOTO(pf_file_read_all(path, 0, &text, &len), out);
    PF_TRY_GOTO(collect(text, len, step, &kept), out);
    *bytes_out = kept.end;
    if (kept.n_bad > 0) {
        pf_log_warn0("train", "'%s' had %lld damaged lines, which are dropped", path,
                     (long long)kept.n_bad);
        PF_TRY_GOTO(pf_file_write_atomic(path, kept.lines.text, kept.lines.len), out);
        *bytes_out = kept.lines.len;
    }
out:
    pf_str_release(&kept.lines);
    pf_free(text);
    return err;
}

/* Does a file hold the line of a step, or of an evaluation? */
static int holds_steps(const char *path, bool *holds_out)
{
    struct kept kept = {.end = 0};
    char *text = NULL;
    size_t len = 0;
    int err;

    pf_str_init(&kept.lines);
    PF_TRY_GOTO(pf_file_read_all(path, 0, &text, &len), out);
    PF_TRY_GOTO(collect(text, len, -1, &kept), out);
    *holds_out = kept.end < len && memchr(text + kept.end, '\n', len - kept.end);
out:
    pf_str_release(&kept.lines);
    pf_free(text);
    return err;
}

/* A fresh start where a run has been that saved nothing: what that one measured is all that there is
 * of it, so its lines move to the first free name. */
static int set_aside(const char *dir, const char *path)
{
    bool holds = false;
    char *to = NULL;
    int err = 0;

    if (pf_path_is_file(path)) {
        PF_TRY(holds_steps(path, &holds));
    }
    for (int i = 1; holds && !to && !err; i++) {
        to = pf_asprintf("%s/metrics-%d.jsonl", dir, i);
        err = to ? 0 : PF_ENOMEM;
        if (to && pf_path_exists(to)) {
            pf_free(to);
            to = NULL;
        }
    }
    if (to) {
        err = pf_rename_durable(path, to);
    }
    if (to && !err) {
        pf_log_info0(NULL, "the lines of an earlier run are kept as '%s'", to);
    }
    pf_free(to);
    return err;
}

/* A resume goes on in a new file, which takes back what older ones say of the steps to come; a fresh
 * start begins as metrics.jsonl does, with nothing. */
static int open_tensorboard(struct pf_trainer *t)
{
    char *const dir = pf_path_join(t->config->output_dir, "tb");
    int err = dir ? 0 : PF_ENOMEM;

    if (!err && !t->resume) {
        err = pf_tfevents_clean(dir);
    }
    if (!err) {
        err = pf_tfevents_open(dir, t->resume ? t->step + 1 : 0, &t->metrics.events);
    }
    pf_free(dir);
    return err;
}

int train_metrics_open(struct pf_trainer *t)
{
    struct metrics *const m = &t->metrics;
    uint64_t keep = 0;

    pf_str_init(&m->line);
    if (pf_comm_rank(t->world) != 0) {
        return 0;
    }
    char *const path = pf_path_join(t->config->output_dir, "metrics.jsonl");
    if (!path) {
        return PF_ENOMEM;
    }
    int err = pf_file_clean_aside(path);
    if (!err) {
        err = t->resume ? keep_until(path, t->step, &keep) : set_aside(t->config->output_dir, path);
    }
    if (!err) {
        err = pf_line_file_open(path, keep, &m->file);
    }
    m->enabled = err == 0;
    pf_free(path);
    return err ? err : open_tensorboard(t);
}

void train_metrics_close(struct pf_trainer *t)
{
    pf_progress_clear(&t->metrics.progress);
    if (t->metrics.enabled) {
        pf_line_file_close(&t->metrics.file);
        t->metrics.enabled = false;
    }
    pf_tfevents_close(t->metrics.events);
    t->metrics.events = NULL;
    pf_str_release(&t->metrics.line);
}

static struct pf_json_out line_begin(struct pf_trainer *t)
{
    struct pf_json_out out;

    pf_progress_clear(&t->metrics.progress); /* a line for people follows */
    pf_str_clear(&t->metrics.line);
    pf_json_out_init(&out, &t->metrics.line, 0);
    pf_json_out_object_begin(&out);
    return out;
}

/* The line for --json as well. Nobody may read it any more ("| head -1"): that is no reason to end a
 * run whose record is in metrics.jsonl. The stream then leads nowhere, so that what it still holds
 * cannot fail at the end. A disk that is full is another matter. */
static int copy_line(struct metrics *m)
{
    if (!m->copy || (fputs(m->line.text, m->copy) >= 0 && fflush(m->copy) == 0)) {
        return 0;
    }
    const FILE *const nowhere = errno == EPIPE ? freopen("/dev/null", "w", m->copy) : NULL;
    if (!nowhere) {
        return pf_fail_errno(PF_EIO, "cannot write metrics to the output");
    }
    m->copy = NULL;
    pf_log_warn0("train", "nobody reads the output any more: the lines go to metrics.jsonl alone");
    return 0;
}

static int line_end(struct pf_trainer *t, struct pf_json_out *out)
{
    pf_json_out_object_end(out);
    PF_TRY(pf_json_out_finish(out));
    PF_TRY(pf_str_append_char(&t->metrics.line, '\n'));
    PF_TRY(pf_line_file_add(&t->metrics.file, t->metrics.line.text));
    return copy_line(&t->metrics);
}

void pf_trainer_show_progress(struct pf_trainer *trainer)
{
    trainer->metrics.shows_progress = true;
}

void train_metrics_progress(struct pf_trainer *t)
{
    if (t->metrics.enabled) {
        pf_progress_update(&t->metrics.progress, (uint64_t)(t->step - t->metrics.first_step));
    }
}

/* The last twenty steps or so count, with what lies between them: evaluations and saves. */
#define PACE_STEPS 20

void train_metrics_pace(struct pf_trainer *t)
{
    struct metrics *const m = &t->metrics;
    const double now = pf_time_monotonic();
    const int64_t n = m->n_paced < PACE_STEPS ? ++m->n_paced : PACE_STEPS;

    m->pace += (now - m->paced_at - m->pace) / (double)n;
    m->paced_at = now;
}

void pf_trainer_copy_metrics(struct pf_trainer *trainer, FILE *to)
{
    trainer->metrics.copy = to;
}

static int64_t n_parameters(const struct pf_trainer *t)
{
    int64_t n = 0;

    for (int64_t i = 0; i < t->table->n_rows; i++) {
        n += t->table->rows[i].tied_to < 0 ? pf_tensor_row_count(&t->table->rows[i]) : 0;
    }
    return n;
}

int train_metrics_start(struct pf_trainer *t)
{
    if (!t->metrics.enabled) {
        return 0;
    }
    t->metrics.first_step = t->step;
    t->metrics.paced_at = pf_time_monotonic();
    pf_progress_init(&t->metrics.progress, "training", PF_PROGRESS_COUNT,
                     (uint64_t)(t->total_steps - t->step),
                     t->metrics.shows_progress && !t->config->eval_only);
    struct pf_json_out out = line_begin(t);
    pf_json_out_member_string(&out, "event", "start");
    pf_json_out_member_i64(&out, "schema", 1);
    pf_json_out_member_i64(&out, "world_size", pf_comm_size(t->world));
    pf_json_out_key(&out, "mesh");
    pf_parallel_json(&t->par, &out);
    pf_json_out_member_i64(&out, "parameters", n_parameters(t));
    pf_json_out_member_i64(&out, "total_steps", t->total_steps);
    pf_json_out_member_i64(&out, "global_batch_sequences", t->config->global_train_batch_size);
    pf_json_out_key(&out, "data_entropy");
    pf_json_out_f64(&out, pf_data_entropy(t->data) >= 0 ? pf_data_entropy(t->data) : 0.0 / 0.0);
    pf_json_out_key(&out, "resumed_from");
    if (t->resume) {
        pf_json_out_i64(&out, t->step);
    } else {
        pf_json_out_null(&out);
    }
    return line_end(t, &out);
}

double train_mfu(struct pf_trainer *t, double seconds)
{
    const double flops = pf_model_step_flops(&t->spec, t->config->global_train_batch_size,
                                             t->config->max_seq_length);
    const double rate = flops / seconds / pf_comm_size(t->world);

    if (t->peak_flops > 0 && rate > t->peak_flops) {
        /* Others used the CPUs while the peak was measured: this is the better measurement. */
        t->peak_flops = rate;
    }
    return t->peak_flops > 0 ? rate / t->peak_flops : 0;
}

int train_metrics_step(struct pf_trainer *t, const struct step_result *r)
{
    const struct pf_config *const c = t->config;
    const double rate = (double)r->tokens / r->seconds, mfu = train_mfu(t, r->seconds);

    if (!t->metrics.enabled) {
        return 0;
    }
    struct pf_json_out out = line_begin(t);
    pf_json_out_member_i64(&out, "step", t->step);
    pf_json_out_member_f64(&out, "loss", r->loss);
    pf_json_out_member_f64(&out, "grad_norm", r->grad_norm);
    pf_json_out_member_f64(&out, "learning_rate", r->learning_rate);
    if (c->dtype == PF_DTYPE_F16) {
        pf_json_out_member_f64(&out, "loss_scale", t->loss_scale);
    }
    pf_json_out_member_i64(&out, "tokens", r->tokens);
    pf_json_out_member_f64(&out, "tokens_per_second", rate);
    pf_json_out_member_f64(&out, "step_seconds", r->seconds);
    pf_json_out_member_f64(&out, "mfu", mfu);
    pf_json_out_member_i64(&out, "peak_memory_bytes", r->peak_bytes);
    PF_TRY(line_end(t, &out));
    const struct pf_tfevents_scalar scalars[] = {{"loss", r->loss},
                                                 {"grad_norm", r->grad_norm},
                                                 {"learning_rate", r->learning_rate},
                                                 {"tokens_per_second", rate},
                                                 {"mfu", mfu}};
    PF_TRY(pf_tfevents_add(t->metrics.events, t->step, scalars, sizeof scalars / sizeof *scalars));

    const double left = (double)(t->total_steps - t->step) * t->metrics.pace;
    pf_log_info0(NULL,
                 "step %6lld/%lld  loss %8.5f  norm %8.4f  lr %.3e  %8.0f tok/s  mfu %4.1f%%  eta "
                 "%lld:%02lld:%02lld",
                 (long long)t->step, (long long)t->total_steps, r->loss, r->grad_norm,
                 r->learning_rate, rate, 100 * mfu, (long long)left / 3600,
                 (long long)left / 60 % 60, (long long)left % 60);
    return 0;
}

int train_metrics_eval(struct pf_trainer *t, double loss, int64_t tokens, double seconds)
{
    const double bits = loss / 0.69314718055994530942;

    if (!t->metrics.enabled) {
        return 0;
    }
    struct pf_json_out out = line_begin(t);
    pf_json_out_member_string(&out, "event", "eval");
    pf_json_out_member_i64(&out, "step", t->step);
    pf_json_out_member_f64(&out, "loss", loss);
    pf_json_out_member_f64(&out, "bits_per_token", bits);
    pf_json_out_member_i64(&out, "tokens", tokens);
    pf_json_out_member_f64(&out, "seconds", seconds);
    PF_TRY(line_end(t, &out));
    const struct pf_tfevents_scalar scalar = {"eval_loss", loss};
    PF_TRY(pf_tfevents_add(t->metrics.events, t->step, &scalar, 1));
    pf_log_info0(NULL, "eval at step %lld  loss %.5f  %.4f bits a token over %lld tokens",
                 (long long)t->step, loss, bits, (long long)tokens);
    return 0;
}

int train_metrics_sample(struct pf_trainer *t, const char *prompt, const char *text,
                         int64_t n_tokens, double seconds)
{
    if (!t->metrics.enabled) {
        return 0;
    }
    struct pf_json_out out = line_begin(t);
    pf_json_out_member_string(&out, "event", "sample");
    pf_json_out_member_i64(&out, "step", t->step);
    pf_json_out_member_string(&out, "prompt", prompt);
    pf_json_out_member_string(&out, "text", text);
    pf_json_out_member_i64(&out, "tokens", n_tokens);
    pf_json_out_member_f64(&out, "temperature", t->config->sample_temperature);
    pf_json_out_member_f64(&out, "seconds", seconds);
    return line_end(t, &out);
}

int train_metrics_save(struct pf_trainer *t, double seconds, uint64_t bytes)
{
    if (!t->metrics.enabled) {
        return 0;
    }
    struct pf_json_out out = line_begin(t);
    pf_json_out_member_string(&out, "event", "save");
    pf_json_out_member_i64(&out, "step", t->step);
    pf_json_out_member_f64(&out, "seconds", seconds);
    pf_json_out_member_f64(&out, "stall_seconds", seconds);
    pf_json_out_member_i64(&out, "bytes", (int64_t)bytes);
    PF_TRY(line_end(t, &out));
    pf_log_info0(NULL, "saved checkpoint-%06lld  %.1f MB in %.2f s", (long long)t->step,
                 (double)bytes / 1e6, seconds);
    return 0;
}

int train_metrics_event(struct pf_trainer *t, const char *event, const char *key, const char *text)
{
    if (!t->metrics.enabled) {
        return 0;
    }
    struct pf_json_out out = line_begin(t);
    pf_json_out_member_string(&out, "event", event);
    pf_json_out_member_i64(&out, "step", t->step);
    pf_json_out_member_string(&out, key, text);
    return line_end(t, &out);
}
