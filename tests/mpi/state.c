/* SPDX-License-Identifier: Apache-2.0 */
/* ranks: 4 */
/*
 * The state of a run under tensor and pipeline parallelism, without a step: what is drawn, loaded,
 * saved, resumed, exported and dumped is, to the bit, what one process makes of the same config.
 */
#include "train/train_internal.h"

#include <pf/json.h>

#include "jobs.h"

#include <signal.h>
#include <sys/resource.h>

/* A trainer that has its state, and nothing that computes ----------------------------------------- */

/* Words of a config besides output_dir; those of the layout in one text. */
struct run {
    const char *model, *out, *layout;
    const char *words[6];
};

static int read_config(const struct run *run, int n_ranks, struct pf_config *config)
{
    struct pf_str_list words = {0};
    char *const text = pf_asprintf("output_dir=%s model_name_or_path=%s %s", at("%s", run->out),
                                   run->model, run->layout);
    int err = text ? pf_str_split(text, ' ', true, &words) : PF_ENOMEM;

    for (int i = 0; i < 6 && run->words[i] && !err; i++) {
        err = pf_str_list_append(&words, run->words[i]);
    }
    err = err ? err
              : pf_config_read(at("config.json"), (const char *const *)words.items, (int)words.n,
                               config);
    pf_str_list_release(&words);
    pf_free(text);
    return err ? err : pf_config_resolve(config, n_ranks);
}

static int begin(const struct run *run, struct pf_comm *job, struct pf_config *config,
                 struct pf_trainer **trainer_out)
{
    PF_TRY(read_config(run, pf_comm_size(job), config));
    PF_TRY(pf_trainer_new(config, job, trainer_out));
    struct pf_trainer *const t = *trainer_out;
    PF_TRY(pf_trainer_check(t)); /* opens the data */
    PF_TRY(pf_layout_new(t->place, pf_comm_rank(job), &t->layout));
    PF_TRY(train_state_new(t));
    return train_state_fill(t);
}

static void end(struct pf_config *config, struct pf_trainer *t)
{
    pf_trainer_free(t);
    pf_config_release(config);
}

/* Values that follow from the place in the tensor alone, in what this rank has of a buffer. */
static void fill(struct pf_trainer *t, enum pf_role role, float *buffer, float salt)
{
    struct pf_local_shard parts[PF_TABLE_MAX_BOXES];
    int64_t where;

    for (int64_t row = 0; row < t->table->n_rows; row++) {
        const int n = pf_placement_local(t->place, row, role, pf_comm_rank(t->world), parts);
        for (int k = 0; k < n && !t->table->rows[row].frozen; k++) {
            for (int64_t i = parts[k].range_lo; i < parts[k].range_hi; i++) {
                (void)pf_box_run(&parts[k].box, t->table->rows[row].shape, i, &where);
                buffer[parts[k].at + i - parts[k].range_lo] =
                    salt + 0.37f * (float)row + 0.0013f * (float)where;
            }
        }
    }
}

/* Make a state, save and export it, and dump made-up gradients. */
static int write_all(const struct run *run, struct pf_comm *job)
{
    struct pf_config config = {0};
    struct pf_trainer *t = NULL;
    int err = begin(run, job, &config, &t);

    if (!err && !t->resume) {
        fill(t, PF_ROLE_MOMENT1, t->moment1, 1);
        fill(t, PF_ROLE_MOMENT2, t->moment2, 2);
        t->step = 3;
    }
    if (!err) {
        fill(t, PF_ROLE_WEIGHT, t->grads, 3);
        err = train_save(t);
    }
    err = err ? err : train_export(t, "hf");
    err = err ? err : train_dump_begin(t);
    err = err ? err : train_dump_grads(t, 1 / 7.0);
    err = err ? err : train_dump_end(t);
    end(&config, t);
    return err;
}

static int write_run(const struct run *run, int n_ranks)
{
    struct pf_comm *const job = job_of(n_ranks);

    return pf_comm_all_agree(world, job ? write_all(run, job) : 0, NULL);
}

/* Comparing --------------------------------------------------------------------------------------- */

static bool same_tensors(const char *a, const char *b)
{
    struct pf_ckpt *x = NULL, *y = NULL;
    bool same = pf_ckpt_open(at("%s", a), &x) == 0 && pf_ckpt_open(at("%s", b), &y) == 0 &&
                x->n_tensors > 0 && x->n_tensors == y->n_tensors &&
                strcmp(x->state_json, y->state_json) == 0;

    for (int64_t i = 0; same && i < x->n_tensors; i++) {
        char p[33] = "p", q[33] = "q";
        same = pf_ckpt_tensor_digest(x, &x->tensors[i], p) == 0 &&
               pf_ckpt_tensor_digest(y, &y->tensors[i], q) == 0 && strcmp(p, q) == 0;
        if (!same) {
            (void)pf_fail(PF_EDIFFER, "'%s' differs in role %s", x->tensors[i].name,
                          pf_role_name(x->tensors[i].role));
        }
    }
    pf_ckpt_free(x);
    pf_ckpt_free(y);
    return same;
}

static bool same_bytes(const char *a, const char *b)
{
    size_t n, m;
    char *const x = get(a, &n), *const y = get(b, &m);
    const bool same = n > 0 && n == m && memcmp(x, y, n) == 0;

    pf_free(x);
    pf_free(y);
    return same;
}

/* Rank 0 compares: the files are whole, and the same for all. */
static void compare(const char *a, const char *b, const char *what)
{
    const bool looks = rank == 0;

    all_ok(!looks || same_tensors(a, b), "%s: the checkpoint", what);
    all_ok(!looks || same_bytes(at("%s/hf/model.safetensors", a), at("%s/hf/model.safetensors", b)),
           "%s: the export", what);
    all_ok(!looks || same_bytes(at("%s/dump/step-000003/grads.safetensors", a),
                                at("%s/dump/step-000003/grads.safetensors", b)),
           "%s: the gradients", what);
}

/* Claims ------------------------------------------------------------------------------------------ */

#define TP "tensor_model_parallel_size="
#define PP "pipeline_model_parallel_size="
#define VPP "virtual_pipeline_model_parallel_size="
#define FIRST "num_layers_in_first_pipeline_stage="
#define LAST "num_layers_in_last_pipeline_stage="
#define SEGMENTS "pp_seg_method="

static const struct layout {
    const char *name, *words;
    int n_ranks;
} layouts[] = {
    {"tp=2", TP "2", 2},
    {"pp=2", PP "2 " SEGMENTS "0:4", 2},
    {"pp=2, vpp=2", PP "2 " VPP "2 " SEGMENTS "0:1:3:4", 2},
    {"tp=2, pp=2", TP "2 " PP "2 " SEGMENTS "0:2", 4},
    {"pp=3", PP "3 " SEGMENTS "0:1:3", 3},
    {"dp=2, pp=2", PP "2 " FIRST "1", 4},
    {"dp=2, tp=2", TP "2", 4},
    {"dp=2, pp=2, pp_first", PP "2 " LAST "2 hybrid_parallel_topo_order=pp_first", 4},
    {"tp=4", TP "4", 4},
};
enum { N_LAYOUTS = sizeof layouts / sizeof layouts[0] };

/* Each layout makes the same state as one process, and goes on from what another layout left. */
static void every_layout(const char *name, const char *model_path, const char *const words[3])
{
    char out[64], again[64], resume[300], one[64], what[160], model[300];

    snprintf(model, sizeof model, "%s", model_path);
    snprintf(one, sizeof one, "%s-one", name);
    struct run run = {model, one, "", {words[0], words[1], words[2]}};
    all_ok(write_run(&run, 1) == 0, "%s: one process", name);
    for (int i = 0; i < N_LAYOUTS; i++) {
        const struct layout *const from = &layouts[i], *const to = &layouts[(i + 3) % N_LAYOUTS];
        snprintf(out, sizeof out, "%s-%d", name, i);
        run = (struct run){model, out, from->words, {words[0], words[1], words[2]}};
        snprintf(what, sizeof what, "%s, %s", name, from->name);
        all_ok(write_run(&run, from->n_ranks) == 0, "%s: is written", what);
        compare(one, out, what);

        snprintf(again, sizeof again, "%s-%d-resumed", name, i);
        snprintf(resume, sizeof resume, "resume_from_checkpoint=%s",
                 at("%s/checkpoint-000003", out));
        run = (struct run){model, again, to->words, {words[0], words[1], words[2], resume}};
        snprintf(what, sizeof what, "%s, %s from %s", name, to->name, from->name);
        all_ok(write_run(&run, to->n_ranks) == 0, "%s: is resumed", what);
        compare(one, again, what);
    }
    snprintf(resume, sizeof resume, "resume_from_checkpoint=%s",
             at("%s-3/checkpoint-000003", name));
    snprintf(again, sizeof again, "%s-one-again", name);
    run = (struct run){model, again, "", {words[0], words[1], words[2], resume}};
    all_ok(write_run(&run, 1) == 0, "%s: one process resumes from %s", name, layouts[3].name);
    snprintf(what, sizeof what, "%s, one from many", name);
    compare(one, again, what);
}

/* Sizes that leave rests: 5 layers, a vocabulary that 2 and 4 ranks pad, fewer key heads than ranks. */
static const char llama[] = "{ \"model_type\": \"llama\", \"vocab_size\": 83, \"hidden_size\": 32,"
                            " \"intermediate_size\": 48, \"num_hidden_layers\": 5,"
                            " \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"
                            " \"pad_token_id\": 70, \"tie_word_embeddings\": true }";
static const char gpt2[] = "{ \"model_type\": \"gpt2\", \"vocab_size\": 83, \"n_embd\": 32,"
                           " \"n_layer\": 5, \"n_head\": 4, \"n_positions\": 16 }";

static void drawn(void)
{
    static const char *const f32[] = {"from_scratch=true", NULL, NULL};
    static const char *const bf16[] = {"from_scratch=true", "dtype=bfloat16",
                                       "freeze=[\"model.layers.1.*\", \"model.norm.weight\"]"};

    if (rank == 0) {
        put_text(at("llama.json"), llama);
        put_text(at("gpt2.json"), gpt2);
    }
    (void)pf_comm_barrier(world);
    every_layout("tied-llama-bf16", at("llama.json"), bf16);
    every_layout("gpt2", at("gpt2.json"), f32);
}

/* Weights of Hugging Face files go to their ranks, and come back as the same file. */
static void loaded(void)
{
    static const struct layout few[] = {{"tp=2", TP "2", 2},
                                        {"pp=2", PP "2 " FIRST "1", 2},
                                        {"tp=2, pp=2", TP "2 " PP "2 " LAST "1", 4},
                                        {"tp=4", TP "4", 4}};
    static const char *const folders[] = {"gpt2", "ernie4_5"};
    char out[64], model[128], file[160];

    for (int i = 0; i < 8; i++) {
        const struct layout *const to = &few[i % 4];
        snprintf(model, sizeof model, "tests/fixtures/hf/%s", folders[i / 4]);
        snprintf(out, sizeof out, "loaded-%d", i);
        snprintf(file, sizeof file, "%s/model.safetensors", model);
        const struct run run = {model, out, to->words, {"dtype=float32"}};
        all_ok(write_run(&run, to->n_ranks) == 0 &&
                   (rank != 0 || same_bytes(file, at("%s/hf/model.safetensors", out))),
               "%s, %s: is loaded and exported, every byte as it was", folders[i / 4], to->name);
    }
}

/* While the disk of rank 0 takes no more, nobody waits for it for ever, and nothing half is left. */
static int write_on_full_disk(const struct run *run, struct pf_comm *job)
{
    struct pf_config config = {0};
    struct pf_trainer *t = NULL;
    struct rlimit was;
    int err = begin(run, job, &config, &t);

    t->step = 3;
    (void)getrlimit(RLIMIT_FSIZE, &was);
    const struct rlimit full = {.rlim_cur = 5000, .rlim_max = was.rlim_max};
    if (!err && rank == 0 && setrlimit(RLIMIT_FSIZE, &full) != 0) {
        err = PF_EBUG;
    }
    const int exported = train_export(t, "hf");
    const int begun = train_dump_begin(t);
    const int dumped = train_dump_grads(t, 1);
    train_dump_abandon(t);
    (void)setrlimit(RLIMIT_FSIZE, &was);
    if (err || exported != PF_EIO || begun != 0 || dumped != PF_EIO) {
        err = pf_fail(PF_EDIFFER, "export %d, dump %d and %d", exported, begun, dumped);
    }
    if (pf_path_exists(at("%s/hf", run->out)) ||
        pf_path_exists(at("%s/dump/step-000003", run->out))) {
        err = pf_fail(PF_EDIFFER, "something is left");
    }
    err = err ? err : train_export(t, "hf");
    end(&config, t);
    return err;
}

static void full_disk(void)
{
    struct pf_comm *const job = job_of(4);
    char model[300];

    snprintf(model, sizeof model, "%s", at("llama.json"));
    const struct run run = {model, "full", TP "2 " PP "2 " SEGMENTS "0:3", {"from_scratch=true"}};
    (void)signal(SIGXFSZ, SIG_IGN);
    all_ok(write_on_full_disk(&run, job) == 0,
           "a disk that is full at rank 0 fails an export and a dump on all ranks, once");
}

/* Do the figures of each rank in a plan agree with what that rank allocates? */
static bool tells_each_rank(struct pf_trainer *t, const struct pf_json *plan)
{
    const struct pf_json *const ranks = pf_json_get(plan, "ranks");
    int64_t parameters = 0, gradients = 0, stage = 0;
    bool same = pf_json_n(ranks) == (size_t)pf_comm_size(t->world);

    for (int r = 0; same && r < pf_comm_size(t->world); r++) {
        const struct pf_json *const one = pf_json_child(ranks, (size_t)r);
        struct pf_layout *layout = NULL;
        int coord[PF_AXIS_COUNT];
        pf_mesh_coords(&t->table->mesh, r, coord);
        same = pf_layout_new(t->place, r, &layout) == 0 &&
               pf_json_need_i64(one, "parameters_bytes", &parameters) == 0 &&
               pf_json_need_i64(one, "gradients_bytes", &gradients) == 0 &&
               pf_json_need_i64(one, "pp", &stage) == 0 && stage == coord[PF_AXIS_PP] &&
               parameters == 4 * layout->param_elements && gradients == 4 * layout->grad_elements;
        pf_layout_free(layout);
    }
    return same;
}

static int print_plan(struct pf_trainer *t, bool json, char **text_out)
{
    size_t n = 0;
    FILE *const to = open_memstream(text_out, &n);
    const int err = to ? pf_trainer_print_plan(t, json, to) : PF_EIO;

    if (to) {
        fclose(to);
    }
    return err;
}

static int check_plan(const struct run *run, struct pf_comm *job)
{
    struct pf_config config = {0};
    struct pf_trainer *t = NULL;
    struct pf_json *plan = NULL;
    char *json = NULL, *text = NULL;
    int err = begin(run, job, &config, &t);

    err = err ? err : print_plan(t, true, &json);
    err = err ? err : print_plan(t, false, &text);
    err = err ? err : pf_json_parse_text(json, strlen(json), "plan", &plan);
    if (!err && !tells_each_rank(t, plan)) {
        err = pf_fail(PF_EDIFFER, "the figures of a rank are not its own");
    }
    if (!err && (!strstr(text, " stage 0: embedding, layer 0; layer 3\n") ||
                 !strstr(text, " stage 1: layers 1 to 2; layer 4, final norm, head\n") ||
                 !strstr(text, "memory     of each rank of          stage  0     stage  1\n"))) {
        err = pf_fail(PF_EDIFFER, "the text is another: %s", text);
    }
    free(json);
    free(text);
    pf_json_free(plan);
    end(&config, t);
    return err;
}

static void r31_the_plan_tells_every_rank(void)
{
    struct pf_comm *const job = job_of(4);
    char model[300];

    snprintf(model, sizeof model, "%s", at("llama.json"));
    const struct run run = {
        model, "plan", TP "2 " PP "2 " VPP "2 " SEGMENTS "0:1:3:4", {"from_scratch=true"}};
    all_ok(check_plan(&run, job) == 0,
           "r31_the_plan_tells_every_rank: stages, their layers, bytes of each rank");
}

int main(int argc, char **argv)
{
    jobs_begin(argc, argv);
    if (rank == 0) {
        put_text(at("config.json"),
                 "{ \"input_dir\": \"synthetic:markov?vocab=64&order=1\", \"max_steps\": 9,"
                 " \"max_seq_length\": 8, \"threads\": 1, \"per_device_train_batch_size\": 1,"
                 " \"global_train_batch_size\": 12, \"dump\": \"grads\", \"dump_steps\": [3] }");
    }
    (void)pf_comm_barrier(world);
    drawn();
    loaded();
    full_disk();
    r31_the_plan_tells_every_rank();
    return jobs_end();
}
