/* SPDX-License-Identifier: Apache-2.0 */
/* A rival that is a program of its own: run it, keep what it prints. */
#include "bench_internal.h"

#include <pf/error.h>
#include <pf/file.h>

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static int start(const char *const *argv, int to_fd, int from_fd, pid_t *child_out)
{
    posix_spawn_file_actions_t actions;
    int err = posix_spawn_file_actions_init(&actions);

    if (err) {
        return pf_fail(PF_EIO, "cannot start '%s': %s", argv[0], strerror(err));
    }
    err = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    err = err ? err : posix_spawn_file_actions_adddup2(&actions, to_fd, STDOUT_FILENO);
    err = err ? err : posix_spawn_file_actions_addclose(&actions, from_fd);
    err = err ? err
              : posix_spawnp(child_out, argv[0], &actions, NULL, (char *const *)(uintptr_t)argv,
                             environ);
    (void)posix_spawn_file_actions_destroy(&actions);
    if (err == ENOENT) {
        return pf_fail(PF_ENOTSUP, "'%s' is not on this machine", argv[0]);
    }
    return err ? pf_fail(PF_EIO, "cannot start '%s': %s", argv[0], strerror(err)) : 0;
}

static int read_all(int fd, const char *name, struct pf_str *text)
{
    char part[4096];
    size_t n;

    do {
        PF_TRY(pf_read_some(fd, part, sizeof part, name, &n));
        PF_TRY(pf_str_append_bytes(text, part, n));
    } while (n > 0);
    return 0;
}

int bench_run(const char *const *argv, struct pf_str *text)
{
    int ends[2], status = 0;
    pid_t child = 0, ended;

    if (pipe2(ends, O_CLOEXEC) != 0) {
        return pf_fail_errno(PF_EIO, "cannot make a pipe");
    }
    int err = start(argv, ends[1], ends[0], &child);
    (void)pf_close(ends[1], NULL);
    if (!err) {
        err = read_all(ends[0], argv[0], text);
        do {
            ended = waitpid(child, &status, 0);
        } while (ended < 0 && errno == EINTR);
        if (!err && !(ended == child && WIFEXITED(status) && WEXITSTATUS(status) == 0)) {
            const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            err = pf_fail(code == 127 || code == 7 ? PF_ENOTSUP : PF_EIO,
                          "'%s' ended with exit status %d", argv[0], code);
        }
    }
    (void)pf_close(ends[0], NULL);
    return err;
}
