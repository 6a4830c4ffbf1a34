/* SPDX-License-Identifier: Apache-2.0 */
/* The environment of a run: processor, CPUs, memory, pages, clocks, container. */
#include "environment_internal.h"

#include <pf/dev.h>
#include <pf/error.h>
#include <pf/mem.h>
#include <pf/ops.h>
#include <pf/str.h>

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The processor --------------------------------------------------------------------------------- */

/* Does the line "flags" of /proc/cpuinfo hold this word? */
static bool has_flag(const char *cpuinfo, const char *flag)
{
    const char *at = cpuinfo ? strstr(cpuinfo, "\nflags") : NULL;
    const char *const end = at ? strchr(at + 1, '\n') : NULL;
    const size_t len = strlen(flag);

    while (at && (at = strstr(at + 1, flag)) && (!end || at < end)) {
        if (at[-1] == ' ' && (at[len] == ' ' || at[len] == '\n' || at[len] == '\0')) {
            return true;
        }
    }
    return false;
}

static int add_cpu(struct env_look *look)
{
    char *const cpuinfo = env_read(look, "/proc/cpuinfo");
    const bool is_virtual = has_flag(cpuinfo, "hypervisor");
    const bool has_amx = has_flag(cpuinfo, "amx_bf16"), has_bf16 = has_flag(cpuinfo, "avx512_bf16");
    const char *const isa = pf_ops_best_isa();
    const bool is_generic = strcmp(isa, "generic") == 0;
    struct pf_cpu_info cpu;
    int err = pf_cpu_info(&cpu);

    err = err ? err
              : env_add(look, "cpu", PF_ENV_OK, NULL, "%s%s", cpu.model,
                        is_virtual ? ", in a virtual machine" : "");
    err = err ? err
              : env_add(look, "instructions", is_generic ? PF_ENV_SLOW : PF_ENV_OK,
                        is_generic ? "a processor with AVX2 or AVX-512: here plain C serves" : NULL,
                        "%s; kernels for %s", cpu.isa[0] ? cpu.isa : "not x86-64", isa);
    if (!err && cpuinfo) {
        const bool native = has_amx || has_bf16;
        err = env_add(look, "bfloat16", native ? PF_ENV_OK : PF_ENV_SLOW,
                      native ? NULL : "nothing here; float32 may be as fast where memory allows",
                      "%s",
                      has_amx    ? "AMX tiles"
                      : has_bf16 ? "AVX-512 BF16"
                                 : "no instructions for it: it is computed in float32");
    }
    pf_free(cpuinfo);
    return err;
}

/* How many CPUs a list such as "0-3,8" names. */
static int count_list(const char *list)
{
    int n = 0;

    for (const char *at = list; at && isdigit((unsigned char)*at);) {
        char *end;
        const long first = strtol(at, &end, 10);
        const long last = *end == '-' ? strtol(end + 1, &end, 10) : first;
        n += (int)(last - first + 1);
        at = *end == ',' ? end + 1 : end;
        if (at == end && *end) {
            break;
        }
    }
    return n;
}

static int add_cpus(struct env_look *look)
{
    char *const online = env_read(look, "/sys/devices/system/cpu/online");
    char *const smt = env_read(look, "/sys/devices/system/cpu/smt/active");
    char *const nodes = env_read(look, "/sys/devices/system/node/online");
    const int n_online = online ? count_list(online) : 0, n_nodes = nodes ? count_list(nodes) : 0;
    const bool masked = n_online > look->n_cpus;
    char text[160];
    int n = snprintf(text, sizeof text, "%d for this process", look->n_cpus);

    if (n_online > 0) {
        n += snprintf(text + n, sizeof text - (size_t)n, " of %d online", n_online);
    }
    if (smt && strcmp(smt, "1") == 0) {
        n += snprintf(text + n, sizeof text - (size_t)n, ", two or more to a core");
    }
    if (n_nodes > 1) {
        (void)snprintf(text + n, sizeof text - (size_t)n, ", on %d memory nodes", n_nodes);
    }
    const int err = env_add(
        look, "cpus", masked ? PF_ENV_SLOW : PF_ENV_OK,
        masked ? "mpirun --bind-to none, or a wider mask (taskset, cpuset)" : NULL, "%s", text);
    pf_free(online);
    pf_free(smt);
    pf_free(nodes);
    return err;
}

static int add_load(struct env_look *look)
{
    char *const text = env_read(look, "/proc/loadavg");
    const double load = text ? strtod(text, NULL) : 0;
    const bool busy = load > 0.5 * look->n_cpus;
    const int err = text ? env_add(look, "load", busy ? PF_ENV_SLOW : PF_ENV_OK,
                                   busy ? "wait, or end other programs: they take CPUs away" : NULL,
                                   "%.2f over the last minute", load)
                         : 0;

    pf_free(text);
    return err;
}

/* Control groups -------------------------------------------------------------------------------- */

/* A file of a control group, under its own path or at the root, where a container sees it. */
static char *read_group(const struct env_look *look, const char *controller, const char *file)
{
    char *const groups = env_read(look, "/proc/self/cgroup"), *text = NULL;
    char wanted[64];

    /* "4:memory:/path" in version 1, "0::/path" in version 2. */
    (void)snprintf(wanted, sizeof wanted, "%s:/", *controller ? controller : ":");
    const char *at = groups ? strstr(groups, wanted) : NULL;
    if (at) {
        const char *const path = at + strlen(wanted) - 1;
        char *const name = pf_asprintf("/sys/fs/cgroup/%s%.*s/%s", controller,
                                       (int)strcspn(path, "\n"), path, file);
        text = name ? env_read(look, name) : NULL;
        pf_free(name);
    }
    if (!text) {
        char *const name =
            pf_asprintf("/sys/fs/cgroup/%s%s%s", controller, *controller ? "/" : "", file);
        text = name ? env_read(look, name) : NULL;
        pf_free(name);
    }
    pf_free(groups);
    pf_error_clear();
    return text;
}

/* CPUs' worth of time that the group may use; 0: no limit. */
static double cpu_quota(const struct env_look *look)
{
    char *max = read_group(look, "", "cpu.max"), *quota = NULL, *period = NULL;
    double cpus = 0;

    if (max && isdigit((unsigned char)*max)) {
        char *end;
        const double microseconds = strtod(max, &end);
        cpus = microseconds / strtod(end, NULL);
    } else if (!max) {
        quota = read_group(look, "cpu", "cpu.cfs_quota_us");
        period = read_group(look, "cpu", "cpu.cfs_period_us");
        cpus = quota && period ? strtod(quota, NULL) / strtod(period, NULL) : 0;
    }
    pf_free(max);
    pf_free(quota);
    pf_free(period);
    return cpus > 0 && cpus < 1e6 ? cpus : 0; /* a quota of -1 is none */
}

/* Bytes; 0: no limit. */
static double memory_limit(const struct env_look *look)
{
    char *text = read_group(look, "", "memory.max");

    text = text ? text : read_group(look, "memory", "memory.limit_in_bytes");
    const double limit = text && isdigit((unsigned char)*text) ? strtod(text, NULL) : 0;
    pf_free(text);
    return limit < 0x1p60 ? limit : 0; /* version 1 says "none" by a very large number */
}

static int add_container(struct env_look *look)
{
    static const struct {
        const char *file, *name;
    } signs[] = {{"/.dockerenv", "docker"}, {"/run/.containerenv", "podman"}};
    const double quota = cpu_quota(look);
    const bool tight = quota > 0 && quota < look->n_cpus;
    const char *name = NULL;

    for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++) {
        char *const text = env_read(look, signs[i].file);
        name = text && !name ? signs[i].name : name;
        pf_free(text);
    }
    PF_TRY(env_add(look, "container", PF_ENV_OK, NULL, "%s", name ? name : "none that shows"));
    if (quota == 0) {
        return 0;
    }
    return env_add(look, "cpu quota", tight ? PF_ENV_SLOW : PF_ENV_OK,
                   tight ? "threads times ranks within the quota, or raise it (docker --cpus)"
                         : NULL,
                   "time of %.3g CPUs, for %d", quota, look->n_cpus);
}

/* Memory ---------------------------------------------------------------------------------------- */

static int add_memory(struct env_look *look)
{
    char *const info = env_read(look, "/proc/meminfo");
    const double total = 1024.0 * (double)env_number_after(info, "MemTotal:");
    double available = 1024.0 * (double)env_number_after(info, "MemAvailable:");
    const double limit = memory_limit(look);
    char a[24], b[24], c[24], limited[48] = "";
    int err = 0;

    if (limit > 0 && limit < total) {
        (void)snprintf(limited, sizeof limited, "; this group may use %s",
                       pf_format_bytes(limit, c));
        available = available < limit ? available : limit;
    }
    if (info && total > 0 && available >= 0) {
        const bool small = available < 0x1p30;
        err = env_add(look, "memory", small ? PF_ENV_SLOW : PF_ENV_OK,
                      small ? "end other programs, or raise the limit: swapping is slow" : NULL,
                      "%s, %s available%s", pf_format_bytes(total, a),
                      pf_format_bytes(available, b), limited);
    }
    pf_free(info);
    return err;
}

/* The word in brackets of "always [madvise] never". */
static int add_pages(struct env_look *look)
{
    char *const text = env_read(look, "/sys/kernel/mm/transparent_hugepage/enabled");
    const char *const tunables = getenv("GLIBC_TUNABLES");
    const bool always = text && strstr(text, "[always]"), ask = text && strstr(text, "[madvise]");
    const bool asked = tunables && strstr(tunables, "glibc.malloc.hugetlb=1");
    int err = 0;

    if (text && (always || (ask && asked))) {
        err = env_add(look, "huge pages", PF_ENV_OK, NULL, "%s",
                      always ? "for all memory" : "asked for by GLIBC_TUNABLES");
    } else if (text && ask) {
        err =
            env_add(look, "huge pages", PF_ENV_SLOW,
                    "GLIBC_TUNABLES=glibc.malloc.hugetlb=1 (glibc 2.35 or newer), or as root echo "
                    "always > /sys/kernel/mm/transparent_hugepage/enabled",
                    "only where asked for (madvise): large arrays lie in pages of 4 KiB");
    } else if (text) {
        err = env_add(look, "huge pages", PF_ENV_SLOW,
                      "as root echo always > /sys/kernel/mm/transparent_hugepage/enabled",
                      "never: large arrays lie in pages of 4 KiB");
    }
    pf_free(text);
    return err;
}

static int add_governor(struct env_look *look)
{
    char *const governor = env_read(look, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    char *const driver = env_read(look, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver");
    /* These two drivers raise the clock under load whatever the governor is called. */
    const bool self_willed =
        driver && (strcmp(driver, "intel_pstate") == 0 || strcmp(driver, "amd-pstate-epp") == 0);
    int err;

    if (!governor) {
        err = env_add(look, "clock", PF_ENV_OK, NULL, "not shown by this system");
    } else {
        const bool slow = strcmp(governor, "performance") != 0 &&
                          strcmp(governor, "schedutil") != 0 && !self_willed;
        err = env_add(look, "clock", slow ? PF_ENV_SLOW : PF_ENV_OK,
                      slow ? "as root cpupower frequency-set -g performance" : NULL,
                      "governor %s%s%s", governor, driver ? ", driver " : "", driver ? driver : "");
    }
    pf_free(governor);
    pf_free(driver);
    return err;
}

int env_add_host(struct env_look *look)
{
    PF_TRY(add_cpu(look));
    PF_TRY(add_cpus(look));
    PF_TRY(add_load(look));
    PF_TRY(add_container(look));
    PF_TRY(add_memory(look));
    PF_TRY(add_pages(look));
    return add_governor(look);
}
