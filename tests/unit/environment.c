/* SPDX-License-Identifier: Apache-2.0 */
/* What the environment of a run is said to be, on machines made of files. */
#include "scratch.h"
#include "tap.h"

#include <pf/environment.h>
#include <pf/error.h>

#include <stdlib.h>
#include <string.h>

static const char *const all_variables[] = {
    "DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE", "OMP_NUM_THREADS",
    "OMP_THREAD_LIMIT", "OMP_PROC_BIND",      "GLIBC_TUNABLES",    "PF_KERNELS",
    "OMP_WAIT_POLICY",  "OMP_DYNAMIC",        "GOMP_CPU_AFFINITY", "MKL_NUM_THREADS",
    "DNNL_VERBOSE",     "ONEDNN_VERBOSE",     "MALLOC_PERTURB_",
};

static char machine[300];

/* A file of the machine. */
static void file(const char *path, const char *text)
{
    char *const whole = pf_asprintf("%s%s", machine, path), *const dir = pf_path_dir(whole);

    (void)pf_mkdirs(dir);
    put_text(whole, text);
    pf_free(whole);
    pf_free(dir);
}

/* A fresh machine with nothing in it. */
static void new_machine(void)
{
    static int n;

    snprintf(machine, sizeof machine, "%s/m%d", scratch_dir, n++);
    (void)pf_mkdirs(machine);
}

/* "slow: found -> mend" of a row, "-" if there is none; in static memory. */
static const char *row(const char *name)
{
    static char text[1024];
    struct pf_env env;

    snprintf(text, sizeof text, "-");
    if (pf_env_look(&(struct pf_env_options){.root = machine}, &env) != 0) {
        return pf_error_message();
    }
    for (int i = 0; i < env.n; i++) {
        const struct pf_env_row *const r = &env.rows[i];
        if (strcmp(r->name, name) == 0) {
            snprintf(text, sizeof text, "%s: %s%s%s", pf_env_verdict_name(r->verdict), r->found,
                     r->mend ? " -> " : "", r->mend ? r->mend : "");
        }
    }
    pf_env_release(&env);
    return text;
}

static void has(const char *name, const char *words)
{
    const char *const text = row(name);

    ok(strstr(text, words) != NULL, "%s is '%s'", name, text);
}

static void bare_machines(void)
{
    new_machine();
    has("cpu quota", "-");
    has("memory", "-");
    has("huge pages", "-");
    has("clock", "ok: not shown");
    has("container", "ok: none that shows");
    has("/dev/shm", "missing: not there");
}

static void processors(void)
{
    new_machine();
    file("/proc/cpuinfo",
         "processor\t: 0\nflags\t\t: fpu avx2 avx512_bf16 hypervisor\nbugs\t: x\n");
    has("cpu", "in a virtual machine");
    has("bfloat16", "ok: AVX-512 BF16");
    file("/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu amx_bf16 avx512_bf16\n");
    has("bfloat16", "ok: AMX tiles");
    file("/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu avx512_bf16x\nbugs\t: amx_bf16\n");
    has("bfloat16", "slow: no instructions for it");
    file("/sys/devices/system/cpu/online", "0-4095,4097\n");
    has("cpus", "of 4097 online -> mpirun --bind-to none");
    file("/sys/devices/system/cpu/online", "0\n");
    file("/sys/devices/system/cpu/smt/active", "1\n");
    file("/sys/devices/system/node/online", "0-1\n");
    has("cpus", "ok: ");
    has("cpus", "of 1 online, two or more to a core, on 2 memory nodes");
    file("/proc/loadavg", "100000.5 1 1 2/3 4\n");
    has("load", "slow: 100000.50 over the last minute");
    file("/proc/loadavg", "0.00 1 1 2/3 4\n");
    has("load", "ok: 0.00");
}

static void clocks(void)
{
    new_machine();
    file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
    has("clock", "slow: governor powersave -> as root cpupower");
    file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "intel_pstate\n");
    has("clock", "ok: governor powersave, driver intel_pstate");
    file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "acpi-cpufreq\n");
    file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n");
    has("clock", "ok: governor performance");
}

static void containers(void)
{
    new_machine();
    file("/.dockerenv", "");
    has("container", "ok: docker");
    file("/sys/fs/cgroup/cpu.max", "50000 100000\n");
    has("cpu quota", "slow: time of 0.5 CPUs");
    file("/sys/fs/cgroup/cpu.max", "max 100000\n");
    has("cpu quota", "-");
    file("/proc/self/cgroup", "0::/system.slice/job\n");
    file("/sys/fs/cgroup/system.slice/job/cpu.max", "25000 100000\n");
    has("cpu quota", "slow: time of 0.25 CPUs");
    new_machine();
    file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    file("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    has("cpu quota", "-");
    file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "10000\n");
    has("cpu quota", "slow: time of 0.1 CPUs");
}

static void memory(void)
{
    new_machine();
    file("/proc/meminfo",
         "MemTotal:       33554432 kB\nMemFree: 1 kB\nMemAvailable:   16777216 kB\n");
    has("memory", "ok: 32.0 GiB, 16.0 GiB available");
    file("/sys/fs/cgroup/memory.max", "536870912\n");
    has("memory", "slow: 32.0 GiB, 512 MiB available; this group may use 512 MiB -> end other");
    file("/sys/fs/cgroup/memory.max", "max\n");
    file("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
    has("huge pages", "slow: never");
    file("/sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n");
    has("huge pages", "ok: for all memory");
    file("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
    has("huge pages", "slow: only where asked for");
    setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1", 1);
    has("huge pages", "ok: asked for by GLIBC_TUNABLES");
    unsetenv("GLIBC_TUNABLES");
    char *const shm = pf_asprintf("%s/dev/shm", machine);
    (void)pf_mkdirs(shm);
    ok(strcmp(row("/dev/shm"), "-") != 0 && !strstr(row("/dev/shm"), "missing"), "/dev/shm is '%s'",
       row("/dev/shm"));
    pf_free(shm);
}

static void variables(void)
{
    static const struct {
        const char *name, *value, *words;
    } cases[] = {
        {"DNNL_MAX_CPU_ISA", "AVX2", "slow: 'AVX2' keeps oneDNN from newer instructions -> unset"},
        {"DNNL_MAX_CPU_ISA", "default", "ok: "},
        {"ONEDNN_MAX_CPU_ISA", "SSE41", "slow: "},
        {"OPENBLAS_CORETYPE", "Prescott", "slow: "},
        {"OMP_NUM_THREADS", "1", "ok: '1' is not followed"},
        {"OMP_THREAD_LIMIT", "0", "slow: "},
        {"OMP_THREAD_LIMIT", "1000000", "ok: "},
        {"OMP_PROC_BIND", "true", "slow: "},
        {"OMP_PROC_BIND", "FALSE", "ok: "},
        {"OMP_WAIT_POLICY", "ACTIVE", "slow: "},
        {"OMP_WAIT_POLICY", "passive", "ok: "},
        {"PF_KERNELS", "ref", "slow: "},
        {"PF_KERNELS", "table", "ok: "},
        {"PF_KERNELS", "", "-"},
    };

    new_machine();
    has("variables", "ok: none forces slow kernels");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        setenv(cases[i].name, cases[i].value, 1);
        const char *const text = row(cases[i].name);
        ok(strncmp(text, cases[i].words, strlen(cases[i].words)) == 0, "%s=%s is '%s'",
           cases[i].name, cases[i].value, text);
        unsetenv(cases[i].name);
    }
    setenv("OPENBLAS_CORETYPE", "Prescott", 1);
    has("variables", "-");
    unsetenv("OPENBLAS_CORETYPE");
    setenv("PF_KERNELS", "fast", 1);
    has("kernels", "missing: PF_KERNELS is 'fast'");
    unsetenv("PF_KERNELS");
}

static void disks(void)
{
    struct pf_env env = {.n = 0};
    struct pf_str_list names = {0};

    (void)pf_mkdirs(at("disk"));
    int err = pf_env_look(&(struct pf_env_options){.disk_dir = at("disk")}, &env);
    const char *const last = env.n > 0 ? env.rows[env.n - 1].name : "nothing";
    ok(err == 0 && strcmp(last, "disk") == 0, "a disk is measured");
    pf_env_release(&env);
    pf_env_release(&env);
    ok(pf_dir_list(at("disk"), &names) == 0 && names.n == 0, "and nothing is left there");
    err = pf_env_look(&(struct pf_env_options){.disk_dir = at("nowhere")}, &env);
    ok(err == PF_EIO, "%s", pf_error_message());
}

static void this_machine(void)
{
    struct pf_env env = {.n = 0};
    const int err = pf_env_look(NULL, &env);

    ok(err == 0 && env.n >= 8 &&
           env.n_of[PF_ENV_OK] + env.n_of[PF_ENV_SLOW] + env.n_of[PF_ENV_MISSING] == env.n,
       "this machine: %d rows", env.n);
    int bad = 0;
    for (int i = 0; i < env.n; i++) {
        bad += !env.rows[i].found || !*env.rows[i].found ||
               (env.rows[i].mend != NULL) != (env.rows[i].verdict != PF_ENV_OK);
    }
    ok(bad == 0, "whatever is not well has its mend");
    pf_env_release(&env);
}

int main(void)
{
    for (size_t i = 0; i < sizeof all_variables / sizeof all_variables[0]; i++) {
        unsetenv(all_variables[i]);
    }
    scratch_make();
    bare_machines();
    processors();
    clocks();
    containers();
    memory();
    variables();
    disks();
    this_machine();
    scratch_remove();
    return done();
}
