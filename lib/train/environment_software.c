/* SPDX-License-Identifier: Apache-2.0 */
/* The environment of a run: shared memory, MPI, kernels and libraries, devices, disks. */
#include "environment_internal.h"

#include <pf/comm.h>
#include <pf/dev.h>
#include <pf/error.h>
#include <pf/file.h>
#include <pf/mem.h>
#include <pf/ops.h>
#include <pf/str.h>
#include <pf/time.h>

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define SMALL_SHM ((double)(256 << 20))
#define DISK_BYTES ((size_t)64 << 20)
#define DISK_PART ((size_t)1 << 20)
#define SLOW_DISK 100e6 /* bytes per second */

/* Ranks of one host ----------------------------------------------------------------------------- */

static int add_shm(struct env_look *look)
{
    char *const path = pf_asprintf("%s/dev/shm", look->root);
    struct statvfs fs;
    char size[24], left[24];
    int err;

    if (!path) {
        return PF_ENOMEM;
    }
    if (statvfs(path, &fs) != 0) {
        err = env_add(look, "/dev/shm", PF_ENV_MISSING, "mount -t tmpfs tmpfs /dev/shm",
                      "not there: ranks of a host cannot share memory");
    } else {
        const double bytes = (double)fs.f_blocks * (double)fs.f_frsize;
        const double available = (double)fs.f_bavail * (double)fs.f_frsize;
        const bool small = available < SMALL_SHM;
        err =
            env_add(look, "/dev/shm", small ? PF_ENV_SLOW : PF_ENV_OK,
                    small ? "docker --shm-size=1g, or as root mount -o remount,size=1g /dev/shm; "
                            "until then OMPI_MCA_btl_vader_backing_directory=/tmp"
                          : NULL,
                    "%s, %s free", pf_format_bytes(bytes, size), pf_format_bytes(available, left));
    }
    pf_free(path);
    return err;
}

/* May a process read the memory of another one of the same user? A child tries its parent, which is
 * what ranks are to each other: no descendants. */
static bool can_attach(void)
{
    static const char sign[] = "pf";
    const pid_t parent = getpid(), child = fork();
    int status = 1;

    if (child == 0) { /* nothing but system calls here: the parent may have threads */
        char copy[sizeof sign] = "";
        const struct iovec local = {copy, sizeof copy},
                           remote = {(void *)(uintptr_t)sign, sizeof sign};
        _exit(process_vm_readv(parent, &local, 1, &remote, 1, 0) == (ssize_t)sizeof sign ? 0 : 1);
    }
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

static int add_attach(struct env_look *look)
{
    if (can_attach()) {
        return env_add(look, "memory of peers", PF_ENV_OK, NULL,
                       "can be read: large messages are copied once");
    }
    return env_add(
        look, "memory of peers", PF_ENV_SLOW,
        "docker --cap-add=SYS_PTRACE, or as root sysctl kernel.yama.ptrace_scope=0; until "
        "then OMPI_MCA_btl_vader_single_copy_mechanism=none",
        "cannot be read: large messages are copied twice");
}

/* Is there a program of this name in PATH? */
static char *find_program(const char *name)
{
    const char *const path = getenv("PATH");
    struct pf_str_list dirs = {0};
    char *found = NULL;

    if (!path || pf_str_split(path, ':', false, &dirs) != 0) {
        return NULL;
    }
    for (size_t i = 0; !found && i < dirs.n; i++) {
        char *const candidate = pf_path_join(dirs.items[i], name);
        if (candidate && access(candidate, X_OK) == 0) {
            found = candidate;
        } else {
            pf_free(candidate);
        }
    }
    pf_str_list_release(&dirs);
    return found;
}

static bool is_set(const char *name)
{
    const char *const value = getenv(name);

    return value && *value;
}

static int add_mpirun(struct env_look *look, bool is_open_mpi)
{
    char *const program = find_program("mpirun");
    const bool root_allowed =
        is_set("OMPI_ALLOW_RUN_AS_ROOT") && is_set("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM");
    int err;

    if (!program) {
        err = env_add(look, "mpirun", PF_ENV_MISSING, "apt-get install openmpi-bin, or set PATH",
                      "not in PATH: only one rank can be started");
    } else if (is_open_mpi && geteuid() == 0 && !root_allowed) {
        err = env_add(look, "mpirun", PF_ENV_MISSING,
                      "another user, or OMPI_ALLOW_RUN_AS_ROOT=1 and "
                      "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                      "%s, which refuses to run as root", program);
    } else {
        err = env_add(look, "mpirun", PF_ENV_OK, NULL, "%s", program);
    }
    pf_free(program);
    return err;
}

static int add_mpi(struct env_look *look)
{
    char text[256];

    pf_comm_version(text, sizeof text);
    const char *const mpi = strstr(text, "mpi");
    if (!mpi) {
        return env_add(look, "mpi", PF_ENV_MISSING,
                       "apt-get install libopenmpi-dev, and build pf again",
                       "not in this build: only one rank can run");
    }
    PF_TRY(env_add(look, "mpi", PF_ENV_OK, NULL, "%s", text));
    return add_mpirun(look, strstr(text, "Open MPI") != NULL);
}

/* Kernels and devices --------------------------------------------------------------------------- */

static int add_library(struct env_look *look, const struct pf_ops *ops)
{
    const char *const library = pf_ops_library(ops), *const isa = pf_ops_library_isa(ops);

    if (!*library) {
        return is_set("PF_KERNELS") ? 0 /* said with the variable */
                                    : env_add(look, "oneDNN", PF_ENV_MISSING,
                                              "apt-get install libdnnl-dev, and build pf again",
                                              "not in this build: pf's own matrix products serve");
    }
    return env_add(look, "oneDNN", PF_ENV_OK, NULL, "%s, instructions %s", library, isa);
}

static int add_kernels(struct env_look *look)
{
    struct pf_ops *ops;
    char text[256];

    if (pf_ops_open(NULL, &ops) != 0) {
        const int err = env_add(look, "kernels", PF_ENV_MISSING, NULL, "%s", pf_error_message());
        pf_error_clear();
        return err;
    }
    int err = add_library(look, ops);
    pf_ops_free(ops);
    pf_ops_version(text, sizeof text);
    return err ? err : env_add(look, "kernels", PF_ENV_OK, NULL, "%s", text);
}

static int add_devices(struct env_look *look)
{
    struct pf_str built;
    const char *name;
    bool is_built;
    int err;

    pf_str_init(&built);
    for (int i = 0; (name = pf_dev_known(i, &is_built)); i++) {
        if (is_built) {
            pf_str_appendf(&built, "%s%s", built.len ? ", " : "", name);
        }
    }
    char *const gpu = pf_asprintf("%s/dev/nvidia0", look->root);
    const bool unused = gpu && pf_path_exists(gpu) && !strstr(built.text, "cuda");
    err = gpu ? pf_str_error(&built) : PF_ENOMEM;
    err = err ? err
              : env_add(look, "devices", unused ? PF_ENV_MISSING : PF_ENV_OK,
                        unused ? "a build of pf with CUDA" : NULL, "%s%s", built.text,
                        unused ? "; the GPU of this machine cannot be used" : "");
    pf_free(gpu);
    pf_str_release(&built);
    return err;
}

int env_add_software(struct env_look *look)
{
    PF_TRY(add_shm(look));
    PF_TRY(add_mpi(look));
    PF_TRY(add_attach(look));
    PF_TRY(add_kernels(look));
    return add_devices(look);
}

/* Disks ----------------------------------------------------------------------------------------- */

/* Write and sync; the file is gone afterwards. */
static int write_file(const char *path, double *seconds_out)
{
    unsigned char *const part = pf_alloc(DISK_PART);
    int fd = -1, err = part ? pf_open(path, O_WRONLY | O_CREAT | O_EXCL, &fd) : PF_ENOMEM;
    const double start = pf_time_monotonic();

    for (size_t i = 0; part && i < DISK_PART; i++) { /* nothing that a filesystem could leave out */
        part[i] = (unsigned char)(i * 2654435761u >> 13);
    }
    for (size_t at = 0; !err && at < DISK_BYTES; at += DISK_PART) {
        err = pf_write_full(fd, part, DISK_PART, path);
    }
    if (!err && fsync(fd) != 0) {
        err = pf_fail_errno(PF_EIO, "cannot sync '%s'", path);
    }
    *seconds_out = pf_time_monotonic() - start;
    if (fd >= 0) {
        (void)pf_close(fd, NULL);
        (void)unlink(path);
    }
    pf_free(part);
    return err;
}

int env_add_disk(struct env_look *look, const char *dir)
{
    char *const path = pf_asprintf("%s/.pf-inspect-%ld", dir, (long)getpid());
    struct statvfs fs;
    double seconds = 0;
    char left[24], rate[24];
    int err = path ? write_file(path, &seconds) : PF_ENOMEM;

    if (!err && statvfs(dir, &fs) != 0) {
        err = pf_fail_errno(PF_EIO, "cannot look at '%s'", dir);
    }
    if (!err) {
        const double speed = (double)DISK_BYTES / seconds;
        const bool slow = speed < SLOW_DISK;
        err = env_add(look, "disk", slow ? PF_ENV_SLOW : PF_ENV_OK,
                      slow ? "another output_dir, or fewer saves" : NULL,
                      "%s a second to '%s', written and synced; %s free",
                      pf_format_bytes(speed, rate), dir,
                      pf_format_bytes((double)fs.f_bavail * (double)fs.f_frsize, left));
    }
    pf_free(path);
    return err;
}
