/* SPDX-License-Identifier: Apache-2.0 */
/* ranks: 4 */
/* The traffic that a plan tells is that of a step: every group's counters move by just the plan's bytes. */
#include "train/train_internal.h"

#include <pf/json.h>
#include <pf/traffic.h>

#include "jobs.h"

#include <string.h>

/* Two key heads, so that at tp=4 two ranks have each. */
static const char config_text[] =
    "{\"model\":{\"model_type\":\"qwen3\",\"vocab_size\":80,\"hidden_size\":16,"
    "\"intermediate_size\":24,\"num_hidden_layers\":8,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":2,\"head_dim\":8,\"max_position_embeddings\":32,"
    "\"tie_word_embeddings\":true},\"from_scratch\":true,\"output_dir\":\"out\","
    "\"input_dir\":\"synthetic:markov?vocab=64&order=1&seed=3\",\"max_seq_length\":8,"
    "\"per_device_train_batch_size\":2,\"gradient_accumulation_steps\":4,\"max_steps\":60,"
    "\"learning_rate\":1e-2,\"save_steps\":-1,\"threads\":1}";

/* The group of a row on this rank. Key heads: neighbours by two, which training has made before. */
static struct pf_comm *comm_of(const struct pf_groups *g, enum pf_traffic_group group)
{
    static const int pairs[] = {0, 0, 1, 1};
    struct pf_comm *pair = NULL;

    switch (group) {
    case PF_TRAFFIC_TP:
        return g->tp;
    case PF_TRAFFIC_KEY_HEADS:
        return pf_comm_partition(world, pairs, "key_heads", &pair) == 0 ? pair : NULL;
    case PF_TRAFFIC_PP:
        return g->pp;
    case PF_TRAFFIC_ENDS:
        return g->ends;
    case PF_TRAFFIC_DP:
        return g->dense_grads;
    case PF_TRAFFIC_LOSS:
        return g->loss;
    case PF_TRAFFIC_DATA:
        return g->data;
    default:
        return g->world;
    }
}

/* A group's counters before a step, and what the plan adds to them. */
struct counted {
    struct pf_comm *comm;
    struct pf_comm_stats before;
    uint64_t planned[PF_COMM_KIND_COUNT];
};

static int read_group(const struct pf_json *group, const char *name, struct counted *c)
{
    int64_t n_ranks, value, sent = 0, told;
    char key[64];

    PF_TRY(pf_json_need_i64(group, "ranks", &n_ranks));
    if (n_ranks != pf_comm_size(c->comm)) {
        return pf_fail(PF_EDIFFER, "%s has %d ranks, not %lld", name, pf_comm_size(c->comm),
                       (long long)n_ranks);
    }
    for (int kind = 0; kind < PF_COMM_KIND_COUNT; kind++) {
        snprintf(key, sizeof key, "%s_bytes", pf_comm_kind_name((enum pf_comm_kind)kind));
        PF_TRY(pf_json_i64(group, key, 0, &value));
        c->planned[kind] += (uint64_t)value;
        sent += (int64_t)pf_comm_sent_bytes((enum pf_comm_kind)kind, (uint64_t)value, (int)n_ranks);
    }
    PF_TRY(pf_json_need_i64(group, "sent_bytes", &told));
    return told == sent ? 0 : pf_fail(PF_EDIFFER, "%s: not %lld bytes sent", name, (long long)told);
}

/* One entry for each communicator that the plan has rows of. Returns how many. */
static int read_plan(struct pf_trainer *t, struct counted *counted, int *n_out)
{
    char path[600];
    struct pf_json *doc = NULL;
    int n = 0;

    snprintf(path, sizeof path, "%s/plan-%d.json", scratch_dir, rank);
    FILE *const f = fopen(path, "w");
    int err = f ? pf_trainer_print_plan(t, true, f) : PF_EIO;
    if (f) {
        fclose(f);
    }
    err = err ? err : pf_json_parse_file(path, &doc);
    const struct pf_json *const stage =
        err ? NULL : pf_json_child(pf_json_get(doc, "traffic"), (size_t)t->groups.stage);
    for (int g = 0; g < PF_TRAFFIC_COUNT && !err; g++) {
        const char *const name = pf_traffic_name((enum pf_traffic_group)g);
        const struct pf_json *const group = pf_json_get(stage, name);
        struct pf_comm *const comm = group ? comm_of(&t->groups, (enum pf_traffic_group)g) : NULL;
        int at = 0;
        if (!group) {
            continue;
        }
        while (at < n && counted[at].comm != comm) {
            at++;
        }
        n += at == n;
        counted[at].comm = comm;
        err = comm ? read_group(group, name, &counted[at]) : pf_fail(PF_EDIFFER, "no %s", name);
    }
    pf_json_free(doc);
    *n_out = n;
    return err;
}

static int compare(const struct counted *c)
{
    struct pf_comm_stats now;

    pf_comm_stats(c->comm, &now);
    for (int kind = 0; kind < PF_COMM_KIND_COUNT; kind++) {
        const uint64_t bytes = now.bytes[kind] - c->before.bytes[kind];
        if (kind != PF_COMM_RECV && bytes != c->planned[kind]) {
            return pf_fail(PF_EDIFFER, "%s of '%s': planned %llu bytes, %llu went",
                           pf_comm_kind_name((enum pf_comm_kind)kind), pf_comm_name(c->comm),
                           (unsigned long long)c->planned[kind], (unsigned long long)bytes);
        }
    }
    return 0;
}

static int compare_step(struct pf_trainer *t)
{
    struct counted counted[PF_TRAFFIC_COUNT];
    struct step_result result;
    int n;

    memset(counted, 0, sizeof counted);
    PF_TRY(read_plan(t, counted, &n));
    for (int i = 0; i < n; i++) {
        pf_comm_stats(counted[i].comm, &counted[i].before);
    }
    PF_TRY(train_step(t, &result));
    for (int i = 0; i < n; i++) {
        PF_TRY(compare(&counted[i]));
    }
    return n > 0 ? 0 : pf_fail(PF_EDIFFER, "a plan without traffic");
}

static void check(int number, const char *layout)
{
    char words[600];
    struct pf_str_list list = {0};
    struct pf_config config = {0};
    struct pf_trainer *t = NULL;

    snprintf(words, sizeof words, "output_dir=%s %s", at("out-%d", number), layout);
    int err = pf_str_split(words, ' ', true, &list);
    err = err ? err
              : pf_config_read(at("config.json"), (const char *const *)list.items, (int)list.n,
                               &config);
    pf_str_list_release(&list);
    err = err ? err : pf_config_resolve(&config, pf_comm_size(world));
    err = err ? err : pf_trainer_new(&config, world, &t);
    err = err ? err : pf_trainer_build(t);
    err = err ? err : compare_step(t);
    all_ok(err == 0, "the traffic of a step is planned: %s", layout);
    pf_trainer_free(t);
    pf_config_release(&config);
}

#define TP "tensor_model_parallel_size="
#define PP "pipeline_model_parallel_size="
#define VPP "virtual_pipeline_model_parallel_size="
#define SP "sequence_parallel=true"

int main(int argc, char **argv)
{
    static const char *const layouts[] = {
        "seed=1",
        TP "4",
        TP "4 mp_async_allreduce=true dtype=bfloat16",
        TP "4 " SP,
        TP "2 " SP " sp_async_reduce_scatter=false freeze=[\"model.embed_tokens.weight\"]",
        TP "2 " SP " recompute_granularity=full recompute_num_layers=3",
        TP "4 " SP " recompute_granularity=full_attn",
        PP "4",
        PP "2 " VPP "2",
        PP "4 split_backward=true",
        PP "2 " TP "2 " SP " split_backward=true",
        PP "2 " TP "2 " VPP "2 best_unbalanced_scheduler=true",
        PP "2 " TP "2 pipeline_schedule_mode=FThenB recompute_granularity=full",
    };

    jobs_begin(argc, argv);
    if (rank == 0) {
        put_text(at("config.json"), config_text);
    }
    (void)pf_comm_barrier(world);
    for (int i = 0; i < (int)(sizeof layouts / sizeof layouts[0]); i++) {
        check(i, layouts[i]);
    }
    return jobs_end();
}
