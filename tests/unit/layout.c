/* SPDX-License-Identifier: Apache-2.0 */
/* Where rows lie in a rank's fused buffers: without overlap, in the place that the placement names,
 * frozen rows and the accumulators of tied ones behind what is reduced. */
#include <pf/error.h>
#include <pf/layout.h>

#include "placed.h"
#include "tap.h"

#include <stdlib.h>

static const char *const folders[] = {"gpt2", "llama", "qwen2", "qwen3", "mixtral", "deepseek_v3"};

struct laid {
    struct placed p;
    struct pf_layout *layout;
    int rank;
};

static struct laid lay(const struct pf_model_spec *spec, const char *text, int rank,
                       const char *frozen)
{
    struct laid l = {.rank = rank};

    if (pf_parallel_parse(text, &l.p.par) != 0 ||
        pf_parallel_resolve(&l.p.par, spec, 0, &l.p.mesh) != 0 ||
        pf_table_new(spec, &l.p.mesh, &l.p.table) != 0 ||
        (frozen && pf_table_freeze(l.p.table, &frozen, 1, NULL) != 0) ||
        pf_placement_new(l.p.table, &l.p.par, &l.p.place) != 0 ||
        pf_layout_new(l.p.place, rank, &l.layout) != 0) {
        ok(false, "'%s' is laid out: %s", text, pf_error_message());
        exit(done());
    }
    return l;
}

static void forget(struct laid *l)
{
    pf_layout_free(l->layout);
    release(&l->p);
}

/* Mark what each row has of both buffers; a second mark, or one outside, is wrong. */
static int mark(unsigned char *taken, int64_t size, int64_t at, int64_t n)
{
    int wrong = at < 0 || at % PF_LAYOUT_ALIGN != 0 || at + n > size;

    for (int64_t i = 0; !wrong && i < n; i++) {
        wrong += taken[at + i]++;
    }
    return wrong;
}

static int count_wrong(const struct laid *l)
{
    const struct pf_layout *const y = l->layout;
    unsigned char *const params = calloc((size_t)y->param_elements + 1, 1),
                         *const grads = calloc((size_t)y->grad_elements + 1, 1);
    struct pf_local_shard parts[PF_TABLE_MAX_BOXES];
    int wrong = 0;

    for (int64_t i = 0; i < y->n_rows; i++) {
        const struct pf_tensor_row *const row = &l->p.table->rows[i];
        const int n = pf_placement_local(l->p.place, i, PF_ROLE_WEIGHT, l->rank, parts);
        if (row->tied_to >= 0) {
            continue;
        }
        wrong += (n == 0) != (y->param_at[i] < 0) || (n == 0) != (y->count[i] == 0);
        if (n > 0) {
            wrong += y->param_at[i] != parts[0].at;
            wrong += mark(params, y->param_elements, y->param_at[i], y->count[i]);
            wrong += (y->grad_at[i] < 0) != row->frozen;
        }
        if (y->grad_at[i] >= 0) {
            wrong += mark(grads, y->grad_reduced_elements, y->grad_at[i], y->count[i]);
        }
    }
    free(params);
    free(grads);
    return wrong;
}

static void rows_do_not_overlap(void)
{
    static const char *const layouts[] = {"", "tp=2", "tp=4,pp=2", "pp=2,vpp=2,sharding=2,stage=1",
                                          "tp=2,ep=4,sharding=4,stage=2"};

    for (size_t f = 0; f < sizeof folders / sizeof folders[0]; f++) {
        const struct pf_model_spec spec = small(folders[f], 2, 4);
        for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
            if (strstr(layouts[i], "ep=") && spec.moe.n_experts == 0) {
                continue;
            }
            int wrong = 0, n_ranks = 1;
            for (int rank = 0; rank < n_ranks; rank++) {
                struct laid l = lay(&spec, layouts[i], rank, "*.layers.1.*");
                n_ranks = pf_mesh_size(&l.p.mesh);
                wrong += count_wrong(&l);
                forget(&l);
            }
            ok(wrong == 0, "%s, '%s': %d ranks, every row where the placement has it, none overlap",
               folders[f], layouts[i], n_ranks);
        }
    }
}

static void frozen_rows_come_last(void)
{
    const struct pf_model_spec spec = small("llama", 2, 4);
    struct laid all = lay(&spec, "tp=2", 0, NULL), some = lay(&spec, "tp=2", 0, "*.layers.0.*");
    int64_t frozen = 0;
    int wrong = 0;

    for (int64_t i = 0; i < some.layout->n_rows; i++) {
        if (some.p.table->rows[i].frozen) {
            frozen +=
                (some.layout->count[i] + PF_LAYOUT_ALIGN - 1) / PF_LAYOUT_ALIGN * PF_LAYOUT_ALIGN;
            wrong += some.layout->param_at[i] < some.layout->grad_reduced_elements;
        }
    }
    ok(frozen > 0 && wrong == 0 &&
           some.layout->grad_reduced_elements == all.layout->grad_reduced_elements - frozen &&
           some.layout->param_elements == all.layout->param_elements,
       "what is frozen lies behind, and has no gradient");
    forget(&all);
    forget(&some);
}

/* The row of the embedding that the head uses, and the head's. */
static void tied_rows(void)
{
    const struct pf_model_spec spec = small("qwen2", 2, 4);
    struct laid one = lay(&spec, "tp=2", 1, NULL), first = lay(&spec, "pp=2", 0, NULL),
                last = lay(&spec, "pp=2", 1, NULL);
    const int64_t head = one.layout->n_rows - 1;
    const int embed = one.p.table->rows[head].tied_to;

    ok(embed >= 0 && one.layout->param_at[head] == one.layout->param_at[embed] &&
           one.layout->grad_at[head] == one.layout->grad_reduced_elements &&
           one.layout->count[head] == 6 * spec.hidden,
       "a tied head uses the embedding's storage, and has an accumulator behind");
    ok(first.layout->param_at[head] == -1 && first.layout->grad_at[head] == -1 &&
           first.layout->grad_at[embed] == 0 &&
           first.layout->grad_elements == first.layout->grad_reduced_elements,
       "the first of two stages has the embedding's use");
    ok(last.layout->param_at[head] == last.layout->param_at[embed] &&
           last.layout->grad_at[head] == last.layout->grad_at[embed] &&
           last.layout->param_at[embed] == first.layout->param_at[embed] &&
           last.layout->grad_elements == last.layout->grad_reduced_elements,
       "the last has the head's, at the same place of its own buffers");
    forget(&one);
    forget(&first);
    forget(&last);
}

int main(void)
{
    rows_do_not_overlap();
    frozen_rows_come_last();
    tied_rows();
    return done();
}
