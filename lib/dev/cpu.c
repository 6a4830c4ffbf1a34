/* SPDX-License-Identifier: Apache-2.0 */
/* cpu.c - the device that is always there. Its stream is the calling thread. */
#include "dev_internal.h"

#include <pf/error.h>
#include <pf/mem.h>

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

static int cpu_probe(void)
{
    return 0;
}

static int cpu_open(struct pf_dev **dev_out)
{
    struct pf_dev *dev = pf_alloc(sizeof *dev);

    if (!dev) {
        return PF_ENOMEM;
    }
    dev->ops = &pf_dev_cpu;
    *dev_out = dev;
    return 0;
}

static int cpu_close(struct pf_dev *dev)
{
    pf_free(dev);
    return 0;
}

static int cpu_mem_alloc(struct pf_dev *dev, size_t bytes, void **block_out)
{
    (void)dev;
    void *block = pf_alloc(bytes);
    if (!block) {
        return PF_ENOMEM;
    }
    *block_out = block;
    return 0;
}

static int cpu_mem_free(struct pf_dev *dev, void *block)
{
    (void)dev;
    pf_free(block);
    return 0;
}

static int cpu_mem_copy(struct pf_dev *dev, void *dst, const void *src, size_t bytes,
                        enum pf_dev_copy_kind kind)
{
    (void)dev;
    (void)kind; /* the host is the device */
    memcpy(dst, src, bytes);
    return 0;
}

static int cpu_mem_set(struct pf_dev *dev, void *dst, int byte, size_t bytes)
{
    (void)dev;
    memset(dst, byte, bytes);
    return 0;
}

static int cpu_stream_sync(struct pf_dev *dev)
{
    (void)dev;
    return 0;
}

const struct pf_dev_ops pf_dev_cpu = {
    .name = "cpu",
    .probe = cpu_probe,
    .open = cpu_open,
    .close = cpu_close,
    .mem_alloc = cpu_mem_alloc,
    .mem_free = cpu_mem_free,
    .mem_copy = cpu_mem_copy,
    .mem_set = cpu_mem_set,
    .stream_sync = cpu_stream_sync,
};

/* The processor -------------------------------------------------------------------------------- */

static void append_word(char *text, size_t bytes, const char *word, bool wanted)
{
    const size_t used = strlen(text);

    if (wanted) {
        (void)snprintf(text + used, bytes - used, "%s%s", used ? " " : "", word);
    }
}

static void list_isa(char *text, size_t bytes)
{
    text[0] = '\0';
#if defined(__x86_64__)
    /* The builtin wants a literal, so a loop over names cannot replace these lines. */
#define LIST(word) append_word(text, bytes, word, __builtin_cpu_supports(word) != 0)
    __builtin_cpu_init();
    LIST("sse4.2");
    LIST("avx");
    LIST("avx2");
    LIST("fma");
    LIST("f16c");
    LIST("avx512f");
    LIST("avx512bw");
    LIST("avx512vl");
    LIST("avx512dq");
    LIST("avx512vnni");
    LIST("avx512bf16");
#undef LIST
#else
    (void)append_word;
    (void)bytes;
#endif
}

/* The first "model name" of /proc/cpuinfo, without its blanks around. */
static void read_model(char *model, size_t bytes)
{
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[256];

    (void)snprintf(model, bytes, "unknown");
    while (file && fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon) {
            const char *name = colon + 1 + strspn(colon + 1, " \t");
            (void)snprintf(model, bytes, "%.*s", (int)strcspn(name, "\n"), name);
            break;
        }
    }
    if (file) {
        (void)fclose(file);
    }
}

/* The mask may need more room than cpu_set_t has on very large machines. */
static int count_cpus(int *n_out)
{
    for (int room = CPU_SETSIZE; room <= 1 << 20; room *= 2) {
        const size_t bytes = CPU_ALLOC_SIZE(room);
        cpu_set_t *mask = CPU_ALLOC(room);
        if (!mask) {
            return pf_fail(PF_ENOMEM, "out of memory for the CPU mask");
        }
        const int failed = sched_getaffinity(0, bytes, mask);
        const int n = failed ? 0 : CPU_COUNT_S(bytes, mask);
        CPU_FREE(mask);
        if (!failed) {
            *n_out = n > 0 ? n : 1;
            return 0;
        }
        if (errno != EINVAL) {
            break;
        }
    }
    return pf_fail_errno(PF_EIO, "cannot read the CPU mask");
}

int pf_cpu_info(struct pf_cpu_info *info_out)
{
    struct pf_cpu_info info;

    PF_TRY(count_cpus(&info.n_cpus));
    list_isa(info.isa, sizeof info.isa);
    read_model(info.model, sizeof info.model);
    *info_out = info;
    return 0;
}
